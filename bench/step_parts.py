"""Parts of a training step on their own: attention, 8-bit products, the tokenizer's rounding."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.training import matrix_rate, median, noise
from puzlm.errors import SettingsError, nearest
from puzlm.images import iter_images
from puzlm.puzzle import cut
from puzlm.tokenizer.kmeans import Codebook
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training.corpus import Album, CutSettings, draw_batch
from puzlm.training.fast import bart as fast
from puzlm.training.fast import kernels, kernels_cut
from puzlm.training.fast import kernels_fp8 as k8
from puzlm.training.fast.split_book import matrix_books
from puzlm.training.recipes import Recipe


def parts(recipe: Recipe, turn: Path, data: Sequence[str] = ()) -> dict[str, Any]:
    """Everything here, each guarded: a part that fails is its message."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with turn.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        rate = matrix_rate(device, 8192 if device == "cuda" else 256)
        works: dict[str, Callable[[], Any]] = {
            "attention_milliseconds": lambda: attention(device),
            "product_milliseconds": lambda: products(device),
            "same_symbols": lambda: agreement(recipe, device, data),
        }
        found = {name: _guarded(work) for name, work in works.items()}
    return {"matrix_tflops": round(rate, 1), "parts": found}


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # the others go on
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def attention(device: str) -> dict[str, Any]:
    """Forward and backward of self-attention, 1,024 x 116 tokens, 8 heads of 64, from qkv."""
    batch, dtype = (1024, torch.bfloat16) if device == "cuda" else (2, torch.float32)
    qkv = torch.randn(batch, 116, 3 * 512, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(batch, 116, 512, device=device, dtype=dtype)
    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }

    def said(forward: float, backward: float) -> dict[str, float]:
        return {"forward": round(1e3 * forward, 3), "backward": round(1e3 * backward, 3)}

    def library(backend: SDPBackend) -> dict[str, float]:
        with sdpa_kernel([backend]):
            forward = median(lambda: fast.mix(qkv, 8, False), device, 10)
            whole = median(
                lambda: torch.autograd.grad(fast.mix(qkv, 8, False), qkv, grad), device, 10
            )
        return said(forward, whole - forward)

    def kernel() -> dict[str, float]:
        plain = qkv.detach()
        kept = kernels.attend(plain, 8, False)
        forward = median(lambda: kernels.attend(plain, 8, False), device, 10)
        work = partial(kernels.attend_backward, plain, *kept, grad, 8, False)
        return said(forward, median(work, device, 10))

    def difference() -> float:
        few = qkv[:8].detach()
        off = kernels.attend(few, 8, False)[0].float() - fast.mix(few, 8, False).float()
        return float(off.abs().max())

    found: dict[str, Any] = {name: _guarded(partial(library, b)) for name, b in backends.items()}
    found["kernel"] = _guarded(kernel)
    found["kernel_difference"] = _guarded(difference)
    return found


def ways(text: str, device: str) -> dict[str, Any]:
    """Milliseconds of kernels, 'all' or by name, for each of their WAYS below, for 1,024 puzzles.

    A way that fails is its message.
    """
    names = list(WAYS) if text == "all" else text.split(",")
    for name in names:
        if name not in WAYS:
            raise SettingsError(f"--ways {name}: unknown; {nearest(name, [*WAYS, 'all'])}")
    if device != "cuda":
        raise SettingsError("--ways: the kernels run on a GPU only")
    cuda: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    qkv, grad = torch.randn(1024, 116, 1536, **cuda), torch.randn(1024, 116, 512, **cuda)
    mixed, logs = kernels.attend(qkv, 8, False)
    album = Album.of(noise(64), device).with_words()
    draw = draw_batch(album.sizes.cpu().numpy(), 1024, CutSettings(), (0,))
    drawn = [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in vars(draw).values()]
    sources = (album.words, album.offsets, album.sizes)
    works: dict[str, tuple[Any, str, Callable[[], Any]]] = {
        "attend": (kernels.WAYS, "attend", lambda: kernels.attend(qkv, 8, False)),
        "attend_backward": (
            kernels.WAYS,
            "attend_backward",
            lambda: kernels.attend_backward(qkv, mixed, logs, grad, 8, False),
        ),
        "cut": (vars(kernels_cut), "WAY", lambda: kernels_cut.cut(*sources, *drawn[:5], 96, 24)),
    }

    def timed(work: Callable[[], Any]) -> float:
        return round(1e3 * median(work, device, 10), 3)

    found: dict[str, Any] = {}
    for name in names:
        table, key, work = works[name]
        chosen = table[key]
        try:
            for way in WAYS[name]:
                table[key] = way
                found.setdefault(name, {})[str(way)] = _guarded(partial(timed, work))
        finally:
            table[key] = chosen
    return found


