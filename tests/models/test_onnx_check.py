"""Graphs of strangers: what is not exactly what `puzlm export` writes never reaches onnxruntime."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from puzlm import manifest
from puzlm.errors import ModelError
from puzlm.model_files import read_weights
from puzlm.models.onnx_check import OPERATORS, check_graph, read_graph
from puzlm.models.onnx_edges import OnnxEdges, export
from puzlm.models.pretrained import BOX

SHIPPED = [*BOX.glob("*/*.onnx")]


@pytest.fixture
def folder(tmp_path):
    """The encoder of sides as a folder of one's own, which has no manifest."""
    own = tmp_path / "own"
    own.mkdir()
    for name in ("edges.json", "edges.onnx", "edges.safetensors"):
        shutil.copy(BOX / "vision" / name, own)
    return own


def changed(folder, change):
    """Change the graph of a folder and open it; gives the error's text."""
    model = onnx.load(folder / "edges.onnx", load_external_data=False)
    change(model.graph, model)
    (folder / "edges.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        OnnxEdges(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    return str(caught.value)


def _first(graph):
    return next(tensor for tensor in graph.initializer if tensor.external_data)


def outside(tensor, **place):
    """Let a tensor lie at another place."""
    for entry in tensor.external_data:
        entry.value = str(place.get(entry.key, entry.value))
    return tensor


def elsewhere(location="/etc/passwd"):
    """A tensor whose bytes are those of another file."""
    tensor = TensorProto(name="stolen", dims=[8], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_shipped_graphs_are_read_as_onnx_reads_them(path):
    facts, model = read_graph(path.read_bytes()), onnx.load(path, load_external_data=False)
    for ends, own in ((facts.inputs, model.graph.input), (facts.outputs, model.graph.output)):
        assert ends == {
            end.name: (
                end.type.tensor_type.elem_type,
                tuple(d.dim_value or None for d in end.type.tensor_type.shape.dim),
            )
            for end in own
        }
    weights = [t for t in model.graph.initializer if t.external_data]
    assert [t["name"] for t in facts.outside] == [t.name for t in weights]
    assert facts.outside[0]["dims"] == list(weights[0].dims)


@pytest.mark.parametrize(
    "place",
    [
        {"location": "/etc/passwd"},
        {"location": "../secret.safetensors"},
        {"location": "edges.json"},
        {"offset": 0},
        {"length": 4},
    ],
)
def test_weights_elsewhere_are_refused(folder, place):
    (folder.parent / "secret.safetensors").write_bytes((folder / "edges.safetensors").read_bytes())
    said = changed(folder, lambda graph, _: outside(_first(graph), **place))
    assert "its weight" in said


def hidden_in_a_branch(graph, _):
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8])
    inner = helper.make_graph([], "inner", [], [end], [elsewhere()])
    flag = numpy_helper.from_array(np.array(True), "flag")
    graph.initializer.append(flag)
    graph.node.append(helper.make_node("If", ["flag"], ["z"], then_branch=inner, else_branch=inner))


def hidden_in_an_attribute(graph, _):
    graph.node.append(helper.make_node("Cast", ["pieces"], ["z"], to=1, value=elsewhere()))


def nested(graph, _):
    inner = helper.make_graph([], "inner", [], [])
    for _ in range(20):
        node = helper.make_node("If", ["flag"], ["z"], then_branch=inner)
        inner = helper.make_graph([node], "inner", [], [])
    graph.node.extend(inner.node)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (hidden_in_a_branch, "lies outside"),
        (hidden_in_an_attribute, "lies outside"),
        (nested, "nested too deeply"),
        (lambda g, _: g.node.append(helper.make_node("Loop", [], ["z"])), "'Loop'"),
        (
            lambda g, _: g.node.append(helper.make_node("Add", [], ["z"], domain="com.evil")),
            "'com.evil'",
        ),
        (lambda g, m: m.functions.add(name="Add", domain=""), "never writes"),
        (lambda g, _: g.sparse_initializer.add(), "sparse"),
        (lambda g, _: g.input.add(name="more"), "inputs are not those expected: more"),
        (lambda g, _: g.output.pop(), "outputs are not those expected: vectors"),
    ],
)
def test_what_export_never_writes_is_refused(folder, change, words):
    assert words in changed(folder, change)


def test_two_graphs_in_one_file_are_refused(folder):
    """Protobuf would merge them, after one was looked at."""
    data = (folder / "edges.onnx").read_bytes()
    (folder / "edges.onnx").write_bytes(data + data)
    with pytest.raises(ModelError, match="no ONNX graph"):
        OnnxEdges(folder)


def test_swapped_graphs_are_refused(tmp_path):
    weights = read_weights(BOX / "puzlm-3x3" / "model.safetensors")
    step = read_graph((BOX / "puzlm-3x3" / "step.onnx").read_bytes())
    with pytest.raises(ValueError, match="inputs are not those expected"):
        check_graph(
            (BOX / "puzlm-3x3" / "encoder.onnx").read_bytes(), step.inputs, step.outputs, weights
        )


def test_a_graph_whose_sums_are_no_numbers(folder, tmp_path):
    """Finite weights may still overflow: an answer from them would be about nothing."""
    path = export(folder, tmp_path / "large", "float32") / "edges.safetensors"
    weights, data = read_weights(path), bytearray(path.read_bytes())
    for name in weights.entries:
        if name.endswith((".weight", ".bias")):
            first, end = (weights.start + at for at in weights.entries[name]["data_offsets"])
            data[first:end] = np.resize([1e30, -1e30], (end - first) // 4).astype("<f4").tobytes()
    path.write_bytes(data)
    edges = OnnxEdges(path.parent)
    with pytest.raises(ModelError, match="what it computes is no number"):
        edges.scores(np.random.default_rng(0).integers(0, 256, (4, 48, 48, 3), np.uint8))


def test_our_operators_are_all_written():
    """The list has no more than the graphs need, but for the one of int8."""
    used = set()

    def walk(graph):
        for node in graph.node:
            used.add(node.op_type)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    walk(attribute.g)

    for path in SHIPPED:
        walk(onnx.load(path, load_external_data=False).graph)
    assert used == OPERATORS - {"DynamicQuantizeMatMul"}


@pytest.mark.parametrize("name", ["edges.safetensors", "edges.json", "edges.onnx"])
def test_a_shipped_file_that_differs_from_the_manifest_is_refused(folder, name):
    manifest.write(folder)
    OnnxEdges(folder)
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(ModelError, match=f"{name}: is not the file that manifest.json names"):
        OnnxEdges(folder)


def test_the_manifests_that_ship_are_true():
    for folder in {path.parent for path in BOX.glob("*/*.safetensors")}:
        listed = manifest.files.read_json(folder / manifest.NAME)["files"]
        assert listed == manifest.digests(folder), folder.name
