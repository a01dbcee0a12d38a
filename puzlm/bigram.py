"""The symbolic side model: which side, read as symbols, follows which. Any grid, any size.

Each side of a piece is B border positions; their symbols -> embeddings -> a small network -> a unit
vector. Two sides that touch should point the same way. Trained by telling the true neighbour of a
side from all other sides of the batch (InfoNCE). It sees symbols only, never a pixel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.errors import ModelError
from puzlm.images import write_bytes
from puzlm.puzzle import Grid
from puzlm.tokenizer import (
    PieceTokenizer,
    read_json,
    read_safetensors,
    settings_from,
    side_symbols,
)

Floats = NDArray[np.float64]
SIDES = ("top", "right", "bottom", "left")


@dataclass(frozen=True)
class SideSettings:
    """Shape of the side model."""

    positions: int = 4
    """B: border positions of one side."""
    symbols: int = 1
    """Symbols a border position."""
    codes: int = 4096
    """k of each codebook."""
    embedding: int = 64
    hidden: int = 512
    vector: int = 128


class SideModel(nn.Module):
    """Vectors of sides; `scores` gives what assembly and fusion need."""

    def __init__(self, settings: SideSettings) -> None:
        super().__init__()
        s = self.settings = settings
        self.embed = nn.Embedding(s.symbols * s.codes, s.embedding)
        width = s.positions * s.symbols * s.embedding
        # One network for each side: "what lies right of this" is not "what lies left of this".
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width, s.hidden), nn.GELU(), nn.Linear(s.hidden, s.hidden),
                          nn.GELU(), nn.Linear(s.hidden, s.vector))
            for _ in SIDES
        )  # fmt: skip
        self.sharpness = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, sides: Tensor) -> Tensor:
        """Sides (n, 4, B, F) -> unit vectors (n, 4, vector)."""
        s = self.settings
        ids = sides + torch.arange(s.symbols, device=sides.device) * s.codes
        x = self.embed(ids).flatten(2)
        return F.normalize(
            torch.stack([net(x[:, k]) for k, net in enumerate(self.nets)], 1), dim=-1
        )

    @torch.no_grad()
    def start_from_centroids(self, tokenizer: PieceTokenizer) -> None:
        """Start the embeddings from what the symbols look like."""
        for number, book in enumerate(tokenizer.codebooks_):
            c = book.half_whitened()[:, : self.settings.embedding]
            c = c / c.std()
            rows = self.embed.weight[number * self.settings.codes :][: len(c)]
            rows *= 0.1
            rows[:, : c.shape[1]] += torch.from_numpy(c).to(rows)

    @torch.no_grad()
    def scores(self, sides: Any) -> tuple[Floats, Floats]:
        """Log-scores (right, below), each (n, n), of one puzzle's sides (n, 4, B, F).

        right[i, j]: piece j lies right of piece i, as the mean of two log-probabilities: j among
        all candidates right of i, and i among all candidates left of j.
        """
        top, right, bottom, left = self(torch.as_tensor(sides)).unbind(1)
        scale = self.sharpness.exp()
        return _balanced(right @ left.T * scale), _balanced(bottom @ top.T * scale)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write sides.json and sides.safetensors (half precision)."""
        from safetensors.torch import save

        tensors = {k: v.detach().half().cpu().contiguous() for k, v in self.named_parameters()}
        write_bytes(Path(folder) / "sides.safetensors", save(tensors))
        record = json.dumps({"version": 1, **asdict(self.settings)}, indent=1) + "\n"
        write_bytes(Path(folder) / "sides.json", record.encode())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> SideModel:
        """Read a saved side model."""
        record = read_json(Path(folder) / "sides.json")
        record.pop("version", None)
        model = cls(settings_from(SideSettings, record, str(folder)))
        arrays = read_safetensors(Path(folder) / "sides.safetensors")
        own = dict(model.named_parameters())
        if set(own) != set(arrays):
            raise ModelError(f"{folder}: sides.safetensors does not fit sides.json")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(torch.as_tensor(arrays[name]))
        return model.eval()


def _balanced(logits: Tensor) -> Floats:
    """Mean of row-wise and column-wise log-softmax; a piece is never its own neighbour."""
    if len(logits) == 1:
        return np.full((1, 1), -np.inf)
    logits = logits.double().fill_diagonal_(-math.inf)
    mean = 0.5 * (logits.log_softmax(1) + logits.log_softmax(0))
    result: Floats = mean.fill_diagonal_(-math.inf).cpu().numpy()
    return result


def fit(
    tokenizer: PieceTokenizer,
    batch: Callable[[int], Tensor],
    grid: Grid,
    *,
    steps: int,
    lr: float = 1e-3,
    seed: int = 0,
    device: str = "cpu",
    compiled: bool = False,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
    **shape: int,
) -> SideModel:
    """Train a side model. `batch(step)` gives symbols (n, cells, b, F) in raster order."""
    s = tokenizer.settings
    torch.manual_seed(seed)
    model = SideModel(SideSettings(s.granularity, len(s.terms), s.vocab_size, **shape))
    model.start_from_centroids(tokenizer)
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01,
                                  fused="cuda" in device)  # fmt: skip
    cells = torch.arange(grid[0] * grid[1]).view(*grid)
    pairs = [(cells[:, :-1].reshape(-1), cells[:, 1:].reshape(-1), 1, 3),
             (cells[:-1].reshape(-1), cells[1:].reshape(-1), 2, 0)]  # fmt: skip

    def loss_of(sides: Tensor) -> tuple[Tensor, Tensor]:
        n = len(sides)
        vectors = model(sides.flatten(0, 1)).unflatten(0, (n, -1))
        loss = right = torch.zeros((), device=device)
        for first, second, out, into in pairs:
            a = vectors[:, first.to(device), out].flatten(0, 1)
            b = vectors[:, second.to(device), into].flatten(0, 1)
            logits = a @ b.T * model.sharpness.exp()
            answer = torch.arange(len(a), device=device)
            loss = loss + 0.25 * (
                F.cross_entropy(logits, answer) + F.cross_entropy(logits.T, answer)
            )
            right = right + 0.5 * (logits.argmax(1) == answer).float().mean()
        return loss, right

    run: Any = torch.compile(loss_of) if compiled else loss_of
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = (
                lr * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / steps))
            )
        with torch.no_grad():
            sides = side_symbols(batch(step), tokenizer)
        loss, right = run(sides)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            report({"step": step + 1, "loss": round(loss.item(), 4), "first_rank": right.item()})
    return model.eval()


def batches_of(tokens: NDArray[Any], size: int, seed: int = 0, device: str = "cpu") -> Any:
    """Draw batches from a token array (puzzles, cells, b, F) in memory or in a memory map."""

    def batch(step: int) -> Tensor:
        rows = np.random.default_rng((seed, step)).integers(0, len(tokens), size)
        return torch.from_numpy(np.asarray(tokens[np.sort(rows)]).astype(np.int64)).to(device)

    return batch
