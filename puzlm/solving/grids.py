"""The grid of a pile of pieces that nobody named: every way to lay the pieces is tried.

One comparison of the borders serves all grids. A pair that touches counts by how much better it
fits than the typical second best, so an arrangement of more true neighbours counts for more, and
the sums of different grids can be compared. Strips and grids that do not come out even start with
a handicap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from puzlm.images import Pixels
from puzlm.puzzle import Grid
from puzlm.solution import Floats
from puzlm.solving.search.board import runner_up

# In the unit of the scores, nats: chosen on validation pictures, docs/runs/grids-val.txt.
PIXELS = 0.25  # of what pixels say beside the learned sides
SLENDER = 2.0  # for each square of the log of the picture's width by its height
UNEVEN = 6.0  # for each hole, and for each piece too many
SPARE = 6  # a pile may lack a piece, or have one too many, and another for each so many pieces
WIDTH = 24  # boards of a beam that tries one grid
CLOSER = 3  # grids looked at more closely, where boards are too large for a beam ...
ROUNDS = 12  # ... with so many rounds of repair


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


def tried(pieces: Pixels, edges: Any = None) -> list[tuple[Grid, float]]:
    """Grids of a pile (n, height, width, 3) and how well the pieces fill each, best first."""
    right, below = _scores(pieces, edges)
    n, height, width = pieces.shape[:3]

    def valued(grid: Grid, thorough: bool) -> tuple[Grid, float]:
        slender = np.log(grid[1] * width / (grid[0] * height)) ** 2
        handicap = SLENDER * slender + UNEVEN * abs(grid[0] * grid[1] - n)
        return grid, _value(right, below, grid, thorough) - float(handicap)

    first = sorted((valued(grid, False) for grid in candidates(n)), key=lambda one: -one[1])
    best = [valued(grid, True) for grid, _ in first[:CLOSER]]
    return sorted(best, key=lambda one: -one[1]) + first[CLOSER:]


def _scores(pieces: Pixels, edges: Any) -> tuple[Floats, Floats]:
    """How much better than the typical second best each pair fits: two (n, n)."""
    from puzlm.solving import classic

    parts = [(1.0 if edges is None else PIXELS, classic.evidence(pieces))]
    if edges is not None:
        parts.append((1.0, edges.scores(pieces)))
    right, below = np.zeros((2, len(pieces), len(pieces)))
    for weight, pair in parts:
        across, down = (np.array(scores, np.float64) for scores in pair)
        for scores in (across, down):
            np.fill_diagonal(scores, -np.inf)
        least = runner_up(across, down) if len(pieces) > 2 else 0.0
        right += weight * (across - least)
        below += weight * (down - least)
    return right, below


def _value(right: Floats, below: Floats, grid: Grid, thorough: bool) -> float:
    """The objective of a good arrangement on a grid, found in milliseconds or more thoroughly."""
    from puzlm.solving.search import assembly

    if grid[0] * grid[1] <= assembly.SMALL_GRID:
        return float(assembly.beam_search(right, below, grid, width=WIDTH, hole=0.0)[1][0])
    if thorough:
        found = assembly.assemble(right, below, grid, rounds=ROUNDS, hole=0.0)
    else:
        found = assembly.joined(right, below, grid)
    return assembly.objective(found, right, below, grid)
