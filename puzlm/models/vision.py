"""The rivals that see pixels: a ViT that places pieces, and its pairwise twin that matches sides.

`Vision` reads all pieces of a puzzle as patches (the idea of FCViT: a set of pieces in, a cell for
each out). Nothing tells it the order of the pieces, so it cannot but be the same for every shuffle.
`Edges` turns each side's pixels into a unit vector; sides that touch point the same way (the idea
of Edge2Vec): the pixel counterpart of the side model in bigram.py. Both are trained on the images
of the language model, so that symbols can be compared with pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.model_files import load, save_half
from puzlm.models.shapes import EdgeSettings, VisionSettings, against_none
from puzlm.models.side_model import neighbour_scores
from puzlm.puzzle import parse_grid
from puzlm.tokenizer.piece_tokenizer import resized

Floats = NDArray[np.float64]


class Block(nn.Module):
    """A pre-norm transformer layer without masks."""

    attention: Callable[[Tensor, Tensor, Tensor, int], Tensor] | None = None
    """Takes the library's place while weights are learned (vision_train.quicken: fast.attended).
    Set from outside, because whoever only asks a model must not have to load Triton."""

    def __init__(self, d_model: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, feed_forward), nn.Linear(feed_forward, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, d_model) -> the same."""
        x = x + self.out(self._mixed(self.norm1(x)))
        grown: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return grown

    def _mixed(self, x: Tensor) -> Tensor:
        """Averages of values, (batch, tokens, d_model), before the output layer."""
        # An exam in the middle of training is asked in float32, as all who use the model will.
        if self.attention is not None and torch.is_grad_enabled():
            return self.attention(x, self.qkv.weight, self.qkv.bias, self.heads)
        batch, tokens, d = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(batch, tokens, d)


