"""ONNX: write a model folder's graphs, and read sentences with them without torch.

    model.safetensors   the weights, untouched: both graphs point into it (ONNX external data)
    encoder.onnx        sentences -> keys and values of every cross-attention, made once
    step.onnx           one token a row and the keys and values so far -> logits and one more
    onnx.json           which layout of model.safetensors the graphs were written for

Pointing into model.safetensors keeps one copy of the weights for torch and ONNX together; half
precision weights stay so on disk and are cast once, when a session opens. The graphs are written
node by node with `onnx`: torch's new exporter would need onnxscript, its old one is deprecated.
`export` needs onnx, the rest numpy and onnxruntime only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import ModelError, PuzlmError, SettingsError, nearest
from puzlm.images import write_bytes
from puzlm.tokenizer import (
    TokenizerSettings,
    read_json,
    read_safetensors,
    settings_from,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[Any, ...]]  # an axis is a number, or the name of a free one

WEIGHTS = "model.safetensors"
VERSION = 2  # of the graphs' inputs and outputs
# Storage of the weights; arithmetic is float32. int8 stores as it finds and multiplies the
# encoder's activations and weights as integers: 0.8 ms instead of 2.9 for 152 x 512 x 2048.
DTYPES: dict[str, str | None] = {"float16": "F16", "float32": "F32", "int8": None}
OPSET, IR_VERSION = 20, 9  # the first opset with Gelu; onnxruntime 1.17 or later reads it
INTEGERS = ("input_ids", "attention_mask", "tokens", "wanted")  # the graphs' other ends are floats
MICROSOFT = "com.microsoft"  # onnxruntime's own operators
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
    record = read_json(folder / "model.json")
    if record.get("backbone") != "bart":
        raise PuzlmError(
            f"{folder}: backbone '{record.get('backbone')}' has no ONNX form; only 'bart' has. "
            "Solve with backend='torch' instead"
        )
    if dtype is not None and dtype not in DTYPES:
        raise SettingsError(f"dtype '{dtype}' is unknown; {nearest(dtype, DTYPES)}")
    symbols = len(_tokenizer_settings(folder).terms)
    _store_weights(folder, out, None if dtype is None else DTYPES[dtype])
    header, start, digest = _header(out / WEIGHTS)
    try:
        integers = read_safetensors(out / WEIGHTS) if dtype == "int8" else None
        encoder = _encoder(_Graph(header, start, record, integers), symbols)
        step = _step(_Graph(header, start, record))
    except (KeyError, TypeError) as error:
        raise ModelError(f"{folder}: {WEIGHTS} does not fit model.json ({error})") from error
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
    about = {"version": VERSION, "layout": digest}
    write_bytes(out / "onnx.json", (json.dumps(about, indent=1) + "\n").encode())
    return out


def _store_weights(folder: Path, out: Path, dtype: str | None) -> None:
    """Put model.safetensors into `out`, its tensors in the wanted dtype."""
    header, _, _ = _header(folder / WEIGHTS)
    if dtype is None or all(entry["dtype"] == dtype for entry in header.values()):
        if out.resolve() != folder.resolve():
            write_bytes(out / WEIGHTS, (folder / WEIGHTS).read_bytes())
        return
    if out.resolve() == folder.resolve():
        raise PuzlmError(f"{folder}: a change of dtype needs another folder to write to (-o DIR)")
    from safetensors.numpy import save

    kind = np.float16 if dtype == "F16" else np.float32
    arrays = {k: v.astype(kind) for k, v in read_safetensors(folder / WEIGHTS).items()}
    write_bytes(out / WEIGHTS, save(arrays))


def _header(path: Path) -> tuple[dict[str, Any], int, str]:
    """Tensor entries of a safetensors file, where their bytes start, and a digest of both."""
    try:
        with path.open("rb") as file:
            size, whole = int.from_bytes(file.read(8), "little"), path.stat().st_size
            if size > whole:
                raise ValueError("no header")
            text = file.read(size)
        header = json.loads(text)
        header.pop("__metadata__", None)
        if max(entry["data_offsets"][1] for entry in header.values()) != whole - 8 - size:
            raise ValueError("cut short")
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {path.name} is missing") from error
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error
    return header, 8 + size, hashlib.sha256(text).hexdigest()


class _Graph:
    """An ONNX graph under construction; values are known by their names."""

    def __init__(
        self, header: dict[str, Any], start: int, settings: dict[str, Any],
        integers: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:  # fmt: skip
        try:
            import onnx
        except ImportError as error:
            raise PuzlmError("exporting needs onnx: pip install 'puzlm[onnx]'") from error
        self.onnx: Any = onnx
        self.header, self.start, self.settings = header, start, settings
        self.integers = integers  # weights to multiply by as int8; None: as float32
        self.d, self.heads = settings["d_model"], settings["heads"]
        self.nodes: list[Any] = []
        self.initialisers: dict[str, Any] = {}
        self.values: dict[str, str] = {}  # weight -> its name as float32

    def op(self, kind: str, *inputs: str, out: Sequence[str] = (), **attributes: Any) -> str:
        """Add a node; the name of its first output."""
        out = out or [f"{kind}_{len(self.nodes)}"]
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, out, **attributes))
        return out[0]

    def constant(self, *values: float) -> str:
        """A vector of integers or of floats."""
        name = f"constant {values}"
        array = np.array(values, np.int64 if isinstance(values[0], int) else np.float32)
        self.initialisers[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def constant_scalar(self, value: int) -> str:
        """An integer without axes."""
        name = f"scalar {value}"
        self.initialisers[name] = self.onnx.numpy_helper.from_array(np.array(value), name)
        return name

    def stored(self, name: str) -> str:
        """A weight as it lies in model.safetensors."""
        if name not in self.initialisers:
            entry = self.header[name]
            kinds = {"F16": self.onnx.TensorProto.FLOAT16, "F32": self.onnx.TensorProto.FLOAT}
            first, end = entry["data_offsets"]
            tensor = self.onnx.TensorProto(name=name, dims=entry["shape"],
                                           data_type=kinds[entry["dtype"]])  # fmt: skip
            tensor.data_location = self.onnx.TensorProto.EXTERNAL
            place = {"location": WEIGHTS, "offset": self.start + first, "length": end - first}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            self.initialisers[name] = tensor
        return name

    def weight(self, name: str) -> str:
        """A weight in float32; onnxruntime folds the cast when the session opens."""
        if name not in self.values:
            self.values[name] = self.float32(self.stored(name), name)
        return self.values[name]

    def float32(self, value: str, weight: str) -> str:
        """Cast to float32 what comes from a half-precision weight."""
        if self.header[weight]["dtype"] == "F32":
            return value
        return self.op("Cast", value, to=self.onnx.TensorProto.FLOAT)

    def rows(self, name: str, index: str) -> str:
        """Rows of a table in float32; only the rows taken are cast."""
        return self.float32(self.op("Gather", self.stored(name), index, axis=0), name)

    def affine(self, kind: str, name: str, x: str, **attributes: Any) -> str:
        """A node with a weight and a bias."""
        parts = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op(kind, x, *parts, **attributes)

    def linear(self, name: str, x: str) -> str:
        if self.integers is None:
            return self.affine("Gemm", name, x, transB=1)
        # One scale an output, -127 to 127: the activations get theirs at run time.
        weight = self.integers[f"{name}.weight"].astype(np.float32)
        scale = np.maximum(np.abs(weight).max(1), 1e-8) / 127
        parts = np.rint(weight / scale[:, None]).astype(np.int8).T, scale.astype(np.float32)
        names = [f"{name} int8", f"{name} scale"]
        for part, array in zip(names, parts, strict=True):
            self.initialisers[part] = self.onnx.numpy_helper.from_array(
                np.ascontiguousarray(array), part
            )
        y = self.op("DynamicQuantizeMatMul", x, *names, domain=MICROSOFT)
        return self.op("Add", y, self.weight(f"{name}.bias"))

    def norm(self, name: str, x: str) -> str:
        return self.affine("LayerNormalization", name, x, axis=-1, epsilon=1e-5)

    def feed_forward(self, name: str, x: str) -> str:
        inner = self.op("Gelu", self.linear(f"{name}.fc1", x))
        y = self.op("Add", x, self.linear(f"{name}.fc2", inner))
        return self.norm(f"{name}.final_layer_norm", y)

    def shape(self, value: str, axes: int, *rest: int) -> str:
        """The first axes of a value's shape, then `rest`."""
        return self.op("Concat", self.op("Shape", value, end=axes), self.constant(*rest), axis=0)

    def split(self, x: str, shape: str, turned: bool = False) -> str:
        """Rows (batch * length, d) -> heads (batch, heads, length, size); keys lie turned."""
        perm = [0, 2, 3, 1] if turned else [0, 2, 1, 3]
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)

    def attend(self, name: str, q: str, k: str, v: str, bias: str | None = None) -> str:
        """Attention of q, v (batch, heads, length, size), k (batch, heads, size, length)."""
        scores = self.op(
            "MatMul", self.op("Mul", q, self.constant((self.d // self.heads) ** -0.5)), k
        )
        scores = scores if bias is None else self.op("Add", scores, bias)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        mixed = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.linear(f"{name}.out_proj", self.op("Reshape", mixed, self.constant(-1, self.d)))

    def finish(self, inputs: Shapes, outputs: Shapes) -> bytes:
        """The file, given the shapes of its inputs and outputs by name."""
        make, kinds = self.onnx.helper, self.onnx.TensorProto
        ends = []
        for shapes in (inputs, outputs):
            kind = {name: kinds.INT64 if name in INTEGERS else kinds.FLOAT for name in shapes}
            ends.append([make.make_tensor_value_info(n, kind[n], s) for n, s in shapes.items()])
        graph = make.make_graph(self.nodes, "puzlm", *ends, list(self.initialisers.values()))
        sets = [make.make_opsetid("", OPSET), make.make_opsetid(MICROSOFT, 1)]
        model = make.make_model(graph, opset_imports=sets if self.integers else sets[:1],
                                ir_version=IR_VERSION, producer_name="puzlm")  # fmt: skip
        data: bytes = model.SerializeToString()
        return data


def _encoder(g: _Graph, symbols: int) -> bytes:
    """Sentences (batch, T) or (batch, T, F) -> keys and values of each decoder layer."""
    size = g.d // g.heads
    x = g.rows("model.shared.weight", "input_ids")
    if symbols > 1:
        x = g.op("ReduceSum", x, g.constant(2), keepdims=0)
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
        x = g.op("Add", x, g.attend(f"{name}.self_attn", q, k, v, bias))
        x = g.feed_forward(name, g.norm(f"{name}.self_attn_layer_norm", x))
    for number in range(g.settings["decoder_layers"]):
        for p in "kv":
            y = g.linear(f"model.decoder.layers.{number}.encoder_attn.{p}_proj", x)
            g.op("Identity", g.split(y, shape, p == "k"), out=[f"cross_{p}{number}"])
    ids = ("batch", "length", symbols) if symbols > 1 else ("batch", "length")
    cross = _shapes(g, "cross", "batch", "length")
    return g.finish({"input_ids": ids, "attention_mask": ("batch", "length")}, cross)


def _step(g: _Graph) -> bytes:
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
        x = g.op("Add", x, g.attend(f"{name}.self_attn", q, f"new_k{n}", f"new_v{n}"))
        x = g.norm(f"{name}.self_attn_layer_norm", x)
        q = g.split(g.linear(f"{name}.encoder_attn.q_proj", x), many)
        found = g.attend(f"{name}.encoder_attn", q, f"cross_k{n}", f"cross_v{n}", bias)
        x = g.op("Add", x, found)
        x = g.feed_forward(name, g.norm(f"{name}.encoder_attn_layer_norm", x))
    _project(g, x)
    return g.finish(
        {"tokens": ("rows",), "wanted": ("wanted",), "attention_mask": ("batch", "length")}
        | _shapes(g, "cross", "batch", "length") | _shapes(g, "past", "rows", "past"),
        {"logits": ("rows", "scored")} | _shapes(g, "new", "rows", "past + 1"),
    )  # fmt: skip


def _project(g: _Graph, x: str) -> None:
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


def _shapes(g: _Graph, name: str, rows: str, length: str) -> Shapes:
    """Keys and values of all decoder layers, as a graph declares them."""
    size = g.d // g.heads
    shapes = {"k": (rows, g.heads, size, length), "v": (rows, g.heads, length, size)}
    return {f"{name}_{p}{n}": shapes[p] for n in range(g.settings["decoder_layers"]) for p in "kv"}


def _bias(g: _Graph) -> str:
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
        try:
            import onnxruntime
        except ImportError as error:
            raise PuzlmError("this needs onnxruntime: pip install 'puzlm[onnx]'") from error
        if not (folder / "onnx.json").is_file():
            raise ModelError(f"{folder}: has no ONNX graphs; write them with puzlm export")
        about = read_json(folder / "onnx.json")
        if about.get("version") != VERSION:
            raise ModelError(f"{folder}: ONNX graphs of another version; run puzlm export again")
        if _header(folder / WEIGHTS)[2] != about.get("layout"):
            raise ModelError(
                f"{folder}: the graphs were written for another {WEIGHTS}; run puzlm export again"
            )
        self.vocabulary = int(read_json(folder / "model.json")["vocabulary"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or _cores()
        options.log_severity_level = 3  # errors only; they come as exceptions as well
        # Two sessions have two thread pools: the idle one must not spin on the busy one's cores.
        # An answer on 2 cores with other work beside it: 92-132 ms, spinning 207-355 ms.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.sessions = []
        for name in ("encoder.onnx", "step.onnx"):
            if not (folder / name).is_file():
                raise ModelError(f"{folder}: {name} is missing")
            try:
                self.sessions.append(onnxruntime.InferenceSession(
                    folder / name, options, providers=["CPUExecutionProvider"]))  # fmt: skip
            # onnxruntime raises a dozen kinds on damaged files; every one means the same here.
            except Exception as error:
                raise ModelError(f"{folder / name}: damaged ({error})") from error

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
        self.arrays = read_safetensors(Path(folder) / "sides.safetensors")
        self.arrays = {name: array.astype(np.float32) for name, array in self.arrays.items()}
        needed = {"sharpness", "embed.weight"} | {
            f"nets.{k}.{n}.{p}" for k in range(4) for n in (0, 2, 4) for p in ("weight", "bias")
        }
        if needed != set(self.arrays) or not {"symbols", "codes"} <= set(record):
            raise ModelError(f"{folder}: sides.safetensors does not fit sides.json")
        self.offsets = np.arange(record["symbols"]) * record["codes"]

    def vectors(self, sides: Ints) -> NDArray[np.float32]:
        """Sides (n, 4, B, F) -> unit vectors (n, 4, vector)."""
        w = self.arrays
        x = w["embed.weight"][sides + self.offsets].reshape(len(sides), 4, -1)
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
        scale = np.exp(self.arrays["sharpness"])
        return _balanced(right @ left.T * scale), _balanced(bottom @ top.T * scale)


def _balanced(logits: NDArray[np.float32]) -> Floats:
    """Mean of row-wise and column-wise log-softmax; a piece is never its own neighbour."""
    if len(logits) == 1:
        return np.full((1, 1), -np.inf)
    x = logits.astype(np.float64)
    np.fill_diagonal(x, -np.inf)
    total: Floats = 2 * x
    for axis in (0, 1):
        top = x.max(axis, keepdims=True)
        total = total - top - np.log(np.exp(x - top).sum(axis, keepdims=True))
    return 0.5 * total


def _gelu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x * Phi(x); erf by Abramowitz and Stegun 7.1.26, right to 1.5e-7: numpy has none."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x) * math.sqrt(0.5))
    tail: Any = 0.0
    for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = (tail + a) * t
    erf = np.copysign(1.0 - tail * np.exp(-0.5 * x * x), x)
    return np.asarray(0.5 * x * (1.0 + erf), np.float32)


def _tokenizer_settings(folder: Path) -> TokenizerSettings:
    record = read_json(folder / "tokenizer.json")
    record.pop("version", None)
    settings: TokenizerSettings = settings_from(TokenizerSettings, record, str(folder))
    return settings


def _cores() -> int:
    """Cores this process may use, or fewer where OMP_NUM_THREADS says so, as torch reads it."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores
