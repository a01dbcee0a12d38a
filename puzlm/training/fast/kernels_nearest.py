# mypy: ignore-errors
"""Nearest centroid in Triton, behind an operator that also runs on a CPU: products and arg-max in
one pass, so that the table of scores (rows x centroids) is never written.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _nearest_kernel(
        x, centroids, half, out, n, k,
        DEPTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        deep = tl.arange(0, STEP)
        lines = x + rows.to(tl.int64)[:, None] * DEPTH
        best = tl.full([ROWS], float("-inf"), tl.float32)
        found = tl.zeros([ROWS], tl.int32)
        for start in range(0, k, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            score = tl.zeros([ROWS, COLUMNS], tl.float32)
            for first in range(0, DEPTH, STEP):
                at = first + deep
                a = tl.load(lines + at[None, :], mask=(rows[:, None] < n) & (at[None, :] < DEPTH),
                            other=0.0)  # fmt: skip
                b = tl.load(centroids + columns[None, :] * DEPTH + at[:, None],
                            mask=(columns[None, :] < k) & (at[:, None] < DEPTH),
                            other=0.0)  # fmt: skip
                score = tl.dot(a, b, score)
            bias = tl.load(half + columns, mask=columns < k, other=float("inf"))
            score = score - bias[None, :]
            top, place = tl.max(score, 1, return_indices=True)
            better = top > best  # a tie stays with the smaller index
            found = tl.where(better, start + place, found)
            best = tl.maximum(best, top)
        tl.store(out + rows, found.to(tl.int64), mask=rows < n)

    @triton.jit
    def _nearest_half_kernel(
        x, table, half, out, n,
        COUNT: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Rows are read once and stay; all centroids go by, COLUMNS at a time.

        Every place of a tile keeps its own best, and in which tile it was: a maximum over columns
        is taken once, not for every tile.
        """
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        deep, slots = tl.arange(0, WIDE), tl.arange(0, COLUMNS)
        lines = x + rows.to(tl.int64)[:, None] * (2 * WIDE) + deep[None, :]
        high = tl.load(lines, mask=rows[:, None] < n, other=0.0)
        low = tl.load(lines + WIDE, mask=rows[:, None] < n, other=0.0)
        best = tl.full([ROWS, COLUMNS], float("-inf"), tl.float32)
        found = tl.zeros([ROWS, COLUMNS], tl.int32)
        tile = table + slots[None, :] * (2 * WIDE) + deep[:, None]
        for start in range(0, COUNT, COLUMNS):
            c_high = tl.load(tile + start * (2 * WIDE))
            c_low = tl.load(tile + start * (2 * WIDE) + WIDE)
            score = tl.dot(low, c_high)  # the small ones first: less of them is rounded away
            score = tl.dot(high, c_low, score)
            score = tl.dot(high, c_high, score)
            score = score - tl.load(half + start + slots)[None, :]
            found = tl.where(score > best, start, found)  # a tie stays with the smaller index
            best = tl.maximum(best, score)
        found = tl.where(best == tl.max(best, 1)[:, None], found + slots[None, :], COUNT)
        tl.store(out + rows, tl.min(found, 1).to(tl.int64), mask=rows < n)


@torch.library.custom_op(
    "puzlm::nearest",
    mutates_args=(),
    schema="(Tensor x, Tensor centroids, Tensor half) -> Tensor",
)
def nearest(x, centroids, half):
    """Row by row the index of the largest x c - half: x (n, d), c (k, d) of 16 bits."""
    if x.is_cuda:
        out = torch.empty(len(x), dtype=torch.int64, device=x.device)
        _nearest_kernel[(triton.cdiv(len(x), 128),)](
            x.contiguous(), centroids.contiguous(), half, out, len(x), len(centroids),
            DEPTH=x.shape[1], ROWS=128, COLUMNS=128, STEP=64, num_warps=8, num_stages=3,
        )  # fmt: skip
        return out
    return (x.float() @ centroids.float().T - half).argmax(-1)


@nearest.register_fake
def _(x, centroids, half):
    return x.new_empty(len(x), dtype=torch.int64)


HALF_WAY = (64, 64, 4, 2)
"""Rows and columns of a tile, warps and stages of the kernel for split float16 numbers: all but the
fastest in docs/runs/speed-tokens.txt."""
TILE = 256
"""That kernel reads whole tiles of centroids: their number is a multiple of this."""
WIDEST = 128
"""Numbers of a row that it can keep, a power of two."""


@torch.library.custom_op(
    "puzlm::nearest_half",
    mutates_args=(),
    schema="(Tensor x, Tensor table, Tensor half) -> Tensor",
)
def nearest_half(x, table, half):
    """Row by row the index of the largest x c - half; x (n, 2, d) and c (k, 2, d) are sums of two
    float16 numbers, and the product of the second two is left out."""
    if x.is_cuda:
        out = torch.empty(len(x), dtype=torch.int64, device=x.device)
        rows, columns, warps, stages = HALF_WAY
        _nearest_half_kernel[(triton.cdiv(len(x), rows),)](
            x.contiguous(), table, half, out, len(x), COUNT=len(table), WIDE=x.shape[2],
            ROWS=rows, COLUMNS=columns, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return out
    (high, low), (c_high, c_low) = x.float().unbind(1), table.float().unbind(1)
    return (low @ c_high.T + high @ c_low.T + high @ c_high.T - half).argmax(-1)


@nearest_half.register_fake
def _(x, table, half):
    return x.new_empty(len(x), dtype=torch.int64)


@torch.library.custom_op(
    "puzlm::wide_product", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor"
)
def wide_product(a, b):
    """a (n, d) times b (d, m), 16 bits in, float32 out: the sums are not rounded."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


@wide_product.register_fake
def _(a, b):
    return a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32)
