"""What an ONNX file says, read before onnxruntime sees it, and without the onnx package.

onnxruntime opens any file that a graph names as the store of its weights: an absolute path, a
device, a file of another user. So a graph is first compared with what `puzlm export` writes: its
operators, its inputs and outputs, and that each weight outside is a tensor of the one file beside
it. The format is protobuf; the numbers below are the field numbers of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from puzlm.model_files import Weights

Shapes = dict[str, tuple[Any, ...]]  # an axis is a number, or the name of a free one
End = tuple[int, tuple[int | None, ...]]  # element type and shape; None: a free axis

FLOAT, INT64, BOOL, FLOAT16 = 1, 7, 9, 10  # TensorProto.DataType
STORED = {"F32": FLOAT, "F16": FLOAT16}  # safetensors' names of the types of weights
DEEPEST = 4  # graphs inside graphs; ours have two levels, the branches of one If
# All that `puzlm export` writes. No other operator is needed, so none is trusted.
# fmt: off
OPERATORS = frozenset(
    [
        "Add", "Cast", "Concat", "Div", "DynamicQuantizeMatMul", "Equal", "Expand", "Gather",
        "Gelu", "Gemm", "Identity", "If", "LayerNormalization", "MatMul", "Max", "Mul",
        "ReduceL2", "ReduceMean", "ReduceSum", "Reshape", "Shape", "Size", "Slice", "Softmax",
        "Split", "Sub", "Transpose", "Unsqueeze",
    ]
)
# fmt: on
DOMAINS = ("", "com.microsoft")


@dataclass
class GraphFacts:
    """Inputs and outputs by name, and the weights that lie in another file."""

    inputs: dict[str, End] = field(default_factory=dict)
    outputs: dict[str, End] = field(default_factory=dict)
    outside: list[dict[str, Any]] = field(default_factory=list)


def check_graph(
    data: bytes,
    inputs: Mapping[str, End],
    outputs: Mapping[str, End],
    weights: Weights,
) -> None:
    """Refuse (ValueError) a graph with other ends, or with weights elsewhere than in `weights`."""
    facts = read_graph(data)
    for what, found, wanted in (
        ("inputs", facts.inputs, inputs),
        ("outputs", facts.outputs, outputs),
    ):
        if found != wanted:
            names = sorted(k for k in {**found, **wanted} if found.get(k) != wanted.get(k))
            raise ValueError(f"its {what} are not those expected: {', '.join(names[:3])}")
    for tensor in facts.outside:
        name = tensor["name"]
        if tensor["place"].get("location") != weights.path.name:
            raise ValueError(f"its weight {name[:60]!r} lies outside {weights.path.name}")
        if name not in weights.entries or tensor != _expected(name, weights):
            raise ValueError(f"its weight {name[:60]!r} is not that of {weights.path.name}")


def ends_of(shapes: Shapes, kinds: Mapping[str, str]) -> dict[str, End]:
    """Ends as read_graph gives them; `kinds` names those that are not floats."""
    numbers = {"INT64": INT64, "BOOL": BOOL, "FLOAT": FLOAT}
    return {
        name: (
            numbers[kinds.get(name, "FLOAT")],
            tuple(axis if isinstance(axis, int) else None for axis in shape),
        )
        for name, shape in shapes.items()
    }


def read_graph(data: bytes) -> GraphFacts:
    """Read a model file's ends and outside weights; ValueError for all that is not ours."""
    facts, graphs = GraphFacts(), []
    for number, value in _fields(memoryview(data)):
        if number == 7:
            graphs.append(value)
        elif number in (20, 25):  # training, functions of its own
            raise ValueError("it has parts that puzlm export never writes")
    if len(graphs) != 1:
        raise ValueError("it is no ONNX graph")
    for number, value in _fields(_message(graphs[0])):
        if number in (11, 12):
            ends = facts.inputs if number == 11 else facts.outputs
            name, end = _end(_message(value))
            if name in ends:
                raise ValueError(f"it has two ends of the name {name[:60]!r}")
            ends[name] = end
    _walk(graphs[0], facts, 1)
    return facts


