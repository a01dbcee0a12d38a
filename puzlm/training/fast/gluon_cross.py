# mypy: ignore-errors
# fmt: off
"""Kernels of cross-attention (kernels_cross.py says what they compute), in Gluon, for Hopper.

A program works through puzzles, and holds the states of one in shared memory, in chunks of 64
features; while it writes the results of one, it reads the next.

Copies into shared memory are committed in groups, and a wait says how many of the newest groups
may be under way still; the schedules below say what is committed when, from which the counts are
found. A slot is written again only after a barrier that follows the end of the product which read
it.

Annotations are not postponed: Triton reads them.
"""

from triton.runtime.jit import constexpr_function

from puzlm.training.fast.gluon_parts import (
    async_copy,
    fence_async_shared,
    gl,
    gluon,
    warpgroup_mma,
    warpgroup_mma_wait,
)


def forward_pending(C, R, c):
    """Groups that may be under way when chunk c of the scores is multiplied (forward)."""

    def after(groups, need):
        assert need <= set().union(*groups), (need, groups)
        return len(groups) - 1 - max(i for i, group in enumerate(groups) if group & need)

    done = [{("q", i) for i in range(min(R, C))}] + [{("s", i)} for i in range(C)]
    for step in range(2, c):  # those of step c itself follow the wait
        done.append({("q", step - 2 + R)} if step - 2 + R < C else set())
    need = {("s", c), ("q", c)}
    return after(done, need)


def backward_pending(C, R, second, c):
    """The same of the backward pass: step c of its first or second part."""

    def after(groups, need):
        assert need <= set().union(*groups), (need, groups)
        return len(groups) - 1 - max(i for i, group in enumerate(groups) if group & need)

    groups = []
    for puzzle in (0, 1):
        if puzzle:
            for step in range(C):
                if puzzle and not second and step == c:
                    return after(groups, {(1, "s", c), (1, "r", c)})
                if step >= 2:
                    groups.append({(1, "r", step - 2 + R)})
            groups.append({(1, "r", C - 2 + R), (1, "r", C - 1 + R)})
        for step in range(C):
            if puzzle and step == c:
                return after(groups, {(1, "r", C + 2 * c), (1, "r", C + 2 * c + 1)})
            group = set()
            for i in (C + 2 * step + R, C + 2 * step + 1 + R):
                group.add((puzzle, "r", i) if i < 3 * C else (puzzle + 1, "r", i - 3 * C))
            if step:
                group.add((puzzle + 1, "s", step - 1))
            groups.append(group)
        groups.append({(puzzle + 1, "s", C - 1)})


forward_wait = constexpr_function(forward_pending)
backward_wait = constexpr_function(backward_pending)

SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
LIES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0]))  # rows of 64 bf16
LIES2 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))  # and of 128
MMA128 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 128, 16]))
MMA64 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 16]))
LEFT = gl.constexpr(
    gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 16]), 2)
)
LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _get_states(base, to, c, T: gl.constexpr, D: gl.constexpr):
    rows = gl.arange(0, 128, gl.SliceLayout(1, LIES))[:, None]
    at = base + rows * D + gl.arange(0, 64, gl.SliceLayout(0, LIES))[None, :]
    async_copy.async_copy_global_to_shared(to, at + c * 64, mask=rows < T)


