"""Pieces that may be turned by quarters, up to as many as the reader knows: read in all turns.

    words of all turns -> reader: cells, turns, neighbours  +  sides  +  pixels -> one search

Candidate t * n + i is piece i after t counter-clockwise quarter turns.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from puzlm.pieces.poses import QUARTERS, in_poses
from puzlm.puzzle import Grid, Puzzle
from puzlm.solution import Floats, Solution, Used
from puzlm.solving.evidence import pair_confidence
from puzlm.solving.search.assembly import assemble_posed
from puzlm.solving.search.board import runner_up

PLACED = 1.0  # weight of what is read of cells, beside neighbours
BESIDE = {"edges": 0.5, "pixels": 0.25}
TEMPERATURE = 3.0  # of sums over all pieces, which are not independent


def by_reading_turned(puzzle: Puzzle, given: dict[int, int], reader: Any, edges: Any) -> Solution:
    """Read, then search: the arrangement and the turns that all evidence finds best."""
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
    used = Used("auto", ("reader", *reversed(sides)))
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
        told.append(placed[candidate, place[positions[there]]].sum() / TEMPERATURE)
    return float(np.exp(told[0] - np.logaddexp.reduce(told)))
