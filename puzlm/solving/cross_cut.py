"""Put a page together that was cut both ways: equal pieces in a grid.

    right, below = strokes across every possible cut, in both directions
    cells        = how well a piece's outer sides fit blank paper, where it would lie at the border
    answer       = the search of all puzzles over their sum; a single row is one path

Blank pieces fit anywhere and equal each other. So how sure a cell is counts two things: how sure
the joints beside a piece are, and whether the page could be moved over blank cells as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from puzlm.models.strokes import DEPTH, Fits, load, load_sure
from puzlm.pieces.strips import FADE, PAGE_ROWS, Strip, blank, inks_of, mostly_white, sides_of
from puzlm.puzzle import Grid, Positions, Puzzle
from puzlm.solution import Solution, Used
from puzlm.solving.pages import joint_odds, likely, ordered

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Inks = NDArray[np.float32]

NAME = "strokes"
LEAST = 8  # pixels of a piece's side; less holds no stroke


def is_page(puzzle: Puzzle) -> bool:
    """Whether a puzzle is a page: it was said, or its pieces are mostly white with some print."""
    kind = puzzle.settings.get("kind", "auto")
    if kind != "auto" or len(puzzle.pieces) < 2 or len(puzzle.pieces) > puzzle.cells:
        return bool(kind == "page")
    height, width = puzzle.pieces.shape[1:3]
    extent = max(puzzle.grid[0] * height, puzzle.grid[1] * width)
    return min(height, width) >= LEAST and mostly_white(list(puzzle.pieces), extent)


def by_strokes(puzzle: Puzzle, given: Mapping[int, int]) -> Solution:
    """Solve a page cut into a grid."""
    start = time.perf_counter()
    inks = inks_of(_strips(puzzle))
    empty = np.array([blank(ink) for ink in inks])
    right, below = evidence(puzzle, inks)
    if puzzle.grid[0] == 1 and len(puzzle.pieces) == puzzle.cells and not given:
        positions = _in_a_row(right, empty, inks)
    else:
        positions = _in_a_grid(puzzle, right, below, given)
    sure = confidence(positions, right, below, puzzle.grid, empty)
    sure[list(given)] = 1.0
    order = tuple(np.argsort(-sure, kind="stable").tolist())
    spent = time.perf_counter() - start
    return Solution(positions, sure, puzzle.grid, Used(NAME), spent, puzzle.pieces, (), order)


def evidence(puzzle: Puzzle, inks: list[Inks]) -> tuple[Fits, Fits]:
    """Fits to the right and below."""
    rows, columns = puzzle.grid
    height, width = puzzle.pieces.shape[1:3]
    scale = PAGE_ROWS / max(rows * height, columns * width)
    found = []
    for direction in ("right", "below"):
        sides = []
        for strip, ink in zip(_strips(puzzle), inks, strict=True):
            if direction == "below":
                strip = Strip(strip.pixels.transpose(1, 0, 2), strip.paper.T)
                ink = ink.T
            length = 2 * round(len(ink) * scale / 2)
            sides.append(sides_of(strip, ink, scale, length, DEPTH))
        before, after = (np.stack([side[k] for side in sides]) for k in (0, 1))
        found.append(load(direction).fits(before, after, (0,)))
    return found[0], found[1]


def _strips(puzzle: Puzzle) -> list[Strip]:
    """The pieces as strips that are paper all over."""
    whole = np.ones(puzzle.pieces.shape[1:3], bool)
    return [Strip(piece, whole) for piece in puzzle.pieces]


def _in_a_row(fits: Fits, empty: Bools, inks: list[Inks]) -> Ints:
    """One row: a path of the printed pieces, blank ones shared out to both sides of it.

    Margins are taken to be alike, so the print on the outer pieces counts, too.
    """
    n = len(empty)
    printed = np.flatnonzero(~empty)
    positions = np.zeros(n, np.int64)
    if len(printed):
        square = np.ix_(printed, printed)
        some = Fits(fits.score[square], fits.slip[square], fits.end[printed], fits.begin[printed])
        path = printed[ordered(some)[0]]
        width = inks[0].shape[1]
        first = np.flatnonzero(inks[path[0]].max(0) > FADE).min(initial=width)
        last = width - 1 - np.flatnonzero(inks[path[-1]].max(0) > FADE).max(initial=-1)
        margin = n - len(printed)
        left = round(float(np.clip((margin + (last - first) / width) / 2, 0, margin)))
        positions[path] = left + np.arange(len(path))
    positions[empty] = np.setdiff1d(np.arange(n), positions[printed])
    return positions


def _in_a_grid(puzzle: Puzzle, right: Fits, below: Fits, given: Mapping[int, int]) -> Ints:
    """Search a grid; borders of the page fit blank paper."""
    from puzlm.solving.search import assembly

    n = len(puzzle.pieces)
    rows, columns = puzzle.grid
    cells = np.zeros((n, rows, columns))
    cells[:, :, 0] += right.begin[:, None]
    cells[:, :, -1] += right.end[:, None]
    cells[:, 0] += below.begin[:, None]
    cells[:, -1] += below.end[:, None]
    scores = []
    for fits in (right, below):
        score = fits.score.astype(np.float64)
        np.fill_diagonal(score, -np.inf)
        scores.append(score)
    where = cells.reshape(n, -1)
    return assembly.assemble(scores[0], scores[1], puzzle.grid, where, given, hole=0.0)


def confidence(found: Positions, right: Fits, below: Fits, grid: Grid, empty: Bools) -> Floats:
    """Probability that each piece lies in its cell, a blank piece in that of any blank: (n,)."""
    bias, *weights = load_sure("cell")
    sure = likely(bias + cell_features(found, right, below, grid, empty) @ np.array(weights))
    return np.where(found < 0, 0.0, sure)


def cell_features(found: Positions, right: Fits, below: Fits, grid: Grid, empty: Bools) -> Floats:
    """What tells how sure a cell is: joints of the piece, joints of all, and open margins: (n, 3).

    The first two are log-odds. The last is the log of the number of ways to move the print as a
    whole over blank outer rows and columns.
    """
    n = len(found)
    board = np.full(grid, -1)
    placed = np.flatnonzero(found >= 0)
    board.ravel()[found[placed]] = placed
    total = np.zeros(n)
    count = np.zeros(n)
    for fits, first, second in (
        (right, board[:, :-1], board[:, 1:]),
        (below, board[:-1], board[1:]),
    ):
        both = (first >= 0) & (second >= 0)
        i = first[both]
        j = second[both]
        printed = ~(empty[i] & empty[j])
        i = i[printed]
        j = j[printed]
        odds = joint_odds(fits, i, j).mean(1) if len(i) else np.zeros(0)
        for piece in (i, j):
            np.add.at(total, piece, odds)
            np.add.at(count, piece, 1)
    own = total / np.maximum(count, 1)
    blank_cells = (board < 0) | empty[board]
    ways = 1
    for lines in (blank_cells.all(1), blank_cells.all(0)):
        print_lies = np.flatnonzero(~lines)
        if len(print_lies):
            ways *= 1 + int(print_lies[0]) + len(lines) - 1 - int(print_lies[-1])
    whole = float(total.sum() / max(1, count.sum()))
    return np.stack([own, np.full(n, whole), np.full(n, np.log(ways))], 1)
