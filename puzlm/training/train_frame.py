"""The network of frame.py as it learns, and the boards that it learns from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.model_files import load, save_half
from puzlm.models.frame import AROUND, Frame, FrameSettings
from puzlm.puzzle import Grid, Puzzle


class FrameNet(nn.Module):
    """Boards without a frame in, scores of every place for one out."""

    def __init__(self, settings: FrameSettings | None = None) -> None:
        super().__init__()
        s = self.settings = settings or FrameSettings()
        d = s.d_model
        self.embed = nn.Linear(3 * s.side**2, d)
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(s.layers))
        self.look = nn.ModuleList(nn.Linear(11 * d, d) for _ in range(s.layers))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(s.layers))
        self.last = nn.LayerNorm(d)
        self.seam = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(2))
        self.cut = nn.ModuleList(nn.Linear(d, 1) for _ in range(2))

    def forward(self, board: Tensor) -> tuple[Tensor, Tensor]:
        """(n, rows, columns, side, side, 3) in grey levels -> logits (n, rows), (n, columns)."""
        x = self.embed((board.flatten(3).to(self.last.weight.dtype) - 120) / 64)
        for norm, look, out in zip(self.norm, self.look, self.out, strict=True):
            y = norm(x)
            seen = [torch.roll(y, step, (1, 2)) for step in AROUND]
            seen += [y.mean(axis, keepdim=True).expand_as(y) for axis in (1, 2)]
            x = x + out(F.gelu(look(torch.cat(seen, -1)), approximate="tanh"))
        y = self.last(x)
        found = []
        for axis, (seam, cut) in enumerate(zip(self.seam, self.cut, strict=True)):
            both = torch.cat([torch.roll(y, 1, axis + 1), y], -1)
            found.append(cut(F.gelu(seam(both), approximate="tanh").mean(2 - axis))[..., 0])
        return found[0], found[1]

    def asked(self) -> Frame:
        """The same network for numpy."""
        return Frame(
            self.settings, {k: p.detach().float().cpu().numpy() for k, p in self.named_parameters()}
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write frame.json and frame.safetensors (half precision)."""
        save_half(self, folder, "frame")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> FrameNet:
        """Read a saved network."""
        return load(cls, FrameSettings, folder, "frame")


def rolled(n: int, grid: Grid, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Boards as an assembler might leave them: layouts (n, cells) and frames (n, 2).

    A layout names the piece of each cell, a frame the row and the column that it lies before. More
    than half of the boards have mistakes: bands of columns or rows slipped, or some pieces were
    swapped.
    """
    rows, columns = grid
    row, column = np.divmod(np.arange(rows * columns), columns)
    row, column = np.tile(row, (n, 1)), np.tile(column, (n, 1))
    for own, other, size, length in ((row, column, rows, columns), (column, row, columns, rows)):
        first = rng.integers(0, length, (n, 1))
        band = (other >= first) & (other < first + rng.integers(1, 1 + length // 2, (n, 1)))
        slip = rng.integers(0, size, (n, 1)) * (rng.random((n, 1)) < 0.2)
        own += slip * band
        own %= size
    share = 0.3 * rng.random((n, 1)) * (rng.random((n, 1)) < 0.4)
    swapped = rng.random(row.shape) < share
    order = np.where(swapped, rng.random(row.shape), 2.0)
    cells = np.tile(np.arange(rows * columns), (n, 1))
    # The swapped cells in order of place, and the same at random: what lies in one goes to another.
    places = np.argsort(~swapped, axis=1, kind="stable")
    np.put_along_axis(cells, places, np.argsort(order, axis=1, kind="stable"), 1)
    pieces = np.take_along_axis(row * columns + column, cells, 1).reshape(n, rows, columns)
    frame = np.stack([rng.integers(0, rows, n), rng.integers(0, columns, n)], 1)
    down = (np.arange(rows) - frame[:, :1]) % rows
    along = (np.arange(columns) - frame[:, 1:]) % columns
    pieces = pieces[np.arange(n)[:, None, None], down[:, :, None], along[:, None, :]]
    return pieces.reshape(n, -1), frame


def take(model: FrameNet, exams: list[tuple[str, list[Puzzle]]]) -> dict[str, float]:
    """Share of validation boards, each rolled in one way, whose row and column are found."""
    asked = model.asked()
    scores: dict[str, float] = {}
    for name, puzzles in exams:
        rng, right = np.random.default_rng(0), []
        for puzzle in puzzles:
            assert puzzle.truth is not None
            board = np.asarray(puzzle.pieces)[np.argsort(puzzle.truth)]
            board = board.reshape(*puzzle.grid, *board.shape[1:])
            frame = [int(rng.integers(0, size)) for size in puzzle.grid]
            found = asked.read(np.roll(board, frame, (0, 1)))
            right.append([f.argmax() == k for f, k in zip(found, frame, strict=True)])
        row, column = np.mean(right, 0)
        scores |= {
            f"{name}_row": 100 * float(row),
            f"{name}_column": 100 * float(column),
            f"{name}_both": 100 * float(np.all(right, 1).mean()),
        }
    return scores
