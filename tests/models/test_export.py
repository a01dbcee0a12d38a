"""The ONNX graphs give torch's answers, and need no torch to do so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image

from puzlm.errors import ModelError, PuzlmError, SettingsError
from puzlm.models.backbones import ModelSettings, Seq2Seq, TorchReader
from puzlm.models.decoding import decode
from puzlm.models.onnx_reader import NumpySides, OnnxReader, export
from puzlm.models.side_model import SideModel, SideSettings
from puzlm.puzzle import Puzzle
from puzlm.tokenizer.piece_tokenizer import BOS, PieceTokenizer, side_symbols

SHAPE = dict(
    encoder_layers=2,
    decoder_layers=2,
    d_model=32,
    heads=4,
    feed_forward=64,
    decoder_feed_forward=48,
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Everything is tiny here: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def puzzles():
    images = [load_sample_image("china.jpg"), load_sample_image("flower.jpg")]
    return [Puzzle.from_image(images[i % 2], 3, seed=i, missing=i % 3) for i in range(5)]


def make(folder, puzzles, patch, dtype=torch.float32):
    """A small model with random weights: far from flat, so that answers differ from each other."""
    tokenizer = PieceTokenizer(
        granularity=2, vocab_size=16, pca_dim=8, piece_size=24, patch=patch, max_cells=9
    )
    tokenizer.fit_canonical(
        np.concatenate([tokenizer.canonical(p.pieces) for p in puzzles]), max_iter=2
    )
    torch.manual_seed(0)
    shape = ModelSettings(
        **SHAPE,
        vocabulary=len(tokenizer),
        max_length=tokenizer.sentence_length(9),
        symbols=len(tokenizer.settings.whole) if tokenizer.settings.splits else 0,
    )
    model = Seq2Seq(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder, dtype)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    s = tokenizer.settings
    SideModel(SideSettings(s.granularity, len(s.whole), s.vocab_size, 8, 16, 12)).save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, puzzles):
    """Four symbols a position and two splits, half precision weights, graphs beside them."""
    where = tmp_path_factory.mktemp("model")
    patch = "strip:4+residual+strip:8+strip:12+split:12:4x5+split:4:2x7"
    make(where, puzzles, patch, torch.float16)
    return export(where)


@pytest.fixture(scope="module")
def readers(folder):
    return TorchReader(Seq2Seq.from_pretrained(folder)), OnnxReader(folder)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_logits_are_torchs(readers, folder, puzzles, batch, masked):
    text = PieceTokenizer.from_pretrained(folder)(puzzles[:batch])
    mask = text["attention_mask"].copy()
    if masked:
        mask[0, 20:] = 0
    states = [reader.start(text["input_ids"], mask) for reader in readers]
    tokens = np.full(batch, BOS)
    within = (3 * np.arange(batch)[:, None] + np.array([2, 0, 0])).reshape(-1)
    turns = [None, np.repeat(np.arange(batch), 3), within, None, within]
    for rows in turns:
        if rows is not None:
            states = [r.reorder(s, rows) for r, s in zip(readers, states, strict=True)]
            tokens = tokens[rows]
        (expected, a), (got, b) = (r.step(s, tokens) for r, s in zip(readers, states, strict=True))
        states = [a, b]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
        assert got.shape == (len(tokens), len(PieceTokenizer.from_pretrained(folder)))
        tokens = expected.argmax(-1)
    assert expected.std() > 0.1  # not flat: the comparison says something


def test_only_the_wanted_tokens_are_scored(readers, folder, puzzles):
    """From the moment they are named, through reordering, and equal to scoring all."""
    reader = readers[1]
    ids = PieceTokenizer.from_pretrained(folder)(puzzles)["input_ids"]
    wanted, tokens = np.array([7, 40, 41]), np.full(5, BOS)
    every, state = reader.step(reader.start(ids), tokens)
    few, after = reader.step(reader.only(reader.start(ids), wanted), tokens)
    np.testing.assert_allclose(few[:, wanted], every[:, wanted], rtol=0, atol=1e-5)
    assert few.shape == every.shape and np.isinf(np.delete(few, wanted, 1)).all()
    rows = np.array([4, 0, 1])
    again = reader.step(reader.reorder(after, rows), tokens[:3])[0]
    whole = reader.step(reader.reorder(state, rows), tokens[:3])[0]
    np.testing.assert_allclose(again[:, wanted], whole[:, wanted], rtol=0, atol=1e-5)
    assert np.isinf(again[:, 8:40]).all()


def test_any_rows_can_be_kept(readers, folder, puzzles):
    """Also rows of other sentences, which no beam needs: the same as having read only those."""
    reader, rows = readers[1], np.array([3, 0, 0])
    ids = PieceTokenizer.from_pretrained(folder)(puzzles)["input_ids"]
    first, second = np.array([50, 60, 70, 71, 72]), np.array([60, 61, 62])
    state = reader.reorder(reader.step(reader.start(ids), first)[1], rows)
    alone = reader.step(reader.start(ids[rows]), first[rows])[1]
    np.testing.assert_allclose(
        reader.step(state, second)[0], reader.step(alone, second)[0], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("method", ["valid", "greedy", "beam", "assign"])
def test_answers_are_torchs(readers, folder, puzzles, method):
    tokenizer = PieceTokenizer.from_pretrained(folder)
    text = tokenizer(puzzles)
    expected, got = (
        decode(
            reader,
            text["input_ids"],
            slots=9,
            grid=(3, 3),
            method=method,
            width=4,
            first_cell=tokenizer.cell_token_id(0),
            attention_mask=text["attention_mask"],
        )
        for reader in readers
    )
    np.testing.assert_array_equal(got.cells, expected.cells)
    np.testing.assert_allclose(got.confidence, expected.confidence, atol=1e-4)


def test_one_symbol_and_other_storage(tmp_path, puzzles):
    source = make(tmp_path / "a", puzzles, "square")
    expected = TorchReader(Seq2Seq.from_pretrained(source))
    ids = PieceTokenizer.from_pretrained(source)(puzzles)["input_ids"]
    assert ids.ndim == 2
    truth = expected.step(expected.start(ids), np.full(5, BOS))[0]
    for dtype, tolerance in (("float32", 1e-4), ("float16", 2e-2)):
        reader = OnnxReader(export(source, tmp_path / dtype, dtype))
        np.testing.assert_allclose(
            reader.step(reader.start(ids), np.full(5, BOS))[0], truth, rtol=0, atol=tolerance
        )
        Seq2Seq.from_pretrained(tmp_path / dtype)  # an exported folder is a model folder too
    sizes = [(tmp_path / d / "model.safetensors").stat().st_size for d in ("float16", "float32")]
    assert sizes[0] < 0.7 * sizes[1]


def test_int8_is_near(readers, folder, tmp_path, puzzles):
    """An encoder that multiplies integers: close to torch, not equal, and only the encoder."""
    fast = export(folder, tmp_path / "int8", "int8")
    assert (fast / "step.onnx").read_bytes() == (folder / "step.onnx").read_bytes()
    assert b"DynamicQuantizeMatMul" in (fast / "encoder.onnx").read_bytes()
    ids, tokens = PieceTokenizer.from_pretrained(folder)(puzzles)["input_ids"], np.full(5, BOS)
    expected, got = (
        reader.step(reader.start(ids), tokens)[0] for reader in (readers[0], OnnxReader(fast))
    )
    away = np.abs(got - expected).max() / expected.std()
    assert 1e-5 < away < 0.3
    assert np.corrcoef(got.ravel(), expected.ravel())[0, 1] > 0.995


def test_tokenizer_and_sides_are_the_same(folder, puzzles):
    tokenizer = PieceTokenizer.from_pretrained(folder)
    twin = PieceTokenizer.from_pretrained(folder)
    symbols = tokenizer.encode(puzzles[0].pieces)
    np.testing.assert_array_equal(twin.encode(puzzles[0].pieces), symbols)
    sides = side_symbols(symbols, tokenizer.settings)
    for expected, got in zip(
        SideModel.from_pretrained(folder).scores(sides),
        NumpySides(folder).scores(sides),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    later = np.concatenate([sides, sides[..., :2] + 7], -1)  # symbols that it does not know
    numpy = NumpySides(folder)
    np.testing.assert_array_equal(numpy.scores(later), numpy.scores(sides))
    assert NumpySides(folder).scores(sides[:1])[0].shape == (1, 1)


def test_runs_without_torch(folder):
    """In a process where torch, transformers, scipy, safetensors and onnx cannot be imported."""
    code = f"""
        import sys
        gone = ("torch", "transformers", "scipy", "safetensors", "onnx")
        for name in gone:
            sys.modules[name] = None
        import numpy as np
        from puzlm.models.onnx_reader import NumpySides, OnnxReader
        from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
        from puzlm.puzzle import Puzzle
        image = np.random.default_rng(0).integers(0, 255, (90, 90, 3), np.uint8)
        text = PieceTokenizer.from_pretrained({str(folder)!r})([Puzzle.from_image(image, 3)])
        reader = OnnxReader({str(folder)!r})
        state = reader.reorder(reader.start(text["input_ids"], None), np.array([0, 0]))
        print(reader.step(state, np.array([1, 1]))[0].shape)
        print(NumpySides({str(folder)!r}).scores(np.zeros((3, 4, 2, 4), int))[0].shape)
        assert not any(sys.modules.get(name) for name in gone)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[1] == "(3, 3)"


