"""The graphs of the models that see pixels give torch's answers, and need no torch to do so."""

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

from puzlm.errors import ModelError, PuzlmError, PuzzleError, SettingsError
from puzlm.images import read_image
from puzlm.models import pretrained as checkpoints
from puzlm.models.onnx_reader import export
from puzlm.models.onnx_vision import OnnxEdges, OnnxVision
from puzlm.models.vision import Edges, EdgeSettings, Vision, VisionSettings
from puzlm.puzzle import Puzzle

BOX = checkpoints.BOX / "vision"
SAMPLES = Path(__file__).parents[2] / "puzlm" / "samples"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def puzzles(grid, missing=0):
    images = [read_image(SAMPLES / name) for name in ("china.jpg", "flower.jpg")]
    return [Puzzle.from_image(x, grid, seed=n, missing=missing) for n, x in enumerate(images)]


def make(folder):
    """Small models with random weights and shapes unlike the shipped ones."""
    torch.manual_seed(0)
    shape = dict(side=24, layers=2, d_model=32, heads=4, feed_forward=48)
    # A side is read through to the far border: the whole piece, backwards for two of the sides.
    for model in (
        Vision(VisionSettings(**shape, patch=8, grids=("2x3", "3x3"), waves=5)),
        Edges(EdgeSettings(**shape, depth=24, column=6, vector=20)),
    ):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(make(tmp_path_factory.mktemp("pixels")))


@pytest.fixture(scope="module")
def shipped():
    return [kind.from_pretrained(BOX) for kind in (Vision, Edges)] + [
        kind(BOX, threads=1) for kind in (OnnxVision, OnnxEdges)
    ]


def near(got, expected, tolerance):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == np.float64 and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("grid", "missing"), [("3x3", 0), ("3x3", 1), ("5x5", 1), ("4x3", 1)])
def test_shipped_models_answer_as_torchs(shipped, grid, missing):
    """Two puzzles at once, and each alone; the answers are right, so not flat."""
    vision, edges, onnx_vision, onnx_edges = shipped
    both = puzzles(grid, missing)
    pieces = [p.pieces for p in both]
    got = onnx_vision.read(pieces, grid)
    near(got, vision.read(pieces, grid), 1e-3)
    near([part[1:] for part in got], onnx_vision.read(pieces[1:], grid), 1e-3)
    for cells, puzzle in zip(got[0], both, strict=True):
        np.testing.assert_array_equal(cells.argmax(-1), puzzle.truth)
        near(onnx_edges.scores(puzzle.pieces), edges.scores(puzzle.pieces), 1e-3)
    assert onnx_vision.settings == vision.settings and onnx_edges.settings == edges.settings


@pytest.mark.parametrize(("grid", "missing"), [("1x3", 0), ("2x9", 2)])
def test_neighbours_on_a_grid_whose_cells_are_not_known(shipped, grid, missing):
    vision, _, onnx_vision, _ = shipped
    pieces = [p.pieces for p in puzzles(grid, missing)]
    placed, *got = onnx_vision.read(pieces, grid)
    other, *expected = vision.read(pieces, grid)
    assert placed is None and other is None
    near(got, expected, 1e-3)


def test_shipped_graphs_are_those_that_export_writes(tmp_path):
    export(BOX, tmp_path)
    for name in ("vision.onnx", "edges.onnx"):
        assert (tmp_path / name).read_bytes() == (BOX / name).read_bytes(), name


@pytest.mark.parametrize(("grid", "missing"), [("2x3", 2), ("3x3", 0), ("2x4", 1)])
def test_other_shapes(folder, grid, missing):
    both = puzzles(grid, missing)
    pieces = [p.pieces for p in both]
    expected = Vision.from_pretrained(folder).read(pieces, grid)
    assert expected[0].std() > 0.1 and expected[1].std() > 0.1  # the comparison says something
    near(OnnxVision(folder).read(pieces, grid), expected, 1e-4)
    near(OnnxEdges(folder).scores(pieces[0]), Edges.from_pretrained(folder).scores(pieces[0]), 1e-4)
    assert OnnxEdges(folder).scores(pieces[0][:1])[0].shape == (1, 1)


