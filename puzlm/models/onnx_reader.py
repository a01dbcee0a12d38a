"""ONNX: write a model folder's graphs, and read sentences with them without torch.

    model.safetensors   the weights, untouched: both graphs point into it (ONNX external data)
    encoder.onnx        sentences -> keys and values of every cross-attention, made once
    step.onnx           one token a row and the keys and values so far -> logits and one more

Pointing into model.safetensors keeps one copy of the weights for torch and ONNX together; half
precision weights stay so on disk and are cast once, when a session opens. The graphs are written
node by node with `onnx`: torch's new exporter would need onnxscript, its old one is deprecated.
`export` needs onnx, the rest numpy and onnxruntime only.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from puzlm import manifest
from puzlm.errors import ModelError, PuzlmError
from puzlm.files import write_bytes
from puzlm.model_files import read_json, read_safetensors, read_weights
from puzlm.models.onnx_check import Shapes
from puzlm.models.onnx_graph import Graph, balanced, open_session, store_weights, words
from puzlm.tokenizer.piece_tokenizer import TokenizerSettings, tokenizer_settings

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

WEIGHTS = "model.safetensors"
MOST = 100_000  # of anything that model.json counts; before anything so large is made
NEVER = -1e9  # added to the score of a masked position
POSITION_OFFSET = 2  # BART's position tables have two unused rows in front


# ---- writing --------------------------------------------------------------------------------


def export(folder: str | Path, out: str | Path | None = None, dtype: str | None = None) -> Path:
    """Write the ONNX graphs of a model folder and whatever they need to `out`.

    Without `out`, or with `out` the folder itself, the graphs join the model. `dtype` float16 or
    float32 is how the weights are stored; None keeps what model.safetensors has. int8 makes a
    faster encoder whose answers are no longer exactly torch's.
    """
    folder = Path(folder)
    out = Path(folder if out is None else out)
    if (folder / "reader.json").exists():
        from puzlm.models import onnx_pages  # late: it borrows from here

        return onnx_pages.export(folder, out, dtype)
    if (folder / "edges.json").exists() and not (folder / "model.json").exists():
        from puzlm.models import onnx_edges  # late: it borrows from here

        return onnx_edges.export(folder, out, dtype)
    record = _model_settings(folder)
    reads = tokenizer_settings(folder)
    store_weights(folder, out, WEIGHTS, dtype)
    try:
        integers = read_safetensors(out / WEIGHTS) if dtype == "int8" else None
        encoder = _encoder(Graph(out / WEIGHTS, record, integers), reads)
        step = _step(Graph(out / WEIGHTS, record))
    except (KeyError, TypeError) as error:
        raise ModelError(f"{folder}: {WEIGHTS} does not fit model.json ({error})") from error
    manifest.drop(out)
    write_bytes(out / "encoder.onnx", encoder)
    write_bytes(out / "step.onnx", step)
    parts = ["tokenizer", "sides"] if (folder / "sides.json").exists() else ["tokenizer"]
    for name in parts:
        read_safetensors(folder / f"{name}.safetensors")  # a damaged file is not passed on
    if out.resolve() != folder.resolve():
        files = [f"{name}.{kind}" for name in parts for kind in ("json", "safetensors")]
        for name in ["model.json", "card.json", "settings.json", *files]:
            if (folder / name).is_file():
                write_bytes(out / name, (folder / name).read_bytes())
    return out


def _encoder(g: Graph, reads: TokenizerSettings) -> bytes:
    """Sentences (batch, T) or (batch, T, F) -> keys and values of each decoder layer."""
    size, symbols = g.d // g.heads, len(reads.terms)
    x = words(g, reads, "model.shared.weight")
    end = g.op("Add", g.op("Shape", "input_ids", start=1, end=2), g.constant(POSITION_OFFSET))
    places = "model.encoder.embed_positions.weight"
    here = g.op("Slice", g.stored(places), g.constant(POSITION_OFFSET), end, g.constant(0))
    x = g.norm("model.encoder.layernorm_embedding", g.op("Add", x, g.float32(here, places)))
    x = g.op("Reshape", x, g.constant(-1, g.d))
    shape = g.shape("input_ids", 2, g.heads, size)
    bias = _bias(g)
    for number in range(g.settings["encoder_layers"]):
        name = f"model.encoder.layers.{number}"
        rows = (g.linear(f"{name}.self_attn.{p}_proj", x) for p in "qkv")
        q, k, v = (g.split(y, shape, n == 1) for n, y in enumerate(rows))
        x = g.op("Add", x, g.attend(f"{name}.self_attn.out_proj", q, k, v, bias))
        x = _feed_forward(g, name, g.norm(f"{name}.self_attn_layer_norm", x))
    for number in range(g.settings["decoder_layers"]):
        for p in "kv":
            y = g.linear(f"model.decoder.layers.{number}.encoder_attn.{p}_proj", x)
            g.op("Identity", g.split(y, shape, p == "k"), out=[f"cross_{p}{number}"])
    return g.finish(*encoder_ends(g.settings, symbols))


def _step(g: Graph) -> bytes:
    """Tokens (rows,) and the past -> logits (rows, vocabulary) and the past with them.

    rows is a multiple of batch: the hypotheses of one sentence share its keys and values.
    """
    size = g.d // g.heads
    x = g.rows("model.shared.weight", "tokens")
    spot = g.op("Add", g.op("Shape", "past_v0", start=2, end=3), g.constant(POSITION_OFFSET))
    x = g.op("Add", x, g.rows("model.decoder.embed_positions.weight", spot))
    x = g.norm("model.decoder.layernorm_embedding", x)
    flat = g.constant(-1, g.heads, 1, size)
    shapes = flat, g.constant(-1, g.heads, size, 1), flat
    many = g.shape("cross_k0", 1, -1, g.heads, size)
    bias = _bias(g)
    for n in range(g.settings["decoder_layers"]):
        name = f"model.decoder.layers.{n}"
        rows = (g.linear(f"{name}.self_attn.{p}_proj", x) for p in "qkv")
        q, k, v = (g.op("Reshape", *pair) for pair in zip(rows, shapes, strict=True))
        g.op("Concat", f"past_k{n}", k, out=[f"new_k{n}"], axis=3)
        g.op("Concat", f"past_v{n}", v, out=[f"new_v{n}"], axis=2)
        x = g.op("Add", x, g.attend(f"{name}.self_attn.out_proj", q, f"new_k{n}", f"new_v{n}"))
        x = g.norm(f"{name}.self_attn_layer_norm", x)
        q = g.split(g.linear(f"{name}.encoder_attn.q_proj", x), many)
        found = g.attend(f"{name}.encoder_attn.out_proj", q, f"cross_k{n}", f"cross_v{n}", bias)
        x = g.op("Add", x, found)
        x = _feed_forward(g, name, g.norm(f"{name}.encoder_attn_layer_norm", x))
    _project(g, x)
    return g.finish(*step_ends(g.settings))


def _project(g: Graph, x: str) -> None:
    """Logits of the wanted tokens, or of all when none is named.

    The whole vocabulary is 43 % of a step's weights, and a beam looks at nine cells of it.
    """
    table = "model.shared.weight"
    few, every = g.rows(table, "wanted"), g.weight(table)
    none = g.op("Equal", g.op("Size", "wanted"), g.constant_scalar(0))
    make, branches = g.onnx.helper, []
    for name, weights in (("every", every), ("few", few)):
        node = make.make_node("Gemm", [x, weights], [f"{name} logits"], transB=1)
        shape = "rows", f"{name} tokens"
        end = make.make_tensor_value_info(f"{name} logits", g.onnx.TensorProto.FLOAT, shape)
        branches.append(make.make_graph([node], name, [], [end]))
    g.op("If", none, out=["logits"], then_branch=branches[0], else_branch=branches[1])


def encoder_ends(settings: dict[str, Any], symbols: int) -> tuple[Shapes, Shapes]:
    """Inputs and outputs of encoder.onnx, for a tokenizer of so many symbols a position."""
    ids = ("batch", "length", symbols) if symbols > 1 else ("batch", "length")
    inputs: Shapes = {"input_ids": ids, "attention_mask": ("batch", "length")}
    return inputs, _shapes(settings, "cross", "batch", "length")


def step_ends(settings: dict[str, Any]) -> tuple[Shapes, Shapes]:
    """Inputs and outputs of step.onnx."""
    inputs: Shapes = {"tokens": ("rows",), "wanted": ("wanted",)}
    inputs["attention_mask"] = "batch", "length"
    inputs |= _shapes(settings, "cross", "batch", "length")
    inputs |= _shapes(settings, "past", "rows", "past")
    return inputs, {"logits": ("rows", "scored")} | _shapes(settings, "new", "rows", "past + 1")


def _shapes(settings: dict[str, Any], name: str, rows: str, length: str) -> Shapes:
    """Keys and values of all decoder layers, as a graph declares them."""
    heads, layers = settings["heads"], settings["decoder_layers"]
    size = settings["d_model"] // heads
    shapes = {"k": (rows, heads, size, length), "v": (rows, heads, length, size)}
    return {f"{name}_{p}{n}": shapes[p] for n in range(layers) for p in "kv"}


def _feed_forward(g: Graph, name: str, x: str) -> str:
    """The second half of a layer, rows (batch * length, d)."""
    inner = g.op("Gelu", g.linear(f"{name}.fc1", x))
    y = g.op("Add", x, g.linear(f"{name}.fc2", inner))
    return g.norm(f"{name}.final_layer_norm", y)


def _bias(g: Graph) -> str:
    """attention_mask (batch, T) -> 0 where to look, NEVER elsewhere, (batch, 1, 1, T)."""
    gone = g.op("Sub", g.constant(1.0), g.op("Cast", "attention_mask", to=g.onnx.TensorProto.FLOAT))
    return g.op("Unsqueeze", g.op("Mul", gone, g.constant(NEVER)), g.constant(1, 2))


# ---- reading --------------------------------------------------------------------------------


class State(NamedTuple):
    """Where a reader stands: what it read, and what it wrote so far."""

    cross: list[NDArray[np.float32]]  # of each layer k (batch, heads, size, T), v (.., T, size)
    mask: Ints  # (batch, T)
    past: list[NDArray[np.float32]]  # of each layer k (rows, heads, size, written), v
    owner: Ints  # (rows,) sentence of each row
    wanted: Ints = np.zeros(0, np.int64)  # tokens to score; none: all


class OnnxReader:
    """An exported model as decoding.py sees it, with onnxruntime and numpy alone."""

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        folder = Path(folder)
        settings, weights = _model_settings(folder), read_weights(folder / WEIGHTS)
        self.vocabulary: int = settings["vocabulary"]
        symbols = len(tokenizer_settings(folder).terms)
        ends = {"encoder": encoder_ends(settings, symbols), "step": step_ends(settings)}
        self.sessions = [
            open_session(folder / f"{name}.onnx", weights, *shapes, threads)
            for name, shapes in ends.items()
        ]

    def start(self, input_ids: Ints, attention_mask: Ints | None = None) -> State:
        if attention_mask is None:
            attention_mask = np.ones(input_ids.shape[:2], np.int64)
        feed = {"input_ids": input_ids, "attention_mask": attention_mask}
        cross = self.sessions[0].run(None, feed)
        past = [part[..., :0] if n % 2 == 0 else part[:, :, :0] for n, part in enumerate(cross)]
        return State(cross, attention_mask, past, np.arange(len(input_ids)))

    def step(self, state: State, tokens: Ints) -> tuple[NDArray[np.float32], State]:
        feed: Arrays = {"tokens": tokens, "wanted": state.wanted, "attention_mask": state.mask}
        for n in range(len(state.cross)):
            part = f"{'kv'[n % 2]}{n // 2}"
            feed[f"cross_{part}"], feed[f"past_{part}"] = state.cross[n], state.past[n]
        logits, *past = self.sessions[1].run(None, feed)
        if len(state.wanted):
            scored, logits = logits, np.full((len(tokens), self.vocabulary), -np.inf, np.float32)
            logits[:, state.wanted] = scored
        return logits, state._replace(past=past)

    def only(self, state: State, tokens: Ints) -> State:
        """Score these tokens only from now on: the logits of all others are -inf."""
        return state._replace(wanted=tokens)

    def reorder(self, state: State, rows: Ints) -> State:
        owner, past = state.owner[rows], [part[rows] for part in state.past]
        batch = len(state.mask)
        if np.array_equal(owner, np.repeat(np.arange(batch), len(owner) // batch)):
            # As many rows of every sentence, in order, as beams keep them: keys and values stay.
            return state._replace(past=past, owner=owner)
        cross = [part[owner] for part in state.cross]
        return State(cross, state.mask[owner], past, np.arange(len(owner)), state.wanted)


class NumpySides:
    """The side model's scores for fusion without torch."""

    def __init__(self, folder: str | Path) -> None:
        record = read_json(Path(folder) / "sides.json")
        weights = read_weights(Path(folder) / "sides.safetensors")
        self.scale, arrays = weights.scale(), weights.arrays()
        names = ("positions", "symbols", "codes", "embedding", "hidden", "vector")
        try:
            positions, symbols, codes, embedding, hidden, vector = (int(record[k]) for k in names)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder}: sides.json: damaged ({error!r})") from error
        widths = {0: (hidden, positions * symbols * embedding), 2: (hidden, hidden)}
        widths[4] = vector, hidden
        needed: dict[str, tuple[int, ...]] = {"sharpness": ()}
        needed["embed.weight"] = symbols * codes, embedding
        for k, n in itertools.product(range(4), widths):
            needed |= {f"nets.{k}.{n}.weight": widths[n], f"nets.{k}.{n}.bias": widths[n][:1]}
        if needed != {name: array.shape for name, array in arrays.items()}:
            raise ModelError(f"{folder}: sides.safetensors does not fit sides.json")
        self.arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
        self.offsets = np.arange(record["symbols"]) * record["codes"]

    def vectors(self, sides: Ints) -> NDArray[np.float32]:
        """Sides (n, 4, B, F) -> unit vectors (n, 4, vector)."""
        w = self.arrays
        ids = sides[..., : len(self.offsets)] + self.offsets
        if ids.max(initial=0) >= len(w["embed.weight"]):
            raise ModelError("sides.json has fewer codes than tokenizer.json: they do not fit")
        x = w["embed.weight"][ids].reshape(len(sides), 4, -1)
        result = []
        for k in range(4):
            y = x[:, k]
            for n in (0, 2, 4):
                y = y @ w[f"nets.{k}.{n}.weight"].T + w[f"nets.{k}.{n}.bias"]
                y = _gelu(y) if n < 4 else y
            result.append(y / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), 1e-12))
        return np.stack(result, 1)

    def scores(self, sides: Ints) -> tuple[Floats, Floats]:
        """Log-scores (right, below), each (n, n), as bigram.SideModel.scores gives them."""
        top, right, bottom, left = self.vectors(sides).swapaxes(0, 1)
        return balanced(right @ left.T * self.scale), balanced(bottom @ top.T * self.scale)


def _gelu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x * Phi(x); erf by Abramowitz and Stegun 7.1.26, right to 1.5e-7: numpy has none."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x) * math.sqrt(0.5))
    tail: Any = 0.0
    for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = (tail + a) * t
    erf = np.copysign(1.0 - tail * np.exp(-0.5 * x * x), x)
    return np.asarray(0.5 * x * (1.0 + erf), np.float32)


def _model_settings(folder: Path) -> dict[str, Any]:
    """The numbers of model.json that a graph depends on, checked."""
    record = read_json(folder / "model.json")
    if record.get("backbone") != "bart":
        raise PuzlmError(
            f"{folder}: backbone '{record.get('backbone')}' has no ONNX form; only 'bart' has. "
            "Solve with backend='torch' instead"
        )
    names = ("encoder_layers", "decoder_layers", "d_model", "heads", "vocabulary")
    for name in names:
        if type(record.get(name)) is not int or not 0 < record[name] < MOST:
            raise ModelError(f"{folder}: model.json: {name} must be a number from 1 to {MOST - 1}")
    if record["d_model"] % record["heads"]:
        raise ModelError(f"{folder}: model.json: d_model must be a multiple of heads")
    return record
