"""Train the network that says how well two cut sides of a printed page fit.

    pages -> a window of one page -> cuts with a shredder's wear -> which side continues which

One step takes one window of one page and cuts it about thirty times. The network scores every side
left of a cut with every side right of a cut. The true partner must win its row and its column, so
the wrong partners come from the same page, as they do when a page is put together.
The solver runs the same network in numpy: see puzlm/models/strokes.py.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from puzlm.images import read_image
from puzlm.models.strokes import DEPTH, FIT, HIDDEN, QUICK, WIDTH

Ink = NDArray[np.float32]
Pages = list[NDArray[np.uint8]]

CUTS = 28  # of one window
ROWS = (128, 320)  # rows of a window, at 150 pixels an inch
QUICK_WEIGHT = 0.3  # of the quick product's loss; it only chooses candidates


class Side(nn.Module):
    """Read one side: ink (n, DEPTH, rows) -> features (n, FIT + QUICK, rows / 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(DEPTH, WIDTH, 5, padding=2)
        self.second = nn.Conv1d(WIDTH, WIDTH, 5, stride=2, padding=2)
        self.third = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.out = nn.Conv1d(WIDTH, FIT + QUICK, 1)

    def forward(self, ink: Tensor) -> Tensor:
        x = functional.relu(self.first(ink))
        x = functional.relu(self.second(x))
        x = x + functional.relu(self.third(x))
        result: Tensor = self.out(x)
        return result


class Strokes(nn.Module):
    """Score all pairs of sides left of a cut (n) and right of a cut (m)."""

    def __init__(self) -> None:
        super().__init__()
        self.before = Side()
        self.after = Side()
        self.join = nn.Conv1d(FIT, HIDDEN, 3, padding=1)
        self.score = nn.Conv1d(HIDDEN, 1, 1)

    def forward(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Give the full score and the quick one: two (n, m)."""
        u, v = self.before(before), self.after(after)
        n, m, rows = len(u), len(v), u.shape[2]
        quick = torch.einsum("ncr,mcr->nm", u[:, FIT:], v[:, FIT:]) / QUICK**0.5
        z = functional.relu(u[:, None, :FIT] + v[None, :, :FIT]).view(n * m, FIT, rows)
        rowwise = self.score(functional.relu(self.join(z)))
        return rowwise.sum((1, 2)).view(n, m), quick


# ---- data -------------------------------------------------------------------------------------


def load_pages(folder: Path, prefixes: Sequence[str], across: bool) -> Pages:
    """Read pages of 150 pixels an inch as ink (255: black); `across`: turned, for cuts along rows.

    A page whose file name starts with none of the prefixes is left out.
    """
    pages = []
    for file in sorted(folder.iterdir()):
        if file.name.startswith(tuple(prefixes)):
            grey = 255 - read_image(file).mean(2).astype(np.uint8)
            pages.append(np.ascontiguousarray(grey.T) if across else grey)
    return pages


def sample(page: NDArray[np.uint8], rng: np.random.Generator) -> tuple[Ink, Ink] | None:
    """Cut a random window of a page: sides before and after each cut (CUTS, DEPTH, rows).

    None where the window has too little ink to learn from.
    """
    height, width = page.shape
    zoom = np.exp(rng.uniform(np.log(0.72), np.log(1.4)))
    rows = int(rng.integers(ROWS[0] // 2, ROWS[1] // 2)) * 2
    rows = min(rows, int((height - 8) / zoom) // 2 * 2)
    top = rng.uniform(4, height - 4 - rows * zoom)
    part = page[int(top) : int(top + rows * zoom)]
    if (part > 100).mean() < 0.004:
        return None
    # Cuts lie a strip's width apart, with ink somewhere beside most of them.
    gap = rng.uniform(14, 60) * zoom
    first = rng.uniform(6, gap)
    x = np.arange(first, width - 6, gap)
    if len(x) > CUTS:
        begin = int(rng.integers(0, len(x) - CUTS + 1))
        x = x[begin : begin + CUTS]
    if len(x) < 8:
        return None
    deep = min(DEPTH, int(gap / zoom)) if gap / zoom < DEPTH else DEPTH
    clean = rng.random() < 0.25
    shifted = rng.random() < 0.6
    tilted = rng.random() < 0.5
    sides = []
    for direction in (-1, 1):
        lost, notches = _wear(len(x), rows, clean, rng)
        shift = rng.uniform(-1.5, 1.5, (len(x), 1, 1)) * shifted
        tilt = rng.normal(0, 0.02, (len(x), 1, 1)) * tilted
        depth = np.arange(DEPTH)[None, :, None]
        # Pixel centres: the first column right of a cut at x begins at x.
        inward = depth + 0.5 + lost[:, None]
        column = x[:, None, None] + direction * inward * zoom - 0.5
        row = top + (np.arange(rows) + shift + tilt * depth * direction) * zoom
        ink = _bilinear(page, row, column)
        sides.append(ink * np.clip(depth + 1 - notches[:, None], 0, 1).astype(np.float32))
    return _look(sides, deep, clean, rng)


def _wear(count: int, rows: int, clean: bool, rng: np.random.Generator) -> tuple[Ink, Ink]:
    """Draw what a cut loses, in pixels: all along it in waves, and in notches: two (count, rows).

    The reader of strips follows the waves, but not the notches: they are paper without ink.
    """
    if clean:
        return np.zeros((count, rows), np.float32), np.zeros((count, rows), np.float32)
    waves = np.cumsum(rng.normal(0, 1, (count, rows)), axis=1)
    waves -= np.linspace(0, 1, rows) * waves[:, -1:]
    waves *= rng.uniform(0, 0.5, (count, 1)) / (np.abs(waves).max(1, keepdims=True) + 1e-6)
    lost = np.maximum(rng.uniform(0, 1.8, (count, 1)) + waves, 0)
    teeth = rng.normal(0, 1, (count, rows + 2))
    teeth = (teeth[:, :-2] + teeth[:, 1:-1] * rng.uniform(1, 4) + teeth[:, 2:]) / 3
    notches = np.maximum(teeth * rng.uniform(0, 1.0, (count, 1)), 0)
    return lost.astype(np.float32), notches.astype(np.float32)


def _bilinear(
    page: NDArray[np.uint8], row: NDArray[np.float64], column: NDArray[np.float64]
) -> Ink:
    """Read a page between its pixels; beyond the page there is paper."""
    height, width = page.shape
    row, column = np.broadcast_arrays(row, column)
    y = np.floor(row).astype(np.int32)
    x = np.floor(column).astype(np.int32)
    fy = (row - y).astype(np.float32)
    fx = (column - x).astype(np.float32)
    inside = (y >= 0) & (y < height - 1) & (x >= 0) & (x < width - 1)
    at = np.where(inside, y * width + x, 0)
    flat = page.ravel()
    upper = flat[at] * (1 - fx) + flat[at + 1] * fx
    lower = flat[at + width] * (1 - fx) + flat[at + width + 1] * fx
    return np.where(inside, upper * (1 - fy) + lower * fy, 0) * np.float32(1 / 255)


def _look(sides: list[Ink], deep: int, clean: bool, rng: np.random.Generator) -> tuple[Ink, Ink]:
    """Change how a scan looks: contrast, threshold, noise, fringes at the cut, blur."""
    kind = rng.random()
    middle = rng.uniform(0.3, 0.6)
    steep = 1.0 if kind < 0.4 else rng.uniform(1.3, 3) if kind < 0.7 else 50.0
    noise = rng.uniform(0, 0.08) * (rng.random() < 0.6)
    fringed = not clean and rng.random() < 0.6
    blurred = rng.random() < 0.3
    result = []
    for ink in sides:
        n, _, rows = ink.shape
        if blurred:
            ink[:, :, 1:-1] = (ink[:, :, :-2] + 2 * ink[:, :, 1:-1] + ink[:, :, 2:]) / 4
            ink[:, 1:-1] = (ink[:, :-2] + 2 * ink[:, 1:-1] + ink[:, 2:]) / 4
        if noise:
            ink = ink + rng.standard_normal(ink.shape, np.float32) * noise
        if steep != 1:
            ink = (ink - middle) * steep + 0.5
        if fringed:
            fade = rng.uniform(0, 1, (n, 1)).astype(np.float32)
            ink[:, 0] = ink[:, 0] * fade + rng.uniform(-0.3, 0.35) * (1 - fade)
            ink[:, 1] *= 1 - (1 - fade) * rng.uniform(0, 0.5)
        ink = np.clip(ink * rng.uniform(0.8, 1.15, (n, 1, 1)), 0, 1)
        ink[:, deep:] = 0
        result.append(np.ascontiguousarray(ink, np.float32))
    return result[0], result[1]


# ---- training ---------------------------------------------------------------------------------


def loss_of(scores: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of the true partners, rows and columns; blank cuts count nothing."""
    target = torch.arange(len(scores))
    rows = functional.cross_entropy(scores, target, reduction="none")
    columns = functional.cross_entropy(scores.T, target, reduction="none")
    return ((rows + columns) * weight).sum() / weight.sum().clamp(min=1) / 2


def weight_of(before: Tensor, after: Tensor) -> Tensor:
    """Whether a cut has ink on either side near it: (n,)."""
    near = torch.maximum(before[:, :8].amax((1, 2)), after[:, :8].amax((1, 2)))
    return (near > 0.4).float()


def check(net: Strokes, pages: Pages, count: int) -> dict[str, float]:
    """Measure on pages kept aside: how often the true partner wins its row, full and quick."""
    rng = np.random.default_rng(7)
    won = np.zeros(3)
    with torch.no_grad():
        for k in range(count):
            drawn = sample(pages[k % len(pages)], rng)
            if drawn is None:
                continue
            before, after = map(torch.from_numpy, drawn)
            weight = weight_of(before, after).numpy()
            for which, scores in enumerate(net(before, after)):
                hit = scores.argmax(1).numpy() == np.arange(len(scores))
                won[which] += (hit * weight).sum()
            won[2] += weight.sum()
    return {"full": float(won[0] / won[2]), "quick": float(won[1] / won[2])}


def save(net: Strokes, file: Path, record: dict[str, float]) -> None:
    """Write the weights in half precision, and what they are beside them."""
    tensors = {k: v.detach().half().contiguous() for k, v in net.state_dict().items()}
    save_file(tensors, file)
    file.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


@dataclass(frozen=True)
class Schedule:
    """How long to train: seconds of this run, processor seconds of the whole, and how fast."""

    seconds: float = 420
    total: float = 1500
    rate: float = 2e-3


def train(pages: Pages, aside: Pages, output: Path, schedule: Schedule) -> dict[str, float]:
    """Train for some seconds, going on from where the last run stopped; check on pages aside."""
    torch.set_num_threads(1)
    net = Strokes()
    optimiser = torch.optim.AdamW(net.parameters(), lr=schedule.rate, weight_decay=0.01)
    state = output.with_suffix(".state")
    spent = 0.0
    step = 0
    if state.exists():
        stored = torch.load(state, weights_only=True)
        net.load_state_dict(stored["net"])
        optimiser.load_state_dict(stored["optimiser"])
        spent = stored["spent"]
        step = stored["step"]
    rng = np.random.default_rng(step + 1)
    begin = time.monotonic()
    used = time.process_time()  # the schedule counts work, not waiting for a busy machine
    running = 0.0
    while time.monotonic() - begin < schedule.seconds and spent < schedule.total:
        drawn = sample(pages[int(rng.integers(len(pages)))], rng)
        if drawn is None:
            continue
        before, after = map(torch.from_numpy, drawn)
        weight = weight_of(before, after)
        if weight.sum() < 4:
            continue
        spent += time.process_time() - used
        used = time.process_time()
        share = min(spent / schedule.total, 1)
        rate = schedule.rate * min(1, step / 100) * 0.5 * (1 + math.cos(math.pi * share)) + 1e-5
        for group in optimiser.param_groups:
            group["lr"] = rate
        full, quick = net(before, after)
        loss = loss_of(full, weight) + QUICK_WEIGHT * loss_of(quick, weight)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        step += 1
        running += 0.01 * (loss.item() - running) if step > 1 else loss.item()
        if step % 500 == 0:
            print(f"{step} {spent:.0f} s  loss {running:.3f}", flush=True)
    parts = {"net": net.state_dict(), "optimiser": optimiser.state_dict()}
    torch.save({**parts, "spent": spent, "step": step}, state)
    record = {"steps": step, "seconds": round(spent), "pages": len(pages), **check(net, aside, 60)}
    save(net, output, record)
    return record