def test_other_storage(folder, tmp_path):
    """An exported folder is a model folder too; integers are near, not equal."""
    pieces = [p.pieces for p in puzzles("3x3")]
    expected = Vision.from_pretrained(folder).read(pieces, "3x3")
    wide = export(folder, tmp_path / "float32", "float32")
    size = [(f / "vision.safetensors").stat().st_size for f in (folder, wide)]
    assert size[0] < 0.7 * size[1]
    near(OnnxVision(wide).read(pieces, "3x3"), expected, 1e-4)
    near(Vision.from_pretrained(wide).read(pieces, "3x3"), expected, 1e-4)
    fast = export(folder, tmp_path / "int8", "int8")
    for got, truth in zip(OnnxVision(fast).read(pieces, "3x3"), expected, strict=True):
        assert 1e-5 < np.abs(got - truth).max() / truth.std() < 0.5
    sides = Edges.from_pretrained(folder).scores(pieces[0])[0]
    got = OnnxEdges(fast).scores(pieces[0])[0]
    seen = np.isfinite(sides)
    assert np.corrcoef(got[seen], sides[seen])[0, 1] > 0.98


def test_one_of_the_two_is_enough(folder, tmp_path):
    only = tmp_path / "only"
    only.mkdir()
    for name in ("edges.json", "edges.safetensors"):
        shutil.copy(folder / name, only)
    OnnxEdges(export(only))
    assert not (only / "vision.onnx").exists()
    with pytest.raises(ModelError, match=r"vision\.json"):
        OnnxVision(only)


def test_runs_without_torch(folder):
    """In a process where torch and all that reading needs no longer cannot be imported."""
    code = f"""
        import sys
        gone = ("torch", "transformers", "scipy", "safetensors", "onnx", "typer", "rich")
        for name in gone:
            sys.modules[name] = None
        from puzlm.models.onnx_vision import OnnxEdges, OnnxVision
        from puzlm.images import read_image
        from puzlm.puzzle import Puzzle
        puzzle = Puzzle.from_image(read_image({str(SAMPLES / "china.jpg")!r}), 3, seed=4)
        cells, right, below = OnnxVision({str(BOX)!r}).read([puzzle.pieces], "3x3")
        assert (cells[0].argmax(-1) == puzzle.truth).all()
        print(right.shape, OnnxEdges({str(folder)!r}).scores(puzzle.pieces)[1].shape)
        assert not any(sys.modules.get(name) for name in gone)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(1, 9, 9) (9, 9)\n"


def test_the_command_exports(folder, tmp_path):
    command = [sys.executable, "-m", "puzlm", "export", str(folder), "-o", str(tmp_path / "x")]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    OnnxVision(tmp_path / "x"), OnnxEdges(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("{}.json", None),
        ("{}.json", lambda data: data.replace(b'"side": 24', b'"side": 48')),
        ("{}.onnx", None),
        ("{}.onnx", lambda data: data[: len(data) // 2]),
        ("{}.onnx", lambda data: b"no graph at all"),
        ("{}.safetensors", None),
        ("{}.safetensors", lambda data: data[:-100]),
        ("{}.safetensors", lambda data: b"\x80\x04pickle" * 9),
    ],
)
@pytest.mark.parametrize(("kind", "part"), [(OnnxVision, "vision"), (OnnxEdges, "edges")])
def test_damaged_folders(folder, tmp_path, name, change, kind, part):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    path = bad / name.format(part)
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    with pytest.raises(ModelError, match="bad") as caught:
        kind(bad)
    assert "\n" not in str(caught.value)


def test_weights_of_another_layout_are_refused(folder, tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    for name in ("vision", "edges"):
        shutil.copy(BOX / f"{name}.safetensors", bad)
    for kind in (OnnxVision, OnnxEdges):
        with pytest.raises(ModelError, match="export again"):
            kind(bad)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vision", {"layers": 3}),
        ("vision", {"patch": 12}),
        ("vision", {"grids": ["5x5"]}),
        ("edges", {"vector": 8}),
        ("edges", {"d_model": 64}),
    ],
)
def test_settings_that_do_not_fit_are_not_exported(folder, tmp_path, name, change):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    record = json.loads((bad / f"{name}.json").read_text())
    (bad / f"{name}.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(ModelError, match=f"does not fit {name}.json"):
        export(bad, tmp_path / "x")
    assert not (tmp_path / "x" / "vision.onnx").exists()


def test_bad_requests(folder, tmp_path):
    with pytest.raises(SettingsError, match="float16"):
        export(folder, tmp_path / "x", "float61")
    with pytest.raises(PuzlmError, match="another folder"):
        export(folder, dtype="float32")
    vision, pieces = OnnxVision(folder), puzzles("3x3")[0].pieces
    for some in ([pieces, pieces[:8]], [np.concatenate([pieces, pieces])]):
        with pytest.raises(PuzzleError, match="at most 9"):
            vision.read(some, "3x3")
