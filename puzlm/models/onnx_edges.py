"""ONNX: write the graph of the encoder of sides (vision.py), and run it without torch.

    edges.safetensors   the weights, untouched: the graph points into them
    edges.onnx          pieces -> unit vectors of their sides

`OnnxEdges` answers as `Edges` does. `export` needs onnx, the rest numpy and onnxruntime only.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm import manifest
from puzlm.errors import ModelError
from puzlm.files import write_bytes
from puzlm.model_files import read_safetensors, read_weights
from puzlm.models.onnx_check import Shapes
from puzlm.models.onnx_graph import Graph, balanced, open_session, store_weights
from puzlm.models.shapes import EdgeSettings, read_settings
from puzlm.tokenizer.piece_tokenizer import resized

Floats = NDArray[np.float64]

MEAN, SPREAD = 120.0, 64.0  # grey levels, as vision.py takes them


# ---- writing --------------------------------------------------------------------------------


def export(folder: str | Path, out: str | Path | None = None, dtype: str | None = None) -> Path:
    """Write the ONNX graph of a folder with edges.json to `out`.

    `out` and `dtype` as in onnx_reader.export.
    """
    folder = Path(folder)
    out = Path(folder if out is None else out)
    if not (folder / "edges.json").exists():
        raise ModelError(f"{folder}: has no edges.json; a ViT runs in torch only")
    settings, weights = read_settings(EdgeSettings, folder / "edges.json"), "edges.safetensors"
    store_weights(folder, out, weights, dtype)
    integers = read_safetensors(out / weights) if dtype == "int8" else None
    try:
        graph = _edges(Graph(out / weights, asdict(settings), integers), settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder}: {weights} does not fit edges.json ({error})") from error
    manifest.drop(out)
    write_bytes(out / "edges.onnx", graph)
    if out.resolve() != folder.resolve():
        write_bytes(out / "edges.json", (folder / "edges.json").read_bytes())
    return out


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
