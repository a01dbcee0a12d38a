"""Where a board's picture begins: seams, and what the network of models/frame.py says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.models.frame import Frame
from puzlm.puzzle import Grid, Positions
from puzlm.solution import Floats
from puzlm.solving.search.assembly import repaired
from puzlm.solving.search.board import BEAM_GRID


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