WAYS: dict[str, tuple[Any, ...]] = {  # the first is the one in use
    "attend": ((128, 8, 0), (64, 4, 0)),
    "attend_backward": ((32, 4, 0), (32, 8, 128), (64, 8, 0), (64, 8, 168), (128, 8, 0)),
    "cut": ((16, 32, 4), (8, 32, 4), (8, 32, 2), (16, 32, 8), (8, 64, 8)),
}


def products(device: str) -> dict[str, Any]:
    """Encoder products of 1,024 sentences, forward: in bfloat16 and in 8 bits."""
    rows, dtype = (118_784, torch.bfloat16) if device == "cuda" else (64, torch.float32)
    shapes = {"qkv": (512, 1536), "out": (512, 512), "fc1": (512, 2048), "fc2": (2048, 512)}

    def timed(d: int, m: int) -> dict[str, float]:
        a = torch.randn(rows, d, device=device, dtype=dtype)
        b = torch.randn(m, d, device=device, dtype=dtype)
        works: dict[str, Callable[[], Any]] = {"bfloat16": lambda: a @ b.t()}
        if device == "cuda":
            small, one = (a.to(k8.E4), b.to(k8.E4)), k8.unit(1.0, a.device)
            works["fp8"] = lambda: k8.product(*small, one, one, dtype)
        return {name: round(1e3 * median(work, device, 10), 3) for name, work in works.items()}

    return {name: _guarded(partial(timed, *shape)) for name, shape in shapes.items()}


def agreement(recipe: Recipe, device: str, data: Sequence[str] = ()) -> dict[str, Any]:
    """Share of symbols equal to those of float64 products: noise, blurred noise, and photos."""
    count = 128 if device == "cuda" else 24
    sets = {"noise": noise(count, 288), "blurred": noise(count, 288, 6.0)}
    if data:
        sets["images"] = list(iter_images(data, 4 * count))
    found: dict[str, Any] = {}
    for name, images in sets.items():
        tokenizer = PieceTokenizer(recipe.tokenizer)
        pieces = np.concatenate([tokenizer.canonical(cut(image, (3, 3))) for image in images])
        tokenizer.fit_canonical(pieces, device=device, max_iter=5)
        there = tokenizer.on(device)
        books, x = there.codebooks_, torch.from_numpy(pieces).to(device).float()
        ways: dict[str, list[Codebook]] = {
            "float64": [WideBook(b.mean, b.components, b.centroids) for b in books],
            "float32": books,
            "tf32": books,
            **{way: matrix_books(books, way) for way in ("split", "half", "bfloat16")},
        }
        symbols = {}
        for way, there.codebooks_ in ways.items():
            torch.backends.cuda.matmul.allow_tf32 = way == "tf32"
            symbols[way] = there.encode_canonical(x)
        torch.backends.cuda.matmul.allow_tf32 = False
        exact = symbols.pop("float64")
        shares = {way: float((got == exact).float().mean()) for way, got in symbols.items()}
        found[name] = {"symbols": exact.numel(), **{k: round(v, 6) for k, v in shares.items()}}
    return found


class WideBook(Codebook):
    """Symbols by float64 products."""

    def assign(self, x: Tensor) -> Tensor:
        """Symbol (n,) of each row of x (n, D), in parts that fit."""
        centres = self.centroids.double()
        half = (centres * centres).sum(1) / 2
        best = []
        for start in range(0, len(x), 4096):
            y = x[start : start + 4096].double() - self.mean.double()
            y = y if self.components is None else y @ self.components.double().t()
            best.append((y @ centres.t() - half).argmax(1))
        return torch.cat(best)
