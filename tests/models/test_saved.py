"""Settings of saved models: whatever a file says, a model or one line comes out."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from puzlm.errors import PuzlmError
from puzlm.models import side_model as bigram
from puzlm.models.backbones import ModelSettings, Seq2Seq
from puzlm.models.box import load_sides
from puzlm.models.side_model import SideModel, SideSettings
from puzlm.models.vision import Edges, EdgeSettings, Vision, VisionSettings
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer

SHAPE = {"layers": 1, "d_model": 32, "heads": 2, "feed_forward": 32}
MODELS = {
    "vision": lambda: Vision(VisionSettings(**SHAPE)),
    "edges": lambda: Edges(EdgeSettings(**SHAPE)),
    "sides": lambda: SideModel(SideSettings(codes=8, hidden=8, vector=8, embedding=8)),
    "model": lambda: Seq2Seq(ModelSettings("bart", 1, 1, 32, 2, 32, vocabulary=16, max_length=16)),
}


def damaged(name, key, value, folder):
    """Save a model, change one of its settings, and read it again."""
    torch.manual_seed(0)
    model = MODELS[name]()
    model.save_pretrained(folder)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    return type(model).from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("vision", "layers", "8", "layers = '8' must be of type int"),
        ("vision", "layers", 10**9, "does not fit vision.json"),
        ("vision", "d_model", 10**7, "does not fit vision.json"),
        ("vision", "patch", 0, "vision.patch 0: must be at least 1"),
        ("vision", "patch", 5, "vision.side 48: must be a multiple of 5"),
        ("vision", "heads", 3, "vision.d_model 32: must be a multiple of 3"),
        ("vision", "grids", ["3x3", 5], "must be a list of type str"),
        ("vision", "grids", ["3x3", "a"], "grid 'a'"),
        ("edges", "column", 0, "edges.column 0"),
        ("edges", "side", True, "side = True must be of type int"),
        ("edges", "feed_forward", 10**12, "does not fit edges.json"),
        ("sides", "codes", 0, "sides.codes 0"),
        ("sides", "codes", 10**11, "does not fit sides.json"),
        ("sides", "hidden", None, "hidden = None must be of type int"),
        ("model", "encoder_layers", "2", "encoder_layers = '2' must be of type int"),
        ("model", "encoder_layers", 10**9, "does not fit model.json"),
        ("model", "vocabulary", 10**12, "does not fit model.json"),
        ("model", "vocabulary", 0, "model.json: no model can have this shape"),
        ("model", "heads", 0, "model.heads 0"),
        ("model", "heads", 5, "model.d_model 32: must be a multiple of 5"),
        ("model", "dropout", "none", "must be of type float"),
        ("model", "dropout", -1, "model.dropout -1.0: must be at least 0"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(name, key, value, message, tmp_path):
    with pytest.raises(PuzlmError, match=message) as caught:
        damaged(name, key, value, tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MODELS)
def test_what_was_saved_comes_back(name, tmp_path):
    back = damaged(name, "version", 1, tmp_path)
    torch.manual_seed(0)
    for one, two in zip(MODELS[name]().parameters(), back.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-3)


def test_a_tokenizer_with_settings_of_another_type_is_refused(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    record = json.loads(path.read_text())
    for key, value in (("pca_dim", "16"), ("granularity", 4.0), ("border", 1)):
        path.write_text(json.dumps({**record, key: value}))
        with pytest.raises(PuzlmError, match=f"{key} = .* must be of type"):
            PieceTokenizer.from_pretrained(tmp_path)


def test_the_side_model_goes_to_its_device(tmp_path, monkeypatch):
    """And what it reads with it; 'meta' is a device that every machine has."""
    MODELS["sides"]().save_pretrained(tmp_path)
    model = load_sides(tmp_path, "torch", "meta")
    monkeypatch.setattr(bigram, "neighbour_scores", lambda vectors, _: vectors.device.type)
    read = []
    model.register_forward_pre_hook(lambda _, given: read.append(given[0].device.type))
    assert model.scores(np.zeros((3, 4, 4, 1), np.int64)) == "meta"
    assert read == ["meta"]