@gluon.jit
def _get_queries(base, to, c, head, FIRST: gl.constexpr, ROWS: gl.constexpr, N: gl.constexpr,
                 HEADS: gl.constexpr, D: gl.constexpr):
    r = FIRST + gl.arange(0, ROWS, gl.SliceLayout(1, LIES))[:, None]
    at = base + (r // N) * head + (r % N) * D
    at = at + gl.arange(0, 64, gl.SliceLayout(0, LIES))[None, :]
    async_copy.async_copy_global_to_shared(to, at + c * 64, mask=r < HEADS * N)


@gluon.jit
def _put_queries(base, x, c, head, N: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr):
    r = gl.arange(0, 128, gl.SliceLayout(1, LIES))[:, None]
    at = base + (r // N) * head + (r % N) * D
    at = at + gl.arange(0, 64, gl.SliceLayout(0, LIES))[None, :]
    small = gl.convert_layout(x.to(base.dtype.element_ty), LIES)
    gl.store(at + c * 64, small, r < HEADS * N)


@gluon.jit
def _put_states(base, x, c, T: gl.constexpr, D: gl.constexpr):
    rows = gl.arange(0, 128, gl.SliceLayout(1, LIES))[:, None]
    at = base + rows * D + gl.arange(0, 64, gl.SliceLayout(0, LIES))[None, :]
    small = gl.convert_layout(x.to(base.dtype.element_ty), LIES)
    gl.store(at + c * 64, small, rows < T)


@gluon.jit
def cross_kernel(
    q, states, mean, kept, count, head, T: gl.constexpr, N: gl.constexpr, HEADS: gl.constexpr,
    D: gl.constexpr, WIDE: gl.constexpr, TAIL: gl.constexpr, R: gl.constexpr,
):
    """Scores as queries x tokens, 128 x 128, of which only the first 64 + TAIL rows are loaded.

    R: slots for chunks of queries.
    """
    C: gl.constexpr = D // 64
    kind: gl.constexpr = states.dtype.element_ty
    S = gl.allocate_shared_memory(kind, [C, 128, 64], SWIZZLED)
    Q = gl.allocate_shared_memory(kind, [R, 128, 64], SWIZZLED)
    start = gl.program_id(0)
    b = start.to(gl.int64)
    for c in gl.static_range(R):
        if c < C:
            _get_queries(q + b * (N * D), Q.index(c).slice(0, 64), c, head, 0, 64, N, HEADS, D)
            _get_queries(
                q + b * (N * D), Q.index(c).slice(64, TAIL), c, head, 64, TAIL, N, HEADS, D)
    async_copy.commit_group()
    for c in gl.static_range(C):
        _get_states(states + b * (T * D), S.index(c), c, T, D)
        async_copy.commit_group()

    for puzzle in range(start, count, gl.num_programs(0)):
        b = puzzle.to(gl.int64)
        zero = puzzle >> 24  # always 0, which the compiler does not know: without it, it
        # would keep two hundred addresses in registers instead of making them anew
        then = puzzle + gl.num_programs(0)
        following = then.to(gl.int64)
        score = gl.zeros([128, 128], gl.float32, MMA128)
        for c in gl.static_range(C):
            async_copy.wait_group(forward_wait(C, R, c))
            fence_async_shared()
            gl.thread_barrier()
            score = warpgroup_mma(
                Q.index(zero + c % R), S.index(zero + c).permute([1, 0]), score, use_acc=c > 0,
                is_async=True)
            if c >= 2:
                if c - 2 + R < C:
                    slot = Q.index(zero + (c - 2) % R)
                    _get_queries(q + b * (N * D), slot.slice(0, 64), c - 2 + R, head, 0, 64, N,
                                 HEADS, D)
                    _get_queries(q + b * (N * D), slot.slice(64, TAIL), c - 2 + R, head, 64,
                                 TAIL, N, HEADS, D)
                async_copy.commit_group()
            if c + 1 < C:
                score = warpgroup_mma_wait(1, deps=[score])
            else:
                score = warpgroup_mma_wait(0, deps=[score])
        gl.thread_barrier()
        if then < count:
            for c in gl.static_range(R):
                if c < C:
                    slot = Q.index(zero + c)
                    _get_queries(q + following * (N * D), slot.slice(0, 64), c, head, 0, 64, N,
                                 HEADS, D)
                    _get_queries(q + following * (N * D), slot.slice(64, TAIL), c, head, 64, TAIL,
                                 N, HEADS, D)
        async_copy.commit_group()

        t = gl.arange(0, 128, gl.SliceLayout(0, MMA128))[None, :]
        score = gl.where(t < T, score * LOG2E, float("-inf"))
        p = gl.exp2(score - gl.max(score, 1)[:, None])
        p = p * (1.0 / gl.sum(p, 1))[:, None]
        share = p.to(kind)
        left = gl.convert_layout(share, LEFT)
        none = gl.zeros([128, 64], gl.float32, MMA64)
        now = warpgroup_mma(left, S.index(zero + 0), none, use_acc=False, is_async=True)
        turned = gl.convert_layout(gl.permute(share, (1, 0)), LIES2)
        t2 = gl.arange(0, 128, gl.SliceLayout(1, LIES2))[:, None]
        r2 = gl.arange(0, 128, gl.SliceLayout(0, LIES2))[None, :]
        at2 = kept + b * (T * WIDE) + t2 * WIDE + r2
        gl.store(at2, turned, (t2 < T) & (r2 < WIDE))
        for c in gl.static_range(C):
            if c + 1 < C:
                more = warpgroup_mma(left, S.index(zero + c + 1), none, use_acc=False,
                                     is_async=True)
                ready = warpgroup_mma_wait(1, deps=[now])
            else:
                ready, left = warpgroup_mma_wait(0, deps=[now, left])
            gl.thread_barrier()
            if then < count:
                _get_states(states + following * (T * D), S.index(zero + c), c, T, D)
            async_copy.commit_group()
            _put_queries(mean + b * (N * D), ready, c, head, N, HEADS, D)
            if c + 1 < C:
                now = more
    async_copy.wait_group(0)


@gluon.jit
def _get_ring(zero, q, grad, A, B, i: gl.constexpr, head, N: gl.constexpr, HEADS: gl.constexpr,
              D: gl.constexpr, TAIL: gl.constexpr, R: gl.constexpr):
    """Load i of a puzzle's 3 C: chunks of the gradients, then of gradients and queries."""
    C: gl.constexpr = D // 64
    if i < C:
        _get_queries(grad, A.index(zero + i % R), i, head, 0, 64, N, HEADS, D)
        _get_queries(grad, B.index(zero + i % R), i, head, 64, TAIL, N, HEADS, D)
    elif (i - C) % 2 == 0:
        _get_queries(grad, A.index(zero + i % R), (i - C) // 2, head, 0, 64, N, HEADS, D)
        _get_queries(grad, B.index(zero + i % R), (i - C) // 2, head, 64, TAIL, N, HEADS, D)
    else:
        _get_queries(q, A.index(zero + i % R), (i - C) // 2, head, 0, 64, N, HEADS, D)
        _get_queries(q, B.index(zero + i % R), (i - C) // 2, head, 64, TAIL, N, HEADS, D)


@gluon.jit
def cross_backward_kernel(
    q, states, kept, grad, dq, ds, count, head, T: gl.constexpr, N: gl.constexpr,
    HEADS: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr, TAIL: gl.constexpr,
    R: gl.constexpr,
):
    """Scores as tokens x queries, 128 x 64 and 128 x TAIL. R: slots for chunks of G and Q."""
    C: gl.constexpr = D // 64
    gl.static_assert(3 * C % R == 0)
    gl.static_assert(R >= 4)
    gl.static_assert(C >= 4)
    kind: gl.constexpr = states.dtype.element_ty
    MMAT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, TAIL, 16])
    S = gl.allocate_shared_memory(kind, [C, 128, 64], SWIZZLED)
    A = gl.allocate_shared_memory(kind, [R, 64, 64], SWIZZLED)
    B = gl.allocate_shared_memory(kind, [R, TAIL, 64], SWIZZLED)
    start = gl.program_id(0)
    b = start.to(gl.int64)
    for c in gl.static_range(C):  # in the order of the second part below, or earlier
        if c < R:
            _get_ring(0, q + b * (N * D), grad + b * (N * D), A, B, c, head, N, HEADS, D, TAIL, R)
        if c > 0:
            _get_states(states + b * (T * D), S.index(c - 1), c - 1, T, D)
        async_copy.commit_group()
    for c in gl.static_range(C, R):
        _get_ring(0, q + b * (N * D), grad + b * (N * D), A, B, c, head, N, HEADS, D, TAIL, R)
    _get_states(states + b * (T * D), S.index(C - 1), C - 1, T, D)
    async_copy.commit_group()

    for puzzle in range(start, count, gl.num_programs(0)):
        b = puzzle.to(gl.int64)
        then = puzzle + gl.num_programs(0)
        following = then.to(gl.int64)
        qb = q + b * (N * D)
        gb = grad + b * (N * D)
        t = gl.arange(0, 128, gl.SliceLayout(1, MMA64))[:, None]
        r = gl.arange(0, 64, gl.SliceLayout(0, MMA64))[None, :]
        at = kept + b * (T * WIDE) + t * WIDE + r
        share0 = gl.load(at, (t < T) & (r < HEADS * N), other=0.0)
        t1 = gl.arange(0, 128, gl.SliceLayout(1, MMAT))[:, None]
        r1 = 64 + gl.arange(0, TAIL, gl.SliceLayout(0, MMAT))[None, :]
        at1 = kept + b * (T * WIDE) + t1 * WIDE + r1
        share1 = gl.load(at1, (t1 < T) & (r1 < HEADS * N), other=0.0)

        back0 = gl.zeros([128, 64], gl.float32, MMA64)
        back1 = gl.zeros([128, TAIL], gl.float32, MMAT)
        for c in gl.static_range(C):
            async_copy.wait_group(backward_wait(C, R, False, c))
            zero = puzzle >> (23 + c % 4)
            fence_async_shared()
            gl.thread_barrier()
            back0 = warpgroup_mma(S.index(zero + c), A.index(zero + c % R).permute([1, 0]), back0,
                                  use_acc=c > 0, is_async=True)
            back1 = warpgroup_mma(S.index(zero + c), B.index(zero + c % R).permute([1, 0]), back1,
                                  use_acc=c > 0, is_async=True)
            if c >= 2:
                _get_ring(zero, qb, gb, A, B, c - 2 + R, head, N, HEADS, D, TAIL, R)
                async_copy.commit_group()
            if c + 1 < C:
                back0, back1 = warpgroup_mma_wait(2, deps=[back0, back1])
            else:
                back0, back1 = warpgroup_mma_wait(0, deps=[back0, back1])
        gl.thread_barrier()
        _get_ring(zero, qb, gb, A, B, C - 2 + R, head, N, HEADS, D, TAIL, R)
        _get_ring(zero, qb, gb, A, B, C - 1 + R, head, N, HEADS, D, TAIL, R)
        async_copy.commit_group()

        wide0 = share0.to(gl.float32)
        wide1 = share1.to(gl.float32)
        dscore0 = (wide0 * (back0 - gl.sum(wide0 * back0, 0)[None, :])).to(kind)
        dscore1 = (wide1 * (back1 - gl.sum(wide1 * back1, 0)[None, :])).to(kind)
        swap = gl.allocate_shared_memory(kind, [128, 128], SWIZZLED)
        swap.slice(0, 64, 1).store(dscore0)
        swap.slice(64, TAIL, 1).store(dscore1)
        gl.thread_barrier()
        turned = swap.permute([1, 0]).load(LEFT)  # what lies beyond row 64 + TAIL is anything
        p0 = gl.convert_layout(share0, LEFT)
        p1 = gl.convert_layout(share1, LEFT)
        d0 = gl.convert_layout(dscore0, LEFT)
        d1 = gl.convert_layout(dscore1, LEFT)
        none = gl.zeros([128, 64], gl.float32, MMA64)
        y = none
        for c in gl.static_range(C):
            async_copy.wait_group(backward_wait(C, R, True, c))
            again = puzzle >> (27 + c % 4)
            fence_async_shared()
            gl.thread_barrier()
            x = warpgroup_mma(p0, A.index(again + (C + 2 * c) % R), none, use_acc=False,
                              is_async=True)
            x = warpgroup_mma(p1, B.index(again + (C + 2 * c) % R), x, is_async=True)
            x = warpgroup_mma(d0, A.index(again + (C + 2 * c + 1) % R), x, is_async=True)
            x = warpgroup_mma(d1, B.index(again + (C + 2 * c + 1) % R), x, is_async=True)
            if c > 0:
                last = warpgroup_mma_wait(4, deps=[y])
                _put_queries(dq + b * (N * D), last, c - 1, head, N, HEADS, D)
            y = warpgroup_mma(turned, S.index(again + c), none, use_acc=False, is_async=True)
            if c + 1 < C:
                part = warpgroup_mma_wait(1, deps=[x])
            else:
                part, p0, p1, d0, d1 = warpgroup_mma_wait(1, deps=[x, p0, p1, d0, d1])
            gl.thread_barrier()
            if C + 2 * c + R < 3 * C:
                _get_ring(again, qb, gb, A, B, C + 2 * c + R, head, N, HEADS, D, TAIL, R)
            else:
                if then < count:
                    _get_ring(again, q + following * (N * D), grad + following * (N * D), A, B,
                              2 * c + R - 2 * C, head, N, HEADS, D, TAIL, R)
            if C + 2 * c + 1 + R < 3 * C:
                _get_ring(again, qb, gb, A, B, C + 2 * c + 1 + R, head, N, HEADS, D, TAIL, R)
            else:
                if then < count:
                    _get_ring(again, q + following * (N * D), grad + following * (N * D), A, B,
                              2 * c + 1 + R - 2 * C, head, N, HEADS, D, TAIL, R)
            if c > 0:  # noqa: SIM102 (known when compiled, and when run)
                if then < count:
                    _get_states(states + following * (T * D), S.index(again + c - 1), c - 1, T, D)
            async_copy.commit_group()
            _put_states(ds + b * (T * D), part, c, T, D)
        last, turned = warpgroup_mma_wait(0, deps=[y, turned])
        gl.thread_barrier()
        if then < count:
            _get_states(states + following * (T * D), S.index(again + C - 1), C - 1, T, D)
        async_copy.commit_group()
        _put_queries(dq + b * (N * D), last, C - 1, head, N, HEADS, D)
    async_copy.wait_group(0)
