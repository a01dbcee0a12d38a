# mypy: ignore-errors
"""The cut of corpus.cut_batch in one Triton kernel, behind an operator that also runs on a CPU.

A program makes a tile of one piece: where its taps lie and what they weigh is worked out once a
row and once a column, one read brings all colours of a pixel, and one write takes them away.
Additions and products are not fused: every sum is the one cut_batch makes on a CPU, so that the
grey levels are the same to the last one.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch

from puzlm.corpus import Album, cut_batch

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _tap(centre, width, count, t, SHRUNK: tl.constexpr):
        """Pixel of tap t around each centre, clamped to the piece; its weight."""
        index = tl.floor(centre).to(tl.int32) + t
        far = tl.abs(index.to(tl.float32) - centre)
        if SHRUNK:
            far = tl.div_rn(far, width)
        weight = tl.maximum(1.0 - far, 0.0)
        weight = tl.where((index >= 0) & (index < count), weight, 0.0)
        return tl.minimum(tl.maximum(index, 0), count - 1), weight

    @triton.jit
    def _axis(places, count, SIDE: tl.constexpr, SHRUNK: tl.constexpr, FIRST: tl.constexpr):
        """Centres in the piece's pixels, the filter's width, and the sum of its weights."""
        scale = tl.div_rn(count.to(tl.float32), SIDE * 1.0)
        centre = (places.to(tl.float32) + 0.5) * scale - 0.5
        width = tl.zeros_like(centre) + tl.maximum(scale, 1.0)
        total = _tap(centre, width, count, FIRST, SHRUNK)[1]
        for t in tl.static_range(FIRST + 1, 2 - FIRST):
            total = total + _tap(centre, width, count, t, SHRUNK)[1]
        return centre, width, total

    @triton.jit
    def _mixed(
        base, stride, y, x, high, wide, row_of, column_of, mirrored, contrast, light,
        SIDE: tl.constexpr, SHRUNK: tl.constexpr,
    ):  # fmt: skip
        """Words at rows y and columns x of a piece. One that is not shrunk has two taps a side:
        the outer two of the four weigh nothing."""
        first: tl.constexpr = -1 if SHRUNK else 0
        last: tl.constexpr = 2 - first
        y_centre, y_width, y_total = _axis(y, high, SIDE, SHRUNK, first)
        x_centre, x_width, x_total = _axis(x, wide, SIDE, SHRUNK, first)
        zero = tl.zeros([y.shape[0], x.shape[0]], tl.float32)
        red, green, blue = zero, zero, zero
        for i in tl.static_range(first, last):
            row, down = _tap(y_centre, y_width, high, i, SHRUNK)
            down = tl.div_rn(down, y_total)[:, None]
            row = ((row_of + row) * stride)[:, None]
            line_red, line_green, line_blue = zero, zero, zero
            for j in tl.static_range(first, last):
                column, share = _tap(x_centre, x_width, wide, j, SHRUNK)
                share = tl.div_rn(share, x_total)[None, :]
                column = column_of + column
                column = tl.where(mirrored, stride - 1 - column, column)[None, :]
                pixel = tl.load(base + (row + column))
                line_red += (pixel & 255).to(tl.float32) * share
                line_green += ((pixel >> 8) & 255).to(tl.float32) * share
                line_blue += ((pixel >> 16) & 255).to(tl.float32) * share
            red += line_red * down
            green += line_green * down
            blue += line_blue * down
        word = _level(red, contrast, light)
        word = word | (_level(green, contrast, light) << 8)
        return word | (_level(blue, contrast, light) << 16)

    @triton.jit
    def _cut_kernel(
        words, offsets, sizes, image, piece, corner, flip, tint, out,
        CELLS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """One tile of one piece; a pixel is written as a word of four bytes, the last one 0."""
        number = tl.program_id(0)
        puzzle = number // CELLS
        across: tl.constexpr = (SIDE + COLUMNS - 1) // COLUMNS
        top = tl.program_id(1) // across * ROWS
        left = tl.program_id(1) % across * COLUMNS
        y, x = top + tl.arange(0, ROWS), left + tl.arange(0, COLUMNS)
        # 64 bits for the places of images and pieces only: within one, 32 are enough.
        at = out + number.to(tl.int64) * (SIDE * SIDE) + (y[:, None] * SIDE + x[None, :])
        there = (y[:, None] < SIDE) & (x[None, :] < SIDE)
        end: tl.constexpr = SIDE - DEPTH
        hidden = (top >= DEPTH) & (top + ROWS <= end) & (left >= DEPTH) & (left + COLUMNS <= end)
        word = tl.zeros([ROWS, COLUMNS], tl.int32)
        if (DEPTH == 0) | (hidden == 0):
            which = tl.load(image + puzzle)
            base = words + tl.load(offsets + which) // 3
            stride = tl.load(sizes + which * 2 + 1).to(tl.int32)
            high = tl.load(piece + puzzle * 2).to(tl.int32)
            wide = tl.load(piece + puzzle * 2 + 1).to(tl.int32)
            row = tl.load(corner + number * 2).to(tl.int32)
            column = tl.load(corner + number * 2 + 1).to(tl.int32)
            mirrored = tl.load(flip + puzzle) != 0
            contrast, light = tl.load(tint + puzzle * 2), tl.load(tint + puzzle * 2 + 1)
            # A place beyond the side has no weights to share out: it repeats the last one.
            y, x = tl.minimum(y, SIDE - 1), tl.minimum(x, SIDE - 1)
            if (high > SIDE) | (wide > SIDE):
                word = _mixed(base, stride, y, x, high, wide, row, column, mirrored, contrast,
                              light, SIDE, True)  # fmt: skip
            else:
                word = _mixed(base, stride, y, x, high, wide, row, column, mirrored, contrast,
                              light, SIDE, False)  # fmt: skip
            if DEPTH > 0:
                inside = ((y >= DEPTH) & (y < end))[:, None] & ((x >= DEPTH) & (x < end))[None, :]
                word = tl.where(inside, 0, word)
        tl.store(at, word, there)

    @triton.jit
    def _level(mixed, contrast, light):
        """The nearest whole grey level, a half to the even one: 1.5 * 2**23 leaves no fraction."""
        mixed = (mixed - 128.0) * contrast + 128.0 + light
        mixed = tl.minimum(tl.maximum(mixed, 0.0), 255.0)
        return (mixed + 12582912.0 - 12582912.0).to(tl.int32)


WAY = (16, 32, 4)
"""Rows and columns of a tile, and warps: the fastest in docs/runs/speed-ways-2026-11-17.json."""


def room(album: Album, device: str) -> bool:
    """Whether a GPU has the memory for Album.words, beside the pixels of three bytes.

    Half of what is free is left to the step.
    """
    words, free = 4 * album.pixels.numel() // 3, torch.cuda.mem_get_info(device)[0]
    return 2 * words <= free


@torch.library.custom_op(
    "puzlm::cut",
    mutates_args=(),
    schema="(Tensor words, Tensor offsets, Tensor sizes, Tensor image, Tensor piece, "
    "Tensor corner, Tensor flip, Tensor tint, int side, int depth) -> Tensor",
)
def cut(words, offsets, sizes, image, piece, corner, flip, tint, side, depth):
    """Pieces (n * cells, side, side, 4) of Album.words, in bytes: red, green, blue and 0.

    With a depth, pixels that far from every edge and farther are not cut: they are 0.
    """
    cells = corner.shape[1]
    out = torch.empty(len(image) * cells, side, side, 4, dtype=torch.uint8, device=words.device)
    if words.is_cuda:
        rows, columns, warps = WAY
        tiles = triton.cdiv(side, rows) * triton.cdiv(side, columns)
        drawn = (t.contiguous() for t in (image, piece, corner, flip, tint))
        _cut_kernel[(len(out), tiles)](
            words, offsets, sizes, *drawn, out.view(torch.int32),
            CELLS=cells, SIDE=side, DEPTH=depth, ROWS=rows, COLUMNS=columns,
            num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
        return out
    album = Album(words, offsets, sizes)
    album.words = words
    pieces = cut_batch(album, image, piece, corner, flip, tint, side=side)
    out[..., :3], out[..., 3] = pieces.view(-1, side, side, 3).byte(), 0
    if depth:
        out[:, depth : side - depth, depth : side - depth] = 0
    return out


@cut.register_fake
def _(words, offsets, sizes, image, piece, corner, flip, tint, side, depth):
    return words.new_empty(len(image) * corner.shape[1], side, side, 4, dtype=torch.uint8)
