"""Pieces laid by a picture of the whole: a box lid, another print, the original file.

Each piece is compared with what the picture shows at each cell, in every pose, at some shifts. A
print has other colours and sharpness, so both are brought to the same distribution of colours and
are compared small. The size of the gaps and how pieces lie are found on some pieces first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puzlm.errors import PuzzleError, SettingsError
from puzlm.images import Pixels, read_image
from puzlm.pieces.poses import Poses, allowed, laid
from puzlm.puzzle import Grid, Puzzle, as_pixels
from puzlm.solution import Floats, Given, Solution, Used, check_given, checked
from puzlm.solving import grids
from puzlm.solving.search.assembly import assemble_posed
from puzlm.solving.upright import learned_edges

COARSE, FINE = 8, 16  # pixels of a piece's side: to find out how pieces lie, and to lay them
SAMPLE = 48  # pieces on which that is found out
REACH = 0.25  # cells by which a print may be off where a piece belongs
COVERS = (1.0, 0.91, 0.83, 0.71, 0.59)  # of a cell that its piece covers: gaps up to 0.7
CELLS = 3.0  # what the log of a cost counts beside the fit of borders, in nats
MOST_COMPARED = 300  # pieces whose borders are compared
ROUNDS = 60  # of repair
SHAPES = 4  # grids tried where nobody named one
LEAST = 16  # pixels of the picture's shorter side
# By how much the logs of costs must fall where pieces may lie in twice as many poses.
FREEDOM = 0.1
# P(right) = sigmoid(MARGIN x log(cost of the best other cell / own cost)). Chosen, not fitted: of
# validation puzzles too few pieces were wrong (docs/runs/reference-val.txt).
MARGIN = 8.0

Windows = NDArray[np.float32]


@dataclass(frozen=True)
class View:
    """How pieces are compared with the picture: on which grid, how large, in which poses."""

    grid: Grid
    covers: float
    poses: Poses


def by_reference(
    solver: Any, puzzle: Puzzle, given: Given, picture: Pixels | Image.Image | str | Path
) -> Solution:
    """Lay the pieces of a puzzle as a picture of the whole shows them.

    Where nobody named the grid, that on which the pieces look most like the picture is taken.
    """
    if solver.solver not in ("auto", "classic"):
        raise SettingsError(f"reference: solver '{solver.solver}' heeds none; take auto")
    pixels = read_image(picture) if isinstance(picture, str | Path) else as_pixels(picture)
    if min(pixels.shape[:2]) < LEAST:
        raise PuzzleError(f"the picture of the whole must have {LEAST} x {LEAST} pixels or more")
    fixed = check_given(given, puzzle)
    among = [puzzle.grid]
    if puzzle.settings.get("open"):
        if fixed:
            raise PuzzleError(grids.UNNAMED)
        among = _of_shape(grids.candidates(len(puzzle.pieces)), puzzle.pieces, pixels)
    found = _laid_by(puzzle, pixels, among, fixed, learned_edges(solver))
    return checked(found, replace(puzzle, grid=found.grid), fixed)


def _of_shape(among: list[Grid], pieces: Pixels, picture: Pixels) -> list[Grid]:
    """The few grids on which the pieces make a picture of about that shape."""
    height, width = pieces.shape[1:3]
    shape = np.log(picture.shape[1] / picture.shape[0])
    return sorted(among, key=lambda g: abs(np.log(g[1] * width / (g[0] * height)) - shape))[:SHAPES]


def _laid_by(
    puzzle: Puzzle, picture: Pixels, among: list[Grid], given: Given, edges: Any
) -> Solution:
    """Lay the pieces; between cells that look alike their borders decide."""
    start = time.perf_counter()
    pieces = recoloured(puzzle.pieces, picture)
    view = _view(pieces, picture, among)
    n = len(pieces)
    every = [_costs(pieces, picture, view.grid, view.covers, pose, FINE) for pose in view.poses]
    scores = -CELLS * np.log(np.concatenate(every))
    if 1 < n <= MOST_COMPARED:
        right, below = grids.pair_scores(puzzle.pieces, edges, view.poses)
    else:
        right = below = np.zeros((len(scores), len(scores)), np.float32)
    positions, lies = assemble_posed(
        right, below, view.grid, view.poses, given, hole=0.0, cells=scores, rounds=ROUNDS
    )
    chosen = np.searchsorted(view.poses, lies)
    sure = _sure(np.array(every)[chosen, np.arange(n)], np.min(every, axis=0), positions)
    sure[list(given)] = 1.0
    return Solution(
        positions,
        sure,
        view.grid,
        Used("reference"),
        time.perf_counter() - start,
        puzzle.pieces,
        order=tuple(np.argsort(-sure, kind="stable").tolist()),
        poses=tuple(lies.tolist()) if len(view.poses) > 1 else (),
    )


def recoloured(pieces: Pixels, picture: Pixels) -> Pixels:
    """Pieces with the colours of a picture: each channel gets its distribution of values."""
    result = np.empty_like(pieces)
    for channel in range(3):
        own = np.bincount(pieces[..., channel].ravel(), minlength=256)
        other = np.sort(picture[..., channel], axis=None)
        rank = (np.cumsum(own) - own / 2) / own.sum()
        levels = other[(rank * (len(other) - 1)).astype(np.intp)]
        result[..., channel] = levels[pieces[..., channel]]
    return result


def _view(pieces: Pixels, picture: Pixels, among: list[Grid]) -> View:
    """Find on some pieces which grid they fill, how large the gaps are, and how they lie."""
    some = pieces[:: max(1, len(pieces) // SAMPLE)]
    square = pieces.shape[1] == pieces.shape[2]
    groups = [allowed(*lies, square) for lies in ((False, False), (True, False), (True, True))]
    best = (np.inf, View(among[0], 1.0, groups[0]))
    for grid in among:
        for covers in COVERS:
            every = {p: _costs(some, picture, grid, covers, p, COARSE).min(1) for p in groups[-1]}
            for poses in groups:
                cost = np.log(np.min([every[pose] for pose in poses], axis=0)).mean()
                cost += FREEDOM * np.log2(len(poses))
                if cost < best[0]:
                    best = float(cost), View(grid, covers, poses)
    return best[1]


def _costs(
    pieces: Pixels, picture: Pixels, grid: Grid, covers: float, pose: int, side: int
) -> Floats:
    """Mean squared difference of each piece in a pose and each cell, at the best shift: (n, cells).

    Half of it is that of the colours as they are, half that of their deviations from the mean.
    """
    shown = np.stack([_small(laid(p, pose), (side, side)) for p in pieces])
    cell = side / covers
    high, wide = round(grid[0] * cell), round(grid[1] * cell)
    reach = max(1, round(REACH * cell))
    whole = np.pad(_small(picture, (high, wide)), ((reach, reach), (reach, reach), (0, 0)), "edge")
    middle = (cell - side) / 2 + reach
    top = np.rint(np.arange(grid[0]) * cell + middle).astype(int)
    left = np.rint(np.arange(grid[1]) * cell + middle).astype(int)
    best = np.full((len(pieces), grid[0] * grid[1]), np.inf, np.float32)
    steps = range(-reach, reach + 1, max(1, round(side / 8)))
    row = np.arange(side)
    own = _features(shown)
    norm = (own**2).sum(1)[:, None]
    for down in steps:
        for across in steps:
            rows = np.clip(top[:, None] + down + row, 0, len(whole) - 1)
            columns = np.clip(left[:, None] + across + row, 0, whole.shape[1] - 1)
            cut = whole[rows[:, None, :, None], columns[None, :, None, :]]
            other = _features(cut.reshape(-1, side, side, 3))
            cost = norm + (other**2).sum(1) - 2 * own @ other.T
            np.minimum(best, cost, out=best)
    found: Floats = np.maximum(best / own.shape[1], 1e-3)
    return found


def _features(windows: Windows) -> Windows:
    """Numbers (n, k) whose squared distance says how unlike windows (n, side, side, 3) are."""
    flat = windows.reshape(len(windows), -1, 3)
    mean = flat.mean(1, keepdims=True)
    parts = [(flat - mean).reshape(len(flat), -1), np.repeat(mean, flat.shape[1] // 4, 1)]
    return np.concatenate([parts[0], parts[1].reshape(len(flat), -1)], axis=1)


def _small(pixels: Pixels, size: tuple[int, int]) -> Windows:
    """Pixels resampled to (height, width), smoothly."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(picture.resize(size[::-1], Image.Resampling.BOX), np.float32)


def _sure(costs: Floats, best: Floats, positions: NDArray[np.int64]) -> Floats:
    """How sure each piece is of its cell, by how much worse the best other one is: (n,)."""
    n = np.arange(len(costs))
    others = best.copy()
    others[n, positions] = np.inf
    margin = np.log(others.min(1) / costs[n, positions])
    sure: Floats = 1 / (1 + np.exp(-MARGIN * margin))
    return np.where(positions < 0, 1 - sure, sure)
