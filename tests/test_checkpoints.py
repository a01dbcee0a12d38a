"""Models by name and by folder."""

from __future__ import annotations

import pytest

from puzlm import checkpoints
from puzlm.errors import ModelError


def test_a_name_means_the_box_and_all_else_a_folder(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert checkpoints.find() == checkpoints.find("puzlm-3x3") == checkpoints.BOX / "puzlm-3x3"
    for folder in (".", "..", "mine"):
        assert checkpoints.find(folder).resolve() == (tmp_path / folder).resolve()
    with pytest.raises(ModelError, match="neither a folder nor a model in the box"):
        checkpoints.find("none")
