"""Which way pieces lie, and pictures.

Pieces that may be turned, and whose borders are worn, are read in all their turns: cells, turns and
neighbours, sides and pixels make one objective. Where borders touch, pixels join the pieces. They
fit in every turn of the whole picture, so pixels cannot tell which way up it is. The reader knows
upright pictures, but of pieces that touch it also knows that they fit. So it reads the middle of
every ninth, too far apart to fit: then it must go by what lies where in pictures.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from puzlm.images import Pixels
from puzlm.pieces.poses import AFTER, QUARTERS, Poses, allowed, in_poses, laid
from puzlm.puzzle import Grid, Puzzle, cut
from puzlm.solution import Floats, Given, Solution, Used
from puzlm.solving.evidence import pair_confidence
from puzlm.solving.plain_answers import MOST_TURNED, TOUCHING_TURNED
from puzlm.solving.search.assembly import assemble_posed
from puzlm.solving.search.board import runner_up

PLACED = 1.0  # weight of what is read of cells, beside neighbours
BESIDE = {"edges": 0.5, "pixels": 0.25}
ALIKE = 3.0  # sums over all pieces are divided by so much: pieces are not independent
NINTHS = (3, 3)  # the grid in which any picture is read
LEAST = 12  # pixels of a picture's side, of which half is read; smaller ones show nothing
# Fitted to 120 validation pictures, of which 80 % are set upright (4 turns): docs/log.md.
TEMPERATURE = 8.1
FEWEST = 4  # pieces that can be found to be turned
# Expected wrong pieces from which that is asked. Turned pieces are unlike those of the fit of the
# confidences: of 36 turned validation puzzles answers as they lie expected 0 to 0.7 a piece wrong.
UNLIKELY = 0.3


def eyes(solver: Any) -> Any:
    """The reader of a solver that may say which way up; None without one, or nothing to run it."""
    if solver.solver != "auto":
        return None
    try:
        seen = solver.whole
    except ImportError:  # classic joins pieces without torch and onnxruntime
        return None
    return seen if seen is not None and seen.settings.places(NINTHS) else None


def reposed(
    solver: Any, puzzles: list[Puzzle], given: Sequence[Given], found: list[Solution]
) -> list[Solution]:
    """Solve puzzles in doubt again, if their pieces touch once they are turned or flipped."""
    result = list(found)
    for i, (puzzle, first) in enumerate(zip(puzzles, found, strict=True)):
        straight = not first.poses and not given[i] and not first.used.clear
        few = FEWEST <= len(puzzle.pieces) <= MOST_TURNED
        if not straight or not few or first.expected_wrong < UNLIKELY:
            continue
        if (lies := _lying(solver, puzzle)) is not None:
            again = solver.solve(replace(puzzle, settings=puzzle.settings | lies))
            note = f"found to be turned; {again.used.note}"
            result[i] = replace(again, used=replace(again.used, note=note))
    return result


def _lying(solver: Any, puzzle: Puzzle) -> dict[str, bool] | None:
    """Settings that say how pieces lie, if their pixels are sure of it; None if they are not."""
    from puzlm.solving import classic, grids

    height, width = puzzle.pieces.shape[1:3]
    best, sure = None, TOUCHING_TURNED
    for mirrored in (False, True):
        poses = allowed(True, mirrored, height == width)
        grid = puzzle.grid
        if puzzle.settings.get("open"):
            grid = grids.tried(puzzle.pieces, solver.edges, poses)[0][0]
        found = classic.solve(puzzle.pieces, grid, poses=poses, rounds=0)
        value = float(found.confidence.mean())
        if value > sure and len(set(found.poses.tolist())) > 1:
            best, sure = {"rotations": True, "mirrored": mirrored}, value
    return best


def learned_edges(solver: Any) -> Any:
    """The encoder of sides that may help to join turned pieces; None without one."""
    if solver.solver != "auto":
        return None
    try:
        return solver.edges
    except ImportError:
        return None


def settled(found: Solution, given: Collection[int], vision: Any, poses: Poses) -> Solution:
    """Turn an answer of pieces in some poses upright; its confidences count whether that is right.

    A given piece has fixed the pose of the whole. Without a reader the answer stays as it lies: one
    of those that fit the grid, all as likely. Nobody knows whether a picture is mirrored: the fewer
    pieces are flipped, the better.
    """
    if not found.poses or len(given) or "reader" in found.used.evidence:
        return found
    start = time.perf_counter()
    rows, columns = found.grid
    turns = [pose for pose in poses if pose < 4 and (pose % 2 == 0 or rows == columns)]
    picture = found.array
    if vision is None or min(picture.shape[:2]) < LEAST:
        share, how = np.full(len(turns), 1 / len(turns)), "which way up is not known"
    else:
        share, how = chances(vision, picture, turns), f"set upright by {vision.name}"
    whole, sure = turns[int(share.argmax())], float(share.max())
    if poses[-1] >= 4:
        how += ", perhaps mirrored as a whole"
        sure /= 2
        if 2 * sum(pose >= 4 for pose in found.poses) > len(found.poses):
            whole = int(AFTER[4, whole])
    cells = laid(np.arange(rows * columns).reshape(rows, columns), whole).ravel()
    place = np.append(np.argsort(cells), -1)  # the cell that each cell goes to; -1 stays
    return replace(
        found,
        positions=place[found.positions],
        confidences=found.confidences * sure,
        poses=tuple(AFTER[whole, list(found.poses)].tolist()),
        upright=sure,
        used=replace(found.used, note=how),
        seconds=found.seconds + time.perf_counter() - start,
    )


def chances(vision: Any, picture: Pixels, turns: Sequence[int]) -> Floats:
    """Probability of each number of quarter turns counter-clockwise to set a picture upright."""
    told = scores(vision, picture, turns) / TEMPERATURE
    share: Floats = np.exp(told - np.logaddexp.reduce(told))
    return share


def scores(vision: Any, picture: Pixels, turns: Sequence[int]) -> Floats:
    """How upright a picture reads after so many quarter turns: (turns,).

    By how much log p(each ninth where it lies) is above the mean over the four turns of that
    arrangement, with the pieces as they are: a plain picture is hard in any turn. Two looks, one of
    the mirror image, which is as upright, make a better score than one.
    """
    looks = []
    for turn in turns:
        whole = np.rot90(picture, turn)
        for look in (whole, whole[:, ::-1]):
            pieces = cut(np.ascontiguousarray(look), (3, 3))
            down, across = (size // 4 for size in pieces.shape[1:3])
            looks.append(pieces[:, down : -down or None, across : -across or None])
    said = vision.read(looks, NINTHS)[0]
    ninths = np.arange(9).reshape(3, 3)
    fits = np.stack([said[:, ninths.ravel(), np.rot90(ninths, k).ravel()] for k in range(4)])
    fits = fits.sum(-1)
    told: Floats = (fits[0] - fits.mean(0)).reshape(len(turns), 2).sum(1)
    return told


def by_reading_turned(puzzle: Puzzle, given: dict[int, int], reader: Any, edges: Any) -> Solution:
    """Read worn pieces in all turns: the arrangement and the turns that all evidence finds best.

    Candidate t * n + i is piece i after t counter-clockwise quarter turns.
    """
    from puzlm.solving import classic

    start, n = time.perf_counter(), len(puzzle.pieces)
    placed, right, below = reader.read_turned(puzzle.pieces, puzzle.grid)
    turned = in_poses(puzzle.pieces, QUARTERS)
    sides: dict[str, Any] = {"pixels": classic.evidence(turned)}
    if edges is not None:
        sides["edges"] = edges.scores(turned)
    own = np.arange(4 * n)
    for name, pair in sides.items():
        found = []
        for scores in pair:
            kept = np.array(scores, np.float64)
            for turn in range(4):  # no piece lies beside itself, however turned
                kept[own, (own + turn * n) % (4 * n)] = -np.inf
            found.append(kept)
        least = runner_up(*found) if n > 2 else 0.0
        right = right + BESIDE[name] * (found[0] - least)
        below = below + BESIDE[name] * (found[1] - least)
    positions, turns = assemble_posed(
        right, below, puzzle.grid, QUARTERS, given, hole=0.0, cells=PLACED * placed
    )
    candidate = turns * n + np.arange(n)
    picked = np.ix_(candidate, candidate)
    fits = pair_confidence(positions, right[picked], below[picked], puzzle.grid)
    share = _upright(placed, turns, positions, puzzle.grid)
    sure = fits * share
    order = tuple(np.argsort(-sure, kind="stable").tolist())
    used = Used("auto", ("reader", "turns", *reversed(sides)))
    seconds, lies = time.perf_counter() - start, tuple(turns.tolist())
    return Solution(
        positions, sure, puzzle.grid, used, seconds, puzzle.pieces, (), order, lies, upright=share
    )


def _upright(placed: Floats, turns: Any, positions: Any, grid: Grid) -> float:
    """How likely an arrangement stands upright, by what is read of its cells in all its turns."""
    n, there = len(turns), np.flatnonzero(positions >= 0)
    board = np.arange(grid[0] * grid[1]).reshape(grid)
    told = []
    for turn in range(0, 4, 1 if grid[0] == grid[1] else 2):
        place = np.rot90(board, turn).ravel().argsort()  # where each cell goes
        candidate = (turns[there] + turn) % 4 * n + there
        told.append(placed[candidate, place[positions[there]]].sum() / ALIKE)
    return float(np.exp(told[0] - np.logaddexp.reduce(told)))
