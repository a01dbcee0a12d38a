# mypy: ignore-errors
"""Triton kernels for training on a GPU, each behind a torch operator that also runs on a CPU.

Attention over a puzzle's few dozen tokens: one program reads a head's queries, keys and values
once, keeps all its scores in registers, and in the backward pass makes them again; nothing of the
size tokens x tokens reaches memory, and nothing is permuted. The forward pass leaves the logarithm
of each query's sum behind. With it, and with the mixed values, which are kept for the next layer
anyway, the backward pass needs neither the largest score nor sums over the keys, for which the
warps of a program would wait for each other three times a pass.

GELU: its backward pass also sums up the gradient of the bias before it. Other kernels are in
kernels_*.py.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch
from torch import Tensor

from puzlm.training.fast import kernels_tail

LONGEST = kernels_tail.LONGEST  # tokens whose keys one program can hold
LOG2E = 1.4426950408889634  # the kernels take powers of 2

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
    def _attend_kernel(
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
    def _attend_backward_kernel(
        qkv, mixed, logs, grad, out, sums, scale, LENGTH: tl.constexpr, HEADS: tl.constexpr,
        CAUSAL: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """Queries in parts of ROWS; shares as keys x queries, so that two of the three products
        they enter read them as they lie in the registers."""
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
    def _below(x):
        """Share of a normal distribution below x, and exp(-x^2 / 2); `normal` says how."""
        bell = tl.exp(-0.5 * x * x)
        t = 1.0 / (1.0 + 0.23164188829 * tl.abs(x))
        series = 1.061405429 * t - 1.453152027
        series = series * t + 1.421413741
        series = series * t - 0.284496736
        series = (series * t + 0.254829592) * t
        tail = 0.5 * series * bell
        return tl.where(x < 0, tail, 1.0 - tail), bell

    @triton.jit
    def _gelu_kernel(h, g, rows, WIDTH: tl.constexpr):
        columns = tl.arange(0, WIDTH)
        for row in range(tl.program_id(0), rows, tl.num_programs(0)):
            at = row * WIDTH + columns
            x = tl.load(h + at).to(tl.float32)
            below, bell = _below(x)
            tl.store(g + at, (x * below).to(g.dtype.element_ty))

    @triton.jit
    def _gelu_backward_kernel(grad, h, out, sums, rows, WIDTH: tl.constexpr):
        columns = tl.arange(0, WIDTH)
        total = tl.zeros([WIDTH], tl.float32)
        for row in range(tl.program_id(0), rows, tl.num_programs(0)):
            at = row * WIDTH + columns
            x = tl.load(h + at).to(tl.float32)
            g = tl.load(grad + at).to(tl.float32)
            below, bell = _below(x)
            y = (g * (below + x * bell * 0.3989422804)).to(out.dtype.element_ty)
            tl.store(out + at, y)
            total += y.to(tl.float32)
        tl.store(sums + tl.program_id(0) * WIDTH + columns, total)


WAYS = {"attend": (128, 8, 0), "attend_backward": (32, 4, 0)}
"""Rows of queries a pass, warps, and registers a thread at most (0: the compiler's choice): the
fastest of those in docs/runs/speed-2026-11-15-b.json and, backward, speed-ways-2026-11-17.json."""
PROGRAMS = 1056
"""Of the GELU, each with its own rows, one at a time: 8 on each of 132 multiprocessors. Two rows at
a time, reads ahead, fewer registers or fewer programs gain less than 1 %
(docs/runs/speed-ways-2026-11-17.json)."""


def _launch(name: str, tensors: tuple[Tensor, ...], length: int, heads: int, causal: bool) -> None:
    kernel = _attend_kernel if name == "attend" else _attend_backward_kernel
    size = tensors[0].shape[2] // (3 * heads)
    if length > kernels_tail.BLOCK:
        assert suits(length, size, causal), (length, size, causal)
        kernels_tail.launch(name, tensors, size**-0.5 * LOG2E, length, heads, size)
        return
    block = max(16, triton.next_power_of_2(length))
    rows, warps, registers = WAYS[name] if block > 64 else (block, 4 if block > 16 else 1, 0)
    parts = triton.cdiv(length, rows) if name == "attend" else 1
    more = {"maxnreg": registers} if registers else {}
    kernel[(tensors[0].shape[0] * heads, parts)](
        *tensors, size**-0.5 * LOG2E, LENGTH=length, HEADS=heads, CAUSAL=causal, BLOCK=block,
        SIZE=size, ROWS=rows, num_warps=warps, num_stages=1, **more,
    )  # fmt: skip


def there(device: str) -> bool:
    """Whether the kernels can run on a device: Triton, and a GPU of 2020 or later."""
    found = importlib.util.find_spec("triton") is not None
    return found and "cuda" in device and torch.cuda.get_device_capability(device) >= (8, 0)


# ---- attention ------------------------------------------------------------------------------


def suits(length: int, size: int, causal: bool = False) -> bool:
    """Whether a kernel can take so many tokens, and heads of this size.

    That with a tail knows no mask, and the gradients of a head of 128 would overflow its registers.
    """
    if length > kernels_tail.BLOCK and (causal or size > 64):
        return False
    return length <= LONGEST and size in (16, 32, 64, 128)


@torch.library.custom_op(
    "puzlm::attend",
    mutates_args=(),
    schema="(Tensor qkv, int heads, bool causal) -> (Tensor, Tensor)",
)
def attend(qkv, heads, causal):
    """Self-attention of qkv (batch, T, 3 d) that `suits`: mixed values (batch, T, d), and the
    logarithms (batch, heads, T) to base 2 of the sums under the shares."""
    batch, length, width = qkv.shape
    if qkv.is_cuda:
        out = qkv.new_empty(batch, length, width // 3)
        logs = qkv.new_empty(batch, heads, length, dtype=torch.float32)
        _launch("attend", (qkv.contiguous(), out, logs), length, heads, causal)
        return out, logs
    scores, _, _, v = _eager_scores(qkv, heads, causal)
    mixed = scores.softmax(-1).to(v.dtype) @ v
    mixed = mixed.transpose(1, 2).reshape(batch, length, width // 3)
    return mixed, scores.logsumexp(-1) * LOG2E


@attend.register_fake
def _(qkv, heads, causal):
    batch, length, width = qkv.shape
    logs = qkv.new_empty(batch, heads, length, dtype=torch.float32)
    return qkv.new_empty(batch, length, width // 3), logs


@torch.library.custom_op(
    "puzlm::attend_backward",
    mutates_args=(),
    schema="(Tensor qkv, Tensor mixed, Tensor logs, Tensor grad, int heads, bool causal) "
    "-> (Tensor, Tensor)",
)
def attend_backward(qkv, mixed, logs, grad, heads, causal):
    """Gradient (batch, T, 3 d) of qkv, from that of the mixed values; and its sums over T."""
    batch, length, width = qkv.shape
    if qkv.is_cuda:
        out = torch.empty_like(qkv, memory_format=torch.contiguous_format)
        sums = torch.empty(batch, width, dtype=torch.float32, device=qkv.device)
        tensors = (qkv.contiguous(), mixed.contiguous(), logs, grad.contiguous(), out, sums)
        _launch("attend_backward", tensors, length, heads, causal)
        return out, sums
    scores, q, k, v = _eager_scores(qkv, heads, causal)
    shares = (scores - logs[..., None] / LOG2E).exp()
    g, o = (x.view(batch, length, heads, -1).transpose(1, 2) for x in (grad, mixed))
    dv = shares.to(g.dtype).transpose(2, 3) @ g
    mean = (o.float() * g.float()).sum(-1, keepdim=True)
    ds = shares * ((g @ v.transpose(2, 3)).float() - mean) * q.shape[-1] ** -0.5
    ds = ds.to(qkv.dtype)
    parts = torch.stack([ds @ k, ds.transpose(2, 3) @ q, dv])
    out = parts.permute(1, 3, 0, 2, 4).reshape(batch, length, width)
    return out, out.float().sum(1)


@attend_backward.register_fake
def _(qkv, mixed, logs, grad, heads, causal):
    sums = qkv.new_empty(qkv.shape[0], qkv.shape[2], dtype=torch.float32)
    return qkv.new_empty(qkv.shape), sums


def _eager_scores(qkv, heads, causal):
    """Scores of the keys for each query; and the queries, keys and values of each head."""
    batch, length, width = qkv.shape
    size = width // 3 // heads
    q, k, v = qkv.view(batch, length, 3, heads, size).permute(2, 0, 3, 1, 4).unbind(0)
    scores = (q @ k.transpose(2, 3)).float() * size**-0.5
    if causal:
        hidden = torch.ones(length, length, dtype=torch.bool, device=qkv.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores, q, k, v


# ---- GELU -----------------------------------------------------------------------------------


def normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Share of a normal distribution below x, and exp(-x^2 / 2), from one exponential.

    Abramowitz and Stegun 7.1.26; its error of 1.5e-7 is far below a bfloat16 step.
    """
    bell = torch.exp(-0.5 * x * x)
    t = 1 / (1 + 0.23164188829 * x.abs())
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t
              + 0.254829592) * t  # fmt: skip
    tail = 0.5 * series * bell  # below -|x|
    return torch.where(x < 0, tail, 1 - tail), bell


