# mypy: ignore-errors
"""Attention of kernels.py for a few tokens more than a power of 2: 9 pieces of 16 patches are 144
tokens of a ViT, and with what separates them 152 of a sentence.

A Triton block holds a power of 2. Taken as 256, 144 keys would leave almost half of the registers
and of the products empty, so a program takes a block of keys and a short tail, each with its own
products. One program goes over all queries of a head: it reads the keys and values once.

Queries see all keys: no mask. Annotations are not postponed: Triton reads them.
"""

import importlib.util

BLOCK, TAILS = 128, (16, 32)  # keys
LONGEST = BLOCK + TAILS[-1]

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _attend_kernel(
        qkv, out, logs, scale, LENGTH: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
        BLOCK: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        batch = (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        d: tl.constexpr = HEADS * SIZE
        columns = tl.arange(0, SIZE)[None, :]
        keys, last = tl.arange(0, BLOCK), BLOCK + tl.arange(0, TAIL)
        here = qkv + batch * (LENGTH * 3 * d) + head * SIZE
        there = out + batch * (LENGTH * d) + head * SIZE
        line = logs + (batch * HEADS + head) * LENGTH
        at, at_last = keys[:, None] * (3 * d) + columns, last[:, None] * (3 * d) + columns
        k, v = tl.load(here + d + at), tl.load(here + 2 * d + at)
        k_last = tl.load(here + d + at_last, last[:, None] < LENGTH, other=0.0)
        v_last = tl.load(here + 2 * d + at_last, last[:, None] < LENGTH, other=0.0)
        for first in range(0, LENGTH, ROWS):
            rows = first + tl.arange(0, ROWS)
            inside = rows[:, None] < LENGTH
            q = tl.load(here + rows[:, None] * (3 * d) + columns, inside, other=0.0)
            score = tl.dot(q, tl.trans(k)) * scale  # in units of log 2
            more = tl.dot(q, tl.trans(k_last)) * scale
            more = tl.where(last[None, :] < LENGTH, more, float("-inf"))
            most = tl.maximum(tl.max(score, 1), tl.max(more, 1))
            p, p_last = tl.exp2(score - most[:, None]), tl.exp2(more - most[:, None])
            total = tl.sum(p, 1) + tl.sum(p_last, 1)
            mixed = tl.dot(p.to(v.dtype), v)
            mixed = tl.dot(p_last.to(v.dtype), v_last, mixed) / total[:, None]
            tl.store(there + rows[:, None] * d + columns, mixed.to(v.dtype), inside)
            tl.store(line + rows, most + tl.log2(total), rows < LENGTH)

    @triton.jit
    def _attend_backward_kernel(
        qkv, mixed, logs, grad, out, sums, scale, LENGTH: tl.constexpr, HEADS: tl.constexpr,
        SIZE: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """Shares as keys x queries, as in kernels.py."""
        batch = (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        d: tl.constexpr = HEADS * SIZE
        columns = tl.arange(0, SIZE)[None, :]
        keys, last = tl.arange(0, BLOCK), BLOCK + tl.arange(0, TAIL)
        start = batch * (LENGTH * 3 * d) + head * SIZE
        here, there = qkv + start, out + start
        narrow = batch * (LENGTH * d) + head * SIZE
        line = logs + (batch * HEADS + head) * LENGTH
        at, at_last = keys[:, None] * (3 * d) + columns, last[:, None] * (3 * d) + columns
        known = last[:, None] < LENGTH
        k, v = tl.load(here + d + at), tl.load(here + 2 * d + at)
        k_last = tl.load(here + d + at_last, known, other=0.0)
        v_last = tl.load(here + 2 * d + at_last, known, other=0.0)
        dk, dk_last = tl.zeros([BLOCK, SIZE], tl.float32), tl.zeros([TAIL, SIZE], tl.float32)
        dv, dv_last = tl.zeros([BLOCK, SIZE], tl.float32), tl.zeros([TAIL, SIZE], tl.float32)
        total = tl.zeros([SIZE], tl.float32)
        for first in range(0, LENGTH, ROWS):
            rows = first + tl.arange(0, ROWS)
            inside = rows[:, None] < LENGTH
            q = tl.load(here + rows[:, None] * (3 * d) + columns, inside, other=0.0)
            g = tl.load(grad + narrow + rows[:, None] * d + columns, inside, other=0.0)
            o = tl.load(mixed + narrow + rows[:, None] * d + columns, inside, other=0.0)
            # Equal to the sum of p * dp over the keys.
            mean = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)[None, :]
            log = tl.load(line + rows, rows < LENGTH, other=float("inf"))[None, :]
            p = tl.exp2(tl.dot(k, tl.trans(q)) * scale - log)
            more = tl.dot(k_last, tl.trans(q)) * scale - log
            p_last = tl.exp2(tl.where(known, more, float("-inf")))
            dv = tl.dot(p.to(g.dtype), g, dv)
            dv_last = tl.dot(p_last.to(g.dtype), g, dv_last)
            ds = (p * (tl.dot(v, tl.trans(g)) - mean)).to(q.dtype)
            ds_last = (p_last * (tl.dot(v_last, tl.trans(g)) - mean)).to(q.dtype)
            dk = tl.dot(ds, q, dk)
            dk_last = tl.dot(ds_last, q, dk_last)
            dq = tl.dot(tl.trans(ds_last), k_last, tl.dot(tl.trans(ds), k))
            dq = dq * (scale * 0.6931471805599453)
            tl.store(there + rows[:, None] * (3 * d) + columns, dq.to(q.dtype), inside)
            total += tl.sum(dq, 0)  # rows beyond the length are 0
        dk, dk_last = dk * (scale * 0.6931471805599453), dk_last * (scale * 0.6931471805599453)
        tl.store(there + d + at, dk.to(k.dtype))
        tl.store(there + d + at_last, dk_last.to(k.dtype), known)
        tl.store(there + 2 * d + at, dv.to(k.dtype))
        tl.store(there + 2 * d + at_last, dv_last.to(k.dtype), known)
        line = sums + batch * (3 * d) + head * SIZE + tl.arange(0, SIZE)
        tl.store(line, total)
        tl.store(line + d, tl.sum(dk, 0) + tl.sum(dk_last, 0))  # keys beyond it have no share
        tl.store(line + 2 * d, tl.sum(dv, 0) + tl.sum(dv_last, 0))


WAYS = {16: {"attend": (64, 4), "attend_backward": (32, 4)},
        32: {"attend": (32, 4), "attend_backward": (32, 4)}}  # fmt: skip
"""Rows of queries a pass, and warps, by the tail: the fastest of three or four each, for heads of
64 (docs/runs/vision-attention.txt, docs/runs/speed-words.json)."""


def launch(name, tensors, scale, length, heads, size):
    """Run one of the two kernels, on the tensors that its twin in kernels.py takes."""
    kernel = _attend_kernel if name == "attend" else _attend_backward_kernel
    tail = next(t for t in TAILS if length <= BLOCK + t)
    rows, warps = WAYS[tail][name]
    kernel[(tensors[0].shape[0] * heads,)](
        *tensors, scale, LENGTH=length, HEADS=heads, SIZE=size, BLOCK=BLOCK, TAIL=tail, ROWS=rows,
        num_warps=warps, num_stages=1,
    )  # fmt: skip
