"""The reader: one encoder-decoder for every grid. Symbols go in, cells come out; it sees no pixel.

    sentence -> layers over words -> one state a side -> layers over sides -> one state a piece
             -> scores of its cell, of what lies right of it, of what lies below it
             -> decoder: the cell of every piece, one after the other

A piece whose turn is not known is four words, one for each turn. Of those the reader also says
which one stands upright.
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
from puzlm.models.shapes import SIDES, TURNS, ReaderSettings, Said
from puzlm.puzzle import Grid
from puzlm.tokenizer.piece_tokenizer import PAD


def grown(x: Tensor, mixed: Tensor, w: dict[str, Tensor]) -> Tensor:
    """What follows the attention of a layer: (tokens, d), twice, -> (tokens, d)."""
    d = x.shape[-1:]
    x = F.layer_norm(x + F.linear(mixed, w["out.weight"], w["out.bias"]), d, *_norm(w, "first"))
    up = F.gelu(F.linear(x, w["up.weight"], w["up.bias"]))
    x = x + F.linear(up, w["down.weight"], w["down.bias"])
    return F.layer_norm(x, d, *_norm(w, "last"))


def _norm(w: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return w[f"{name}.weight"], w[f"{name}.bias"]


class Layer(nn.Module):
    """A post-norm transformer layer over sentences that lie one after the other in memory."""

    quick: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor] | None = None
    """The same, compiled: set from outside while weights are learned."""

    def __init__(self, d_model: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, feed_forward), nn.Linear(feed_forward, d_model)
        self.first, self.last = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x: Tensor, sentences: int, length: int) -> Tensor:
        """(tokens, d) -> the same; tokens after those of all sentences are room to spare."""
        q, k, v = (self._by_heads(part, sentences, length) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.transpose(1, 2).reshape(sentences * length, -1)
        mixed = F.pad(mixed, (0, 0, 0, len(x) - len(mixed)))
        grow = self.quick if self.quick is not None and torch.is_grad_enabled() else grown
        return grow(x, mixed, dict(self.named_parameters()))

    def _by_heads(self, x: Tensor, sentences: int, length: int) -> Tensor:
        x = x[: sentences * length].view(sentences, length, self.heads, -1)
        return x.transpose(1, 2)


class Decoder(nn.Module):
    """One layer that writes cells: it looks back at what it wrote, and at all sides it read."""

    def __init__(self, s: ReaderSettings) -> None:
        super().__init__()
        d = s.d_model
        self.heads = s.heads
        self.own = nn.Linear(d, d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.query, self.memory = nn.Linear(d, d), nn.Linear(d, 2 * d)
        self.cross = nn.Linear(d, d)
        self.up, self.down = (
            nn.Linear(d, s.decoder_feed_forward),
            nn.Linear(s.decoder_feed_forward, d),
        )
        self.start = nn.Parameter(torch.randn(d) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(4))

    def forward(self, pieces: Tensor, sides: Tensor, before: Tensor) -> Tensor:
        """Pieces (n, m, d), sides (n, t, d), vectors of the cells written before (n, m, d)."""
        x = self.norms[0](self.own(pieces) + before)
        q, k, v = (self._by_heads(part) for part in self.qkv(x).chunk(3, -1))
        x = self.norms[1](x + self.out(self._joined(q, k, v, causal=True)))
        k, v = (self._by_heads(part) for part in self.memory(sides).chunk(2, -1))
        seen = self._joined(self._by_heads(self.query(x)), k, v, causal=False)
        x = self.norms[2](x + self.cross(seen))
        found: Tensor = self.norms[3](x + self.down(F.gelu(self.up(x))))
        return found

    def _by_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _joined(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return mixed.transpose(1, 2).flatten(2)


class Cells(nn.Module):
    """A vector for every cell of every grid, from where it lies: counted from each edge, and as a
    share of the picture."""

    def __init__(self, s: ReaderSettings, waves: int = 8) -> None:
        super().__init__()
        d = s.d_model
        self.steps = nn.Parameter(torch.randn(4, s.longest, d) * 0.02)
        self.share = nn.Linear(2 * waves, d)
        self.out = nn.Linear(d, d)
        self.waves = waves

    def forward(self, grid: Grid) -> Tensor:
        """(cells, d) in raster order."""
        rows, columns = grid
        there = self.steps.device
        row = torch.arange(rows, device=there).repeat_interleave(columns)
        column = torch.arange(columns, device=there).repeat(rows)
        steps = self.steps
        x = steps[0, row] + steps[1, rows - 1 - row]
        x = x + steps[2, column] + steps[3, columns - 1 - column]
        middle = torch.stack([(row + 0.5) / rows, (column + 0.5) / columns], 1)
        angle = math.pi * middle[..., None] * torch.arange(1, self.waves + 1, device=there)
        x = x + self.share(angle.cos().flatten(1).to(x.dtype))
        found: Tensor = self.out(F.gelu(x))
        return found


class Reader(nn.Module):
    """Sentences in; what it makes of every piece out."""

    def __init__(self, settings: ReaderSettings) -> None:
        super().__init__()
        s = self.settings = settings
        d = s.d_model

        def layers(count: int) -> nn.ModuleList:
            return nn.ModuleList(Layer(d, s.heads, s.feed_forward) for _ in range(count))

        self.symbols = nn.Parameter(torch.randn(s.vocabulary, d) * 0.02)
        self.offset = nn.Parameter(torch.randn(s.positions, d) * 0.02)
        self.slot = nn.Parameter(torch.randn(s.slots, d) * 0.02)
        self.size = nn.Parameter(torch.zeros(2, s.longest + 1, d))
        self.turned = nn.Parameter(torch.zeros(d))
        self.begin = nn.LayerNorm(d)
        self.words, self.sides = layers(s.words), layers(s.sides)
        self.right, self.below = nn.Linear(d, d), nn.Linear(d, d)  # half asks, half answers
        self.none = nn.Parameter(torch.zeros(2, d // 2))
        self.cell = nn.Linear(d, d)
        self.upright = nn.Linear(d, 1)
        self.cells = Cells(s)
        self.decoder = Decoder(s)
        self.written = nn.Linear(d, d)
        self.turn = nn.Linear(d, d)

    def embed(self, ids: Tensor) -> Tensor:
        """Sums (..., d) of the embeddings of ids (..., F); [PAD] counts nothing among parts."""
        whole, flat = self.settings.whole, ids.flatten(0, -2)
        x = F.embedding(flat[:, :whole], self.symbols).sum(1)
        if whole < flat.shape[1]:
            x = x + F.embedding_bag(flat[:, whole:], self.symbols, mode="sum", padding_idx=PAD)
        return x.view(*ids.shape[:-1], -1)

    def encode(
        self, x: Tensor, grid: Grid, slots: Tensor, turned: bool, room: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Summed symbols (n, words, positions, d), slot of each word (n, words) -> states of
        words (n, words, d) and of sides (n, 4 words, d).

        `room`: tokens to fill up to, so that compiled layers always see one size.
        """
        s, (n, words) = self.settings, x.shape[:2]
        size = self.size[0, grid[0]] + self.size[1, grid[1]]
        size = size + self.turned if turned else size
        x = x + self.offset + self.slot[slots][:, :, None] + size
        length = words * s.positions
        flat = self.begin(x.reshape(n * length, -1))
        flat = F.pad(flat, (0, 0, 0, max(0, room - len(flat))))
        for layer in self.words:
            flat = layer(flat, n, length)
        border = flat[: n * length].view(n, words, s.positions, -1)[:, :, : s.positions - 1]
        flat = border.unflatten(2, (SIDES, -1)).mean(3).reshape(n * words * SIDES, -1)
        flat = F.pad(flat, (0, 0, 0, max(0, room * SIDES // s.positions - len(flat))))
        for layer in self.sides:
            flat = layer(flat, n, words * SIDES)
        sides = flat[: n * words * SIDES].view(n, words * SIDES, -1)
        return sides.unflatten(1, (words, SIDES)).mean(2), sides

    def near(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (n, words, words + 1) of what lies right of, and below, each word, or nothing."""
        found = []
        for linear, none in ((self.right, self.none[0]), (self.below, self.none[1])):
            query, key = linear(states).chunk(2, -1)
            key = torch.cat([key, none.expand(len(key), 1, -1)], 1)
            found.append(query @ key.transpose(1, 2) / key.shape[-1] ** 0.5)
        return found[0], found[1]

    def placed(self, states: Tensor, cells: Tensor) -> Tensor:
        """Scores (n, words, cells) of every cell."""
        found: Tensor = self.cell(states) @ cells.T / cells.shape[-1] ** 0.5
        return found

    def write(
        self, states: Tensor, sides: Tensor, cells: Tensor, given: Tensor, turned: bool
    ) -> tuple[Tensor, Tensor]:
        """Scores of the cell of each piece (n, m, cells), and of its turn (n, m, 4 or 1), given
        the cells of those before it (n, m - 1)."""
        n, ways = len(states), TURNS if turned else 1
        words = states.view(n, -1, ways, states.shape[-1])
        before = self.decoder.start.expand(len(given), 1, -1)
        before = torch.cat([before, self.written(cells)[given]], 1)
        x = self.decoder(words.mean(2), sides, before)
        d = cells.shape[-1]
        turn = (self.turn(x)[:, :, None] * words).sum(-1) / d**0.5
        return x @ cells.T / d**0.5, turn

    def forward(
        self, x: Tensor, grid: Grid, slots: Tensor, given: Tensor, turned: bool, room: int = 0
    ) -> tuple[Tensor, ...]:
        """Everything it says of sentences: scores of cells, of what lies right and below, of words
        that stand upright (n, words), and what the decoder writes (cells, turns)."""
        states, sides = self.encode(x, grid, slots, turned, room)
        cells = self.cells(grid)
        upright = self.upright(states)[..., 0]
        written, turn = self.write(states, sides, cells, given, turned)
        return self.placed(states, cells), *self.near(states), upright, written, turn

    def save_pretrained(self, folder: str | Path) -> None:
        """Write reader.json and reader.safetensors (half precision)."""
        save_half(self, folder, "reader")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Reader:
        """Read a saved model."""
        return load(cls, ReaderSettings, folder, "reader")


def settings_for(tokenizer: Any, **shape: int) -> ReaderSettings:
    """Settings of a reader of a tokenizer's sentences."""
    s = tokenizer.settings
    return ReaderSettings(
        **{
            **shape,
            "vocabulary": tokenizer.mask_token_id + 1,
            "positions": s.border_length + 1,
            "whole": len(s.whole),
        }
    )


class TorchReader:
    """A reader as onnx_pages.PuzzleReader asks it: numpy in, numpy out, no gradients."""

    def __init__(self, model: Reader) -> None:
        self.model, self.settings = model.eval(), model.settings

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str = "cpu") -> TorchReader:
        """Read a saved model onto a device."""
        return cls(Reader.from_pretrained(folder).to(device))

    @torch.inference_mode()
    def say(self, ids: NDArray[np.int64], grid: Grid, turned: bool = False) -> Said:
        """Read words (n, words, positions, F)."""
        model, there = self.model, self.model.slot.device
        ways = TURNS if turned else 1
        slots = torch.arange(ids.shape[1] // ways, device=there).repeat_interleave(ways)
        x = model.embed(torch.from_numpy(ids).to(there))
        states, sides = model.encode(x, grid, slots.expand(len(ids), -1), turned)
        placed = model.placed(states, model.cells(grid))
        said = placed, *model.near(states), model.upright(states)[..., 0], states, sides
        return Said(*(part.cpu().numpy() for part in said))

    @torch.inference_mode()
    def write(self, said: Said, grid: Grid, fixed: NDArray[np.int64]) -> tuple[Any, Any]:
        """Cells (n, pieces) written one after the other, each once, and how sure it was of each.

        `fixed` (n, pieces) holds the cells that are given, -1 where none is.
        """
        model, there, pieces = self.model, self.model.slot.device, fixed.shape[1]
        states, sides = (torch.from_numpy(x).to(there) for x in (said.states, said.sides))
        cells, rows = model.cells(grid), torch.arange(len(states), device=there)
        chosen = torch.zeros(len(states), pieces, dtype=torch.long, device=there)
        sure = torch.zeros(len(states), pieces, device=there)
        taken = torch.zeros(len(states), len(cells), dtype=torch.bool, device=there)
        kept = torch.from_numpy(fixed).to(there)
        for row, slot in (kept >= 0).nonzero().tolist():
            taken[row, kept[row, slot]] = True
        for slot in range(pieces):
            here = states[:, : slot + 1]
            scores, _ = model.write(here, sides, cells, chosen[:, :slot], False)
            given = kept[:, slot] >= 0
            closed = taken & ~given[:, None]
            share = scores[:, -1].masked_fill(closed, -math.inf).softmax(1)
            sure[:, slot], chosen[:, slot] = share.max(1)
            chosen[given, slot], sure[given, slot] = kept[given, slot], 1.0
            taken[rows, chosen[:, slot]] = True
        return chosen.cpu().numpy(), sure.cpu().numpy()
