"""Where the time of a training step goes, on this device, trick by trick.

    python -m bench.training --variants all -o speed.json --budget 150
    python -m bench.training --curve 300 --data photos.tar -o curve.json

Times are medians over repeated steps between device synchronisations. Noise images stand in for
photos: no stage's time depends on what the pixels show. bench_variants.py runs several variants.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training.corpus import Album
from puzlm.training.loop import Ahead, Batch, Recorded
from puzlm.training.objective import Objective
from puzlm.training.recipes import Recipe
from puzlm.training.starts import build_model
from puzlm.training.train_reader import Pages
from puzlm.training.tricks import PLAIN, Tricks

MOST_CHECKED = 4096  # puzzles a step whose first step is compared: the library's takes more memory


def matrix_rate(device: str, size: int = 8192) -> float:
    """Measured bf16 matrix rate of the device in TFLOP/s, on random data."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    seconds = median(lambda: a @ b, device, 10)
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


def noise(count: int = 512, side: int = 200, blur: float = 0.0) -> list[Any]:
    """Random images; blurred ones have smooth patches that look alike, as photos do."""
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (side, side, 3), np.uint8) for _ in range(count)]
    if not blur:
        return images
    smooth = []
    for image in images:
        wide = gaussian_filter(image.astype(np.float32), (blur, blur, 0))
        wide = (wide - wide.mean()) / (wide.std() + 1e-6) * 50 + 128
        smooth.append(np.clip(np.rint(wide), 0, 255).astype(np.uint8))
    return smooth


def noise_tokenizer(recipe: Recipe, device: str) -> PieceTokenizer:
    """The recipe's tokenizer with codebooks of the right size and no meaning."""
    s = recipe.tokenizer
    rng = np.random.default_rng(0)
    count = 2 * s.vocab_size // s.border_length + 64
    pieces = rng.integers(0, 256, (count, s.side, s.side, 3), np.uint8)
    return PieceTokenizer(s).fit_canonical(pieces, device=device, max_iter=1)


class Rig:
    """Everything one training step needs, in the plain or in the fast way."""

    def __init__(
        self,
        recipe: Recipe,
        device: str,
        fast: bool,
        tricks: Tricks = PLAIN,
        *,
        album: Album,
        tokenizer: PieceTokenizer,
    ) -> None:
        self.recipe, self.device, self.fast, self.tricks = recipe, device, fast, tricks
        t, cuda = recipe.train, "cuda" in device
        self.pages = Pages(recipe, tokenizer, device, album, fast, tricks)
        self.cells = self.pages.grid[0] * self.pages.grid[1]
        self.model = build_model(recipe, tokenizer).to(device).train()
        torch.manual_seed(t.seed + 1)
        dtype = (torch.bfloat16 if cuda else torch.float32) if fast else None
        self.objective = Objective(self.model, tokenizer, self.cells, t.heads, dtype, tricks)
        self.objective.to(device)
        self.weights = list(self.objective.parameters())
        rate: Any = torch.tensor(1e-5, device=device) if tricks.graph else 1e-5
        self.optimiser = torch.optim.AdamW(
            self.weights,
            lr=rate,
            betas=(0.9, 0.98),
            weight_decay=t.weight_decay,
            fused=cuda,
            capturable=cuda and tricks.graph,
        )
        whole = fast and not tricks.blocks
        self.run: Any = torch.compile(self.objective, dynamic=False) if whole else self.objective
        self.autocast = torch.autocast("cuda", torch.bfloat16, enabled=cuda and not fast)
        self._replay: Recorded | None = None
        self._ahead: Ahead | None = None

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss, and the facts of the log."""
        with self.autocast:
            loss, facts = self.run(batch)
        return loss, facts

    def learn(self, batch: Batch) -> Tensor:
        """Forward, backward, optimiser; the loss and its facts (4,)."""
        loss, facts = self.forward(batch)
        torch.autograd.backward(loss)
        self.update()
        self.optimiser.zero_grad()
        return torch.cat([loss.detach()[None], facts])

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.weights, self.recipe.train.clip)
        self.optimiser.step()

    def step(self, number: int) -> Tensor:
        """Draw, copy and do one step."""
        with torch.no_grad():
            batch = self._ahead.take(number) if self._ahead else self.pages.batch(number)
        if not (self.tricks.graph and "cuda" in self.device):
            return self.learn(batch)
        if self._replay is None:
            self._replay = Recorded(self.learn, batch, self.weights, self.optimiser)
            if self.tricks.ahead:
                self._ahead = Ahead(self.pages.batch)
        facts = self._replay(batch)
        if self._ahead:
            self._ahead.begin(number + 1, self._replay)
        return facts


@dataclass(frozen=True)
class Check:
    """How far a variant's first step is from the library model's on the same weights and batch."""

    loss: float
    plain_loss: float
    gradient_cosine: float
    gradient_length: float
    """Length of the gradient over that of the library's."""