def test_the_shipped_model_solves_without_torch(tmp_path):
    """The whole way from a picture to its pieces' places, with numpy, Pillow and onnxruntime."""
    code = """
        import sys
        gone = ("torch", "transformers", "safetensors", "onnx", "typer", "rich")
        for name in gone:
            sys.modules[name] = None
        from puzlm.images import read_image
        from puzlm.puzzle import Puzzle
        from puzlm.solver import Solver
        image = read_image("puzlm/samples/china.jpg")
        engine = Solver.from_pretrained(backend="onnx")
        for grid in ("3x3", "2x3"):
            puzzle = Puzzle.from_image(image, grid, seed=1)
            assert (engine.solve(puzzle).positions == puzzle.truth).all()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout


def spoil(name, change):
    def run(folder):
        path = folder / name
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))

    return run


@pytest.mark.parametrize(
    "damage",
    [
        spoil("step.onnx", None),
        spoil("encoder.onnx", lambda data: data[: len(data) // 2]),
        spoil("encoder.onnx", lambda data: b"no graph at all"),
        spoil("model.safetensors", None),
        spoil("model.safetensors", lambda data: data[:-100]),
        spoil("model.safetensors", lambda data: b""),
        spoil("model.safetensors", lambda data: b"\x80\x04pickle" * 9),
    ],
)
def test_bad_folders(folder, tmp_path, damage):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    damage(bad)
    with pytest.raises(ModelError, match="bad"):
        OnnxReader(bad)


@pytest.mark.parametrize("change", [None, lambda data: data[:300], lambda data: b"junk"])
def test_bad_arrays(folder, tmp_path, change):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    for name, load in (("tokenizer", PieceTokenizer.from_pretrained), ("sides", NumpySides)):
        spoil(f"{name}.safetensors", change)(bad)
        with pytest.raises(ModelError, match=name):
            load(bad)


def test_weights_of_another_layout_are_refused(folder, tmp_path, puzzles):
    """Retrained with another shape in the same folder: offsets would point anywhere."""
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    other = make(tmp_path / "other", puzzles, "strip:4+residual", torch.float16)
    shutil.copy(other / "model.safetensors", bad)
    with pytest.raises(ModelError, match="export again"):
        OnnxReader(bad)


def test_what_cannot_be_exported(folder, tmp_path):
    with pytest.raises(SettingsError, match="float16"):
        export(folder, tmp_path / "x", "float61")
    with pytest.raises(PuzlmError, match="another folder"):
        export(folder, dtype="float32")
    with pytest.raises(ModelError, match=r"model\.json"):
        export(tmp_path / "nowhere", tmp_path / "x")
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    record = json.loads((bad / "model.json").read_text())
    (bad / "model.json").write_text(json.dumps({**record, "decoder_layers": 3}))
    with pytest.raises(ModelError, match="does not fit"):
        export(bad, tmp_path / "x")
    (bad / "model.json").write_text(json.dumps({**record, "backbone": "t5"}))
    with pytest.raises(PuzlmError, match="t5"):
        export(bad, tmp_path / "x")
    assert not (tmp_path / "x" / "encoder.onnx").exists()
