# mypy: ignore-errors
"""Matrix products that do a little more, behind torch operators that also run on a CPU.

The feed-forward layers' GELU is done on a product's tile while it is in registers: neither the
forward nor the backward pass reads again what the product has just written.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch
from torch.nn import functional as F

from puzlm import kernels

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _tile(
        a, b, rows, columns, count, N: tl.constexpr, K: tl.constexpr, TURNED: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        """A tile of a (count, K) times b (K, N), or times b (N, K) turned, in float32."""
        deep = tl.arange(0, STEP)
        # Rows beyond the last are read from the first ones and not written: no masks in the loop.
        lines = a + (rows % count).to(tl.int64)[:, None] * K + deep[None, :]
        if TURNED:
            others = b + columns[None, :] * K + deep[:, None]
        else:
            others = b + columns[None, :] + deep[:, None] * N
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for _ in range(0, K, STEP):
            total = tl.dot(tl.load(lines), tl.load(others), total)
            lines += STEP
            others += STEP if TURNED else STEP * N
        return total

    @triton.jit
    def _gelu_product_kernel(
        x, weight, bias, h, g, count, N: tl.constexpr, K: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        across: tl.constexpr = N // COLUMNS
        rows = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
        columns = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
        total = _tile(x, weight, rows, columns, count, N, K, True, ROWS, COLUMNS, STEP)
        total += tl.load(bias + columns)[None, :].to(tl.float32)
        near = total.to(h.dtype.element_ty)  # what the backward pass will read
        at = rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(h + at, near, rows[:, None] < count)
        wide = near.to(tl.float32)
        below, bell = kernels._below(wide)
        tl.store(g + at, (wide * below).to(g.dtype.element_ty), rows[:, None] < count)

    @triton.jit
    def _slope_product_kernel(
        grad, weight, h, out, sums, count, N: tl.constexpr, K: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        across: tl.constexpr = N // COLUMNS
        part = tl.program_id(0) // across
        rows = part * ROWS + tl.arange(0, ROWS)
        columns = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
        total = _tile(grad, weight, rows, columns, count, N, K, False, ROWS, COLUMNS, STEP)
        at = rows.to(tl.int64)[:, None] * N + columns[None, :]
        x = tl.load(h + at, rows[:, None] < count, other=0.0).to(tl.float32)
        below, bell = kernels._below(x)
        y = (total * (below + x * bell * 0.3989422804)).to(out.dtype.element_ty)
        tl.store(out + at, y, rows[:, None] < count)
        y = tl.where(rows[:, None] < count, y.to(tl.float32), 0.0)
        tl.store(sums + part * N + columns, tl.sum(y, 0))


WAY = (128, 128, 64, 8, 3)
"""Rows, columns and depth of a tile, warps, stages of its reads."""


def suits(inner: int, outer: int) -> bool:
    """Whether the tiles divide the inner and the outer width of a feed-forward layer."""
    return inner % WAY[1] == 0 and outer % WAY[2] == 0


def _launch(kernel, tensors, count, N, K):
    rows, columns, step, warps, stages = WAY
    kernel[(triton.cdiv(count, rows) * (N // columns),)](
        *tensors, count, N=N, K=K, ROWS=rows, COLUMNS=columns, STEP=step,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


@torch.library.custom_op(
    "puzlm::gelu_product",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias) -> (Tensor, Tensor)",
)
def gelu_product(x, weight, bias):
    """h = x W' + b of x (n, d), and its GELU."""
    if not x.is_cuda:
        h = F.linear(x, weight, bias)
        return h, kernels.gelu(h, False)[0]
    h, g = (x.new_empty(len(x), len(weight)) for _ in range(2))
    tensors = (x.contiguous(), weight.contiguous(), bias, h, g)
    _launch(_gelu_product_kernel, tensors, len(x), *weight.shape)
    return h, g


@gelu_product.register_fake
def _(x, weight, bias):
    return x.new_empty(len(x), len(weight)), x.new_empty(len(x), len(weight))


@torch.library.custom_op(
    "puzlm::slope_product",
    mutates_args=(),
    schema="(Tensor grad, Tensor weight, Tensor h) -> (Tensor, Tensor)",
)
def slope_product(grad, weight, h):
    """Gradient of h (n, m) where GELU(h) W' was made, W (d, m); its sums over rows, in parts."""
    parts = -(-len(h) // WAY[0])
    sums = torch.zeros(parts, h.shape[1], dtype=torch.float32, device=h.device)
    if not grad.is_cuda:
        out = ((grad @ weight).float() * kernels.slope(h.float())).to(h.dtype)
        sums[0] = out.float().sum(0)
        return out, sums
    out = torch.empty_like(h)
    tensors = (grad.contiguous(), weight.contiguous(), h.contiguous(), out, sums)
    _launch(_slope_product_kernel, tensors, len(h), h.shape[1], grad.shape[1])
    return out, sums


@slope_product.register_fake
def _(grad, weight, h):
    sums = h.new_empty(-(-len(h) // WAY[0]), h.shape[1], dtype=torch.float32)
    return torch.empty_like(h), sums


@torch.library.custom_op(
    "puzlm::two_products",
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor c, Tensor d) -> Tensor",
)
def two_products(a, b, c, d):
    """a b + c d, batch by batch: the second product adds to what the first wrote."""
    return torch.bmm(a, b).baddbmm_(c, d)


@two_products.register_fake
def _(a, b, c, d):
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])
