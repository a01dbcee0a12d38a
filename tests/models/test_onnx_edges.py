"""The graph of the encoder of sides gives torch's answers, and needs no torch to do so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from puzlm.errors import ModelError, PuzlmError, SettingsError
from puzlm.models import pretrained as checkpoints
from puzlm.models.onnx_edges import OnnxEdges
from puzlm.models.onnx_reader import export
from puzlm.models.vision import Edges, EdgeSettings, Vision, VisionSettings
from puzlm.puzzle import Puzzle

BOX = checkpoints.BOX / "vision"
SAMPLES = Path(__file__).parents[2] / "puzlm" / "samples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small encoder with random weights and a shape unlike the shipped one's.

    A side is read through to the far border: the whole piece, backwards for two of the sides.
    """
    torch.manual_seed(0)
    made = tmp_path_factory.mktemp("edges")
    shape = dict(side=24, layers=2, d_model=32, heads=4, feed_forward=48)
    model = Edges(EdgeSettings(**shape, depth=24, column=6, vector=20))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(made)
    return export(made)


def near(got, expected, tolerance):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == np.float64 and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def test_shipped_encoder_answers_as_torchs(photo):
    pieces = Puzzle.from_image(photo, "4x3", missing=1).pieces
    edges = Edges.from_pretrained(BOX)
    near(OnnxEdges(BOX, threads=1).scores(pieces), edges.scores(pieces), 1e-3)


def test_shipped_graph_is_the_one_that_export_writes(tmp_path):
    export(BOX, tmp_path)
    assert (tmp_path / "edges.onnx").read_bytes() == (BOX / "edges.onnx").read_bytes()


def test_other_shapes_and_storage(folder, tmp_path, photo):
    """An exported folder is a model folder too; integers are near, not equal."""
    pieces = Puzzle.from_image(photo, 3).pieces
    expected = Edges.from_pretrained(folder).scores(pieces)
    near(OnnxEdges(folder).scores(pieces), expected, 1e-4)
    assert OnnxEdges(folder).scores(pieces[:1])[0].shape == (1, 1)
    wide = export(folder, tmp_path / "float32", "float32")
    near(OnnxEdges(wide).scores(pieces), expected, 1e-4)
    got = OnnxEdges(export(folder, tmp_path / "int8", "int8")).scores(pieces)[0]
    seen = np.isfinite(expected[0])
    assert 0.98 < np.corrcoef(got[seen], expected[0][seen])[0, 1] < 1


def test_runs_without_torch(folder):
    """In a process where torch and all that solving needs no longer cannot be imported."""
    code = f"""
        import sys
        gone = ("torch", "transformers", "scipy", "safetensors", "onnx", "typer", "rich")
        for name in gone:
            sys.modules[name] = None
        from puzlm.models.onnx_edges import OnnxEdges
        from puzlm.images import read_image
        from puzlm.puzzle import Puzzle
        puzzle = Puzzle.from_image(read_image({str(SAMPLES / "china.jpg")!r}), 3, seed=4)
        print(OnnxEdges({str(folder)!r}).scores(puzzle.pieces)[1].shape)
        assert not any(sys.modules.get(name) for name in gone)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(9, 9)\n"


def test_the_command_exports(folder, tmp_path):
    command = [sys.executable, "-m", "puzlm", "export", str(folder), "-o", str(tmp_path / "x")]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    OnnxEdges(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("edges.json", None),
        ("edges.json", lambda data: data.replace(b'"side": 24', b'"side": 48')),
        ("edges.onnx", None),
        ("edges.onnx", lambda data: data[: len(data) // 2]),
        ("edges.onnx", lambda data: b"no graph at all"),
        ("edges.safetensors", None),
        ("edges.safetensors", lambda data: data[:-100]),
        ("edges.safetensors", lambda data: b"\x80\x04pickle" * 9),
    ],
)
def test_damaged_folders(folder, tmp_path, name, change):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    path = bad / name
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    with pytest.raises(ModelError, match="bad") as caught:
        OnnxEdges(bad)
    assert "\n" not in str(caught.value)


def test_weights_of_another_layout_are_refused(folder, tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    shutil.copy(BOX / "edges.safetensors", bad)
    with pytest.raises(ModelError, match="export again"):
        OnnxEdges(bad)


@pytest.mark.parametrize("change", [{"vector": 8}, {"d_model": 64}])
def test_settings_that_do_not_fit_are_not_exported(folder, tmp_path, change):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    record = json.loads((bad / "edges.json").read_text())
    (bad / "edges.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(ModelError, match=r"does not fit edges.json"):
        export(bad, tmp_path / "x")
    assert not (tmp_path / "x" / "edges.onnx").exists()


def test_bad_requests(folder, tmp_path):
    with pytest.raises(SettingsError, match="float16"):
        export(folder, tmp_path / "x", "float61")
    with pytest.raises(PuzlmError, match="another folder"):
        export(folder, dtype="float32")
    Vision(VisionSettings(layers=1, d_model=32, heads=2, feed_forward=32)).save_pretrained(
        tmp_path / "vit"
    )
    with pytest.raises(ModelError):  # a ViT runs in torch only
        export(tmp_path / "vit")
