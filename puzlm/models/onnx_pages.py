"""The reader of models/reader.py without torch: its ONNX graph, and its decoder in numpy.

    reader.safetensors   the weights, untouched: the graph points into them
    reader.onnx          sentences -> what is said of every word, and the states it was said from

A step of the decoder is a few products of one row each: numpy is as fast there as a graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from puzlm import manifest
from puzlm.errors import ModelError
from puzlm.files import write_bytes
from puzlm.model_files import read_safetensors, read_settings, read_weights
from puzlm.models.onnx_check import Shapes
from puzlm.models.onnx_graph import Graph, open_session, store_weights, words
from puzlm.models.shapes import SIDES, TURNS, ReaderSettings, Said, against_none
from puzlm.puzzle import Grid, Puzzle
from puzlm.tokenizer.piece_tokenizer import (
    SEP,
    PieceTokenizer,
    TokenizerSettings,
    tokenizer_settings,
)

Ints = NDArray[np.int64]
Array = NDArray[np.float32]
Floats = NDArray[np.float64]

TOGETHER = 200  # words that are read at once: attention takes memory by their square


# ---- writing --------------------------------------------------------------------------------


def export(folder: str | Path, out: str | Path | None = None, dtype: str | None = None) -> Path:
    """Write the graph of a folder with reader.json to `out`; arguments as onnx_reader.export."""
    folder = Path(folder)
    out = Path(folder if out is None else out)
    settings, weights = read_settings(ReaderSettings, folder / "reader.json"), "reader.safetensors"
    store_weights(folder, out, weights, dtype)
    integers = read_safetensors(out / weights) if dtype == "int8" else None
    try:
        graph = _graph(Graph(out / weights, asdict(settings), integers), tokenizer_settings(folder))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder}: {weights} does not fit reader.json ({error})") from error
    manifest.drop(out)
    write_bytes(out / "reader.onnx", graph)
    if out.resolve() != folder.resolve():
        for name in ("reader.json", "tokenizer.json", "tokenizer.safetensors", "card.json"):
            if (folder / name).is_file():
                write_bytes(out / name, (folder / name).read_bytes())
    return out


def _graph(g: Graph, reads: TokenizerSettings) -> bytes:
    s = g.settings
    d, positions = g.d, s["positions"]
    x = g.op(
        "Reshape",
        words(g, reads, "symbols"),
        g.op("Concat", g.shape("input_ids", 1, -1, positions, d), axis=0),
    )
    slot = g.op("Unsqueeze", g.rows("slot", "slots"), g.constant(1))
    x = g.op("Add", g.op("Add", x, g.weight("offset")), g.op("Add", slot, "size"))
    x = g.norm("begin", g.op("Reshape", x, g.constant(-1, d)))
    shape = g.shape("input_ids", 2, g.heads, d // g.heads)
    for number in range(s["words"]):
        x = _layer(g, f"words.{number}", x, shape)
    # The separator's state is left out; the positions of a side make one state.
    x = g.op("Reshape", x, g.constant(-1, positions, d))
    x = g.op("Slice", x, g.constant(0), g.constant(positions - 1), g.constant(1))
    x = g.op("Reshape", x, g.constant(-1, (positions - 1) // SIDES, d))
    x = g.op("ReduceMean", x, g.constant(1), keepdims=0)
    batch = g.op("Shape", "input_ids", end=1)
    shape = g.op("Concat", batch, g.constant(-1, g.heads, d // g.heads), axis=0)
    for number in range(s["sides"]):
        x = _layer(g, f"sides.{number}", x, shape)
    by_side = g.op("Concat", batch, g.constant(-1, d), axis=0)
    g.op("Reshape", x, by_side, out=["sides"])
    x = g.op("ReduceMean", g.op("Reshape", x, g.constant(-1, SIDES, d)), g.constant(1), keepdims=0)
    states = g.op("Reshape", x, by_side, out=["states"])
    half = d // 2
    for number, name in enumerate(("right", "below")):
        names = [f"{name} query", f"{name} key"]
        y = g.op("Reshape", g.linear(name, x), by_side)
        g.op("Split", y, out=names, axis=-1, num_outputs=2)
        none = g.op("Slice", g.weight("none"), g.constant(number), g.constant(number + 1))
        none = g.op("Expand", none, g.op("Concat", batch, g.constant(1, half), axis=0))
        key = g.op("Transpose", g.op("Concat", names[1], none, axis=1), perm=[0, 2, 1])
        g.op("MatMul", g.op("Mul", names[0], g.constant(half**-0.5)), key, out=[name])
    y = g.op("Reshape", g.linear("cell", x), by_side)
    cells = g.op("Transpose", g.op("Mul", "cells", g.constant(d**-0.5)), perm=[1, 0])
    g.op("MatMul", y, cells, out=["placed"])
    flat = g.op("Concat", batch, g.constant(-1), axis=0)
    g.op("Reshape", g.linear("upright", x), flat, out=["upright"])
    assert states
    return g.finish(*_ends(s, len(reads.terms)))


def _layer(g: Graph, name: str, x: str, shape: str) -> str:
    """A post-norm layer; rows (batch * length, d)."""
    parts = [f"{name} {part}" for part in "qkv"]
    g.op("Split", g.linear(f"{name}.qkv", x), out=parts, axis=-1, num_outputs=3)
    q, k, v = (g.split(part, shape, n == 1) for n, part in enumerate(parts))
    x = g.norm(f"{name}.first", g.op("Add", x, g.attend(f"{name}.out", q, k, v)))
    inner = g.op("Gelu", g.linear(f"{name}.up", x))
    return g.norm(f"{name}.last", g.op("Add", x, g.linear(f"{name}.down", inner)))


def _ends(s: dict[str, Any], symbols: int) -> tuple[Shapes, Shapes]:
    """Inputs and outputs of reader.onnx."""
    d = s["d_model"]
    inputs: Shapes = {"input_ids": ("n", "length", symbols), "slots": ("words",)}
    inputs |= {"size": (d,), "cells": ("cells", d)}
    near = ("n", "words", "words + 1")
    outputs: Shapes = {"placed": ("n", "words", "cells"), "right": near, "below": near}
    outputs |= {"upright": ("n", "words"), "states": ("n", "words", d), "sides": ("n", "sides", d)}
    return inputs, outputs


# ---- reading --------------------------------------------------------------------------------


class OnnxReader:
    """`Reader` with onnxruntime and numpy alone."""

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        folder = Path(folder)
        self.settings = read_settings(ReaderSettings, folder / "reader.json")
        weights = read_weights(folder / "reader.safetensors")
        reads = tokenizer_settings(folder)
        ends = _ends(asdict(self.settings), len(reads.terms))
        self.session = open_session(folder / "reader.onnx", weights, *ends, threads)
        large = ("symbols", "words.", "sides.")
        self.weights = {
            name: np.ascontiguousarray(array.astype(np.float32))
            for name, array in weights.arrays().items()
            if not name.startswith(large)
        }

    def say(self, ids: Ints, grid: Grid, turned: bool = False) -> Said:
        """Read words (n, words, positions, F)."""
        n, words = ids.shape[:2]
        ways = 4 if turned else 1
        w = self.weights
        size = w["size"][0, grid[0]] + w["size"][1, grid[1]]
        feed = {
            "input_ids": ids.reshape(n, -1, ids.shape[-1]),
            "slots": np.arange(words // ways).repeat(ways),
            "size": size + w["turned"] if turned else size,
            "cells": self.cells(grid),
        }
        return Said(*self.session.run(list(Said._fields), feed))

    def cells(self, grid: Grid) -> Array:
        """Vectors of the cells of a grid (cells, d), as reader.Cells has them."""
        w, (rows, columns) = self.weights, grid
        row, column = np.divmod(np.arange(rows * columns), columns)
        steps = w["cells.steps"]
        x = (
            steps[0, row]
            + steps[1, rows - 1 - row]
            + steps[2, column]
            + steps[3, columns - 1 - column]
        )
        waves = w["cells.share.weight"].shape[1] // 2
        middle = np.stack([(row + 0.5) / rows, (column + 0.5) / columns], 1)
        angle = math.pi * middle[..., None] * np.arange(1, waves + 1)
        x = x + self._linear("cells.share", np.cos(angle).reshape(len(x), -1).astype(np.float32))
        return self._linear("cells.out", _gelu(x))

    def write(self, said: Said, grid: Grid, fixed: Ints) -> tuple[Ints, Array]:
        """Cells (n, pieces) written one after the other, each once, and how sure it was of each.

        `fixed` (n, pieces) holds the cells that are given, -1 where none is.
        """
        cells, pieces = self.cells(grid), fixed.shape[1]
        written = self._linear("written", cells)
        n, d = len(said.states), cells.shape[1]
        own = self._linear("decoder.own", said.states)
        keys, values = np.split(self._linear("decoder.memory", said.sides), 2, -1)
        keys, values = self._by_heads(keys), self._by_heads(values)
        past: list[list[Array]] = [[], []]
        before = np.broadcast_to(self.weights["decoder.start"], (n, d))
        chosen, sure = np.zeros((n, pieces), np.int64), np.zeros((n, pieces), np.float32)
        taken = cells_given(fixed, len(cells))
        every = np.arange(n)
        for slot in range(pieces):
            x = self._norm(0, own[:, slot] + before)
            q, k, v = np.split(self._linear("decoder.qkv", x)[:, None], 3, -1)
            for kept, part in zip(past, (k, v), strict=True):
                kept.append(self._by_heads(part))
            seen = self._joined(self._by_heads(q), *(np.concatenate(kept, 2) for kept in past))
            x = self._norm(1, x + self._linear("decoder.out", seen))
            q = self._by_heads(self._linear("decoder.query", x)[:, None])
            x = self._norm(2, x + self._linear("decoder.cross", self._joined(q, keys, values)))
            up = _gelu(self._linear("decoder.up", x))
            x = self._norm(3, x + self._linear("decoder.down", up))
            given = fixed[:, slot] >= 0
            scores = np.where(taken & ~given[:, None], -np.inf, x @ cells.T / d**0.5)
            share = np.exp(scores - scores.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            best = np.where(given, fixed[:, slot], scores.argmax(1))
            chosen[:, slot], sure[:, slot] = best, np.where(given, 1.0, share[every, best])
            taken[every, best] = True
            before = written[best]
        return chosen, sure

    def _linear(self, name: str, x: Array) -> Array:
        found: Array = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return found

    def _norm(self, number: int, x: Array) -> Array:
        name = f"decoder.norms.{number}"
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        found: Array = x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return found

    def _by_heads(self, x: Array) -> Array:
        return x.reshape(*x.shape[:2], self.settings.heads, -1).swapaxes(1, 2)

    def _joined(self, q: Array, k: Array, v: Array) -> Array:
        """Attention of one row: (n, heads, 1, size) -> (n, d)."""
        scores = q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        mixed: Array = (share @ v).reshape(len(q), -1)
        return mixed


def _gelu(x: Array) -> Array:
    found: Array = (x * 0.5 * (1 + erf(x / 2**0.5))).astype(np.float32)
    return found


class PuzzleReader:
    """Reads puzzles: what is said of words, by piece."""

    name = "reader"

    def __init__(self, tokenizer: PieceTokenizer, reader: Any) -> None:
        self.tokenizer, self.reader = tokenizer, reader  # an OnnxReader, or a TorchReader
        self.settings = reader.settings

    def say(self, pieces: Sequence[NDArray[Any]], grid: Grid) -> tuple[Said, Ints]:
        """What is said of n puzzles with m pieces each, and the piece in every slot (n, m)."""
        text = self.tokenizer([Puzzle(own, grid) for own in pieces])
        ids, b = text["input_ids"], self.tokenizer.settings.border_length
        end = np.zeros_like(ids[:, :1])
        end[..., 0] = SEP
        ids = np.concatenate([ids, end], 1)
        ids = ids.reshape(len(ids), -1, b + 1, ids.shape[-1])
        many = max(1, TOGETHER // ids.shape[1])
        said = [self.reader.say(ids[k : k + many], grid) for k in range(0, len(ids), many)]
        return Said(*map(np.concatenate, zip(*said, strict=True))), text["order"]

    def read(self, pieces: Sequence[NDArray[Any]], grid: Grid) -> tuple[Floats, Floats, Floats]:
        """Log-probabilities of every cell (n, m, cells), and how much likelier than nothing every
        piece is to lie right of and below each, as logs (n, m, m)."""
        size = len(pieces[0])
        said, order = self.say(pieces, grid)
        row = np.arange(len(order))[:, None]
        slot = order[:, :size].argsort(1)  # missing pieces come last
        placed = log_softmax(said.placed)[row, slot]
        near = []
        for scores in (said.right, said.below):
            log_p = log_softmax(scores)[:, :size]
            beside = against_none(log_p, size)
            near.append(beside[row[..., None], slot[..., None], slot[:, None]])
        return placed, near[0], near[1]

    def read_turned(self, pieces: NDArray[Any], grid: Grid) -> tuple[Floats, Floats, Floats]:
        """The same of one puzzle whose pieces may lie in any of four turns, by candidate.

        Candidate t * m + i is piece i after t counter-clockwise quarter turns. Log-probabilities of
        every cell and of standing upright there (4m, cells), and two times (4m, 4m).
        """
        size, cells = len(pieces), grid[0] * grid[1]
        turned = np.concatenate([np.rot90(pieces, k, (1, 2)) for k in range(TURNS)])
        symbols = self.tokenizer.encode(turned)
        symbols = symbols.reshape(TURNS, size, *symbols.shape[1:]).swapaxes(0, 1)
        full = np.zeros((1, cells, *symbols.shape[1:]), np.int64)
        full[0, :size] = symbols
        present = (np.arange(cells) < size)[None]
        ids, order, turn = self.tokenizer.turned_sentence(full, present)
        said = self.reader.say(ids, grid, turned=True)
        slots, ways = order[0, :size], turn[0, :size]
        candidate = (ways * size + slots[:, None]).ravel()  # of each word
        word = candidate.argsort()
        upright = log_softmax(said.upright[0, : TURNS * size].reshape(size, TURNS)).ravel()
        placed = (log_softmax(said.placed[0, : TURNS * size]) + upright[:, None])[word]
        near = []
        for scores in (said.right, said.below):
            log_p = log_softmax(scores)[:, : TURNS * size]
            near.append(against_none(log_p, TURNS * size)[0][word[:, None], word])
        return placed, *round_mean(near[0], near[1], size)

    def write(
        self, pieces: Sequence[NDArray[Any]], grid: Grid, given: Sequence[Mapping[int, int]]
    ) -> list[tuple[Ints, Array, Floats, Ints]]:
        """What the decoder writes in one pass: of each puzzle cells (m,), how sure it was of each,
        probabilities of all cells before it wrote (m, cells), and pieces in the order of slots.

        `given` fixes pieces in cells.
        """
        size, found = len(pieces[0]), []
        said, order = self.say(pieces, grid)
        order = order[:, :size]
        fixed = np.full(order.shape, -1)
        for row, some in enumerate(given):
            for piece, cell in some.items():
                fixed[row, order[row] == piece] = cell
        chosen, sure = self.reader.write(said, grid, fixed)
        shares = np.exp(log_softmax(said.placed))
        for row, slot in enumerate(order.argsort(1)):
            found.append((chosen[row, slot], sure[row, slot], shares[row, slot], order[row]))
        return found


def cells_given(fixed: Ints, cells: int) -> NDArray[np.bool_]:
    """Cells (n, cells) that are given to some piece."""
    taken = np.zeros((len(fixed), cells), bool)
    row, slot = np.nonzero(fixed >= 0)
    taken[row, fixed[row, slot]] = True
    return taken


def log_softmax(x: NDArray[Any]) -> Floats:
    """Log-softmax over the last axis in double precision."""
    y = x.astype(np.float64)
    y -= y.max(-1, keepdims=True)
    result: Floats = y - np.log(np.exp(y).sum(-1, keepdims=True))
    return result


def round_mean(right: Floats, below: Floats, pieces: int) -> tuple[Floats, Floats]:
    """Mean of what is said of two pieces in all turns of the picture as a whole.

    What lies right of a piece lies above it after a quarter turn, then left of it, then below it.
    """

    def turned(scores: Floats, k: int) -> Floats:
        """Scores of candidates that are turned k times more."""
        return np.roll(scores, (-k * pieces, -k * pieces), (0, 1))

    across = turned(right, 0) + turned(below.T, 1) + turned(right.T, 2) + turned(below, 3)
    down = turned(below, 0) + turned(right, 1) + turned(below.T, 2) + turned(right.T, 3)
    return across / TURNS, down / TURNS
