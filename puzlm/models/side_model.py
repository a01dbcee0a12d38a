"""The symbolic side model: which side, read as symbols, follows which. Any grid, any size.

Each side of a piece is B border positions; their symbols -> embeddings -> a small network -> a unit
vector. Two sides that touch should point the same way. Trained by telling the true neighbour of a
side from all other sides of the batch (InfoNCE). It sees symbols only, never a pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.model_files import load, save_half
from puzlm.sections import at_least
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer

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
    """k of the largest codebook."""
    embedding: int = 64
    hidden: int = 512
    vector: int = 128

    def __post_init__(self) -> None:
        at_least(1, self, "sides", "positions", "symbols", "codes")
        at_least(1, self, "sides", "embedding", "hidden", "vector")


class SideModel(nn.Module):
    """Vectors of sides; `scores` gives what assembly and fusion need."""

    def __init__(self, settings: SideSettings) -> None:
        super().__init__()
        s = self.settings = settings
        self.embed = nn.Embedding(s.symbols * s.codes, s.embedding)
        width = s.positions * s.symbols * s.embedding
        # One network for each side: "what lies right of this" is not "what lies left of this".
        self.nets = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, s.hidden),
                nn.GELU(),
                nn.Linear(s.hidden, s.hidden),
                nn.GELU(),
                nn.Linear(s.hidden, s.vector),
            )
            for _ in SIDES
        )
        self.sharpness = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, sides: Tensor) -> Tensor:
        """Sides (n, 4, B, F) -> unit vectors (n, 4, vector); reads the first symbols it knows."""
        s = self.settings
        ids = sides[..., : s.symbols] + torch.arange(s.symbols, device=sides.device) * s.codes
        x = self.embed(ids).flatten(2)
        return F.normalize(
            torch.stack([net(x[:, k]) for k, net in enumerate(self.nets)], 1), dim=-1
        )

    @torch.no_grad()
    def start_from_centroids(self, tokenizer: PieceTokenizer) -> None:
        """Start the embeddings from what the symbols look like."""
        for number, book in enumerate(tokenizer.codebooks_[: self.settings.symbols]):
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
        there = torch.as_tensor(sides, device=self.sharpness.device)
        return neighbour_scores(self(there), self.sharpness.exp())

    def save_pretrained(self, folder: str | Path) -> None:
        """Write sides.json and sides.safetensors (half precision)."""
        save_half(self, folder, "sides")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> SideModel:
        """Read a saved side model."""
        return load(cls, SideSettings, folder, "sides")


def neighbour_scores(vectors: Tensor, scale: Tensor) -> tuple[Floats, Floats]:
    """Log-scores (right, below), each (n, n), of unit vectors (n, 4, vector) of SIDES."""
    top, right, bottom, left = vectors.unbind(1)
    return _balanced(right @ left.T * scale), _balanced(bottom @ top.T * scale)


def _balanced(logits: Tensor) -> Floats:
    """Mean of row-wise and column-wise log-softmax; a piece is never its own neighbour."""
    if len(logits) == 1:
        return np.full((1, 1), -np.inf)
    logits = logits.double().fill_diagonal_(-math.inf)
    mean = 0.5 * (logits.log_softmax(1) + logits.log_softmax(0))
    result: Floats = mean.fill_diagonal_(-math.inf).cpu().numpy()
    return result
