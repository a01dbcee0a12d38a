"""Which way up: turn a picture put together from turned pieces so that it reads upright.

Borders fit in every turn of the whole picture, so pixels cannot tell which way up it is. The reader
knows upright pictures, but of pieces that touch it also knows that they fit. So it reads the middle
of every ninth, too far apart to fit: then it must go by what lies where in pictures.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from puzlm.images import Pixels
from puzlm.pieces.poses import AFTER, Poses, allowed, laid
from puzlm.puzzle import Puzzle, cut
from puzlm.solution import Floats, Given, Solution
from puzlm.solving.plain_answers import MOST_TURNED, TOUCHING_TURNED

NINTHS = (3, 3)  # the grid in which any picture is shown: the ViT has an output for few others
LEAST = 12  # pixels of a picture's side, of which the ViT sees half; smaller ones show nothing
# Fitted to 200 validation pictures by docs/upright_val.py: docs/runs/upright-val.txt.
TEMPERATURE = 8.7
FEWEST = 4  # pieces that can be found to be turned
# Expected wrong pieces from which that is asked. Turned pieces are unlike those of the fit of the
# confidences: of 36 turned validation puzzles answers as they lie expected 0 to 0.7 a piece wrong.
UNLIKELY = 0.3


def eyes(solver: Any) -> Any:
    """The ViT of a solver that may say which way up; None without one, or nothing to run it."""
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

    A given piece has fixed the pose of the whole. Without a ViT the answer stays as it lies: one of
    those that fit the grid, all as likely. Nobody knows whether a picture is mirrored: the fewer
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
    """How upright a picture looks to the ViT after so many quarter turns: (turns,).

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
