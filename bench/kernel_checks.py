"""Which tricks work on this device: a kernel that fails or is wrong is left out, and said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from puzlm.tokenizer.settings import PAD, SEP
from puzlm.training.corpus import Album, CutSettings, draw_batch
from puzlm.training.fast import bart as fast
from puzlm.training.fast import bart8 as fast8
from puzlm.training.fast import kernels, kernels_cross, kernels_cut, kernels_nearest, kernels_words
from puzlm.training.tricks import PLAIN, Tricks


def usable(tricks: Tricks, device: str) -> tuple[Tricks, dict[str, str]]:
    """The tricks that work here, and why the others do not: the later variants must not fall."""
    dropped: dict[str, str] = {}
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    checks: dict[str, tuple[Callable[[], bool], Any]] = {
        "cut": (lambda: cut(device), False),
        "padded": (lambda: padded(device, dtype), False),
        "gathered": (lambda: gathered(device, dtype), False),
        "attention": (lambda: attention(device, dtype), "library"),
        "tokens": (lambda: tokens(device), "float32"),
        "patches": (lambda: patches(device), False),
        "cross": (lambda: cross(device, dtype), False),
        "fp8": (lambda: fp8(device, dtype), False),
        "start": (lambda: start(device, dtype), False),
        "pooled": (lambda: pooled(device, dtype), False),
        "gelu": (lambda: gelu(device, dtype), "shared"),
    }
    for name, (work, plain) in checks.items():
        if getattr(tricks, name) in (plain, "library"):
            continue
        try:
            why = "" if work() else "wrong answers"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[-600:]
        if why:
            dropped[name] = why
            plain_way: dict[str, Any] = {name: plain}
            tricks = replace(tricks, **plain_way)
    return tricks, dropped


def _off(got: Tensor, want: Tensor) -> float:
    """How far one tensor is from another, of its length."""
    got, want = got.detach().float(), want.detach().float()
    return float((got - want).norm() / want.norm())


def cut(device: str) -> bool:
    """The grey levels of the CPU."""
    return _levels(kernels_cut.cut, ((96, 24), (40, 0)), device)


def patches(device: str) -> bool:
    """The same in rows of patches."""
    return _levels(kernels_cut.patches, ((4, 24, True), (2, 16, False)), device)


def _levels(work: Callable[..., Tensor], settings: Sequence[Sequence[Any]], device: str) -> bool:
    """One grey level in ten thousand may be the next one, but none is."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (*size, 3), np.uint8) for size in ((200, 180), (330, 120))]
    album = Album.of(images).with_words()
    kinds = CutSettings(gap_share=0.5, jitter=0.5, colour=1.0)
    draw = draw_batch(album.sizes.numpy(), 16, kinds, (0,))
    drawn = [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()][:5]
    assert album.words is not None
    parts = [album.words, album.offsets, album.sizes, *drawn]
    for more in settings:
        want = work(*parts, *more).int()
        got = work(*(part.to(device) for part in parts), *more).cpu().int()
        off = (got - want).abs()
        if int(off.max()) > 1 or float((off > 0).float().mean()) > 1e-4:
            return False
    return True


def padded(device: str, dtype: torch.dtype) -> bool:
    """Two products added up, against the same in float32."""
    a, c = (torch.randn(8, 116, 72, device=device, dtype=dtype) for _ in range(2))
    b, d = (torch.randn(8, 72, 512, device=device, dtype=dtype) for _ in range(2))
    want = a.float() @ b.float() + c.float() @ d.float()
    return _off(kernels.two_products(a, b, c, d), want) < 0.02


def cross(device: str, dtype: torch.dtype) -> bool:
    """Cross-attention by heads, its gradients, against the library's way, twice for races."""
    q, grad = (torch.randn(8, 300 * 9, 512, device=device, dtype=dtype) * 0.1 for _ in range(2))
    states = torch.randn(300, 116, 512, device=device, dtype=dtype)
    rows, back = (kernels_cross.by_puzzle(t, len(states)).float() for t in (q, grad))
    rows.requires_grad_()
    same = states.float().requires_grad_()
    want = (rows @ same.transpose(1, 2)).softmax(2) @ same
    want_q, want_states = torch.autograd.grad(want, (rows, same), back)
    for _ in range(2):
        mean, kept = kernels_cross.cross(q, states)
        dq, ds = kernels_cross.cross_backward(q, states, kept, grad)
        found = [kernels_cross.by_puzzle(t, len(states)) for t in (mean, dq)]
        pairs = ((found[0], want), (found[1], want_q), (ds, want_states))
        if not all(_off(a, b) < 0.02 for a, b in pairs):
            return False
    return True


def gathered(device: str, dtype: torch.dtype) -> bool:
    """Three readers' gradients, added up by what is compiled in the backward pass."""
    x = torch.randn(4, 116, 512, device=device, dtype=dtype, requires_grad=True)
    factors = [torch.randn_like(x.detach()) for _ in range(3)]
    read = fast.readers(x, 3)
    loss = sum((a * b).float().sum() for a, b in zip(read, factors, strict=True))
    (got,) = torch.autograd.grad(loss, x)  # type: ignore[arg-type]
    return _off(got, torch.stack(factors).float().sum(0)) < 0.01


