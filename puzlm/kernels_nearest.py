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


@torch.library.custom_op(
    "puzlm::nearest",
    mutates_args=(),
    schema="(Tensor x, Tensor centroids, Tensor half) -> Tensor",
)
def nearest(x, centroids, half):
    """Row by row the index of the largest x c - half: x (n, d), c (k, d) in bfloat16."""
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


@torch.library.custom_op(
    "puzlm::wide_product", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor"
)
def wide_product(a, b):
    """a (n, d) times b (d, m), bfloat16 in, float32 out: the sums are not rounded."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


@wide_product.register_fake
def _(a, b):
    return a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32)