def _walk(graph: memoryview, facts: GraphFacts, depth: int) -> None:
    """Note the outside weights of a graph and of all graphs in it."""
    if depth > DEEPEST:
        raise ValueError("its graphs are nested too deeply")
    for number, value in _fields(graph):
        if number == 5:
            _tensor(_message(value), facts)
        elif number == 15:
            raise ValueError("it has sparse weights")
        elif number == 1:
            _node(_message(value), facts, depth)


def _node(node: memoryview, facts: GraphFacts, depth: int) -> None:
    for number, value in _fields(node):
        if number == 4 and _text(value) not in OPERATORS:
            raise ValueError(f"it has an operator that is never written: {_text(value)[:60]!r}")
        if number == 7 and _text(value) not in DOMAINS:
            raise ValueError(f"it has operators of {_text(value)[:60]!r}")
        if number != 5:
            continue
        for part, inner in _fields(_message(value)):
            if part in (5, 10):
                _tensor(_message(inner), facts)
            elif part in (6, 11):
                _walk(_message(inner), facts, depth + 1)
            elif part in (22, 23):
                raise ValueError("it has sparse weights")


def _tensor(tensor: memoryview, facts: GraphFacts) -> None:
    """Note a tensor if its bytes are said to lie in another file."""
    found: dict[str, Any] = {"name": "", "kind": 0, "dims": [], "place": {}}
    outside = False
    for number, value in _fields(tensor):
        if number == 1:
            found["dims"] += [value] if isinstance(value, int) else list(_numbers(value))
        elif number == 2:
            found["kind"] = value
        elif number == 8:
            found["name"] = _text(value)
        elif number == 14:
            outside |= value != 0
        elif number == 13:
            outside = True
            parts = {part: _text(inner) for part, inner in _fields(_message(value))}
            if parts.get(1, "") in found["place"]:
                raise ValueError("a weight says twice where it lies")
            found["place"][parts.get(1, "")] = parts.get(2, "")
    if outside:
        facts.outside.append(found)


def _expected(name: str, weights: Weights) -> dict[str, Any]:
    """What a graph says of a tensor that lies in a safetensors file."""
    entry = weights.entries[name]
    first, end = entry["data_offsets"]
    place = {"location": weights.path.name, "offset": str(weights.start + first)}
    place["length"] = str(end - first)
    kind = STORED.get(entry["dtype"])
    return {"name": name, "kind": kind, "dims": list(entry["shape"]), "place": place}


def _end(value: memoryview) -> tuple[str, End]:
    """Name, element type and shape of an input or output."""
    name, kind, shape = "", 0, []
    for number, part in _fields(value):
        if number == 1:
            name = _text(part)
        elif number == 2:
            for which, tensor in _fields(_message(part)):
                if which != 1:
                    raise ValueError(f"its end {name[:60]!r} is no tensor")
                for field_number, inner in _fields(_message(tensor)):
                    if field_number == 1:
                        kind = inner
                    elif field_number == 2:
                        shape = [_axis(_message(d)) for n, d in _fields(_message(inner)) if n == 1]
    return name, (kind, tuple(shape))


def _axis(value: memoryview) -> int | None:
    found = dict(_fields(value))
    number = found.get(1)
    return number if isinstance(number, int) else None


# ---- protobuf -------------------------------------------------------------------------------


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value of every field: an integer, or the bytes of anything else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("it is no ONNX graph")
        if size > len(data) - at:
            raise ValueError("it is cut short")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(data):
            raise ValueError("it is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at
    raise ValueError("it is no ONNX graph")


def _numbers(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _message(value: Any) -> memoryview:
    if not isinstance(value, memoryview):
        raise ValueError("it is no ONNX graph")
    return value


def _text(value: Any) -> str:
    return str(_message(value), "utf-8")
