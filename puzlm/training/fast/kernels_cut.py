# mypy: ignore-errors
"""The cut of corpus.cut_batch in one Triton kernel, behind an operator that also runs on a CPU.

Where the taps of a row or column lie and what they weigh is worked out once for all pieces of a
puzzle; a program makes a tile of one piece, one read brings all colours of a pixel. Pieces are
written as they are, or as the rows of border patches that the tokenizer's product takes.
Additions and products are not fused: every sum is the one cut_batch makes on a CPU, so that the
grey levels are the same to the last one.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch

from puzlm.tokenizer.patches import walk
from puzlm.training.corpus import Album, cut_batch

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _weight(index, centre, width, count):
        """Weight of a pixel for each centre; nothing beyond the piece."""
        far = tl.div_rn(tl.abs(index.to(tl.float32) - centre), width)
        return tl.where((index >= 0) & (index < count), tl.maximum(1.0 - far, 0.0), 0.0)

    @triton.jit
    def _shares_kernel(piece, first, shares, SIDE: tl.constexpr, BLOCK: tl.constexpr):
        """Of one axis of one puzzle: the pixel under each place, and the shares of four taps.

        Worked out here once for all its pieces: divisions take longer than a pixel's sums.
        """
        axis = tl.program_id(0)
        places = tl.arange(0, BLOCK)
        there = places < SIDE
        count = tl.load(piece + axis).to(tl.int32)
        scale = tl.div_rn(count.to(tl.float32), SIDE * 1.0)
        # A place beyond the side has no weights to share out: it repeats the last one.
        centre = (tl.minimum(places, SIDE - 1).to(tl.float32) + 0.5) * scale - 0.5
        width = tl.zeros_like(centre) + tl.maximum(scale, 1.0)
        under = tl.floor(centre).to(tl.int32)
        total = _weight(under - 1, centre, width, count)
        for t in tl.static_range(0, 3):
            total = total + _weight(under + t, centre, width, count)
        tl.store(first + axis * SIDE + places, under, there)
        for t in tl.static_range(-1, 3):
            share = tl.div_rn(_weight(under + t, centre, width, count), total)
            tl.store(shares + (axis * 4 + t + 1) * SIDE + places, share, there)

    @triton.jit
    def _grey(pixel):
        """A byte as a float32 number: set as the last digits of 2**23, faster than converted."""
        return (pixel & 255 | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0

    @triton.jit
    def _sum(before, more, ALONE: tl.constexpr):
        """The first is not added to 0: nothing here is negative, but no compiler knows."""
        return more if ALONE else before + more

    @triton.jit
    def _place(words, offsets, sizes, image, piece, corner, flip, number, CELLS: tl.constexpr):
        """Of one piece: its image, its puzzle and size; where its rows begin and how far the next
        one is, and the same of its columns."""
        puzzle = number // CELLS
        which = tl.load(image + puzzle)
        base = words + tl.load(offsets + which) // 3
        stride = tl.load(sizes + which * 2 + 1).to(tl.int32)
        high = tl.load(piece + puzzle * 2).to(tl.int32)
        wide = tl.load(piece + puzzle * 2 + 1).to(tl.int32)
        row = tl.load(corner + number * 2).to(tl.int32)
        column = tl.load(corner + number * 2 + 1).to(tl.int32)
        mirrored = tl.load(flip + puzzle) != 0
        begin, step = tl.where(mirrored, stride - 1 - column, column), tl.where(mirrored, -1, 1)
        return base, puzzle, high, wide, row * stride, stride, begin, step

    @triton.jit
    def _taps(
        first, shares, axis, places, count, begin, step, SIDE: tl.constexpr, SHRUNK: tl.constexpr
    ):
        """At places of an axis: pixels of all taps, clamped to the piece, and their shares.

        A piece that is not shrunk has two taps: the outer two of the four weigh nothing.
        """
        outer: tl.constexpr = -1 if SHRUNK else 0
        under = tl.load(first + axis * SIDE + places)
        pixels, parts = (), ()
        for t in tl.static_range(outer, 2 - outer):
            index = tl.minimum(tl.maximum(under + t, 0), count - 1)
            pixels = pixels + (begin + index * step,)
            parts = parts + (tl.load(shares + (axis * 4 + t + 1) * SIDE + places),)
        return pixels, parts

    @triton.jit
    def _mixed(base, rows, columns, down, across):
        """Colours of the pixels of a tile from those of its taps.

        Columns come first: where the compiler sees no order in what is read, it puts neighbours of
        the first axis into neighbouring lanes, and these should read neighbouring pixels.
        """
        zero = tl.zeros([columns[0].shape[0], rows[0].shape[0]], tl.float32)
        red, green, blue = zero, zero, zero
        for i in tl.static_range(len(rows)):
            line_red, line_green, line_blue = zero, zero, zero
            for j in tl.static_range(len(columns)):
                pixel = tl.load(base + (columns[j][:, None] + rows[i][None, :]))
                share = across[j][:, None]
                line_red = _sum(line_red, _grey(pixel) * share, j == 0)
                line_green = _sum(line_green, _grey(pixel >> 8) * share, j == 0)
                line_blue = _sum(line_blue, _grey(pixel >> 16) * share, j == 0)
            red = _sum(red, line_red * down[i][None, :], i == 0)
            green = _sum(green, line_green * down[i][None, :], i == 0)
            blue = _sum(blue, line_blue * down[i][None, :], i == 0)
        return red, green, blue

    @triton.jit
    def _level(mixed, contrast, light):
        """1.5 * 2**23 and the nearest whole grey level, a half to the even one: no fraction is
        left."""
        mixed = (mixed - 128.0) * contrast + 128.0 + light
        return tl.minimum(tl.maximum(mixed, 0.0), 255.0) + 12582912.0

    @triton.jit
    def _byte(mixed, contrast, light):
        return _level(mixed, contrast, light).to(tl.int32, bitcast=True) & 255

    @triton.jit
    def _word(
        base, puzzle, high, wide, top, stride, begin, step, y, x, first, shares, tint,
        SIDE: tl.constexpr, SHRUNK: tl.constexpr,
    ):  # fmt: skip
        """Pixels at columns x and rows y of a piece, four bytes each."""
        contrast, light = tl.load(tint + puzzle * 2), tl.load(tint + puzzle * 2 + 1)
        rows, down = _taps(first, shares, puzzle * 2, y, high, top, stride, SIDE, SHRUNK)
        columns, across = _taps(first, shares, puzzle * 2 + 1, x, wide, begin, step, SIDE, SHRUNK)
        red, green, blue = _mixed(base, rows, columns, down, across)
        word = _byte(red, contrast, light) | (_byte(green, contrast, light) << 8)
        return word | (_byte(blue, contrast, light) << 16)

    @triton.jit
    def _cut_kernel(
        words, offsets, sizes, image, piece, corner, flip, tint, first, shares, out,
        CELLS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """One tile of one piece; a pixel is written as a word of four bytes, the last one 0."""
        number = tl.program_id(0)
        across: tl.constexpr = (SIDE + COLUMNS - 1) // COLUMNS
        top = tl.program_id(1) // across * ROWS
        left = tl.program_id(1) % across * COLUMNS
        y, x = top + tl.arange(0, ROWS), left + tl.arange(0, COLUMNS)
        # 64 bits for the places of images and pieces only: within one, 32 are enough.
        at = out + number.to(tl.int64) * (SIDE * SIDE) + (y[None, :] * SIDE + x[:, None])
        there = (y[None, :] < SIDE) & (x[:, None] < SIDE)
        end: tl.constexpr = SIDE - DEPTH
        hidden = (top >= DEPTH) & (top + ROWS <= end) & (left >= DEPTH) & (left + COLUMNS <= end)
        word = tl.zeros([COLUMNS, ROWS], tl.int32)
        if (DEPTH == 0) | (hidden == 0):
            base, puzzle, high, wide, up, stride, begin, step = _place(
                words, offsets, sizes, image, piece, corner, flip, number, CELLS)  # fmt: skip
            y, x = tl.minimum(y, SIDE - 1), tl.minimum(x, SIDE - 1)
            if (high > SIDE) | (wide > SIDE):
                word = _word(base, puzzle, high, wide, up, stride, begin, step, y, x, first,
                             shares, tint, SIDE, True)  # fmt: skip
            else:
                word = _word(base, puzzle, high, wide, up, stride, begin, step, y, x, first,
                             shares, tint, SIDE, False)  # fmt: skip
            if DEPTH > 0:
                inside = ((y >= DEPTH) & (y < end))[None, :] & ((x >= DEPTH) & (x < end))[:, None]
                word = tl.where(inside, 0, word)
        tl.store(at, word, there)

    @triton.jit
    def _spot(row, column, BORDER: tl.constexpr, CLOCKWISE: tl.constexpr, spot):
        """Place in the walk around the border of a patch that is number `spot` in raster order."""
        if CLOCKWISE:
            end: tl.constexpr = BORDER // 4
            spot = tl.where(column == 0, 4 * end - row, end + row)
            spot = tl.where(row == end, 3 * end - column, spot)
            spot = tl.where(row == 0, column, spot)
        return spot

    @triton.jit
    def _rows(
        base, puzzle, high, wide, up, stride, begin, step, first, shares, tint, to, to_left,
        to_right, line, left, right, SIDE: tl.constexpr, PATCH: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, SHRUNK: tl.constexpr,
    ):  # fmt: skip
        """Write two patches that lie in a row, tile by tile."""
        contrast, light = tl.load(tint + puzzle * 2), tl.load(tint + puzzle * 2 + 1)
        size: tl.constexpr = PATCH * PATCH
        for start in range(0, 2 * PATCH, COLUMNS):
            m = start + tl.arange(0, COLUMNS)
            x = tl.minimum(tl.where(m < PATCH, left, right) * PATCH + m % PATCH, SIDE - 1)
            to_x = tl.where(m < PATCH, to_left, to_right) + m % PATCH
            columns, across = _taps(
                first, shares, puzzle * 2 + 1, x, wide, begin, step, SIDE, SHRUNK)  # fmt: skip
            for top in range(0, PATCH, ROWS):
                n = top + tl.arange(0, ROWS)
                y = tl.minimum(line * PATCH + n, SIDE - 1)
                rows, down = _taps(first, shares, puzzle * 2, y, high, up, stride, SIDE, SHRUNK)
                red, green, blue = _mixed(base, rows, columns, down, across)
                at = to + (n[None, :] * PATCH + to_x[:, None])
                there = (n[None, :] < PATCH) & (m[:, None] < 2 * PATCH)
                # Less 128, as the product takes them: exact in float16.
                red = _level(red, contrast, light) - 12583040.0
                green = _level(green, contrast, light) - 12583040.0
                blue = _level(blue, contrast, light) - 12583040.0
                tl.store(at, red.to(tl.float16), there)
                tl.store(at + size, green.to(tl.float16), there)
                tl.store(at + 2 * size, blue.to(tl.float16), there)

    @triton.jit
    def _patches_kernel(
        words, offsets, sizes, image, piece, corner, flip, tint, first, shares, out,
        CELLS: tl.constexpr, GRID: tl.constexpr, PATCH: tl.constexpr, CLOCKWISE: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Two border patches of one piece that lie in a row: twice 24 columns are three tiles of
        16, once 24 would leave a quarter of the lanes idle."""
        number, pair = tl.program_id(0), tl.program_id(1)
        border: tl.constexpr = 4 * GRID - 4
        side: tl.constexpr = GRID * PATCH
        size: tl.constexpr = 3 * PATCH * PATCH
        # In raster order: GRID / 2 pairs at the top, one in each row between, GRID / 2 below.
        below: tl.constexpr = border // 2 - GRID // 2
        line = tl.minimum(tl.maximum(pair - GRID // 2 + 1, 0), GRID - 1)
        left = tl.where(pair < GRID // 2, 2 * pair, 2 * tl.maximum(pair - below, 0))
        right = tl.where((line == 0) | (line == GRID - 1), left + 1, GRID - 1)
        to_left = _spot(line, left, border, CLOCKWISE, 2 * pair) * size
        to_right = _spot(line, right, border, CLOCKWISE, 2 * pair + 1) * size
        to = out + number.to(tl.int64) * (border * size)
        base, puzzle, high, wide, up, stride, begin, step = _place(
            words, offsets, sizes, image, piece, corner, flip, number, CELLS)  # fmt: skip
        if (high > side) | (wide > side):
            _rows(base, puzzle, high, wide, up, stride, begin, step, first, shares, tint, to,
                  to_left, to_right, line, left, right, side, PATCH, ROWS, COLUMNS,
                  True)  # fmt: skip
        else:
            _rows(base, puzzle, high, wide, up, stride, begin, step, first, shares, tint, to,
                  to_left, to_right, line, left, right, side, PATCH, ROWS, COLUMNS,
                  False)  # fmt: skip


WAY = (16, 32, 4)
"""Rows and columns of a tile, and warps: all but the fastest in docs/runs/speed-tokens.txt."""
PATCHES_WAY = (8, 16, 1)
"""The same for the kernel that writes patches."""


def room(album: Album, device: str) -> bool:
    """Whether a GPU has the memory for Album.words, beside the pixels of three bytes.

    Half of what is free is left to the step.
    """
    words, free = 4 * album.pixels.numel() // 3, torch.cuda.mem_get_info(device)[0]
    return 2 * words <= free


def _shared(piece, side):
    """What _shares_kernel makes of pieces (n, 2): (n, 2, side) and (n, 2, 4, side)."""
    first = torch.empty(len(piece), 2, side, dtype=torch.int32, device=piece.device)
    shares = torch.empty(len(piece), 2, 4, side, device=piece.device)
    _shares_kernel[(2 * len(piece),)](
        piece, first, shares, SIDE=side, BLOCK=triton.next_power_of_2(side),
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return first, shares


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
        drawn = [t.contiguous() for t in (image, piece, corner, flip, tint)]
        _cut_kernel[(len(out), tiles)](
            words, offsets, sizes, *drawn, *_shared(drawn[1], side), out.view(torch.int32),
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


@torch.library.custom_op(
    "puzlm::patches",
    mutates_args=(),
    schema="(Tensor words, Tensor offsets, Tensor sizes, Tensor image, Tensor piece, "
    "Tensor corner, Tensor flip, Tensor tint, int grid, int patch, bool clockwise) -> Tensor",
)
def patches(words, offsets, sizes, image, piece, corner, flip, tint, grid, patch, clockwise):
    """Border patches (n * cells * b, 3 * patch * patch) in float16: grey levels less 128.

    Of an even grid x grid patches a piece, in walking order; in a patch first all of red, then
    green, then blue: what neighbouring lanes write lies together.
    """
    cells, side, border = corner.shape[1], grid * patch, walk(grid, True, clockwise)
    count = len(image) * cells
    if words.is_cuda:
        out = words.new_empty(count * len(border), 3 * patch * patch, dtype=torch.float16)
        rows, columns, warps = PATCHES_WAY
        drawn = [t.contiguous() for t in (image, piece, corner, flip, tint)]
        _patches_kernel[(count, len(border) // 2)](
            words, offsets, sizes, *drawn, *_shared(drawn[1], side), out,
            CELLS=cells, GRID=grid, PATCH=patch, CLOCKWISE=clockwise, ROWS=rows, COLUMNS=columns,
            num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
        return out
    pieces = cut(words, offsets, sizes, image, piece, corner, flip, tint, side, 0)[..., :3]
    tiles = pieces.view(count, grid, patch, grid, patch, 3).permute(0, 1, 3, 5, 2, 4)
    rows = tiles.reshape(count, grid * grid, -1)[:, border]
    return rows.reshape(count * len(border), -1).half() - 128


@patches.register_fake
def _(words, offsets, sizes, image, piece, corner, flip, tint, grid, patch, clockwise):
    count = len(image) * corner.shape[1] * (4 * grid - 4)
    return words.new_empty(count, 3 * patch * patch, dtype=torch.float16)
