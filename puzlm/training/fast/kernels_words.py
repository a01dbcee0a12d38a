# mypy: ignore-errors
"""Where sentences enter the encoder in 8 bits, and where pieces leave it, in Triton; on a CPU the
plain way.

The start gathers, adds, norms and rounds in one pass. Its backward pass takes the two gradients
that the encoder leaves and does everything that follows from them in one pass, too: sums for gain,
shift and places stay in registers, since a program sees one place of many sentences; rows of the
table are added to where they lie. All sentences have the separator in the same places, so its row
would be waited for by all: its sum stays in registers as well.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch
from torch import Tensor

from puzlm.tokenizer.settings import PAD, SEP
from puzlm.training.fast.kernels_fp8 import E4, LEAST, NORMED, normed, rounded, under_norm

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _start_kernel(ids, table, places, gain, shift, out, small, spreads, LENGTH: tl.constexpr,
                      D: tl.constexpr, R: tl.constexpr, SCALE: tl.constexpr):  # fmt: skip
        r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
        c = tl.arange(0, D)[None, :]
        s = tl.load(table + tl.load(ids + r) * D + c) + tl.load(places + (r % LENGTH) * D + c)
        s = s - tl.sum(s, 1)[:, None] / D
        spread = tl.rsqrt(tl.sum(s * s, 1)[:, None] / D + 1e-5)
        tl.store(spreads + r, spread)
        y = s * spread * tl.load(gain + c) + tl.load(shift + c)
        tl.store(out + r * D + c, y.to(out.dtype.element_ty))
        tl.store(small + r * D + c, (y * SCALE).to(tl.float8e4nv))

    @triton.jit
    def _start_backward_kernel(a, b, y, spreads, ids, gain, shift, table, sums, sentences,
                               LENGTH: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
                               SEP: tl.constexpr, PAD: tl.constexpr,
                               LEAST: tl.constexpr):  # fmt: skip
        place = tl.program_id(0)
        c = tl.arange(0, D)[None, :]
        w, under = tl.load(gain + c), tl.load(shift + c)
        back = 1.0 / tl.where(tl.abs(w) < LEAST, LEAST, w)
        d_gain = tl.zeros([R, D], tl.float32)
        d_shift = tl.zeros([R, D], tl.float32)
        d_place = tl.zeros([R, D], tl.float32)
        d_separator = tl.zeros([R, D], tl.float32)
        for first in range(tl.program_id(1) * R, sentences, tl.num_programs(1) * R):
            s = first + tl.arange(0, R)[:, None]
            here = s < sentences
            r = s * LENGTH + place
            g = tl.load(a + r * D + c, here, other=0.0).to(tl.float32)
            g += tl.load(b + r * D + c, here, other=0.0).to(tl.float32)
            x = (tl.load(y + r * D + c, here, other=0.0).to(tl.float32) - under) * back
            d_gain += g * x
            d_shift += g
            g = g * w
            along = tl.sum(g * x, 1)[:, None] / D
            level = tl.sum(g, 1)[:, None] / D
            g = (g - level - x * along) * tl.load(spreads + r, here, other=0.0)
            d_place += g
            word = tl.load(ids + r, here, other=PAD)
            d_separator += tl.where(word == SEP, g, 0.0)
            own = (word != SEP) & (word != PAD)
            tl.atomic_add(table + word * D + c, g, own, sem="relaxed")
        columns = tl.arange(0, D)
        line = sums + (tl.program_id(1) * LENGTH + place) * (3 * D) + columns
        tl.store(line, tl.sum(d_gain, 0))
        tl.store(line + D, tl.sum(d_shift, 0))
        tl.store(line + 2 * D, tl.sum(d_place, 0))
        tl.atomic_add(table + SEP * D + columns, tl.sum(d_separator, 0), sem="relaxed")

    @triton.jit
    def _pool_kernel(states, means, LENGTH: tl.constexpr, CELLS: tl.constexpr, B: tl.constexpr,
                     STEP: tl.constexpr, D: tl.constexpr):  # fmt: skip
        sentence = tl.program_id(0) // CELLS
        piece = tl.program_id(0) % CELLS
        c = tl.arange(0, D)
        at = states + (sentence * LENGTH + piece * STEP) * D + c
        total = tl.zeros([D], tl.float32)
        for i in tl.static_range(B):
            total += tl.load(at + i * D).to(tl.float32)
        tl.store(means + tl.program_id(0) * D + c, (total / B).to(means.dtype.element_ty))


START, START_BACKWARD = (4, 4), (2, 4)  # rows a program takes at a time, and warps
PROGRAMS = 1056  # of the start's backward pass, about: 8 a multiprocessor


def start(
    ids: Tensor, table: Tensor, places: Tensor, gain: Tensor, shift: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Norms (n, d) of symbols and places of sentences (batch, T), n = batch * T, the same in 8
    bits, and 1 / spread of the rows (n, 1). n divides by 4."""
    (batch, length), d = ids.shape, table.shape[1]
    n = batch * length
    if not ids.is_cuda:
        wide = table[ids.flatten()] + places.repeat(batch, 1)
        y, spread = normed(wide.float(), gain, shift)
        return y.to(dtype), rounded(y, NORMED, E4), spread
    out = torch.empty(n, d, dtype=dtype, device=ids.device)
    small = torch.empty(n, d, dtype=E4, device=ids.device)
    spread = torch.empty(n, 1, dtype=torch.float32, device=ids.device)
    rows, warps = START
    _start_kernel[(n // rows,)](
        ids.contiguous(), table, places, gain, shift, out, small, spread, LENGTH=length, D=d,
        R=rows, SCALE=NORMED, num_warps=warps,
    )  # fmt: skip
    return out, small, spread


def start_backward(
    a: Tensor, b: Tensor, y: Tensor, spread: Tensor, ids: Tensor, gain: Tensor, shift: Tensor,
    count: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the table (count, d), of places (T, d), gain and shift, from that of y, a + b.

    [PAD] learns nothing from being read.
    """
    (batch, length), d = ids.shape, y.shape[1]
    table = torch.zeros(count, d, dtype=torch.float32, device=y.device)
    if not y.is_cuda:
        g = a.float() + b.float()
        wide, d_gain = under_norm(g, y, spread, gain, shift)
        known = (ids.flatten() != PAD)[:, None]
        table.index_add_(0, ids.flatten(), wide * known)
        return table, wide.view(batch, length, d).sum(0), d_gain, g.sum(0)
    rows, warps = START_BACKWARD
    parts = max(1, min(PROGRAMS // length, batch // rows))
    sums = torch.empty(parts, length, 3, d, dtype=torch.float32, device=y.device)
    _start_backward_kernel[(length, parts)](
        a, b, y, spread, ids.contiguous(), gain, shift, table, sums, batch, LENGTH=length, D=d,
        R=rows, SEP=SEP, PAD=PAD, LEAST=LEAST, num_warps=warps,
    )  # fmt: skip
    d_gain, d_shift, _ = sums.sum((0, 1))
    return table, sums[:, :, 2].sum(0), d_gain, d_shift


@torch.library.custom_op(
    "puzlm::pool", mutates_args=(), schema="(Tensor states, int cells, int b) -> Tensor"
)
def pool(states, cells, b):
    """Means (batch, cells, d) of the b states of each piece, of states (batch, T, d); between two
    pieces there may be a separator."""
    batch, length, d = states.shape
    step = -(-length // cells)
    if not states.is_cuda:
        wide = torch.nn.functional.pad(states.float(), (0, 0, 0, cells * step - length))
        return wide.view(batch, cells, step, d)[:, :, :b].mean(2).to(states.dtype)
    means = states.new_empty(batch, cells, d)
    _pool_kernel[(batch * cells,)](
        states.contiguous(), means, LENGTH=length, CELLS=cells, B=b, STEP=step, D=d, num_warps=2
    )
    return means


@pool.register_fake
def _(states, cells, b):
    return states.new_empty(len(states), cells, states.shape[2])
