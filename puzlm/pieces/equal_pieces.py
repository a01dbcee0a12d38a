"""Pieces with the same pixels are of one kind: nobody can tell which of them lies where.

So a search need not try their exchanges, what is known of one counts for all, and an answer that
exchanges them is as right as any. `kinds[i]` is the first piece that equals piece i.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def kinds_of(pieces: NDArray[np.uint8]) -> Ints:
    """The first equal piece of each: (n,).

    >>> kinds_of(np.array([[7, 7], [7, 5], [7, 7]], np.uint8)).tolist()
    [0, 1, 0]
    """
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(p.tobytes(), i) for i, p in enumerate(pieces)], np.int64)


def all_differ(kinds: Ints) -> bool:
    """Whether no piece equals another, as in most puzzles."""
    return bool((kinds == np.arange(len(kinds))).all())


def same_cells(scores: Floats, kinds: Ints) -> Floats:
    """Scores (n, cells) where equal pieces have the mean of what was said of them."""
    if all_differ(kinds):
        return scores
    sums = np.zeros_like(scores)
    np.add.at(sums, kinds, scores)
    means: Floats = sums[kinds] / np.bincount(kinds)[kinds, None]
    return means


def same_pairs(scores: Floats, kinds: Ints) -> Floats:
    """Scores of pairs (n, n) where equal pieces have the mean of theirs; the diagonal stays."""
    if all_differ(kinds):
        return scores
    own = np.eye(len(kinds), dtype=bool)
    sums, counts = np.zeros_like(scores), np.zeros(scores.shape)
    where = kinds[:, None], kinds[None]
    np.add.at(sums, where, np.where(own, 0.0, scores))
    np.add.at(counts, where, ~own)
    means: Floats = np.where(own, scores, sums[where] / np.maximum(counts, 1)[where])
    return means


def same_kind(boards: Ints, best: Ints, kinds: Ints) -> Bools:
    """Whether boards (k, n) have an equal piece in the cell where `best` (n,) has each: (k, n)."""
    if all_differ(kinds):
        same: Bools = boards == best
        return same
    there = np.full((len(boards), int(boards.max()) + 2), -1)  # the last: not placed
    there[np.arange(len(boards))[:, None], boards] = kinds
    there[:, -1] = -1
    same = np.where(best < 0, boards == best, there[:, best] == kinds)
    return same


def exchanged(truth: Ints, positions: Ints, kinds: Ints) -> Ints:
    """The truth with equal pieces exchanged, such that most of them lie right.

    >>> exchanged(np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([0, 0, 2])).tolist()
    [1, 0, 2]
    """
    result = truth.copy()
    for kind in np.flatnonzero(np.bincount(kinds) > 1):
        pieces = np.flatnonzero(kinds == kind).tolist()
        cells = truth[pieces].tolist()
        wrong = []
        for piece in pieces:
            if (cell := int(positions[piece])) in cells:
                cells.remove(cell)
                result[piece] = cell
            else:
                wrong.append(piece)
        result[wrong] = cells
    return result