def slope(x: Tensor) -> Tensor:
    """Derivative of GELU."""
    below, bell = normal(x)
    return below + x * bell * 0.3989422804014327  # 1 / sqrt(2 pi)


@torch.library.custom_op("puzlm::gelu", mutates_args=(), schema="(Tensor h) -> Tensor")
def gelu(h):
    """GELU of h (n, d), d a power of 2."""
    if h.is_cuda:
        out = torch.empty_like(h)
        programs = min(len(h), PROGRAMS)
        _gelu_kernel[(programs,)](h.contiguous(), out, len(h), WIDTH=h.shape[1], num_warps=8)
        return out
    return (h.float() * normal(h.float())[0]).to(h.dtype)


@gelu.register_fake
def _(h):
    return torch.empty_like(h)


@torch.library.custom_op(
    "puzlm::gelu_backward", mutates_args=(), schema="(Tensor grad, Tensor h) -> (Tensor, Tensor)"
)
def gelu_backward(grad, h):
    """Gradient of h; and its sums over rows, in some parts."""
    programs = min(len(h), PROGRAMS)
    if h.is_cuda:
        out = torch.empty_like(h)
        sums = torch.empty(programs, h.shape[1], dtype=torch.float32, device=h.device)
        _gelu_backward_kernel[(programs,)](
            grad.contiguous(), h.contiguous(), out, sums, len(h), WIDTH=h.shape[1], num_warps=8
        )
        return out, sums
    out = (grad.float() * slope(h.float())).to(h.dtype)
    sums = torch.zeros(programs, h.shape[1])
    sums[0] = out.float().sum(0)
    return out, sums


@gelu_backward.register_fake
def _(grad, h):
    sums = h.new_empty(min(len(h), PROGRAMS), h.shape[1], dtype=torch.float32)
    return torch.empty_like(h), sums


# ---- two products added up ------------------------------------------------------------------


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
