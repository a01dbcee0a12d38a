# mypy: ignore-errors
"""Cross-attention of a puzzle's few queries to its encoder states in two Triton kernels.

One program is one puzzle. The states are read in parts of their width, once for the scores and once
more, then from the cache, for the means; in the backward pass both gradients of the states are
added up before they are written. Queries are slots x heads: every head reads all the width.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch

MOST = 128  # tokens, and queries, of one puzzle

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _cross_kernel(
        q, states, out, shares, COUNT: tl.constexpr, LENGTH: tl.constexpr, WIDTH: tl.constexpr,
        QUERIES: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        puzzle = tl.program_id(0).to(tl.int64)
        rows, tokens = tl.arange(0, QUERIES), tl.arange(0, TOKENS)
        part = tl.arange(0, STEP)
        asked, there = rows[:, None] < COUNT, tokens[:, None] < LENGTH
        queries = q + puzzle * (COUNT * WIDTH) + rows[:, None] * WIDTH + part[None, :]
        values = states + puzzle * (LENGTH * WIDTH) + tokens[:, None] * WIDTH + part[None, :]
        means = out + puzzle * (COUNT * WIDTH) + rows[:, None] * WIDTH + part[None, :]
        score = tl.zeros([QUERIES, TOKENS], tl.float32)
        for first in range(0, WIDTH, STEP):
            a = tl.load(queries + first, asked, other=0.0)
            b = tl.load(values + first, there, other=0.0)
            score = tl.dot(a, tl.trans(b), score)
        score = tl.where(tokens[None, :] < LENGTH, score, float("-inf"))
        p = tl.exp2((score - tl.max(score, 1)[:, None]) * 1.4426950408889634)
        p = (p / tl.sum(p, 1)[:, None]).to(out.dtype.element_ty)
        at = shares + puzzle * (COUNT * TOKENS) + rows[:, None] * TOKENS + tokens[None, :]
        tl.store(at, p, asked)
        for first in range(0, WIDTH, STEP):
            b = tl.load(values + first, there, other=0.0)
            tl.store(means + first, tl.dot(p, b).to(p.dtype), asked)

    @triton.jit
    def _cross_backward_kernel(
        q, states, shares, grad, dq, dstates,
        COUNT: tl.constexpr, LENGTH: tl.constexpr, WIDTH: tl.constexpr,
        QUERIES: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        puzzle = tl.program_id(0).to(tl.int64)
        rows, tokens = tl.arange(0, QUERIES), tl.arange(0, TOKENS)
        part = tl.arange(0, STEP)
        asked, there = rows[:, None] < COUNT, tokens[:, None] < LENGTH
        narrow = puzzle * (COUNT * WIDTH) + rows[:, None] * WIDTH + part[None, :]
        wide = puzzle * (LENGTH * WIDTH) + tokens[:, None] * WIDTH + part[None, :]
        back = tl.zeros([QUERIES, TOKENS], tl.float32)
        for first in range(0, WIDTH, STEP):
            g = tl.load(grad + narrow + first, asked, other=0.0)
            b = tl.load(states + wide + first, there, other=0.0)
            back = tl.dot(g, tl.trans(b), back)
        at = shares + puzzle * (COUNT * TOKENS) + rows[:, None] * TOKENS + tokens[None, :]
        p = tl.load(at, asked, other=0.0)
        mean = tl.sum(p.to(tl.float32) * back, 1)
        ds = (p.to(tl.float32) * (back - mean[:, None])).to(p.dtype)
        turned, turned_ds = tl.trans(p), tl.trans(ds)
        for first in range(0, WIDTH, STEP):
            g = tl.load(grad + narrow + first, asked, other=0.0)
            a = tl.load(q + narrow + first, asked, other=0.0)
            b = tl.load(states + wide + first, there, other=0.0)
            total = tl.dot(turned, g)
            total = tl.dot(turned_ds, a, total)
            tl.store(dstates + wide + first, total.to(p.dtype), there)
            tl.store(dq + narrow + first, tl.dot(ds, b).to(p.dtype), asked)


WAYS = {"cross": (64, 8, 2), "cross_backward": (64, 8, 2)}
"""Width of a part, warps, and stages of its reads."""


def suits(queries: int, tokens: int, width: int) -> bool:
    """Whether the kernels can take so many queries and tokens of this width."""
    return max(queries, tokens) <= MOST and width % 64 == 0


def _block(count):
    return max(16, 1 << (count - 1).bit_length())


def _launch(name, tensors, q, states):
    kernel = _cross_kernel if name == "cross" else _cross_backward_kernel
    step, warps, stages = WAYS[name]
    kernel[(len(q),)](
        *tensors, COUNT=q.shape[1], LENGTH=states.shape[1], WIDTH=q.shape[2],
        QUERIES=_block(q.shape[1]), TOKENS=_block(states.shape[1]), STEP=step,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


@torch.library.custom_op(
    "puzlm::cross", mutates_args=(), schema="(Tensor q, Tensor states) -> (Tensor, Tensor)"
)
def cross(q, states):
    """Means (batch, n, d) of states (batch, T, d) for scaled queries (batch, n, d).

    With the shares they come from, (batch, n, T and up to a power of 2), for the backward pass.
    """
    batch, count, _ = q.shape
    tokens = states.shape[1]
    shares = torch.zeros(batch, count, _block(tokens), dtype=q.dtype, device=q.device)
    if q.is_cuda:
        q, states, out = q.contiguous(), states.contiguous(), torch.empty_like(q)
        _launch("cross", (q, states, out, shares), q, states)
        return out, shares
    found = (q @ states.transpose(1, 2)).float().softmax(-1).to(q.dtype)
    shares[..., :tokens] = found
    return found @ states, shares


@cross.register_fake
def _(q, states):
    shares = q.new_empty(*q.shape[:2], _block(states.shape[1]))
    return torch.empty_like(q, memory_format=torch.contiguous_format), shares


@torch.library.custom_op(
    "puzlm::cross_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor states, Tensor shares, Tensor grad) -> (Tensor, Tensor)",
)
def cross_backward(q, states, shares, grad):
    """Gradients of the queries and of the states, from that of the means."""
    if q.is_cuda:
        q, states, grad = q.contiguous(), states.contiguous(), grad.contiguous()
        dq, dstates = torch.empty_like(q), torch.empty_like(states)
        _launch("cross_backward", (q, states, shares, grad, dq, dstates), q, states)
        return dq, dstates
    p = shares[..., : states.shape[1]]
    back = (grad @ states.transpose(1, 2)).float()
    ds = (p.float() * (back - (p.float() * back).sum(-1, keepdim=True))).to(q.dtype)
    return ds @ states, p.transpose(1, 2) @ grad + ds.transpose(1, 2) @ q


@cross_backward.register_fake
def _(q, states, shares, grad):
    same = torch.contiguous_format
    return torch.empty_like(q, memory_format=same), torch.empty_like(states, memory_format=same)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _back(ctx, grad, _):
    q, states, shares = ctx.saved_tensors
    return cross_backward(q, states, shares, grad)


cross.register_autograd(_back, setup_context=_keep)
