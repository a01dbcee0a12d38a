"""Numbers of two models never end in one results file, and damaged weights give none at all."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from evaluating import PLAIN, crop, write_photos

from puzlm import __version__
from puzlm.errors import SettingsError
from puzlm.harness.evaluate import CHUNK, evaluate
from puzlm.manifest import BOX
from puzlm.model_files import read_weights
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

PARTS = ("tokenizer.json", "tokenizer.safetensors", "sides.json", "sides.safetensors")
SIDES = "sides.safetensors"


@pytest.fixture
def own(here):
    """A model folder of one's own beside a folder of photos: a tokenizer and a side model."""
    (here / "own").mkdir()
    for name in PARTS:
        shutil.copy(BOX / "puzlm-3x3" / name, here / "own")
    (here / "photos").mkdir()
    write_photos(here / "photos", 3)
    return here / "own"


RULES = ["evaluate", "--images", "photos", "--model", "own", "--solver", "bigram", "-o", "r.json"]


def change(path, name, value):
    """Put one value into a tensor of a safetensors file."""
    weights, data = read_weights(path), bytearray(path.read_bytes())
    kind = weights.array(name).dtype
    first = weights.start + weights.entries[name]["data_offsets"][0]
    data[first : first + kind.itemsize] = np.array(value, kind).tobytes()
    path.write_bytes(data)


def interrupted(own):
    """What a killed run leaves: the header and two of three answers."""
    result = json.loads((own.parent / "r.json").read_text())
    known = ("version", "protocol", "solver", "settings", "puzlm", "files", "commit")
    lines = [{key: result[key] for key in known}, *result["outcomes"][:2]]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (own.parent / "r.json.partial.jsonl").write_text(text)
    return text


def test_a_resumed_run_with_other_weights_is_refused(run, refused, own):
    code, _, _ = run(*RULES)
    result = json.loads((own.parent / "r.json").read_text())
    assert code == 0 and result["puzlm"] == __version__
    assert set(result["files"]) == {f"own/{name}" for name in PARTS} | {"calibration.py"}
    assert all(len(digest) == 64 for digest in result["files"].values())
    left = interrupted(own)
    change(own / SIDES, "sharpness", 1.0)
    assert f"was begun with another own/{SIDES}; delete it" in refused(*RULES)
    assert (own.parent / "r.json.partial.jsonl").read_text() == left
    shutil.copy(BOX / "puzlm-3x3" / SIDES, own)
    code, _, err = run(*RULES)
    assert (code, err) == (0, "puzlm: going on from 2 puzzles done before\n")


def test_a_run_begun_by_another_version_is_refused(run, refused, own):
    run(*RULES)
    text = interrupted(own).replace(f'"puzlm": "{__version__}"', '"puzlm": "0.0.9"')
    (own.parent / "r.json.partial.jsonl").write_text(text)
    assert "was begun with another version of puzlm; delete it" in refused(*RULES)


def test_weights_exchanged_in_the_middle_give_no_results(own):
    """Nor do they leave answers that a later run, with the old weights again, would go on from."""
    solver = Solver.from_pretrained("own", solver="bigram")

    def exchange(done):
        if done == CHUNK:
            change(own / SIDES, "sharpness", 1.0)

    puzzles = [(i, Puzzle.from_image(crop(i), 3, seed=i)) for i in range(CHUNK + 1)]
    with pytest.raises(SettingsError, match=f"own/{SIDES}: was changed while it was evaluated"):
        evaluate(solver.solve_many, PLAIN, puzzles, output="r.json", progress=exchange)
    assert [path.name for path in own.parent.iterdir() if path.name.startswith("r.")] == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(refused, own, value):
    change(own / SIDES, "nets.0.0.weight", value)
    line = refused(*RULES)
    assert f"{SIDES}: not a readable safetensors file (nets.0.0.weight holds values" in line


def test_weights_out_of_range_give_no_answer(refused, own, photo):
    change(own / SIDES, "sharpness", 60000.0)
    Puzzle.from_image(photo, 3, seed=1).save(own.parent / "p")
    line = refused("solve", "p", "--model", "own", "--solver", "bigram")
    assert f"{SIDES}: damaged (its sharpness is out of range)" in line


def test_one_flipped_bit_of_a_shipped_folder_is_refused(run, refused, own, photo):
    """Where 2,000 flipped bits gave 1 of 9 pieces right and exit code 0."""
    shutil.copy(BOX / "puzlm-3x3" / "card.json", own)
    shutil.copy(BOX / "puzlm-3x3" / "manifest.json", own)
    Puzzle.from_image(photo, 3, seed=1).save(own.parent / "p")
    solve = ["solve", "p", "--model", "own", "--solver", "bigram"]
    assert run(*solve)[0] == 0
    data = bytearray((own / SIDES).read_bytes())
    data[-1] ^= 1
    (own / SIDES).write_bytes(data)
    assert f"own/{SIDES}: is not the file that manifest.json names" in refused(*solve)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("card.json", '{"temperature": "hot"}', "temperature must be a number above 0"),
        ("card.json", '{"grids": 3}', "grids must be a list"),
        ("card.json", "[" * 100_000, "card.json: damaged (nested too deeply)"),
        ("tokenizer.json", '{"piece_size": 100000000}', "piece_size 100000000: must be from"),
        ("tokenizer.json", '{"piece_size": ' + "9" * 5000 + "}", "a number of 5000 digits"),
        ("tokenizer.json", '{"piece_size": 96}', "tokenizer.safetensors does not fit"),
        ("sides.json", '{"version": 1}', "sides.json: damaged (KeyError"),
    ],
)
def test_settings_of_strangers_are_one_line(refused, own, photo, name, text, words):
    (own / name).write_text(text)
    Puzzle.from_image(photo, 3, seed=1).save(own.parent / "p")
    assert words in refused("solve", "p", "--model", "own", "--solver", "bigram")
