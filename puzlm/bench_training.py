"""Where the time of a training step goes, on this device: `puzlm bench --training`.

Times are medians over repeated steps between device synchronisations. Noise images stand in for
photos: no stage's time depends on what the pixels show.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from puzlm.corpus import Album, cut_batch, draw_batch
from puzlm.settings import Recipe
from puzlm.tokenizer import PieceTokenizer
from puzlm.train import Objective, Pages, build_model


def matrix_rate(device: str, size: int = 8192) -> float:
    """Measured bf16 matrix rate of the device in TFLOP/s, on random data."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    seconds = _median(lambda: a @ b, device, 10)
    return 2 * size**3 / seconds / 1e12


def flops(recipe: Recipe, tokenizer: PieceTokenizer, cells: int) -> float:
    """Multiply-adds x 2 of one puzzle's forward and backward pass (backward = 2 x forward).

    Counts the textbook products (cross-attention with projected keys and values), whatever
    shortcut an implementation takes.
    """
    model = build_model(recipe, tokenizer).settings
    T, N, d = tokenizer.sentence_length(cells), cells, model.d_model
    ff, dff = model.feed_forward, model.decoder_feed_forward or model.feed_forward
    encoder = model.encoder_layers * (T * (4 * d * d + 2 * d * ff) + 2 * T * T * d)
    decoder = model.decoder_layers * (
        N * (4 * d * d + 2 * d * dff) + 2 * N * N * d + (2 * N + 2 * T) * d * d + 2 * N * T * d
    )
    return 3 * 2 * float(encoder + decoder + N * d * model.vocabulary)


def stages(recipe: Recipe, device: str, fast: bool, repeats: int = 20) -> dict[str, Any]:
    """Milliseconds of cut, tokenise, sort, forward, backward, optimiser, and of whole steps."""
    t, s = recipe.train, recipe.tokenizer
    rng = np.random.default_rng(0)
    album = Album.of([rng.integers(0, 256, (200, 200, 3), np.uint8) for _ in range(512)], device)
    tokenizer = PieceTokenizer(s)
    pieces = rng.integers(0, 256, (2 * s.vocab_size // s.border_length + 64, s.side, s.side, 3),
                          np.uint8)  # fmt: skip
    tokenizer.fit_canonical(pieces, device=device, max_iter=1)
    pages = Pages(recipe, tokenizer, device, album, compiled=fast)
    cells = pages.grid[0] * pages.grid[1]
    model = build_model(recipe, tokenizer).to(device).train()
    objective = Objective(model, tokenizer, cells, t.heads, torch.bfloat16 if fast else None)
    objective.to(device)
    weights = list(objective.parameters())
    optimiser = torch.optim.AdamW(weights, lr=1e-5, fused="cuda" in device)
    run: Any = torch.compile(objective) if fast else objective
    autocast = torch.autocast("cuda", torch.bfloat16, enabled="cuda" in device and not fast)

    draw = draw_batch(pages.sizes, t.batch, recipe.cut, (0, 0))
    parts = [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in vars(draw).values()]
    present, side = parts[-1], s.side
    wrap: Callable[..., Any] = torch.compile if fast else (lambda f: f)
    cut = wrap(lambda: cut_batch(album, *parts[:-1], side=side))
    with torch.no_grad():
        pieces = cut().view(-1, side, side, 3)
        read = wrap(lambda: pages.tokenizer.encode_canonical(pieces))
        symbols = read().view(t.batch, cells, -1, len(s.terms))
        write = wrap(lambda: pages._write(symbols, present))
        rows = {
            "draw (host)": _median(
                lambda: draw_batch(pages.sizes, t.batch, recipe.cut, (0, 1)), device, 5
            ),
            "cut": _median(cut, device, repeats),
            "tokenise": _median(read, device, repeats),
            "sort": _median(write, device, repeats),
        }
    batch = pages.batch(0)

    def forward() -> Any:
        with autocast:
            return run(batch)[0]

    def both() -> None:
        forward().backward()
        optimiser.zero_grad()

    def step() -> None:
        with torch.no_grad():
            batch.update(pages.batch(1))
        forward().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad()

    both()
    rows["forward"] = _median(forward, device, repeats)
    rows["backward"] = _median(both, device, repeats) - rows["forward"]
    forward().backward()
    rows["optimiser"] = _median(
        lambda: (torch.nn.utils.clip_grad_norm_(weights, 1.0), optimiser.step()), device, repeats
    )
    optimiser.zero_grad()
    whole = _sustained(step, device, repeats)
    work = flops(recipe, tokenizer, cells)
    return {
        "loop": "fast" if fast else "plain",
        "batch": t.batch,
        "parameters": sum(p.numel() for p in model.parameters()),
        "milliseconds": {k: round(1e3 * v, 3) for k, v in rows.items()},
        "step_milliseconds": round(1e3 * whole, 3),
        "puzzles_per_second": round(t.batch / whole, 1),
        "gflop_per_puzzle": round(work / 1e9, 3),
        "tflops": round(work * t.batch / whole / 1e12, 1),
        "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2)
        if "cuda" in device
        else None,
    }


def _wait(device: str) -> None:
    if "cuda" in device:
        torch.cuda.synchronize()


def _median(work: Callable[[], Any], device: str, repeats: int) -> float:
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _sustained(work: Callable[[], Any], device: str, repeats: int) -> float:
    """Seconds a step of an unbroken run of steps, as in training."""
    for _ in range(3):
        work()
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    _wait(device)
    return (time.perf_counter() - start) / repeats
