# mypy: ignore-errors
"""Self-attention whose results and gradients are written in 8 bits, for fast8.py.

The forward pass is that of kernels.py and writes a second copy. The backward pass is in Gluon,
where the kernel itself says what lies where: the operands are copied to shared memory once, and
shares are worked out twice, as keys x queries for the gradients of keys and values and as queries x
keys for that of queries. So every product takes its left factor from the registers in which the one
before it left it, and nothing is turned round: seven products instead of five, in two thirds of the
time (docs/runs/speed-attend8.txt).

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch
from torch import Tensor

from puzlm.training.fast import gluon_parts, kernels
from puzlm.training.fast.kernels_fp8 import E4, E5, MIXED, rounded

TILE = 64  # keys, queries and features of a product
LONGEST = 2 * TILE

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _attend_kernel(
        qkv, out, small, logs, scale, LENGTH: tl.constexpr, HEADS: tl.constexpr,
        BLOCK: tl.constexpr, SIZE: tl.constexpr, SCALE8: tl.constexpr,
    ):  # fmt: skip
        batch = (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        d: tl.constexpr = HEADS * SIZE
        keys = tl.arange(0, BLOCK)
        columns = tl.arange(0, SIZE)[None, :]
        inside = keys[:, None] < LENGTH
        here = qkv + batch * (LENGTH * 3 * d) + head * SIZE + keys[:, None] * (3 * d) + columns
        q = tl.load(here, inside, other=0.0)
        k = tl.load(here + d, inside, other=0.0)
        v = tl.load(here + 2 * d, inside, other=0.0)
        score = tl.where(keys[None, :] < LENGTH, tl.dot(q, tl.trans(k)), float("-inf"))
        most = tl.max(score, 1) * scale  # in units of log 2
        p = tl.exp2(score * scale - most[:, None])
        total = tl.sum(p, 1)
        mixed = tl.dot(p.to(v.dtype), v) / total[:, None]
        there = batch * (LENGTH * d) + head * SIZE + keys[:, None] * d + columns
        tl.store(out + there, mixed.to(v.dtype), inside)
        tl.store(small + there, (mixed * SCALE8).to(tl.float8e4nv), inside)
        line = logs + (batch * HEADS + head) * LENGTH
        tl.store(line + keys, most + tl.log2(total), keys < LENGTH)


if gluon_parts.THERE:
    from puzlm.training.fast.gluon_parts import (
        async_copy,
        fence_async_shared,
        gl,
        gluon,
        warpgroup_mma,
        warpgroup_mma_wait,
    )

    MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
    LEFT = gl.constexpr(
        gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]), 2)
    )
    LIES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))  # rows of 64 bf16
    LIES8 = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0]))  # and of 64 bytes
    FLAT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
    LN2 = gl.constexpr(0.6931471805599453)

    @gluon.jit
    def _fetch(base, to, LENGTH: gl.constexpr, STRIDE: gl.constexpr, HALVES: gl.constexpr):
        """Copy a head's rows to shared memory; those beyond the length are 0."""
        rows = gl.arange(0, 64 * HALVES, gl.SliceLayout(1, LIES))[:, None]
        at = base + rows * STRIDE + gl.arange(0, 64, gl.SliceLayout(0, LIES))[None, :]
        async_copy.async_copy_global_to_shared(to, at, mask=rows < LENGTH)

    @gluon.jit
    def _emit(x, small, batch, feature, scale8, FIRST: gl.constexpr, LENGTH: gl.constexpr,
              D3: gl.constexpr):  # fmt: skip
        """Write tokens FIRST.. and features `feature`.. of the gradient, in 8 bits."""
        rows = FIRST + gl.arange(0, 64, gl.SliceLayout(1, LIES8))[:, None]
        at = rows * D3 + gl.arange(0, 64, gl.SliceLayout(0, LIES8))[None, :]
        x8 = gl.convert_layout((x * scale8).to(gl.float8e5), LIES8)
        gl.store(small + batch * (LENGTH * D3) + feature + at, x8, rows < LENGTH)

    @gluon.jit
    def _shares(score, scale, log, PAST: gl.constexpr):
        """Shares from scores. Keys beyond the length have the score 0: without a bound their share
        could overflow where all scores of a query are far below 0."""
        score = score * scale - log
        if PAST:
            score = gl.minimum(score, 0.0)
        return gl.exp2(score)

    @gluon.jit
    def _by_keys(k, v, q, g, logs, means, dk, dv, scale, MORE: gl.constexpr, PAST: gl.constexpr):
        """Add what 64 queries give to dk and dv of 64 keys."""
        ACROSS: gl.constexpr = gl.SliceLayout(0, MMA)
        none = gl.zeros([64, 64], gl.float32, MMA)
        score = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
        dp = warpgroup_mma(v, g.permute([1, 0]), none, use_acc=False, is_async=True)
        score = warpgroup_mma_wait(1, deps=[score])
        p = _shares(score, scale, logs.load(ACROSS)[None, :], PAST)
        share = gl.convert_layout(p.to(g.dtype), LEFT)
        dv = warpgroup_mma(share, g, dv, use_acc=MORE, is_async=True)
        dp = warpgroup_mma_wait(1, deps=[dp])
        ds = gl.convert_layout((p * (dp - means.load(ACROSS)[None, :])).to(q.dtype), LEFT)
        dk = warpgroup_mma(ds, q, dk, use_acc=MORE, is_async=True)
        dk, dv, share, ds = warpgroup_mma_wait(0, deps=[dk, dv, share, ds])
        return dk, dv

    @gluon.jit
    def _by_queries(q, g, k, v, logs, means, dq, scale, MORE: gl.constexpr, PAST: gl.constexpr):
        """Add what 64 keys give to dq of 64 queries."""
        DOWN: gl.constexpr = gl.SliceLayout(1, MMA)
        none = gl.zeros([64, 64], gl.float32, MMA)
        score = warpgroup_mma(q, k.permute([1, 0]), none, use_acc=False, is_async=True)
        dp = warpgroup_mma(g, v.permute([1, 0]), none, use_acc=False, is_async=True)
        score = warpgroup_mma_wait(1, deps=[score])
        p = _shares(score, scale, logs.load(DOWN)[:, None], PAST)
        dp = warpgroup_mma_wait(0, deps=[dp])
        ds = gl.convert_layout((p * (dp - means.load(DOWN)[:, None])).to(k.dtype), LEFT)
        dq = warpgroup_mma(ds, k, dq, use_acc=MORE, is_async=True)
        dq, ds = warpgroup_mma_wait(0, deps=[dq, ds])
        return dq

    @gluon.jit
    def _attend_backward_kernel(
        qkv, mixed, logs, grad, small, sums, scale, scale8, LENGTH: gl.constexpr,
        HEADS: gl.constexpr, SIZE: gl.constexpr, HALVES: gl.constexpr,
    ):  # fmt: skip
        """A head of a puzzle. Sums over tokens: those of dk are 0, since shares always sum to 1,
        and for the same reason those of dv are those of what it is made from."""
        gl.static_assert(SIZE == 64)
        batch = (gl.program_id(0) // HEADS).to(gl.int64)
        head = gl.program_id(0) % HEADS
        d: gl.constexpr = HEADS * SIZE
        ALL: gl.constexpr = 64 * HALVES
        SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
        LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        kind: gl.constexpr = qkv.dtype.element_ty
        here = qkv + batch * (LENGTH * 3 * d) + head * SIZE
        narrow = batch * (LENGTH * d) + head * SIZE
        q = gl.allocate_shared_memory(kind, [ALL, 64], SWIZZLED)
        k = gl.allocate_shared_memory(kind, [ALL, 64], SWIZZLED)
        v = gl.allocate_shared_memory(kind, [ALL, 64], SWIZZLED)
        g = gl.allocate_shared_memory(kind, [ALL, 64], SWIZZLED)
        _fetch(grad + narrow, g, LENGTH, d, HALVES)
        _fetch(here, q, LENGTH, 3 * d, HALVES)
        _fetch(here + d, k, LENGTH, 3 * d, HALVES)
        _fetch(here + 2 * d, v, LENGTH, 3 * d, HALVES)
        async_copy.commit_group()
        line = logs + (batch * HEADS + head) * LENGTH
        sums_of = gl.allocate_shared_memory(gl.float32, [ALL], LINE)
        means = gl.allocate_shared_memory(gl.float32, [ALL], LINE)
        rows = gl.arange(0, ALL, gl.SliceLayout(1, LIES))
        sums_of.store(gl.load(line + rows, rows < LENGTH, other=float("inf")))
        rows = gl.arange(0, 64, gl.SliceLayout(1, LIES))[:, None]
        at = mixed + narrow + rows * d + gl.arange(0, 64, gl.SliceLayout(0, LIES))[None, :]
        o = gl.load(at, rows < LENGTH, other=0.0)
        if HALVES == 2:
            more = gl.load(at + 64 * d, rows < LENGTH - 64, other=0.0)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        # Sums of p * dp over the keys, of each query.
        wide = g.slice(0, 64).load(LIES).to(gl.float32)
        means.slice(0, 64).store(gl.sum(o.to(gl.float32) * wide, 1))
        if HALVES == 2:
            last = g.slice(64, 64).load(LIES).to(gl.float32)
            means.slice(64, 64).store(gl.sum(more.to(gl.float32) * last, 1))
            wide += last
        to = sums + batch * (3 * d) + head * SIZE + gl.arange(0, 64, FLAT)
        gl.store(to + 2 * d, gl.convert_layout(gl.sum(wide, 0), FLAT))
        gl.store(to + d, gl.zeros([64], gl.float32, FLAT))
        gl.thread_barrier()
        back = scale * LN2
        for j in gl.static_range(HALVES):
            dk = gl.zeros([64, 64], gl.float32, MMA)
            dv = gl.zeros([64, 64], gl.float32, MMA)
            for i in gl.static_range(HALVES):
                dk, dv = _by_keys(
                    k.slice(64 * j, 64), v.slice(64 * j, 64), q.slice(64 * i, 64),
                    g.slice(64 * i, 64), sums_of.slice(64 * i, 64), means.slice(64 * i, 64), dk,
                    dv, scale, i > 0, 64 * j + 64 > LENGTH,
                )  # fmt: skip
            _emit(dk * back, small, batch, d + head * SIZE, scale8, 64 * j, LENGTH,
                  3 * d)  # fmt: skip
            _emit(dv, small, batch, 2 * d + head * SIZE, scale8, 64 * j, LENGTH,
                  3 * d)  # fmt: skip
        sq = gl.zeros([64, 64], gl.float32, MMA)
        for i in gl.static_range(HALVES):
            dq = gl.zeros([64, 64], gl.float32, MMA)
            for j in gl.static_range(HALVES):
                dq = _by_queries(
                    q.slice(64 * i, 64), g.slice(64 * i, 64), k.slice(64 * j, 64),
                    v.slice(64 * j, 64), sums_of.slice(64 * i, 64), means.slice(64 * i, 64), dq,
                    scale, j > 0, 64 * j + 64 > LENGTH,
                )  # fmt: skip
            dq = dq * back
            _emit(dq, small, batch, head * SIZE, scale8, 64 * i, LENGTH, 3 * d)
            sq += dq
        gl.store(to, gl.convert_layout(gl.sum(sq, 0), FLAT))


REGISTERS = 168  # a thread: three programs share a multiprocessor; 0.38 ms instead of 0.42


def suits(length: int, size: int, device: str) -> bool:
    """Whether the kernels can take so many tokens, and heads of this size."""
    if length > LONGEST or size != TILE:
        return False
    return "cuda" not in device or gluon_parts.runs_on(device)


def attend(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Self-attention of qkv (batch, T, 3 d): mixed values (batch, T, d), the same in 8 bits
    (batch * T, d), and logarithms to base 2 of the sums under the shares (batch, heads, T)."""
    batch, length, width = qkv.shape
    d = width // 3
    if not qkv.is_cuda:
        mixed, logs = kernels.attend(qkv, heads, False)
        return mixed, rounded(mixed.flatten(0, 1), MIXED, E4), logs
    mixed = qkv.new_empty(batch, length, d)
    small = torch.empty(batch * length, d, dtype=E4, device=qkv.device)
    logs = torch.empty(batch, heads, length, dtype=torch.float32, device=qkv.device)
    block = max(16, triton.next_power_of_2(length))
    _attend_kernel[(batch * heads,)](
        qkv, mixed, small, logs, (d // heads) ** -0.5 * kernels.LOG2E, LENGTH=length, HEADS=heads,
        BLOCK=block, SIZE=d // heads, SCALE8=MIXED, num_warps=8, num_stages=1,
    )  # fmt: skip
    return mixed, small, logs


def attend_backward(
    qkv: Tensor, mixed: Tensor, logs: Tensor, grad: Tensor, heads: int, scale8: float
) -> tuple[Tensor, Tensor]:
    """Gradient of qkv in 8 bits, (batch * T, 3 d), and its sums over puzzles and tokens (3 d,)."""
    batch, length, width = qkv.shape
    if not qkv.is_cuda:
        out, sums = kernels.attend_backward(qkv, mixed, logs, grad, heads, False)
        return rounded(out.flatten(0, 1), scale8, E5), sums.sum(0)
    size = width // 3 // heads
    small = torch.empty(batch * length, width, dtype=E5, device=qkv.device)
    sums = torch.empty(batch, width, dtype=torch.float32, device=qkv.device)
    _attend_backward_kernel[(batch * heads,)](
        qkv, mixed, logs, grad, small, sums, size**-0.5 * kernels.LOG2E, scale8, LENGTH=length,
        HEADS=heads, SIZE=size, HALVES=triton.cdiv(length, TILE), num_warps=4, maxnreg=REGISTERS,
    )  # fmt: skip
    return small, sums.sum(0)
