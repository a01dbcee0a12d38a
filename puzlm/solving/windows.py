"""What is read of neighbours on a board with more pieces than it can compare at once.

The reader knows boards of up to 100 pieces. So it reads parts of an arrangement that was made
without it: square windows that overlap. Each window comes with the pieces from elsewhere that would
fit best beside those in it: where the arrangement is wrong, the reader is needed. The windows were
chosen with the model before it (docs/runs/windows-val.txt).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from puzlm.puzzle import Grid, Positions, Puzzle
from puzlm.solution import Floats
from puzlm.solving.evidence import Seen
from puzlm.solving.search.deadline import over

WINDOW = 8  # rows and columns: the a board of the reader's with room for guests
STEP = 5  # rows and columns from one window to the next, at most
GUESTS = 16  # pieces from elsewhere in a window
OTHERS = 20.0  # among so many the likelihood is shared that a neighbour is not in the window
RARE = -9.0  # logarithm; less says no more
ROUNDS = 2  # of looking, each at the arrangement that the one before led to


def neighbours(
    look: Callable[[list[Puzzle]], list[Seen]],
    puzzle: Puzzle,
    positions: Positions,
    right: Floats,
    below: Floats,
) -> tuple[Floats, Floats] | None:
    """Log-likelihoods (n, n) of what lies right of, and below, what, by a ViT that looks at windows
    of a whole arrangement; `right` and `below` are the scores it was made by. None: out of time."""
    n = len(puzzle.pieces)
    total, none, times = np.zeros((2, n, n)), np.zeros((2, n)), np.zeros((n, n))
    for group in groups(positions, right, below, puzzle.grid):
        if over():
            return None
        shape = WINDOW, -(-len(group) // WINDOW)
        _, *seen = look([Puzzle(puzzle.pieces[group], shape)])[0]
        times[np.ix_(group, group)] += 1
        for k, against_none in enumerate(seen):
            nothing = -np.logaddexp(0, np.logaddexp.reduce(against_none, 1))
            total[k][np.ix_(group, group)] += np.maximum(against_none + nothing[:, None], RARE)
            none[k, group] += np.maximum(nothing, RARE)
    # A pair that was never in one window: the neighbour is one of those that were not there.
    often = np.maximum(np.diag(times), 1)
    unseen = none / often - np.log(OTHERS)
    told = np.where(times > 0, total / np.maximum(times, 1), unseen[:, :, None])
    told = np.maximum(told, RARE)
    return told[0], told[1]


def groups(
    positions: Positions, right: Floats, below: Floats, grid: Grid
) -> Iterator[NDArray[np.int64]]:
    """Pieces of each window, and its guests: those most often first or second choice beside one."""
    board = np.argsort(positions).reshape(grid)
    # First and second choice of each piece, right, left, below and above: (4, n, 2).
    wanted = np.stack(
        [np.argsort(-s, 1, kind="stable")[:, :2] for m in (right, below) for s in (m, m.T)]
    )
    for top in starts(grid[0]):
        for left in starts(grid[1]):
            inside = board[top : top + WINDOW, left : left + WINDOW].ravel()
            votes = np.zeros(len(positions))
            for choice, weight in ((0, 1.0), (1, 0.5)):
                np.add.at(votes, wanted[:, inside, choice].ravel(), weight)
            votes[inside] = 0
            guests = np.argsort(-votes, kind="stable")[:GUESTS]
            yield np.concatenate([inside, guests[votes[guests] > 0]])


def starts(size: int) -> list[int]:
    """First rows (or columns) of windows that cover so many, evenly spaced.

    >>> starts(8), starts(12), starts(24)
    ([0], [0, 4], [0, 4, 8, 12, 16])
    """
    last = max(0, size - WINDOW)
    steps = -(-last // STEP)
    return [round(k * last / max(1, steps)) for k in range(steps + 1)]
