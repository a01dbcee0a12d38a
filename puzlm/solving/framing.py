"""Where a board's picture begins: seams, and what the network of models/frame.py says of them.

A picture may wrap around, as the tiles of a world map do: then it begins anywhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.models.frame import Frame
from puzlm.pieces import seams
from puzlm.puzzle import Grid, Positions, Puzzle
from puzlm.solution import Floats, Solution
from puzlm.solving.search.assembly import repaired
from puzlm.solving.search.board import BEAM_GRID

# Median log of how much better opposite sides of the board fit than the second best, from which on
# the picture wraps around. Of 60 validation pictures cut in three ways, 120 pairs of opposite sides
# each, all but 1 or 0 lie below; of lines inside them all but 0 to 3 of 60 above.
WRAPPED = 1.5
LINES = 3  # rows or columns that a picture needs to show it
DENSE = 1000  # pieces; beyond, they are not compared all with all


def unframed(found: Solution) -> Solution:
    """The same answer; of a picture that wraps around nobody is sure where it begins."""
    from puzlm.solving import classic

    rows, columns = found.grid
    whole = len(found.positions) == rows * columns and (found.positions >= 0).all()
    if not whole or found.used.clear or min(rows, columns) < LINES or rows * columns > DENSE:
        return found
    if min(found.pieces.shape[1:3]) < 2:
        return found
    board = np.argsort(found.positions).reshape(rows, columns)
    right, below = (np.array(scores) for scores in classic.evidence(found.upright_pieces))
    starts = (
        rows if _closed(below, board[-1], board[0]) else 1,
        columns if _closed(right, board[:, -1], board[:, 0]) else 1,
    )
    if starts == (1, 1):
        return found
    sure = found.confidences / (starts[0] * starts[1])
    note = "; ".join(filter(None, [found.used.note, "wraps around, so it may begin elsewhere"]))
    used = replace(found.used, note=note)
    return replace(found, starts=starts, confidences=sure, used=used)


def lapped(found: Solution, puzzle: Puzzle) -> Solution:
    """The same answer; tiles of a set that overlap are then drawn over one another."""
    cut = puzzle.truth is not None or "cropped" in puzzle.settings  # of one picture
    whole = len(found.positions) == puzzle.cells and (found.positions >= 0).all()
    if cut or not whole:
        return found
    board = found.upright_pieces[np.argsort(found.positions)]
    overlap = seams.overlap(board.reshape(*found.grid, *board.shape[1:]))
    return replace(found, overlap=overlap) if any(overlap) else found


def _closed(scores: NDArray[np.float32], last: NDArray[Any], first: NDArray[Any]) -> bool:
    """Whether the last pieces of lines fit the first ones, and most of them no other as well."""
    fit = scores[last, first].copy()
    scores[last, first] = -np.inf
    rival = np.maximum(scores[last].max(axis=1), scores[:, first].max(axis=0))
    return bool(np.median(fit) >= WRAPPED and (fit > rival).mean() >= 0.5)


def framed(
    frame: Frame,
    pieces: NDArray[Any],
    positions: Positions,
    right: Floats,
    below: Floats,
    grid: Grid,
) -> Positions:
    """Roll a whole board to where its frame should be, by its seams and by what the network says.

    A board of r x c pieces is one of r * c that differ only in where the ring is cut: a cut is the
    better, the worse the pieces fit that it parts, and the likelier it is a picture's edge. Up to
    BEAM_GRID cells, where that costs little, pieces that had been fitted to the wrong frame are
    then looked at again, and the frame after them.
    """
    rows, columns = grid
    for last in (False, True):
        board = np.argsort(positions).reshape(grid)
        above = np.array([below[board[k - 1], board[k]].sum() for k in range(rows)])
        left = np.array([right[board[:, k - 1], board[:, k]].sum() for k in range(columns)])
        row, column = frame.read(np.asarray(pieces)[board])
        down, along = np.divmod(positions, columns)
        first = (columns * row - above).argmax(), (rows * column - left).argmax()
        positions = (down - first[0]) % rows * columns + (along - first[1]) % columns
        if last or rows * columns > BEAM_GRID:
            break
        # What a piece's cell says of the frame, if the piece is right where it was in the ring.
        r, c = np.divmod(np.arange(rows * columns), columns)
        cells = (
            row[(down[:, None] - r) % rows] / rows
            + column[(along[:, None] - c) % columns] / columns
        )
        positions = repaired(positions, right, below, grid, cells)
    return positions
