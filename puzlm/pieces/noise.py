"""Noise of a camera and blocks of a codec: how much there is, and pieces without most noise.

Noise falls on red, green and blue alone, while what a picture shows changes in all three together.
So the finest differences of colour tell noise from grass. It is taken out by leaving out the weak
waves of small windows, in all their positions (Yaroslavsky 1985; Coifman and Donoho 1995).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puzlm.images import Pixels

Floats = NDArray[np.float64]

WINDOW = 8  # pixels
WEAK = 2.7  # deviations of the noise, below which a wave is taken for noise
NORMAL = 0.6745  # median of the size of normal noise of deviation 1
# Brightness and two differences of colour, each of length 1 and at right angles.
COLOURS = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])


def noise_level(pieces: Pixels) -> float:
    """Deviation of the noise in each value, in grey levels; that of the middle piece."""
    levels = pieces.astype(np.float32)
    colours = levels[..., ::2] - levels[..., 1:2]
    finest = np.diff(np.diff(colours, axis=1), axis=2) / 2
    if not finest.size:
        return 0.0
    sizes = np.median(np.abs(finest), axis=(1, 2, 3))
    return float(np.median(sizes)) / NORMAL / 2**0.5


def blocks(pieces: Pixels) -> float:
    """Log of how much more brightness jumps every 8 pixels than elsewhere, as JPEG leaves it."""
    bright = pieces.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    ratios = []
    for lines in (bright, bright.transpose(0, 2, 1)):
        jumps = np.abs(np.diff(lines, axis=2)).mean(axis=(0, 1))
        at = np.arange(len(jumps)) % WINDOW == WINDOW - 1
        if not at.any():
            return 0.0
        ratios.append(np.log((jumps[at].mean() + 0.1) / (jumps[~at].mean() + 0.1)))
    return float(np.mean(ratios))


def smoothed(pieces: Pixels, level: float) -> Pixels:
    """Pieces (n, height, width, 3) without noise of a deviation `level`."""
    from scipy.fft import dctn, idctn

    near = WINDOW // 2
    mixed = np.pad(pieces @ COLOURS.T, ((0, 0), (near, near), (near, near), (0, 0)), "symmetric")
    total, weights = np.zeros_like(mixed), np.zeros_like(mixed)
    for top in range(mixed.shape[1] - WINDOW + 1):
        rows = slice(top, top + WINDOW)
        windows = np.lib.stride_tricks.sliding_window_view(mixed[:, rows], WINDOW, axis=2)
        waves = dctn(windows, axes=(1, 4), norm="ortho")  # (n, WINDOW, places, 3, WINDOW)
        strong = np.abs(waves) >= WEAK * level
        strong[:, 0, :, :, 0] = True  # the mean stays
        weight = 1 / strong.sum(axis=(1, 4))  # windows with little in them are smoothed best
        clean = idctn(waves * strong, axes=(1, 4), norm="ortho") * weight[:, None, ..., None]
        for place in range(clean.shape[2]):
            total[:, rows, place : place + WINDOW] += clean[:, :, place].transpose(0, 1, 3, 2)
            weights[:, rows, place : place + WINDOW] += weight[:, place, None, None]
    inner = (total / weights)[:, near:-near, near:-near] @ COLOURS
    result: Pixels = np.clip(np.rint(inner), 0, 255).astype(np.uint8)
    return result
