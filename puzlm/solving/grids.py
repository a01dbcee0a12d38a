"""The grid of a pile of pieces that nobody named: every way to lay the pieces is tried.

One comparison of the borders serves all grids. A pair that touches counts by how much better it
fits than the typical second best, so an arrangement of more true neighbours counts for more, and
the sums of different grids can be compared. Strips and grids that do not come out even start with
a handicap.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np

from puzlm.images import Pixels
from puzlm.pieces.poses import STRAIGHT, Poses, in_poses
from puzlm.puzzle import Grid
from puzlm.solution import Floats
from puzlm.solving.search.board import runner_up
from puzlm.solving.search.deadline import over

# In the unit of the scores, nats: chosen on validation pictures, docs/runs/grids-val.txt.
PIXELS = 0.25  # of what pixels say beside the learned sides
SLENDER = 2.0  # for each square of the log of the picture's width by its height
UNEVEN = 6.0  # for each hole, and for each piece too many
SPARE = 6  # a pile may lack a piece, or have one too many, and another for each so many pieces
WIDTH = 24  # boards of a beam that tries one grid
CLOSER = 3  # grids looked at more closely, where boards are too large for a beam ...
ROUNDS = 12  # ... with so many rounds of repair
UNNAMED = (
    "a given cell says nothing where the grid is not known; name the grid, for example --grid 3x4"
)


def candidates(count: int) -> list[Grid]:
    """Grids that so many pieces may fill: all that come out even, others if nearly square.

    >>> candidates(6)
    [(1, 6), (2, 3), (3, 2), (6, 1)]
    """
    spare = 1 + count // SPARE if count > 2 else 0
    found = []
    for rows in range(1, count + 1):
        for columns in {(count + k) // rows for k in range(-spare, spare + 1)}:
            uneven = abs(rows * columns - count)
            if not uneven or uneven <= spare and max(rows, columns) <= 2 * min(rows, columns):
                found.append((rows, columns))
    return sorted(found)


def tried(pieces: Pixels, edges: Any = None, poses: Poses = STRAIGHT) -> list[tuple[Grid, float]]:
    """Grids of a pile (n, height, width, 3) and how well the pieces fill each, best first.

    Where the pieces may be turned by quarters a grid is the one on its side: the wider is tried.
    Where time runs short, those nearest to a square were tried.
    """
    right, below = pair_scores(pieces, edges, poses)
    n, height, width = pieces.shape[:3]

    def handicap(grid: Grid) -> float:
        slender = np.log(grid[1] * width / (grid[0] * height)) ** 2
        return float(SLENDER * slender + UNEVEN * abs(grid[0] * grid[1] - n))

    def valued(grid: Grid, thorough: bool) -> tuple[Grid, float]:
        return grid, _value(right, below, grid, poses, thorough) - handicap(grid)

    wide = any(pose % 2 for pose in poses)
    among = [grid for grid in candidates(n) if not wide or grid[0] <= grid[1]]
    among.sort(key=handicap)
    first = [valued(among[0], False)]
    first += [valued(grid, False) for grid in takewhile(lambda _: not over(), among[1:])]
    first.sort(key=lambda one: -one[1])
    best = first[:CLOSER] if over() else [valued(grid, True) for grid, _ in first[:CLOSER]]
    return sorted(best, key=lambda one: -one[1]) + first[CLOSER:]


def pair_scores(pieces: Pixels, edges: Any, poses: Poses) -> tuple[Floats, Floats]:
    """How much better than the typical second best each pair fits: two (kn, kn) in k poses."""
    from puzlm.solving import classic

    pieces = in_poses(pieces, poses)
    n = len(pieces) // len(poses)
    itself = np.arange(len(pieces)) % n
    itself = itself[:, None] == itself
    parts = [(1.0 if edges is None else PIXELS, classic.evidence(pieces))]
    if edges is not None:
        parts.append((1.0, edges.scores(pieces)))
    right, below = np.zeros((2, len(pieces), len(pieces)))
    for weight, pair in parts:
        across, down = (np.where(itself, -np.inf, scores) for scores in pair)
        least = runner_up(across, down) if n > 2 else 0.0
        right += weight * (across - least)
        below += weight * (down - least)
    return right, below


def _value(right: Floats, below: Floats, grid: Grid, poses: Poses, thorough: bool) -> float:
    """The objective of a good arrangement on a grid, found in milliseconds or more thoroughly."""
    from puzlm.solving.search import assembly

    if poses == STRAIGHT and grid[0] * grid[1] <= assembly.SMALL_GRID:
        return float(assembly.beam_search(right, below, grid, width=WIDTH, hole=0.0)[1][0])
    if thorough:
        found, lies = assembly.assemble_posed(right, below, grid, poses, rounds=ROUNDS, hole=0.0)
    else:
        found, lies = assembly.joined(right, below, grid, poses)
    chosen = np.searchsorted(poses, lies) * len(found) + np.arange(len(found))
    right, below = right[np.ix_(chosen, chosen)], below[np.ix_(chosen, chosen)]
    return assembly.objective(found, right, below, grid)
