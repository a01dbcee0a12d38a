"""Colours that ran over the cuts, and how to mend them.

A sheet of shuffled pieces that was saved as JPEG is not what was cut: colour is stored at half the
resolution and smoothed when it is read, so the pixels along a border take colour from whatever lay
beside them on the sheet. That misleads whoever looks at borders. It also tells on itself: how such
a pixel differs from its inner neighbour follows the piece beside it, a stranger to its picture.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from puzlm.puzzle import Grid, Puzzle

# Chosen on validation pictures: docs/runs/bleed-choices.txt, bleed-val.json.
LEANS = 0.65  # correlation above which colours ran; clean sheets from 3x3 up stay below
DEPTH = 2  # pixels from the border whose colour is replaced
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # brightness as JPEG weighs it


def leaning(pieces: NDArray[np.uint8], grid: Grid) -> float:
    """Correlation between colour at the borders and what lies beside it on the sheet: -1 to 1.

    The pieces lie on the sheet row by row. Brightness is left out: it is stored in full.
    """
    order, sums = np.arange(len(pieces)).reshape(grid), np.zeros(3)
    colour = pieces[..., ::2].astype(np.float32) - pieces[..., 1:2]  # red and blue beside green
    for lines, at in ((colour, order), (colour.transpose(0, 2, 1, 3), order.T)):
        left, right = lines[at[:, :-1].ravel()], lines[at[:, 1:].ravel()]
        for border, inner, there in (
            (left[:, :, -1], left[:, :, -2], right[:, :, 1]),
            (right[:, :, 0], right[:, :, 1], left[:, :, -2]),
        ):
            own, strange = (border - inner).ravel(), (there - inner).ravel()
            sums += own @ strange, own @ own, strange @ strange
    scale = float(np.sqrt(sums[1] * sums[2]))
    return float(sums[0]) / scale if scale else 0.0


def mended(puzzle: Puzzle) -> Puzzle:
    """The same puzzle with the colour of its border pixels taken from further in, if it ran.

    Only a whole puzzle, whose pieces are known to lie as on the sheet; others are left alone.
    """
    small = min(puzzle.pieces.shape[1:3]) < 4 * DEPTH
    whole = len(puzzle.pieces) == puzzle.cells
    if small or not whole or leaning(puzzle.pieces, puzzle.grid) <= LEANS:
        return puzzle
    pixels = puzzle.pieces.astype(np.float32)
    luma = (pixels @ LUMA)[..., None]
    rows, columns = (
        np.clip(np.arange(side), DEPTH, side - 1 - DEPTH) for side in pixels.shape[1:3]
    )
    mixed = luma + (pixels - luma)[:, rows][:, :, columns]
    pieces = np.rint(mixed).clip(0, 255).astype(np.uint8)
    return replace(puzzle, pieces=pieces)