class Vision(nn.Module):
    """Pieces in, for each piece a score of every cell, and of what lies right of and below it."""

    name = "vision"

    def __init__(self, settings: VisionSettings | None = None) -> None:
        super().__init__()
        s = self.settings = settings or VisionSettings()
        self.embed = nn.Linear(3 * s.patch**2, s.d_model)
        self.place = nn.Parameter(torch.randn((s.side // s.patch) ** 2, s.d_model) * 0.02)
        self.missing = nn.Parameter(torch.randn(s.d_model) * 0.02)
        self.blocks = nn.ModuleList(
            Block(s.d_model, s.heads, s.feed_forward) for _ in range(s.layers)
        )
        self.norm = nn.LayerNorm(s.d_model)
        self.right = nn.Linear(s.d_model, s.d_model)  # query and key of "right of me" and so on
        self.below = nn.Linear(s.d_model, s.d_model)
        self.none = nn.Parameter(torch.zeros(2, s.d_model // 2))
        self.cells = nn.ModuleDict(
            {name: nn.Linear(s.d_model, math.prod(parse_grid(name))) for name in s.grids}
        )
        self.waves = nn.Linear(s.d_model, s.waves**2) if s.waves else None

    def forward(
        self, pieces: Tensor, present: Tensor, grid: str
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """(n, m, side, side, 3) in grey levels, (n, m) -> (n, m, cells), two (n, m, m + 1).

        None instead of cells for a grid that it has no output for.
        """
        s, (n, m) = self.settings, present.shape
        across = s.side // s.patch
        x = pieces.view(n * m, across, s.patch, across, s.patch, 3).transpose(2, 3)
        x = (x.reshape(n, m, across**2, -1).to(self.place.dtype) - 120) / 64
        x = self.embed(x)
        x = torch.where(present[..., None, None], x, self.missing) + self.place
        x = x.view(n, m * across**2, -1)
        for block in self.blocks:
            x = block(x)
        pooled = self.norm(x.view(n, m, across**2, -1).mean(2))
        found = []
        for linear, none in ((self.right, self.none[0]), (self.below, self.none[1])):
            query, key = linear(pooled).chunk(2, -1)
            key = torch.cat([key, none.expand(n, 1, -1)], 1)
            found.append(query @ key.transpose(1, 2) / key.shape[-1] ** 0.5)
        return self._cells(pooled, grid), found[0], found[1]

    def _cells(self, pooled: Tensor, grid: str) -> Tensor | None:
        """Scores of cells, by the grid's own output or by that for all others."""
        if grid in self.cells:
            own: Tensor = self.cells[grid](pooled)
            return own
        rows, columns = parse_grid(grid)
        if self.waves is None or not self.settings.places((rows, columns)):
            return None
        # Where a piece lies is a smooth function of the picture, whatever the grid: the output
        # weighs products of cosines down and across, and their sum at a cell is its score.
        waves = self.settings.waves
        down, across = (_cosines(size, waves, pooled) for size in (rows, columns))
        by_wave = self.waves(pooled).unflatten(-1, (waves, waves)) / waves
        found: Tensor = down @ by_wave @ across.T
        return found.flatten(2)

    @torch.no_grad()
    def read(
        self, pieces: list[NDArray[Any]], shape: tuple[int, int]
    ) -> tuple[Floats | None, Floats, Floats]:
        """What it says of n puzzles with m pieces each.

        Log-probabilities of every cell (n, m, cells), if it has an output for the grid, and how
        much likelier than nothing every piece is to lie right of and below each, as logs (n, m, m).
        """
        grid, size, cells = "{}x{}".format(*shape), len(pieces[0]), math.prod(shape)
        x = np.stack([resized(p, self.settings.side) for p in pieces])
        x = np.pad(x, ((0, 0), (0, cells - size), (0, 0), (0, 0), (0, 0)))
        there = self.place.device
        present = torch.arange(cells, device=there).expand(len(x), cells) < size
        placed, *near = self(torch.from_numpy(x).to(there), present, grid)

        def log_p(y: Tensor) -> Floats:
            return y[:, :size].double().log_softmax(-1).cpu().numpy()

        right, below = (against_none(log_p(y), size) for y in near)
        return None if placed is None else log_p(placed), right, below

    def save_pretrained(self, folder: str | Path) -> None:
        """Write vision.json and vision.safetensors (half precision)."""
        save_half(self, folder, "vision")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Vision:
        """Read a saved model."""
        return load(cls, VisionSettings, folder, "vision")


def _cosines(size: int, waves: int, like: Tensor) -> Tensor:
    """Waves at the middles of so many cells in a row: (size, waves)."""
    middle = (torch.arange(size, device=like.device) + 0.5) / size
    return (math.pi * middle[:, None] * torch.arange(waves, device=like.device)).cos().to(like)


class Edges(nn.Module):
    """Unit vectors of sides, from pixels."""

    def __init__(self, settings: EdgeSettings | None = None) -> None:
        super().__init__()
        s = self.settings = settings or EdgeSettings()
        self.embed = nn.Linear(3 * s.depth * s.column, s.d_model)
        self.place = nn.Parameter(torch.randn(s.side // s.column, s.d_model) * 0.02)
        # "What lies right of this" is not "what lies left of this": each side has its own vector.
        self.kind = nn.Parameter(torch.randn(4, 1, s.d_model) * 0.02)
        self.blocks = nn.ModuleList(
            Block(s.d_model, s.heads, s.feed_forward) for _ in range(s.layers)
        )
        self.norm = nn.LayerNorm(s.d_model)
        self.out = nn.Linear(s.d_model, s.vector)
        self.sharpness = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, pieces: Tensor) -> Tensor:
        """Pieces (n, side, side, 3) in grey levels -> (n, 4, vector): top, right, bottom, left."""
        s, n = self.settings, len(pieces)
        x = (pieces.to(self.place.dtype) - 120) / 64
        down = x.transpose(1, 2)
        # Border first, then inwards; along the side from left to right or from top to bottom, so
        # that two sides which touch are read in the same direction.
        sides = torch.stack([x, down.flip(1), x.flip(1), down], 1)[:, :, : s.depth]
        tokens = sides.view(n, 4, s.depth, -1, 3 * s.column).transpose(2, 3).flatten(3)
        y = self.embed(tokens) + self.place + self.kind
        y = y.view(4 * n, -1, s.d_model)
        for block in self.blocks:
            y = block(y)
        vectors = self.out(self.norm(y.mean(1))).view(n, 4, -1).float()
        return F.normalize(vectors, dim=-1)

    @torch.no_grad()
    def scores(self, pieces: NDArray[Any]) -> tuple[Floats, Floats]:
        """Log-scores (right, below), each (n, n), as SideModel.scores gives them."""
        x = torch.from_numpy(resized(pieces, self.settings.side)).to(self.place.device)
        return neighbour_scores(self(x), self.sharpness.exp())

    @torch.no_grad()
    def vectors(self, pieces: NDArray[Any]) -> NDArray[Any]:
        """Unit vectors of the sides (n, 4, vector): top, right, bottom, left."""
        x = torch.from_numpy(resized(pieces, self.settings.side)).to(self.place.device)
        found: NDArray[Any] = self(x).cpu().numpy()
        return found

    def save_pretrained(self, folder: str | Path) -> None:
        """Write edges.json and edges.safetensors (half precision)."""
        save_half(self, folder, "edges")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Edges:
        """Read a saved model."""
        return load(cls, EdgeSettings, folder, "edges")


__all__ = ["EdgeSettings", "Edges", "Vision", "VisionSettings"]
