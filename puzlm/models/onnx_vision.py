"""ONNX: write the graphs of the models that see pixels (vision.py), and run them without torch.

    vision.safetensors, edges.safetensors   the weights, untouched: the graphs point into them
    vision.onnx   pieces of puzzles -> scores of cells, one output a grid, and of neighbours
    edges.onnx    pieces -> unit vectors of their sides

`OnnxVision` and `OnnxEdges` answer as `Vision` and `Edges` do. `export` needs onnx, the rest numpy
and onnxruntime only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm import manifest
from puzlm.errors import ModelError, PuzzleError
from puzlm.files import write_bytes
from puzlm.model_files import read_safetensors, read_weights
from puzlm.models.onnx_check import Shapes
from puzlm.models.onnx_graph import Graph, balanced, open_session, store_weights
from puzlm.models.vision_settings import EdgeSettings, VisionSettings, against_none, read_settings
from puzlm.puzzle import parse_grid
from puzlm.tokenizer.piece_tokenizer import resized

Floats = NDArray[np.float64]

MEAN, SPREAD = 120.0, 64.0  # grey levels, as vision.py takes them


# ---- writing --------------------------------------------------------------------------------


def export(folder: str | Path, out: str | Path | None = None, dtype: str | None = None) -> Path:
    """Write the ONNX graphs of a folder with vision.json, edges.json or both to `out`.

    `out` and `dtype` as in export.export; int8 is for both graphs.
    """
    folder = Path(folder)
    out = Path(folder if out is None else out)
    graphs = {}
    for name, (kind, write) in KINDS.items():
        if not (folder / f"{name}.json").exists():
            continue
        settings, weights = read_settings(kind, folder / f"{name}.json"), f"{name}.safetensors"
        store_weights(folder, out, weights, dtype)
        integers = read_safetensors(out / weights) if dtype == "int8" else None
        try:
            graphs[name] = write(Graph(out / weights, asdict(settings), integers), settings)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder}: {weights} does not fit {name}.json ({error})") from error
    if not graphs:
        raise ModelError(f"{folder}: has neither vision.json nor edges.json")
    manifest.drop(out)
    for name, graph in graphs.items():
        write_bytes(out / f"{name}.onnx", graph)
        if out.resolve() != folder.resolve():
            write_bytes(out / f"{name}.json", (folder / f"{name}.json").read_bytes())
    return out


def _vision(g: Graph, s: VisionSettings) -> bytes:
    """Pieces (n, m, side, side, 3) in grey levels, present (n, m) -> cells_3x3 (n, m, 9), ..."""
    across = s.side // s.patch
    _expect(g, "place", across**2, s.d_model)
    shape = -1, across, s.patch, across, s.patch, 3
    x = g.op("Reshape", _levels(g), g.constant(*shape))
    x = g.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    x = g.linear("embed", g.op("Reshape", x, g.constant(-1, 3 * s.patch**2)))
    by_piece = g.shape("pieces", 2, across**2, s.d_model)
    there = g.op("Unsqueeze", "present", g.constant(2, 3))
    x = g.op("Where", there, g.op("Reshape", x, by_piece), g.weight("missing"))
    x = g.op("Add", x, g.weight("place"))
    x = _blocks(g, g.op("Reshape", x, g.constant(-1, s.d_model)), g.shape("pieces", 1, -1))
    pooled = g.op("ReduceMean", g.op("Reshape", x, by_piece), g.constant(2), keepdims=0)
    pooled = g.op("Reshape", g.norm("norm", pooled), g.constant(-1, s.d_model))
    for grid in s.grids:
        cells, name = math.prod(parse_grid(grid)), f"cells_{grid}"
        _expect(g, f"cells.{grid}.weight", cells, s.d_model)
        y = g.linear(f"cells.{grid}", pooled)
        g.op("Reshape", y, g.shape("pieces", 2, cells), out=[name])
    if s.waves:
        _expect(g, "waves.weight", s.waves**2, s.d_model)
        y = g.linear("waves", pooled)
        g.op("Reshape", y, g.shape("pieces", 2, s.waves**2), out=["waves"])
    half = s.d_model // 2
    for number, name in enumerate(("right", "below")):
        y = g.op("Reshape", g.linear(name, pooled), g.shape("pieces", 2, s.d_model))
        names = [f"{name} query", f"{name} key"]
        query, key = g.op("Split", y, out=names, axis=-1, num_outputs=2), names[1]
        none = g.op("Slice", g.weight("none"), g.constant(number), g.constant(number + 1))
        none = g.op("Expand", none, g.shape("pieces", 1, 1, half))
        key = g.op("Transpose", g.op("Concat", key, none, axis=1), perm=[0, 2, 1])
        found = g.op("MatMul", g.op("Mul", query, g.constant(half**-0.5)), key)
        g.op("Identity", found, out=[name])
    return g.finish(*vision_ends(s))


def vision_ends(s: VisionSettings) -> tuple[Shapes, Shapes]:
    """Inputs and outputs of vision.onnx."""
    inputs: Shapes = {"pieces": ("n", "m", s.side, s.side, 3), "present": ("n", "m")}
    outputs: Shapes = {f"cells_{g}": ("n", "m", math.prod(parse_grid(g))) for g in s.grids}
    outputs |= {"waves": ("n", "m", s.waves**2)} if s.waves else {}
    return inputs, outputs | {name: ("n", "m", "m + 1") for name in ("right", "below")}


def _edges(g: Graph, s: EdgeSettings) -> bytes:
    """Pieces (n, side, side, 3) in grey levels -> (n, 4, vector): top, right, bottom, left."""
    tokens = s.side // s.column
    _expect(g, "place", tokens, s.d_model)
    _expect(g, "out.weight", s.vector, s.d_model)
    _expect(g, "sharpness")
    x = _levels(g)
    down = g.op("Transpose", x, perm=[0, 2, 1, 3])
    # The first rows, or the last ones from the border inwards: as Edges.forward reads them.
    first = g.constant(0), g.constant(s.depth), g.constant(1), g.constant(1)
    last = g.constant(-1), g.constant(-s.depth - 1), g.constant(1), g.constant(-1)
    sides = [
        g.op("Slice", *side) for side in ((x, *first), (down, *last), (x, *last), (down, *first))
    ]
    # The four lie one behind the other along the depth; the first axis tells them apart.
    shape = g.constant(-1, s.depth, tokens, 3 * s.column)
    stacked = g.op("Reshape", g.op("Concat", *sides, axis=1), shape)
    rows = g.op("Transpose", stacked, perm=[0, 2, 1, 3])
    y = g.linear("embed", g.op("Reshape", rows, g.constant(-1, 3 * s.depth * s.column)))
    y = g.op("Reshape", y, g.constant(-1, 4, tokens, s.d_model))
    y = g.op("Add", g.op("Add", y, g.weight("place")), g.weight("kind"))
    y = _blocks(g, g.op("Reshape", y, g.constant(-1, s.d_model)), g.constant(-1, tokens))
    y = g.op("Reshape", y, g.constant(-1, tokens, s.d_model))
    y = g.linear("out", g.norm("norm", g.op("ReduceMean", y, g.constant(1), keepdims=0)))
    length = g.op("Max", g.op("ReduceL2", y, g.constant(-1)), g.constant(1e-12))
    unit = g.op("Div", y, length)
    g.op("Reshape", unit, g.constant(-1, 4, s.vector), out=["vectors"])
    return g.finish(*edges_ends(s))


def edges_ends(s: EdgeSettings) -> tuple[Shapes, Shapes]:
    """Inputs and outputs of edges.onnx."""
    return {"pieces": ("n", s.side, s.side, 3)}, {"vectors": ("n", 4, s.vector)}


KINDS: dict[str, tuple[type[Any], Callable[[Graph, Any], bytes]]] = {
    "vision": (VisionSettings, _vision),
    "edges": (EdgeSettings, _edges),
}


def _levels(g: Graph) -> str:
    """Pieces as the embedding reads them."""
    return g.op("Div", g.op("Sub", "pieces", g.constant(MEAN)), g.constant(SPREAD))


def _blocks(g: Graph, x: str, ends: str) -> str:
    """The layers of a model; rows (batch * tokens, d), `ends` the two axes (batch, tokens)."""
    heads = g.op("Concat", ends, g.constant(g.heads, g.d // g.heads), axis=0)
    _expect(g, "blocks.0.up.weight", g.settings["feed_forward"], g.d)
    for number in range(g.settings["layers"]):
        name = f"blocks.{number}"
        parts = [f"{name} {part}" for part in "qkv"]
        g.op(
            "Split",
            g.linear(f"{name}.qkv", g.norm(f"{name}.norm1", x)),
            out=parts,
            axis=-1,
            num_outputs=3,
        )
        q, k, v = (g.split(part, heads, n == 1) for n, part in enumerate(parts))
        x = g.op("Add", x, g.attend(f"{name}.out", q, k, v))
        inner = g.linear(f"{name}.up", g.norm(f"{name}.norm2", x))
        inner = g.op("Gelu", inner, approximate="tanh")
        x = g.op("Add", x, g.linear(f"{name}.down", inner))
    return x


def _expect(g: Graph, name: str, *shape: int) -> None:
    """Refuse weights of another shape than the settings say: the graph would fail when run."""
    found = g.header[name]["shape"]
    if found != list(shape):
        raise ValueError(f"{name} is {found}, not {list(shape)}")


# ---- reading --------------------------------------------------------------------------------


class OnnxVision:
    """`Vision` with onnxruntime and numpy alone."""

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        self.settings = read_settings(VisionSettings, Path(folder) / "vision.json")
        weights = read_weights(Path(folder) / "vision.safetensors")
        ends = vision_ends(self.settings)
        self.session = open_session(Path(folder) / "vision.onnx", weights, *ends, threads)

    def read(self, pieces: list[NDArray[Any]], grid: str) -> tuple[Floats | None, Floats, Floats]:
        """Say the same as `Vision.read`."""
        size, cells = len(pieces[0]), math.prod(parse_grid(grid))
        if size > cells or any(len(own) != size for own in pieces):
            counts = ", ".join(str(len(own)) for own in pieces)
            raise PuzzleError(f"{grid} puzzles need as many pieces each, at most {cells}: {counts}")
        x = np.zeros((len(pieces), cells, self.settings.side, self.settings.side, 3), np.float32)
        for puzzle, own in zip(x, pieces, strict=True):
            puzzle[:size] = resized(own, self.settings.side)
        feed = {"pieces": x, "present": np.arange(cells) < np.full((len(x), 1), size)}
        s, shape = self.settings, parse_grid(grid)
        known = [f"cells_{grid}"] if grid in s.grids else ["waves"] if s.places(shape) else []
        *placed, right, below = self.session.run([*known, "right", "below"], feed)
        if known == ["waves"]:
            placed = [_at_cells(placed[0], shape, s.waves)]
        told = _log_softmax(placed[0][:, :size]) if placed else None
        near = [against_none(_log_softmax(y[:, :size]), size) for y in (right, below)]
        return told, near[0], near[1]


class OnnxEdges:
    """`Edges` with onnxruntime and numpy alone."""

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        self.settings = read_settings(EdgeSettings, Path(folder) / "edges.json")
        weights = read_weights(Path(folder) / "edges.safetensors")
        ends = edges_ends(self.settings)
        self.session = open_session(Path(folder) / "edges.onnx", weights, *ends, threads)
        self.scale = weights.scale()

    def scores(self, pieces: NDArray[Any]) -> tuple[Floats, Floats]:
        """Log-scores (right, below), each (n, n), as SideModel.scores gives them."""
        top, right, bottom, left = self.vectors(pieces).swapaxes(0, 1)
        return balanced(right @ left.T * self.scale), balanced(bottom @ top.T * self.scale)

    def vectors(self, pieces: NDArray[Any]) -> NDArray[np.float32]:
        """Unit vectors of the sides (n, 4, vector): top, right, bottom, left."""
        x = resized(pieces, self.settings.side).astype(np.float32)
        found: NDArray[np.float32] = self.session.run(["vectors"], {"pieces": x})[0]
        return found


def _at_cells(weights: NDArray[Any], grid: tuple[int, int], waves: int) -> NDArray[Any]:
    """Scores of cells from the weights of waves, as Vision has them."""
    middles = [(np.arange(size) + 0.5) / size for size in grid]
    down, across = (np.cos(np.pi * np.outer(at, np.arange(waves))) for at in middles)
    found = down @ (weights.reshape(*weights.shape[:2], waves, waves) / waves) @ across.T
    return found.reshape(*found.shape[:2], -1)


def _log_softmax(x: NDArray[Any]) -> Floats:
    y = x.astype(np.float64)
    y -= y.max(-1, keepdims=True)
    result: Floats = y - np.log(np.exp(y).sum(-1, keepdims=True))
    return result
