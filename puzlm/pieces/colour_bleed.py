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

Pieces = NDArray[np.uint8]

# Chosen on validation pictures: docs/runs/bleed-choices.txt, bleed-val.json.
LEANS = 0.65  # correlation above which colours ran
CELLS = 9  # of the least grid asked: on smaller sheets clean pieces lie beside their own by chance
DEPTH = 2  # pixels from the border whose colour is replaced
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # brightness as JPEG weighs it
CHUNK = 256  # pieces mended at a time


def leaning(pieces: Pieces, grid: Grid) -> float:
    """Correlation between colour at the borders and what lies beside it on the sheet: -1 to 1.

    The pieces lie on the sheet row by row. Brightness is left out: it is stored in full. Touching
    pieces that lie right already lean as well, as do drawn outlines; mending does those no harm.
    """
    order, sums = np.arange(len(pieces)).reshape(grid), np.zeros(3)
    for turned, at in ((pieces, order), (pieces.transpose(0, 2, 1, 3), order.T)):
        lines = turned[:, :, [0, 1, -2, -1]].astype(np.float32)
        lines = lines[..., ::2] - lines[..., 1:2]  # red and blue beside green
        left, right = lines[at[:, :-1].ravel()], lines[at[:, 1:].ravel()]
        for border, inner, there in (
            (left[:, :, 3], left[:, :, 2], right[:, :, 1]),
            (right[:, :, 0], right[:, :, 1], left[:, :, 2]),
        ):
            own, strange = (border - inner).ravel(), (there - inner).ravel()
            sums += own @ strange, own @ own, strange @ strange
    scale = float(np.sqrt(sums[1] * sums[2]))
    return float(sums[0]) / scale if scale else 0.0


def mended(puzzle: Puzzle) -> Puzzle:
    """The same puzzle with the colour of its border pixels taken from further in, if it ran.

    Pieces are taken to lie row by row as on the sheet: in another order nothing leans, and nothing
    is done. Nor is it with holes, or where there are too few pieces or pixels to tell.
    """
    small = puzzle.cells < CELLS or min(puzzle.pieces.shape[1:3]) < 4 * DEPTH
    whole = len(puzzle.pieces) == puzzle.cells
    if small or not whole or leaning(puzzle.pieces, puzzle.grid) <= LEANS:
        return puzzle
    parts = [_mended(puzzle.pieces[k : k + CHUNK]) for k in range(0, puzzle.cells, CHUNK)]
    return replace(puzzle, pieces=np.concatenate(parts))


def _mended(pieces: Pieces) -> Pieces:
    """Keep brightness, and let the outermost pixels have the colour of those further in."""
    pixels = pieces.astype(np.float32)
    luma = (pixels @ LUMA)[..., None]
    rows, columns = (np.clip(np.arange(n), DEPTH, n - 1 - DEPTH) for n in pixels.shape[1:3])
    mixed = luma + (pixels - luma)[:, rows][:, :, columns]
    result: Pieces = np.rint(mixed).clip(0, 255).astype(np.uint8)
    return result
