"""What the writers and readers of ONNX graphs share: a graph, its weights, a session.

Weights stay in a model's safetensors file, to which a graph points (ONNX external data): one copy
serves torch and ONNX. Half precision stays so on disk and is cast once, when a session opens.
Writing a graph needs onnx, the rest numpy and onnxruntime only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm import manifest
from puzlm.errors import ModelError, PuzlmError, SettingsError, missing, nearest
from puzlm.files import write_bytes
from puzlm.images import cores
from puzlm.model_files import Weights, read_safetensors, read_weights
from puzlm.models.onnx_check import Shapes, check_graph, ends_of
from puzlm.tokenizer.settings import TokenizerSettings

# Storage of the weights; arithmetic is float32. int8 stores as it finds and multiplies the
# encoder's activations and weights as integers: 0.8 ms instead of 2.9 for 152 x 512 x 2048.
DTYPES: dict[str, str | None] = {"float16": "F16", "float32": "F32", "int8": None}
OPSET, IR_VERSION = 20, 9  # the first opset with Gelu; onnxruntime 1.17 or later reads it
# Kinds of the graphs' ends that are not floats.
KINDS = {name: "INT64" for name in ("input_ids", "attention_mask", "tokens", "wanted", "slots")}
KINDS["present"] = "BOOL"
MICROSOFT = "com.microsoft"  # onnxruntime's own operators


def store_weights(folder: Path, out: Path, name: str, dtype: str | None) -> None:
    """Put a safetensors file of a model into `out`, its tensors in the wanted dtype."""
    if dtype is not None and dtype not in DTYPES:
        raise SettingsError(f"dtype '{dtype}' is unknown; {nearest(dtype, DTYPES)}")
    entries, wanted = read_weights(folder / name).entries, DTYPES[dtype] if dtype else None
    if wanted is None or all(entry["dtype"] == wanted for entry in entries.values()):
        if out.resolve() != folder.resolve():
            write_bytes(out / name, (folder / name).read_bytes())
        return
    if out.resolve() == folder.resolve():
        raise PuzlmError(f"{folder}: a change of dtype needs another folder to write to (-o DIR)")
    from safetensors.numpy import save

    kind = np.float16 if wanted == "F16" else np.float32
    arrays = {k: v.astype(kind) for k, v in read_safetensors(folder / name).items()}
    write_bytes(out / name, save(arrays))


class Graph:
    """An ONNX graph under construction; values are known by their names."""

    def __init__(
        self,
        weights: Path,
        settings: dict[str, Any],
        integers: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        try:
            import onnx
        except ImportError as error:
            raise missing(error) from error
        self.onnx: Any = onnx
        self.weights, self.settings = weights.name, settings
        store = read_weights(weights)
        self.header, self.start = store.entries, store.start
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

    def array(self, values: NDArray[Any]) -> str:
        """Any array."""
        name = f"array {len(self.initialisers)}"
        self.initialisers[name] = self.onnx.numpy_helper.from_array(values, name)
        return name

    def stored(self, name: str) -> str:
        """A weight as it lies in its file."""
        if name not in self.initialisers:
            entry = self.header[name]
            kinds = {"F16": self.onnx.TensorProto.FLOAT16, "F32": self.onnx.TensorProto.FLOAT}
            first, end = entry["data_offsets"]
            tensor = self.onnx.TensorProto(
                name=name, dims=entry["shape"], data_type=kinds[entry["dtype"]]
            )
            tensor.data_location = self.onnx.TensorProto.EXTERNAL
            place = {"location": self.weights, "offset": self.start + first, "length": end - first}
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

    def shape(self, value: str, axes: int, *rest: int) -> str:
        """The first axes of a value's shape, then `rest`."""
        return self.op("Concat", self.op("Shape", value, end=axes), self.constant(*rest), axis=0)

    def split(self, x: str, shape: str, turned: bool = False) -> str:
        """Rows (batch * length, d) -> heads (batch, heads, length, size); keys lie turned."""
        perm = [0, 2, 3, 1] if turned else [0, 2, 1, 3]
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)

    def attend(self, out: str, q: str, k: str, v: str, bias: str | None = None) -> str:
        """Attention of q, v (batch, heads, length, size), k (batch, heads, size, length).

        `out` is the linear layer that its rows (batch * length, d) go through.
        """
        scores = self.op(
            "MatMul", self.op("Mul", q, self.constant((self.d // self.heads) ** -0.5)), k
        )
        scores = scores if bias is None else self.op("Add", scores, bias)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        mixed = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.linear(out, self.op("Reshape", mixed, self.constant(-1, self.d)))

    def finish(self, inputs: Shapes, outputs: Shapes) -> bytes:
        """The file, given the shapes of its inputs and outputs by name."""
        make, kinds = self.onnx.helper, self.onnx.TensorProto
        ends = []
        for shapes in (inputs, outputs):
            kind = {name: getattr(kinds, KINDS.get(name, "FLOAT")) for name in shapes}
            ends.append([make.make_tensor_value_info(n, kind[n], s) for n, s in shapes.items()])
        graph = make.make_graph(self.nodes, "puzlm", *ends, list(self.initialisers.values()))
        sets = [make.make_opsetid("", OPSET), make.make_opsetid(MICROSOFT, 1)]
        model = make.make_model(
            graph,
            opset_imports=sets if self.integers else sets[:1],
            ir_version=IR_VERSION,
            producer_name="puzlm",
        )
        data: bytes = model.SerializeToString()
        return data


def words(g: Graph, reads: TokenizerSettings, table: str) -> str:
    """Embeddings of a position's symbols, summed (batch, T, d)."""
    whole, symbols = len(reads.whole), len(reads.terms)
    if symbols == 1:
        return g.rows(table, "input_ids")
    ids = "input_ids"
    if reads.splits:
        ids = g.op("Slice", ids, g.constant(0), g.constant(whole), g.constant(2))
    x = g.op("ReduceSum", g.rows(table, ids), g.constant(2), keepdims=0)
    column = whole
    for split in reads.splits:
        # Ones where a part has a symbol, times the table: rows one by one would take longer.
        first, end = reads.firsts[column], column + split.count
        codes = split.count * split.codes
        known = np.arange(first, first + codes).reshape(split.count, split.codes)
        here = g.op("Slice", "input_ids", g.constant(column), g.constant(end), g.constant(2))
        ones = g.op("Equal", g.op("Unsqueeze", here, g.constant(3)), g.array(known))
        ones = g.op("Cast", ones, to=g.onnx.TensorProto.FLOAT)
        ones = g.op("Reshape", ones, g.constant(0, 0, codes))
        ends = (g.constant(first), g.constant(first + codes), g.constant(0))
        rows = g.float32(g.op("Slice", g.stored(table), *ends), table)
        x, column = g.op("Add", x, g.op("MatMul", ones, rows)), end
    return x


def open_session(
    path: Path, weights: Weights, inputs: Shapes, outputs: Shapes, threads: int | None = None
) -> Session:
    """An onnxruntime session of a graph with these ends and these weights, on the processor."""
    import onnxruntime

    if not path.exists():
        raise ModelError(f"{path.parent}: {path.name} is missing; write it with puzlm export")
    try:
        ends = ends_of(inputs, KINDS), ends_of(outputs, KINDS)
        check_graph(manifest.read(path), *ends, weights)
    except ValueError as error:
        if isinstance(error, PuzlmError):
            raise
        raise ModelError(f"{path}: {error}; run puzlm export again") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or wanted_threads()
    options.log_severity_level = 3  # errors only; they come as exceptions as well
    # Two sessions have two thread pools: the idle one must not spin on the busy one's cores.
    # An answer on 2 cores with other work beside it: 92-132 ms, spinning 207-355 ms.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with _as_damage(path):
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Session(path, session)


class Session:
    """An open graph; what goes wrong in it is one line."""

    def __init__(self, path: Path, session: Any) -> None:
        self.path, self.session = path, session

    def run(self, names: list[str] | None, feed: dict[str, Any]) -> list[NDArray[Any]]:
        """The outputs of these names, or all of them; none may hold NaN."""
        with _as_damage(self.path):
            found: list[NDArray[Any]] = self.session.run(names, feed)
        with np.errstate(all="ignore"):
            broken = any(np.isnan(array.sum()) for array in found)
        if broken:
            raise ModelError(f"{self.path}: damaged (what it computes is no number)")
        return found


@contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    """Say of which file onnxruntime complains; it raises a dozen kinds, and all mean the same."""
    try:
        yield
    except Exception as error:
        if any(words in str(error) for words in ("allocate memory", "bad_alloc")):
            raise  # the command says so
        raise ModelError(f"{path}: damaged ({' '.join(str(error).split())[:300]})") from error


def wanted_threads() -> int:
    """Cores this process may use, or fewer where OMP_NUM_THREADS says so, as torch reads it."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores()


def balanced(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean of row-wise and column-wise log-softmax; a piece is never its own neighbour."""
    if len(logits) == 1:
        return np.full((1, 1), -np.inf)
    x = logits.astype(np.float64)
    np.fill_diagonal(x, -np.inf)
    total: NDArray[np.float64] = 2 * x
    for axis in (0, 1):
        top = x.max(axis, keepdims=True)
        total = total - top - np.log(np.exp(x - top).sum(axis, keepdims=True))
    return 0.5 * total
