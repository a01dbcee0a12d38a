# mypy: ignore-errors
"""What an encoder layer in 8 bits does between its products, in Triton; on a CPU the plain way.

A matrix unit multiplies numbers of 8 bits twice as fast as those of 16, but somebody has to round
them. So every kernel that writes something a product will read writes it rounded, in the same pass.
It sums along rows only: for the gradient of a weight both factors are turned round first, the wide
ones by the kernel that writes them, the narrow ones by `turn`.

Activations are rounded to e4m3 by fixed scales: what a layer norm leaves cannot be far from 1.
Gradients are rounded to e5m2, whose 32 powers of two need no scale but that of the batch. A weight
has a scale of its own, by its largest entry.

Annotations are not postponed: Triton reads them.
"""

import functools
import importlib.util

import torch
from torch import Tensor

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4: 448.0, E5: 57344.0}
NORMED = 16.0  # scale of what a layer norm leaves: up to 28 in size
ACTIVE = 8.0  # of what GELU leaves: up to 56
MIXED = 32.0  # of what attention mixes: up to 14

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _logistic(x):
        """Share of a normal distribution below x, and x^2; `below` says how."""
        t = tl.minimum(x * x, 25.0)
        y = x * (2.30033374 + t * (0.107569204 - t * 0.001128992))
        return 1.0 / (1.0 + tl.exp2(-y)), t

    @triton.jit
    def _word(a, b, c, d, E5: tl.constexpr):
        """Four numbers in 8 bits, as one word of 32; a first.

        By hand, since Triton's ptxas gets it wrong where numbers in 8 bits are written as a row and
        read as single bytes, too: of two conversions that it merges it forgets one.
        """
        if E5:
            return tl.inline_asm_elementwise(
                "{.reg .b16 lo, hi; cvt.rn.satfinite.e5m2x2.f32 lo, $2, $1; "
                "cvt.rn.satfinite.e5m2x2.f32 hi, $4, $3; mov.b32 $0, {lo, hi};}",
                "=r,r,r,r,r", [a, b, c, d], tl.int32, True, 1,
            )  # fmt: skip
        else:
            return tl.inline_asm_elementwise(
                "{.reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, $2, $1; "
                "cvt.rn.satfinite.e4m3x2.f32 hi, $4, $3; mov.b32 $0, {lo, hi};}",
                "=r,r,r,r,r", [a, b, c, d], tl.int32, True, 1,
            )  # fmt: skip

    @triton.jit
    def _put(turned, word, rows, R: tl.constexpr, C: tl.constexpr):
        """Write words (R, C), each of four rows, turned round. Bytes would change places through
        shared memory four times as slowly."""
        c = tl.program_id(1) * C + tl.arange(0, C)
        at = c[:, None] * (rows // 4) + (tl.program_id(0) * R + tl.arange(0, R))[None, :]
        tl.store(turned + at, tl.trans(word))

    @triton.jit
    def _gelu_part(h, small, at, SCALE: tl.constexpr):
        x = tl.load(h + at).to(tl.float32)
        share, _ = _logistic(x)
        y = x * share * SCALE
        tl.store(small + at, y.to(tl.float8e4nv))
        return y

    @triton.jit
    def _gelu_kernel(h, small, turned, rows, WIDTH: tl.constexpr, SCALE: tl.constexpr,
                     R: tl.constexpr, C: tl.constexpr):  # fmt: skip
        r = 4 * (tl.program_id(0) * R + tl.arange(0, R))
        at = r[:, None] * WIDTH + (tl.program_id(1) * C + tl.arange(0, C))[None, :]
        a = _gelu_part(h, small, at, SCALE)
        b = _gelu_part(h, small, at + WIDTH, SCALE)
        c = _gelu_part(h, small, at + 2 * WIDTH, SCALE)
        d = _gelu_part(h, small, at + 3 * WIDTH, SCALE)
        _put(turned, _word(a, b, c, d, False), rows, R, C)

    @triton.jit
    def _slope_part(grad, h, small, at, scale):
        x = tl.load(h + at).to(tl.float32)
        g = tl.load(grad + at).to(tl.float32)
        share, t = _logistic(x)
        rise = 1.5944698 + t * (0.22368546 - t * 0.0039127396)  # of the exponent
        g = g * (share + x * rise * (share - share * share)) * scale
        tl.store(small + at, g.to(tl.float8e5))
        return g

    @triton.jit
    def _gelu_backward_kernel(grad, h, small, turned, sums, rows, scale, WIDTH: tl.constexpr,
                              R: tl.constexpr, C: tl.constexpr):  # fmt: skip
        r = 4 * (tl.program_id(0) * R + tl.arange(0, R))
        column = tl.program_id(1) * C + tl.arange(0, C)
        at = r[:, None] * WIDTH + column[None, :]
        a = _slope_part(grad, h, small, at, scale)
        b = _slope_part(grad, h, small, at + WIDTH, scale)
        c = _slope_part(grad, h, small, at + 2 * WIDTH, scale)
        d = _slope_part(grad, h, small, at + 3 * WIDTH, scale)
        tl.store(sums + tl.program_id(0) * WIDTH + column, tl.sum((a + b) + (c + d), 0) / scale)
        _put(turned, _word(a, b, c, d, True), rows, R, C)

    @triton.jit
    def _norm_kernel(x, o, gain, shift, out, small, spreads, D: tl.constexpr, R: tl.constexpr,
                     SCALE: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
        r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
        c = tl.arange(0, D)[None, :]
        at = r * D + c
        s = tl.load(x + at).to(tl.float32) + tl.load(o + at).to(tl.float32)
        s = s - tl.sum(s, 1)[:, None] / D
        spread = tl.rsqrt(tl.sum(s * s, 1)[:, None] / D + 1e-5)
        tl.store(spreads + r, spread)
        y = s * spread * tl.load(gain + c) + tl.load(shift + c)
        tl.store(out + at, y.to(out.dtype.element_ty))
        if not LAST:  # nobody reads the last layer's states in 8 bits
            tl.store(small + at, (y * SCALE).to(tl.float8e4nv))

    @triton.jit
    def _norm_backward_kernel(a, b, y, spreads, gain, shift, out, small, sums, blocks, scale,
                              D: tl.constexpr, R: tl.constexpr, BOTH: tl.constexpr,
                              LEAST: tl.constexpr):  # fmt: skip
        """R rows at a time; three gradients are summed up row by row until the end, since sums
        over rows make the warps wait for each other."""
        c = tl.arange(0, D)[None, :]
        w, under = tl.load(gain + c), tl.load(shift + c)
        back = 1.0 / tl.where(tl.abs(w) < LEAST, LEAST, w)
        d_gain = tl.zeros([R, D], tl.float32)
        d_shift = tl.zeros([R, D], tl.float32)
        d_bias = tl.zeros([R, D], tl.float32)
        for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
            r = block * R + tl.arange(0, R)[:, None]
            at = r * D + c
            g = tl.load(a + at).to(tl.float32)
            if BOTH:
                g += tl.load(b + at).to(tl.float32)
            x = (tl.load(y + at).to(tl.float32) - under) * back
            d_gain += g * x
            d_shift += g
            g = g * w
            along = tl.sum(g * x, 1)[:, None] / D
            level = tl.sum(g, 1)[:, None] / D
            g = (g - level - x * along) * tl.load(spreads + r)
            tl.store(out + at, g.to(out.dtype.element_ty))
            tl.store(small + at, (g * scale).to(tl.float8e5))
            d_bias += g
        line = sums + tl.program_id(0) * (3 * D) + tl.arange(0, D)
        tl.store(line, tl.sum(d_gain, 0))
        tl.store(line + D, tl.sum(d_shift, 0))
        tl.store(line + 2 * D, tl.sum(d_bias, 0))

    @triton.jit
    def _round_kernel(x, most, small, LARGEST: tl.constexpr, SIZE: tl.constexpr):
        """Numbers by their largest, or by a scale of LARGEST / most."""
        at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        y = tl.load(x + at).to(tl.float32) * (LARGEST / tl.load(most))
        tl.store(small + at, y.to(small.dtype.element_ty))

    @triton.jit
    def _turn_kernel(x, turned, rows, D, R: tl.constexpr, C: tl.constexpr):
        """Bytes (4 R, C) turned round."""
        r = 4 * (tl.program_id(0) * R + tl.arange(0, R))
        at = x + r[:, None] * D + (tl.program_id(1) * C + tl.arange(0, C))[None, :]
        word = tl.load(at).to(tl.uint32)
        word = word | (tl.load(at + D).to(tl.uint32) << 8)
        word = word | (tl.load(at + 2 * D).to(tl.uint32) << 16)
        word = word | (tl.load(at + 3 * D).to(tl.uint32) << 24)
        _put(turned, word.to(tl.int32, bitcast=True), rows, R, C)


TURN = (32, 128, 8)  # a quarter of the rows, columns, and warps that a program turns
GELU, GELU_BACKWARD = (8, 256, 4), (16, 128, 4)  # likewise
NORM, NORM_BACKWARD = (4, 4), (2, 2)  # rows a program takes at a time, and warps
LEAST = 1e-4  # size of a gain that what it was multiplied with can be read back from
PROGRAMS = 792  # of a norm's backward pass, each with rows of its own: 6 a multiprocessor


@functools.cache
def unit(value: float, device: torch.device) -> Tensor:
    """A number as a tensor, as products in 8 bits want their scales."""
    return torch.tensor(value, dtype=torch.float32, device=device)


def rounded(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """x in 8 bits; what is too large becomes the largest."""
    most = LARGEST[dtype]
    return (x.float() * scale).clamp(-most, most).to(dtype)


def product(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype,
    bias: Tensor | None = None, fast: bool = True,
) -> Tensor:  # fmt: skip
    """a (n, d) times b' (d, m), both in 8 bits, plus bias.

    `fast` sums with fewer bits, which is enough for a few thousand terms.
    """
    if a.is_cuda:
        return torch._scaled_mm(
            a, b.t(), scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=dtype,
            use_fast_accum=fast,
        )  # fmt: skip
    wide = (a.float() @ b.float().t()) * scale_a * scale_b
    return (wide if bias is None else wide + bias.float()).to(dtype)


def turn(x: Tensor) -> Tensor:
    """x (n, d) of 8 bits turned round, (d, n); n and d divide by 128."""
    n, d = x.shape
    if not x.is_cuda:
        return x.t().contiguous()
    turned = torch.empty(d, n, dtype=x.dtype, device=x.device)
    rows, columns, warps = TURN
    _turn_kernel[(n // (4 * rows), d // columns)](
        x.view(torch.uint8), turned.view(torch.int32), n, d, R=rows, C=columns, num_warps=warps
    )
    return turned


def small(x: Tensor, most: Tensor, largest: float) -> Tensor:
    """x in 8 bits, by a scale of largest / most."""
    if not x.is_cuda:
        return rounded(x.float() / most, largest, E4)
    out = torch.empty(x.shape, dtype=E4, device=x.device)
    _round_kernel[(x.numel() // 2048,)](x, most, out, LARGEST=largest, SIZE=2048, num_warps=4)
    return out


def weights(groups: list[list[Tensor]]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each group of weights (n, k), stacked: in 8 bits, the same turned, and its scale."""
    stacked = [torch.cat(group) if len(group) > 1 else group[0].contiguous() for group in groups]
    found = []
    for w, most in zip(stacked, torch._foreach_norm(stacked, float("inf")), strict=True):
        most = most.clamp_min(1e-12)
        w8 = small(w, most, LARGEST[E4])
        found.append((w8, turn(w8), most / LARGEST[E4]))
    return found


# ---- GELU -----------------------------------------------------------------------------------


def below(x: Tensor) -> Tensor:
    """Share of a normal distribution below x, from one exponential.

    Its log odds are an odd function of x that three terms fit so well that GELU is off by 6e-5 at
    most, and by 1/1300 of itself where it is above 0.002: a quarter of a bfloat16 step.
    """
    t = (x * x).clamp_max(25)
    return torch.sigmoid(x * (2.30033374 + t * (0.107569204 - t * 0.001128992)) * 0.6931471806)


def slope(x: Tensor) -> Tensor:
    """Derivative of GELU, of the same fit."""
    t, share = (x * x).clamp_max(25), below(x)
    rise = 1.5944698 + t * (0.22368546 - t * 0.0039127396)
    return share + x * rise * (share - share * share)


def gelu(h: Tensor) -> tuple[Tensor, Tensor]:
    """GELU of h (n, d) in 8 bits, and turned (d, n)."""
    n, d = h.shape
    if not h.is_cuda:
        out = rounded(h.float() * below(h.float()), ACTIVE, E4)
        return out, turn(out)
    out, turned = (torch.empty(s, dtype=E4, device=h.device) for s in ((n, d), (d, n)))
    rows, columns, warps = GELU
    _gelu_kernel[(n // (4 * rows), d // columns)](
        h, out, turned.view(torch.int32), n, WIDTH=d, SCALE=ACTIVE, R=rows, C=columns,
        num_warps=warps,
    )  # fmt: skip
    return out, turned


def gelu_backward(grad: Tensor, h: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of h in 8 bits, turned, and its sums over rows (d,)."""
    n, d = h.shape
    if not h.is_cuda:
        wide = grad.float() * slope(h.float())
        out = rounded(wide, scale, E5)
        return out, turn(out), wide.sum(0)
    out, turned = (torch.empty(s, dtype=E5, device=h.device) for s in ((n, d), (d, n)))
    rows, columns, warps = GELU_BACKWARD
    sums = torch.empty(n // (4 * rows), d, dtype=torch.float32, device=h.device)
    _gelu_backward_kernel[(len(sums), d // columns)](
        grad, h, out, turned.view(torch.int32), sums, n, scale, WIDTH=d, R=rows, C=columns,
        num_warps=warps,
    )  # fmt: skip
    return out, turned, sums.sum(0)


# ---- layer norm -----------------------------------------------------------------------------


def norm(
    x: Tensor, o: Tensor, gain: Tensor, shift: Tensor, last: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm of x + o (n, d), the same in 8 bits (not the last one), and 1 / spread of the rows
    (n, 1)."""
    n, d = x.shape
    if not x.is_cuda:
        wide = x.float() + o.float()
        y, spread = normed(wide, gain, shift)
        return y.to(x.dtype), rounded(y, NORMED, E4), spread
    out = torch.empty_like(x)
    out8 = torch.empty(0 if last else n, d, dtype=E4, device=x.device)
    spread = torch.empty(n, 1, dtype=torch.float32, device=x.device)
    rows, warps = NORM
    _norm_kernel[(n // rows,)](
        x, o, gain, shift, out, out8, spread, D=d, R=rows, SCALE=NORMED, LAST=last,
        num_warps=warps,
    )  # fmt: skip
    return out, out8, spread


def normed(x: Tensor, gain: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Layer norm of x (n, d), and 1 / spread of its rows (n, 1)."""
    spread = (x.var(1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
    return (x - x.mean(1, keepdim=True)) * spread * gain + shift, spread


def under_norm(
    g: Tensor, y: Tensor, spread: Tensor, gain: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient (n, d) of what was normed to y, from that of y; and that of the gain.

    What the gain was multiplied with is read back from y, so that the sum under the norm need not
    be written. A gain of less than LEAST counts as that: it left nothing to read.
    """
    x = (y.float() - shift) / torch.where(gain.abs() < LEAST, LEAST, gain)
    w = g * gain
    back = (w - w.mean(1, keepdim=True) - x * (w * x).mean(1, keepdim=True)) * spread
    return back, (g * x).sum(0)


def norm_backward(
    a: Tensor, b: Tensor | None, y: Tensor, spread: Tensor, gain: Tensor, shift: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradient of the sum under a norm from that of the norm, a + b, in 16 bits and in 8; and the
    gradients of gain and shift, and its sums over rows (3, d)."""
    n, d = a.shape
    if not a.is_cuda:
        g = a.float() if b is None else a.float() + b.float()
        wide, d_gain = under_norm(g, y, spread, gain, shift)
        sums = torch.stack([d_gain, g.sum(0), wide.sum(0)])
        return wide.to(a.dtype), rounded(wide, scale, E5), sums
    out, out8 = torch.empty_like(a), torch.empty(n, d, dtype=E5, device=a.device)
    rows, warps = NORM_BACKWARD
    sums = torch.empty(min(PROGRAMS, n // rows), 3, d, dtype=torch.float32, device=a.device)
    _norm_backward_kernel[(len(sums),)](
        a, a if b is None else b, y, spread, gain, shift, out, out8, sums, n // rows, scale, D=d,
        R=rows, BOTH=b is not None, LEAST=LEAST, num_warps=warps,
    )  # fmt: skip
    return out, out8, sums.sum(0)
