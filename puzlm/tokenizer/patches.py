"""Pieces to border patches and back: resizing, the walk around the border, cutting, drawing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import SettingsError
from puzlm.images import Pixels
from puzlm.puzzle import HOLE
from puzlm.tokenizer.arrays import concatenate, flip, pick
from puzlm.tokenizer.kmeans import Array
from puzlm.tokenizer.settings import TokenizerSettings


def walk(B: int, border: bool = True, clockwise: bool = True) -> list[int]:
    """Patch indices of a super-token in walking order, as raster cells of the B x B patches.

    >>> walk(4)
    [0, 1, 2, 3, 7, 11, 15, 14, 13, 12, 8, 4]
    """
    if not border or B == 1:
        return list(range(B * B))
    if not clockwise:
        return [c for c in range(B * B) if c // B in (0, B - 1) or c % B in (0, B - 1)]
    top, right = list(range(B)), [row * B + B - 1 for row in range(1, B)]
    bottom = [B * (B - 1) + column for column in range(B - 2, -1, -1)]
    return top + right + bottom + [row * B for row in range(B - 2, 0, -1)]


def cut_patches(x: Array, s: TokenizerSettings, term: str, there: Array = None) -> Array:
    """Border patches of canonical pieces x (n, side, side, 3): (n, b, D), in walking order.

    `there` is the walk on the device of x, if it is there.
    """
    B = s.granularity
    if term == "square":
        grid = x.reshape(len(x), B, s.patch_side, B, s.patch_side, 3).swapaxes(2, 3)
        flat = grid.reshape(len(x), B * B, s.patch_side**2 * 3)
        return pick(flat, walk(B, s.border, s.clockwise), there)
    depth = int(term.split(":")[1])
    # First axis along the side in raster direction, second from the border inwards: two sides
    # that touch show the same picture.
    top, bottom = x[:, :depth].swapaxes(1, 2), flip(x[:, -depth:], 1).swapaxes(1, 2)
    left, right = x[:, :, :depth], flip(x[:, :, -depth:], 2)
    shape = (len(x), B, s.patch_side * depth * 3)
    top, right, bottom, left = (a.reshape(shape) for a in (top, right, bottom, left))
    if s.clockwise:
        return concatenate([top, right, flip(bottom, 1), flip(left, 1)], 1)
    return concatenate([top, left, right, bottom], 1)


def draw_patches(vectors: NDArray[np.float32], s: TokenizerSettings, term: str) -> Pixels:
    """Lay patches (b, D) in walking order at their places in a piece (side, side, 3)."""
    B = s.granularity
    canvas = np.full((s.side, s.side, 3), HOLE, np.float32)
    if term == "square":
        for where, vector in zip(walk(B, s.border, s.clockwise), vectors, strict=True):
            top, left = where // B * s.patch_side, where % B * s.patch_side
            patch = vector.reshape(s.patch_side, s.patch_side, 3)
            canvas[top : top + s.patch_side, left : left + s.patch_side] = patch
    else:
        depth = int(term.split(":")[1])
        strips = vectors.reshape(4, B, s.patch_side, depth, 3)
        if s.clockwise:
            top_, right, bottom, left_ = strips[0], strips[1], strips[2][::-1], strips[3][::-1]
        else:
            top_, left_, right, bottom = strips
        shape = (s.side, depth, 3)
        canvas[:depth] = top_.reshape(shape).swapaxes(0, 1)
        canvas[::-1][:depth] = bottom.reshape(shape).swapaxes(0, 1)
        canvas[:, :depth] = left_.reshape(shape)
        canvas[:, ::-1][:, :depth] = right.reshape(shape)
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)


def side_symbols(symbols: Array, settings: TokenizerSettings) -> Array:
    """Split super-tokens (..., b, F) into sides (..., 4, B, F): top, right, bottom, left.

    Every side is read in raster direction, so that two touching sides are read the same way.
    Corner squares belong to both of their sides.
    """
    s = settings
    B = s.granularity
    if not s.border or B == 1:
        raise SettingsError("the side model needs border symbols and a granularity of at least 2")
    if s.strips and s.clockwise:
        index = [
            range(B),
            range(B, 2 * B),
            range(3 * B - 1, 2 * B - 1, -1),
            range(4 * B - 1, 3 * B - 1, -1),
        ]
    elif s.strips:
        index = [range(B), range(2 * B, 3 * B), range(3 * B, 4 * B), range(B, 2 * B)]
    else:
        place = {cell: spot for spot, cell in enumerate(walk(B, True, s.clockwise))}
        cells = [
            [(0, i) for i in range(B)],
            [(i, B - 1) for i in range(B)],
            [(B - 1, i) for i in range(B)],
            [(i, 0) for i in range(B)],
        ]
        index = [[place[r * B + c] for r, c in side] for side in cells]  # type: ignore[misc]
    flat = [i for side in index for i in side]
    picked = symbols[..., flat, :]
    return picked.reshape(*picked.shape[:-2], 4, B, picked.shape[-1])


def resized(pieces: Array, side: int) -> Array:
    """Resize pieces (n, height, width, 3) to side x side, in whole grey levels."""
    if pieces.shape[1] == side and pieces.shape[2] == side:
        return pieces
    is_numpy = isinstance(pieces, np.ndarray)
    x = pieces.astype(np.float32) if is_numpy else pieces.float()
    for axis in (1, 2):
        if x.shape[axis] != side:
            x = _apply(resize_matrix(x.shape[axis], side), x, axis)
    # Whole levels again: rounding errors of the resize must not decide a symbol.
    return x.round().astype(np.uint8) if is_numpy else x.round()


def resize_matrix(old: int, new: int) -> NDArray[np.float32]:
    """Weights (new, old) of a triangle filter, widened when shrinking so that nothing aliases."""
    scale = old / new
    width = max(1.0, scale)
    centre = (np.arange(new) + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(old)[None] - centre[:, None]) / width)
    if old == 1:
        weights[:] = 1.0
    result: NDArray[np.float32] = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return result


def _apply(matrix: Array, x: Array, axis: int) -> Array:
    """Multiply `matrix` (new, old) into one axis of x."""
    if not isinstance(x, np.ndarray):
        import torch

        matrix = torch.from_numpy(matrix).to(x.device)
    return (x.swapaxes(axis, 3) @ matrix.T).swapaxes(axis, 3)
