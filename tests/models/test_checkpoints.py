"""Models by name and by folder."""

from __future__ import annotations

import json

import pytest

from puzlm.errors import ModelError
from puzlm.models import pretrained as checkpoints


def test_a_name_means_the_box_and_all_else_a_folder(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert checkpoints.find() == checkpoints.find("puzlm-3x3") == checkpoints.BOX / "puzlm-3x3"
    for folder in (".", "..", "mine"):
        assert checkpoints.find(folder).resolve() == (tmp_path / folder).resolve()
    with pytest.raises(ModelError, match="neither a folder nor a model in the box"):
        checkpoints.find("none")


@pytest.mark.parametrize(
    ("grid", "name"), [("3", "3x3"), (4, "4x4"), ("3X3", "3x3"), ("3 x 5", "3x5")]
)
def test_a_run_without_a_card_knows_its_grid(grid, name, tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"cut": {"grid": grid}}))
    assert checkpoints.card(tmp_path) == {"name": tmp_path.name, "grids": [name]}


def test_a_copy_of_a_shipped_model_is_shipped(tmp_path):
    """Its confidences were raw after `puzlm export`, without a word."""
    for name, text in (
        ("copy", (checkpoints.BOX / "puzlm-3x3" / "card.json").read_text()),
        ("run", "{}"),
    ):
        (tmp_path / name / "puzlm-3x3").mkdir(parents=True)
        (tmp_path / name / "puzlm-3x3" / "card.json").write_text(text)
    assert checkpoints.shipped(tmp_path / "copy" / "puzlm-3x3")
    assert not checkpoints.shipped(tmp_path / "run" / "puzlm-3x3")
