"""Puzzles that others take away: the scorer in the folder and evaluate say the same numbers."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from evaluating import write_photos
from PIL import Image

from puzlm.errors import PuzlmError
from puzlm.harness.benchmark import FORMS, export, score
from puzlm.harness.evaluate import evaluate
from puzlm.harness.protocols import PROTOCOLS, read_data
from puzlm.solver import load_solver

NAMES = ("imagenet-3x3-missing-2", "jpwleg-3-fixed-centre", "classic-mcgill-540-type2")


def table(folder, cache):
    """The rows of a benchmark as the real library `datasets` loads them from disk."""
    code = (
        "import sys, pickle, datasets; "
        "rows = datasets.load_dataset(sys.argv[1], split='test', cache_dir=sys.argv[2]); "
        "pickle.dump(list(rows), open(sys.argv[3], 'wb'))"
    )
    told = cache.with_suffix(".pickle")
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)}
    command = [sys.executable, "-c", code, folder, cache, told]
    subprocess.run(command, check=True, env=offline, capture_output=True)
    return pickle.loads(told.read_bytes())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES[:2])
def test_there_and_back(name, form, tmp_path):
    """Solve the files alone, as a stranger would, and score with both scorers."""
    photos = tmp_path / "photos"
    photos.mkdir()
    data = write_photos(photos, 4)
    rules = PROTOCOLS[name]
    folder = tmp_path / "benchmark"
    assert export(rules, read_data(data, rules), folder, form) == 4
    solve = load_solver("classic")
    want = evaluate(solve, rules, data)
    answers = {}
    if form == "parquet":
        rows = table(folder, tmp_path / "cache")
    for puzzle, (_, asked) in zip(
        json.loads((folder / "puzzles.json").read_text())["puzzles"],
        read_data(data, rules),
        strict=True,
    ):
        index = puzzle["index"]
        if form == "npz":
            pieces = np.load(folder / "pieces.npz")[f"{index:05d}"]
        elif form == "parquet":
            row = rows[index]
            assert row["index"] == index and row["grid"] == [3, 3] and row["turns"] == []
            assert row["truth"] == asked.truth.tolist()
            given = asked.settings.get("given") or {}
            assert {p: c for p, c in enumerate(row["given"]) if c >= 0} == given
            pieces = np.stack([np.asarray(piece) for piece in row["pieces"]])
        else:
            files = sorted((folder / "pieces" / f"{index:05d}").iterdir())
            pieces = np.stack([np.asarray(Image.open(file)) for file in files])
        assert np.array_equal(pieces, asked.pieces)
        answers[str(index)] = want["outcomes"][index]["positions"]
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(answers))
    found = score(path, folder)
    for measure, interval in found.items():
        assert interval.as_dict() == want[measure]
    bare = [sys.executable, "-I", folder / "score.py", path]
    told = subprocess.run(bare, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [f"{name:10} {interval}" for name, interval in found.items()]


@pytest.fixture
def taken(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    rules = PROTOCOLS["imagenet-3x3"]
    export(rules, read_data(write_photos(photos, 2), rules), tmp_path / "b")
    (tmp_path / "a.json").write_text(json.dumps({"0": [*range(9)], "1": [*range(9)]}))
    return tmp_path


def test_a_changed_piece_is_found(taken):
    Image.new("RGB", (9, 9)).save(taken / "b" / "pieces" / "00001" / "3.png")
    with pytest.raises(PuzlmError, match="00001/3.png: was changed"):
        score(taken / "a.json", taken / "b")


def test_a_changed_table_is_found(taken):
    rules = PROTOCOLS["imagenet-3x3"]
    export(rules, read_data(taken / "photos", rules), taken / "t", "parquet")
    assert score(taken / "a.json", taken / "t")["absolute"].value < 100
    with next((taken / "t" / "data").iterdir()).open("ab") as file:
        file.write(b"0")
    with pytest.raises(PuzlmError, match="parquet: was changed"):
        score(taken / "a.json", taken / "t")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"0": [*range(9)]}, "puzzle 1: has no answer"),
        ({"0": [0] * 9, "1": [*range(9)]}, "puzzle 0: 9 different cells"),
        ({"0": [*range(1, 10)], "1": [*range(9)]}, "puzzle 0: cells run from 0 to 8"),
        ({"0": "no", "1": None}, "puzzle 0: 9 different cells"),
        ([], "no names and values"),
    ],
)
def test_answers_that_are_no_arrangement_are_refused(taken, answers, message):
    (taken / "a.json").write_text(json.dumps(answers))
    with pytest.raises(PuzlmError, match=message):
        score(taken / "a.json", taken / "b")


def test_commands(taken, run, refused):
    more = ("imagenet-3x3", "--data", taken / "photos")
    code, out, _ = run("export-benchmark", *more, "-o", taken / "c", "--npz")
    assert code == 0 and "2 puzzles" in out
    assert run("score", taken / "a.json", taken / "c")[1].startswith("absolute")
    assert "exists already" in refused("export-benchmark", *more, "-o", taken / "c")
    assert "no such folder" in refused("export-benchmark", *more, "-o", taken / "no" / "c")
    assert not [path for path in taken.iterdir() if path.name.startswith(".")]