def attention(device: str, dtype: torch.dtype) -> bool:
    """Values, gradients and their sums, with and without a mask."""
    for length, causal in ((116, False), (144, False), (152, False), (9, True)):
        qkv = torch.randn(4, length, 1536, device=device, dtype=dtype, requires_grad=True)
        grad = torch.randn(4, length, 512, device=device, dtype=dtype)
        want = fast.mix(qkv, 8, causal)
        back = torch.autograd.grad(want, qkv, grad)[0]
        plain = qkv.detach()
        got, logs = kernels.attend(plain, 8, causal)
        found, sums = kernels.attend_backward(plain, got, logs, grad, 8, causal)
        whole = found.float().sum((0, 1))
        for a, b in ((got, want), (found, back), (sums.sum(0), whole)):
            if float((a - b).detach().abs().max()) > 0.03 * float(b.detach().abs().max()):
                return False
    return True


def tokens(device: str) -> bool:
    """The nearest centroids, and products with wide sums."""
    x, c = (torch.randn(n, 192, device=device).bfloat16() for n in (1000, 300))
    half, want = (c.float() ** 2).sum(1) / 2, x.float() @ c.float().t()
    same = kernels_nearest.nearest(x, c, half) == (want - half).argmax(1)
    off = kernels_nearest.wide_product(x, c.t().contiguous()) - want
    few, many = (torch.randn(n, 2, 64, device=device).half() for n in (1000, 512))
    drawn = (few, many, (many.float().sum(1) ** 2).sum(1) / 2)
    found = kernels_nearest.nearest_half(*(part.cpu() for part in drawn))
    halves = kernels_nearest.nearest_half(*drawn).cpu() == found
    enough = min(float(same.float().mean()), float(halves.float().mean())) > 0.99
    return enough and float(off.abs().max()) < 0.01


def gelu(device: str, dtype: torch.dtype) -> bool:
    """Values, slopes and sums."""
    h, grad = (torch.randn(2000, 2048, device=device, dtype=dtype) for _ in range(2))
    same = h.detach().requires_grad_()
    want = torch.nn.functional.gelu(same)
    back = torch.autograd.grad(want, same, grad)[0].float()
    found, sums = kernels.gelu_backward(grad, h)
    pairs = ((kernels.gelu(h), want), (found, back), (sums.sum(0), back.sum(0)))
    return all(_off(a, b) < 0.05 for a, b in pairs)


def fp8(device: str, dtype: torch.dtype) -> bool:
    """Two encoder layers, against the same in the activations' dtype: states and gradients."""
    from transformers import BartConfig
    from transformers.models.bart.modeling_bart import BartEncoderLayer

    torch.manual_seed(0)
    config = BartConfig(d_model=512, encoder_ffn_dim=2048, encoder_attention_heads=8, dropout=0.0)
    layers = torch.nn.ModuleList(BartEncoderLayer(config) for _ in range(2)).to(device)
    x = torch.nn.functional.layer_norm(torch.randn(32, 116, 512, device=device), (512,)).to(dtype)
    grad = torch.randn_like(x) / (1000 * len(x))
    weights = list(layers.parameters())

    def ways(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        start = x.detach().requires_grad_()
        states = run(start)
        return [states, *torch.autograd.grad(states, [start, *weights], grad)]

    def plain(y: Tensor) -> Tensor:
        for layer in layers:
            y = fast._encoder_layer(y, dict(layer.named_parameters()), 8, PLAIN)
        return y

    names = ["states", "start", *(name for name, _ in layers.named_parameters())]
    pairs = zip(names, ways(lambda y: fast8.encode(y, layers, 8)), ways(plain), strict=True)
    # The gradient of the keys' bias is 0 but for rounding.
    return all(_off(a, b) < 0.2 for name, a, b in pairs if "k_proj.bias" not in name)


def start(device: str, dtype: torch.dtype) -> bool:
    """Embeddings, and gradients of all they are made from, against the CPU's, twice for races."""
    torch.manual_seed(0)
    ids = torch.randint(0, 300, (130, 116))
    ids[:, 12::13], ids[5, 3] = SEP, PAD
    table, places = torch.randn(300, 512), torch.randn(116, 512)
    gain, shift = torch.rand(512) + 0.5, torch.randn(512)
    want = kernels_words.start(ids, table, places, gain, shift, dtype)
    a, b = (torch.randn(want[0].shape).to(dtype) for _ in range(2))
    y, spread = want[0], want[2]
    back = kernels_words.start_backward(a, b, y, spread, ids, gain, shift, len(table))
    ids, table, places, gain, shift = (t.to(device) for t in (ids, table, places, gain, shift))
    a, b, y, spread = (t.to(device) for t in (a, b, y, spread))
    for _ in range(2):
        got = kernels_words.start(ids, table, places, gain, shift, dtype)
        found = kernels_words.start_backward(a, b, y, spread, ids, gain, shift, len(table))
        pairs = zip((*got, *found), (*want, *back), strict=True)
        if not all(_off(x.cpu(), y) < 0.01 for x, y in pairs):
            return False
    return True


def pooled(device: str, dtype: torch.dtype) -> bool:
    """Means of pieces with and without separators, against the CPU's."""
    for length in (116, 108):
        states = torch.randn(33, length, 512).to(dtype)
        got = kernels_words.pool(states.to(device), 9, 12)
        if _off(got.cpu(), kernels_words.pool(states, 9, 12)) > 0.01:
            return False
    return True
