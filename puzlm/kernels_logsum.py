# mypy: ignore-errors
"""Attention as in kernels.py, whose forward pass leaves the logarithm of each query's sum behind.

With it, and with the mixed values, the backward pass needs neither the largest score nor a sum over
the keys: nothing is reduced across the warps of a program, which otherwise wait for each other
three times a pass. It reads the mixed values on top, which are kept for the next layer anyway.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch

from puzlm.kernels import LOG2E, _eager_shares, attend_backward

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _seen(keys, rows, LENGTH: tl.constexpr, CAUSAL: tl.constexpr, AXIS: tl.constexpr):
        """Which keys, along AXIS, a query may look at."""
        k = tl.expand_dims(keys, 1 - AXIS)
        seen = k < LENGTH
        if CAUSAL:
            seen = seen & (k <= tl.expand_dims(rows, AXIS))
        return seen

    @triton.jit
    def _logsum_kernel(
        qkv, out, logs, scale, LENGTH: tl.constexpr, HEADS: tl.constexpr,
        CAUSAL: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        batch = (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        d: tl.constexpr = HEADS * SIZE
        keys = tl.arange(0, BLOCK)
        rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        columns = tl.arange(0, SIZE)[None, :]
        here = qkv + batch * (LENGTH * 3 * d) + head * SIZE
        at = keys[:, None] * (3 * d) + columns
        q = tl.load(here + rows[:, None] * (3 * d) + columns, rows[:, None] < LENGTH, other=0.0)
        k = tl.load(here + d + at, keys[:, None] < LENGTH, other=0.0)
        v = tl.load(here + 2 * d + at, keys[:, None] < LENGTH, other=0.0)
        score = tl.dot(q, tl.trans(k)) * scale  # in units of log 2
        score = tl.where(_seen(keys, rows, LENGTH, CAUSAL, 1), score, float("-inf"))
        most = tl.max(score, 1)
        p = tl.exp2(score - most[:, None])
        total = tl.sum(p, 1)
        mixed = tl.dot((p / total[:, None]).to(v.dtype), v)
        there = out + batch * (LENGTH * d) + head * SIZE
        tl.store(there + rows[:, None] * d + columns, mixed.to(v.dtype), rows[:, None] < LENGTH)
        line = logs + (batch * HEADS + head) * LENGTH
        tl.store(line + rows, most + tl.log2(total), rows < LENGTH)

    @triton.jit
    def _logsum_backward_kernel(
        qkv, mixed, logs, grad, out, sums, scale, LENGTH: tl.constexpr, HEADS: tl.constexpr,
        CAUSAL: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        batch = (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        d: tl.constexpr = HEADS * SIZE
        keys = tl.arange(0, BLOCK)
        columns = tl.arange(0, SIZE)[None, :]
        start = batch * (LENGTH * 3 * d) + head * SIZE
        here, there = qkv + start, out + start
        narrow = batch * (LENGTH * d) + head * SIZE
        line = logs + (batch * HEADS + head) * LENGTH
        at = keys[:, None] * (3 * d) + columns
        k = tl.load(here + d + at, keys[:, None] < LENGTH, other=0.0)
        v = tl.load(here + 2 * d + at, keys[:, None] < LENGTH, other=0.0)
        dk = tl.zeros([BLOCK, SIZE], tl.float32)
        dv = tl.zeros([BLOCK, SIZE], tl.float32)
        total = tl.zeros([SIZE], tl.float32)
        for first in range(0, BLOCK, ROWS):
            rows = first + tl.arange(0, ROWS)
            inside = rows[:, None] < LENGTH
            q = tl.load(here + rows[:, None] * (3 * d) + columns, inside, other=0.0)
            g = tl.load(grad + narrow + rows[:, None] * d + columns, inside, other=0.0)
            o = tl.load(mixed + narrow + rows[:, None] * d + columns, inside, other=0.0)
            # Equal to the sum of p * dp over the keys.
            mean = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
            log = tl.load(line + rows, rows < LENGTH, other=float("inf"))
            score = tl.dot(k, tl.trans(q)) * scale - log[None, :]
            p = tl.exp2(tl.where(_seen(keys, rows, LENGTH, CAUSAL, 0), score, float("-inf")))
            dp = tl.dot(v, tl.trans(g))
            dv = tl.dot(p.to(g.dtype), g, dv)
            ds = (p * (dp - mean[None, :])).to(q.dtype)
            dk = tl.dot(ds, q, dk)
            dq = tl.dot(tl.trans(ds), k) * (scale * 0.6931471805599453)
            tl.store(there + rows[:, None] * (3 * d) + columns, dq.to(q.dtype), inside)
            total += tl.sum(dq, 0)  # rows beyond the length are 0
        dk = dk * (scale * 0.6931471805599453)
        tl.store(there + d + at, dk.to(k.dtype), keys[:, None] < LENGTH)
        tl.store(there + 2 * d + at, dv.to(k.dtype), keys[:, None] < LENGTH)
        line = sums + batch * (3 * d) + head * SIZE + tl.arange(0, SIZE)
        tl.store(line, total)
        tl.store(line + d, tl.sum(dk, 0))  # keys beyond the length have no share
        tl.store(line + 2 * d, tl.sum(dv, 0))

    @triton.jit
    def _halves_backward_kernel(
        qkv, mixed, logs, grad, out, sums, scale, LENGTH: tl.constexpr, HEADS: tl.constexpr,
        CAUSAL: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """The same for ROWS tokens a program: first as keys, whom all queries look at, then as
        queries. Seven products instead of five, but twice the programs with half the registers,
        and no product turns what another made."""
        batch = (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        d: tl.constexpr = HEADS * SIZE
        part = tl.program_id(1)
        mine = part * ROWS + tl.arange(0, ROWS)
        columns = tl.arange(0, SIZE)[None, :]
        start = batch * (LENGTH * 3 * d) + head * SIZE
        here, there = qkv + start, out + start
        narrow = batch * (LENGTH * d) + head * SIZE
        line = logs + (batch * HEADS + head) * LENGTH
        at, inside = mine[:, None] * (3 * d) + columns, mine[:, None] < LENGTH
        k = tl.load(here + d + at, inside, other=0.0)
        v = tl.load(here + 2 * d + at, inside, other=0.0)
        dk = tl.zeros([ROWS, SIZE], tl.float32)
        dv = tl.zeros([ROWS, SIZE], tl.float32)
        for first in range(0, BLOCK, ROWS):
            rows = first + tl.arange(0, ROWS)
            some = rows[:, None] < LENGTH
            q = tl.load(here + rows[:, None] * (3 * d) + columns, some, other=0.0)
            g = tl.load(grad + narrow + rows[:, None] * d + columns, some, other=0.0)
            o = tl.load(mixed + narrow + rows[:, None] * d + columns, some, other=0.0)
            mean = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
            log = tl.load(line + rows, rows < LENGTH, other=float("inf"))
            score = tl.dot(k, tl.trans(q)) * scale - log[None, :]
            p = tl.exp2(tl.where(_seen(mine, rows, LENGTH, CAUSAL, 0), score, float("-inf")))
            dp = tl.dot(v, tl.trans(g))
            dv = tl.dot(p.to(g.dtype), g, dv)
            dk = tl.dot((p * (dp - mean[None, :])).to(q.dtype), q, dk)
        dk = dk * (scale * 0.6931471805599453)
        tl.store(there + d + at, dk.to(k.dtype), inside)
        tl.store(there + 2 * d + at, dv.to(k.dtype), inside)
        q = tl.load(here + at, inside, other=0.0)
        g = tl.load(grad + narrow + mine[:, None] * d + columns, inside, other=0.0)
        o = tl.load(mixed + narrow + mine[:, None] * d + columns, inside, other=0.0)
        mean = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
        log = tl.load(line + mine, mine < LENGTH, other=float("inf"))
        dq = tl.zeros([ROWS, SIZE], tl.float32)
        for first in range(0, BLOCK, ROWS):
            keys = first + tl.arange(0, ROWS)
            some = keys[:, None] < LENGTH
            k = tl.load(here + d + keys[:, None] * (3 * d) + columns, some, other=0.0)
            v = tl.load(here + 2 * d + keys[:, None] * (3 * d) + columns, some, other=0.0)
            score = tl.dot(q, tl.trans(k)) * scale - log[:, None]
            p = tl.exp2(tl.where(_seen(keys, mine, LENGTH, CAUSAL, 1), score, float("-inf")))
            dp = tl.dot(g, tl.trans(v))
            dq = tl.dot((p * (dp - mean[:, None])).to(k.dtype), k, dq)
        dq = dq * (scale * 0.6931471805599453)
        tl.store(there + at, dq.to(k.dtype), inside)
        parts: tl.constexpr = BLOCK // ROWS
        line = sums + (batch * parts + part) * (3 * d) + head * SIZE + tl.arange(0, SIZE)
        tl.store(line, tl.sum(dq, 0))
        tl.store(line + d, tl.sum(dk, 0))
        tl.store(line + 2 * d, tl.sum(dv, 0))


WAYS = {"attend": (128, 8, 0), "logsum": (32, 4, 0), "halves": (64, 4, 168)}
"""Rows of queries a pass (of tokens a program: halves), warps, and registers a thread at most (0:
the compiler's choice)."""


def _launch(name, tensors, length, heads, causal):
    kernels = {
        "attend": _logsum_kernel,
        "logsum": _logsum_backward_kernel,
        "halves": _halves_backward_kernel,
    }
    size = tensors[0].shape[2] // (3 * heads)
    block, (rows, warps, registers) = _block(length), WAYS[name]
    if block <= 64:
        rows, warps, registers = block, 4 if block > 16 else 1, 0
    parts = 1 if name == "logsum" else triton.cdiv(length if name == "attend" else block, rows)
    more = {"maxnreg": registers} if registers else {}
    kernels[name][(tensors[0].shape[0] * heads, parts)](
        *tensors, size**-0.5 * LOG2E, LENGTH=length, HEADS=heads, CAUSAL=causal, BLOCK=block,
        SIZE=size, ROWS=rows, num_warps=warps, num_stages=1, **more,
    )  # fmt: skip


def _block(length):
    return max(16, 1 << (length - 1).bit_length())


def _parts(length, way):
    """Programs a head, each with its own sums."""
    return _block(length) // min(_block(length), WAYS[way][0]) if way == "halves" else 1


@torch.library.custom_op(
    "puzlm::attend_logsum",
    mutates_args=(),
    schema="(Tensor qkv, int heads, bool causal) -> (Tensor, Tensor)",
)
def attend_logsum(qkv, heads, causal):
    """Self-attention of qkv (batch, T, 3 d): mixed values (batch, T, d), and the logarithms
    (batch, heads, T) to base 2 of the sums under the shares."""
    batch, length, width = qkv.shape
    logs = torch.empty(batch, heads, length, dtype=torch.float32, device=qkv.device)
    if qkv.is_cuda:
        out = qkv.new_empty(batch, length, width // 3)
        _launch("attend", (qkv.contiguous(), out, logs), length, heads, causal)
        return out, logs
    scores, v = _eager_shares(qkv, heads, causal, scores=True)
    mixed = scores.softmax(-1).to(v.dtype) @ v
    logs.copy_(scores.logsumexp(-1) * LOG2E)
    return mixed.transpose(1, 2).reshape(batch, length, width // 3), logs


@attend_logsum.register_fake
def _(qkv, heads, causal):
    batch, length, width = qkv.shape
    logs = qkv.new_empty(batch, heads, length, dtype=torch.float32)
    return qkv.new_empty(batch, length, width // 3), logs


@torch.library.custom_op(
    "puzlm::attend_logsum_backward",
    mutates_args=(),
    schema="(Tensor qkv, Tensor mixed, Tensor logs, Tensor grad, int heads, bool causal, "
    "str way) -> (Tensor, Tensor)",
)
def attend_logsum_backward(qkv, mixed, logs, grad, heads, causal, way):
    """Gradient (batch, T, 3 d) of qkv, from that of the mixed values; and sums of it, some for
    each puzzle. The way is 'logsum' or 'halves'."""
    batch, length, width = qkv.shape
    parts = _parts(length, way)
    sums = torch.empty(batch * parts, width, dtype=torch.float32, device=qkv.device)
    if not qkv.is_cuda:
        out, found = attend_backward(qkv, grad, heads, causal)
        sums.zero_()[:batch] = found
        return out, sums
    out = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    tensors = (qkv.contiguous(), mixed.contiguous(), logs, grad.contiguous(), out, sums)
    _launch(way, tensors, length, heads, causal)
    return out, sums


@attend_logsum_backward.register_fake
def _(qkv, mixed, logs, grad, heads, causal, way):
    parts = _parts(qkv.shape[1], way)
    sums = qkv.new_empty(qkv.shape[0] * parts, qkv.shape[2], dtype=torch.float32)
    return qkv.new_empty(qkv.shape), sums