def check(rig: Rig, batch: Batch) -> Check:
    """Compare loss and gradient with transformers' BART under autocast, eager."""

    def once(run: Callable[[Batch], Any], autocast: bool) -> tuple[float, Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast and "cuda" in rig.device):
            loss = run(batch)[0]
        found = torch.autograd.grad(loss, rig.weights, allow_unused=True)
        return float(loss.detach()), torch.cat(
            [
                (torch.zeros_like(w) if g is None else g).flatten().double()
                for w, g in zip(rig.weights, found, strict=True)
            ]
        )

    loss, gradient = once(rig.run, not rig.fast)
    kept, rig.objective.fast = rig.objective.fast, None
    plain_tricks, rig.objective.tricks = rig.objective.tricks, PLAIN
    try:
        plain_loss, plain = once(rig.objective, True)
    finally:
        rig.objective.fast, rig.objective.tricks = kept, plain_tricks
    lengths = (float(gradient.norm()), float(plain.norm()))
    cosine = float(gradient @ plain) / max(lengths[0] * lengths[1], 1e-30)
    return Check(loss, plain_loss, cosine, lengths[0] / max(lengths[1], 1e-30))


def stages(
    recipe: Recipe,
    device: str,
    fast: bool,
    repeats: int = 20,
    tricks: Tricks = PLAIN,
    ready: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Milliseconds of cut, tokenise, sort, forward, backward, optimiser, and of whole steps.

    `ready` is called when everything is compiled, before anything is timed.
    """
    tokenizer = noise_tokenizer(recipe, device)
    album = Album.of(noise(), device)
    rig = Rig(recipe, device, fast, tricks, album=album, tokenizer=tokenizer)
    pages, t = rig.pages, recipe.train
    parts = [part.to(device) for part in pages.draw(0)]
    with torch.no_grad():
        batch = pages.read(parts)
    checked = check(rig, batch) if t.batch <= MOST_CHECKED else None
    ready()
    if "cuda" in device:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        pieces = pages.cut(*parts[1:6])
        found = pages.encode(pieces)
        symbols = found.view(t.batch, rig.cells, *found.shape[1:])
        rows = {
            "draw (host)": median(lambda: pages.draw(1), device, 5),
            "cut": median(lambda: pages.cut(*parts[1:6]), device, repeats),
            "tokenise": median(lambda: pages.encode(pieces), device, repeats),
            "sort": median(lambda: pages.write(symbols, *parts[6:]), device, repeats),
        }

    def both() -> None:
        torch.autograd.backward(rig.forward(batch)[0])
        rig.optimiser.zero_grad()

    both()
    rows["forward"] = median(lambda: rig.forward(batch), device, repeats)
    rows["backward"] = median(both, device, repeats) - rows["forward"]
    torch.autograd.backward(rig.forward(batch)[0])
    rows["optimiser"] = median(rig.update, device, repeats)
    rig.optimiser.zero_grad()
    numbers = iter(range(1, 10**9))
    # Thrice, and the best: another process may be getting ready on the same device.
    runs = [_sustained(lambda: rig.step(next(numbers)), device, repeats) for _ in range(3)]
    whole = min(runs)
    work = flops(recipe, tokenizer, rig.cells)
    return {
        "loop": "fast" if fast else "plain",
        "tricks": asdict(tricks),
        "batch": t.batch,
        "parameters": sum(p.numel() for p in rig.model.parameters()),
        "milliseconds": {k: round(1e3 * v, 3) for k, v in rows.items()},
        "step_milliseconds": round(1e3 * whole, 3),
        "step_milliseconds_of_all_runs": [round(1e3 * run, 3) for run in runs],
        "puzzles_per_second": round(t.batch / whole, 1),
        "gflop_per_puzzle": round(work / 1e9, 3),
        "tflops": round(work * t.batch / whole / 1e12, 1),
        "first_step": asdict(checked) if checked else None,
        "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2)
        if "cuda" in device
        else None,
    }


def _wait(device: str) -> None:
    if "cuda" in device:
        torch.cuda.synchronize()


def median(work: Callable[[], Any], device: str, repeats: int) -> float:
    """Median seconds of some work, between waits for the device."""
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


if __name__ == "__main__":
    from bench.variants import main

    main()
