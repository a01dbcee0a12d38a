"""Answers that need no search over several kinds of evidence: of one model, of pixels, of chance.

Those that do are in fusion.py.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from puzlm.errors import PuzzleError
from puzlm.models.decoding import assigned
from puzlm.pieces.poses import QUARTERS, Poses
from puzlm.puzzle import Puzzle
from puzlm.solution import Given, Solution, Used, at_random
from puzlm.solving.evidence import TOUCHING, Evidence, Read
from puzlm.solving.search.deadline import ended_early

LARGE = 1000  # pieces or cells: from here on groups of pieces that grow are quicker and as good
LEAST = 3  # pixels of a piece's side
DENSE = 5000  # up to here learned sides can be compared all with all, where borders are worn

TOUCHING_TURNED = 0.6  # mean confidence of pixels above which turned pieces touch and pixels know
MOST_TURNED = 150  # pieces; four or eight times as many are compared


def by_reading(puzzle: Puzzle, evidence: Evidence, decoding: str) -> Solution:
    """What the language model wrote down."""
    found: Read = evidence.seq2seq
    return Solution(
        found.cells,
        found.confidence,
        puzzle.grid,
        Used("seq2seq", decoding=decoding, model=found.model),
        evidence.seconds,
        puzzle.pieces,
        tuple(found.boards[1:6]),
        found.order,
    )


def by_looking(
    puzzle: Puzzle, given: dict[int, int], evidence: Evidence, temperature: float
) -> Solution:
    """The assignment of pieces to cells that the ViT finds most likely."""
    start = time.perf_counter()
    assert evidence.seen is not None and evidence.seen[0] is not None  # it knows the grid
    share = np.exp(evidence.seen[0] / temperature)
    share /= share.sum(1, keepdims=True)
    cells = assigned(share, given)
    sure = share[np.arange(len(cells)), cells]
    order = tuple(np.argsort(-sure, kind="stable").tolist())
    seconds = evidence.seconds + time.perf_counter() - start
    return Solution(cells, sure, puzzle.grid, Used("vision"), seconds, puzzle.pieces, (), order)


def by_pixels(puzzle: Puzzle, given: Given, poses: Poses, edges: Any = None) -> Solution:
    """Match pixels along the borders of pieces in any of some poses.

    Turned pieces whose borders are worn leave pixels in doubt: then learned `edges` are asked, too.
    """
    from puzlm.solving import classic

    posed = len(poses) > 1
    if is_large(puzzle) and (joined := by_joining(puzzle, given, poses)):
        return joined
    start = time.perf_counter()
    found = classic.solve(puzzle.pieces, puzzle.grid, given=given, poses=poses)
    used = Used("classic")
    few = posed and 1 < len(found.confidence) <= MOST_TURNED
    if few and edges is not None and float(found.confidence.mean()) < TOUCHING_TURNED:
        found = classic.solve(
            puzzle.pieces, puzzle.grid, given=given, poses=poses, beside=edges.scores
        )
        used = Used("classic", ("pixels", "edges"))
    sure = np.clip(found.confidence, 0, 1)
    order = tuple(np.argsort(-sure, kind="stable").tolist())
    lies = tuple(found.poses.tolist()) if posed else ()
    spent = time.perf_counter() - start
    at = found.positions
    return Solution(at, sure, puzzle.grid, used, spent, puzzle.pieces, (), order, lies)


def sure_turned(found: Solution) -> bool:
    """Whether borders of turned pieces touch: then pixels know."""
    return len(found.confidences) < 2 or float(found.confidences.mean()) >= TOUCHING_TURNED


def is_large(puzzle: Puzzle) -> bool:
    """Whether a puzzle is one for groups of pieces that grow."""
    return max(len(puzzle.pieces), puzzle.cells) > LARGE


def by_joining(
    puzzle: Puzzle, given: Given, poses: Poses, name: str = "classic"
) -> Solution | None:
    """Match pixels along the borders of a large puzzle: groups of pieces that grow (large.py).

    None for `auto` where borders are worn, and learned sides can be asked.
    """
    from puzlm.solving import classic
    from puzlm.solving.search.large import Search

    start = time.perf_counter()
    height, width = puzzle.pieces.shape[1:3]
    if min(height, width) < LEAST:
        raise PuzzleError(
            f"pieces are {height}x{width} pixels; {len(puzzle.pieces):,} of them can be told apart "
            f"from {LEAST}x{LEAST} on"
        )
    turned = len(poses) > 1
    if turned and poses != QUARTERS:
        what = "mirrored" if any(pose >= 4 for pose in poses) else "turned and not square"
        raise PuzzleError(f"{len(puzzle.pieces):,} pieces: at most {LARGE:,} may be {what}")
    sphere = classic.SPHERE * classic.bleeding(puzzle.pieces)
    search = Search(puzzle.pieces, puzzle.grid, turned=turned, sphere=sphere)
    dense = max(len(puzzle.pieces), puzzle.cells) <= DENSE
    if name == "auto" and dense and search.touching < TOUCHING:
        return None
    found = search.solve(given)
    order = tuple(np.argsort(-found.sure, kind="stable").tolist())
    lies = tuple(found.turns.tolist()) if turned else ()
    spent = time.perf_counter() - start
    return Solution(
        found.positions,
        found.sure,
        puzzle.grid,
        Used(name, ("joined",), early=ended_early()),
        spent,
        puzzle.pieces,
        (),
        order,
        lies,
    )


def by_chance(puzzle: Puzzle, given: Given) -> Solution:
    """Pieces anywhere: the floor of every comparison."""
    start, n = time.perf_counter(), len(puzzle.pieces)
    positions, sure = at_random(puzzle, given), np.full(n, 1 / puzzle.cells)
    spent = time.perf_counter() - start
    order = tuple(range(n))
    return Solution(positions, sure, puzzle.grid, Used("random"), spent, puzzle.pieces, (), order)
