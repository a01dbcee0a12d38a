"""The command as a person runs it: real processes, real files."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from puzlm.images import read_image, write_image

SAMPLE = "puzlm/samples/china.jpg"


def puzlm(*arguments, code=0):
    command = [sys.executable, "-m", "puzlm", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def test_make_then_solve(tmp_path):
    puzlm(
        "make",
        SAMPLE,
        "--grid",
        3,
        "--erode",
        0.1,
        "--missing",
        1,
        "--seed",
        4,
        "-o",
        tmp_path / "p",
    )
    names = sorted(p.name for p in (tmp_path / "p").iterdir())
    assert names == [f"piece_{i}.png" for i in range(8)] + ["puzzle.json", "shuffled.png"]
    out = puzlm("solve", tmp_path / "p", "-o", tmp_path / "s.png", "--json")
    answer = json.loads(out.stdout)
    truth = json.loads((tmp_path / "p" / "puzzle.json").read_text())["truth"]
    assert answer["positions"] == truth
    assert len(answer["confidences"]) == 8 and answer["solver"].startswith("auto")
    height, width = read_image(tmp_path / "p" / "piece_0.png").shape[:2]
    assert read_image(tmp_path / "s.png").shape == (3 * height, 3 * width, 3)
    spoken = puzlm("solve", tmp_path / "p", "-o", tmp_path / "s.png", "--decode", "beam").stdout
    assert "seq2seq (beam, puzlm-3x3)" in spoken and str(tmp_path / "s.png") in spoken
    puzlm("solve", tmp_path / "p", "-o", tmp_path / "s.png", "--gif", tmp_path / "s.gif")
    with Image.open(tmp_path / "s.gif") as movie:
        assert movie.n_frames > 9 and movie.size[0] * movie.size[1] < 200_000


def test_solve_a_shuffled_picture_of_another_grid(tmp_path):
    puzlm("make", SAMPLE, "--grid", "3x4", "-o", tmp_path / "p", "--json")
    out = puzlm(
        "solve",
        tmp_path / "p" / "shuffled.png",
        "--grid",
        "3x4",
        "-o",
        tmp_path / "s.png",
        "--json",
    )
    truth = json.loads((tmp_path / "p" / "puzzle.json").read_text())["truth"]
    assert json.loads(out.stdout)["positions"] == truth


def test_tokenizer_tokens_training_evaluation(tmp_path, crops):
    """Fit, tokenise, train for a few steps, evaluate the result: every step as a command."""
    for i, crop in enumerate(crops[:24]):
        write_image(tmp_path / "images" / f"{i:02d}.png", crop)
    puzlm(
        "fit-tokenizer",
        tmp_path / "images",
        "-o",
        tmp_path / "tok",
        "--set",
        "vocab_size=32",
        "--set",
        "pca_dim=8",
        "--set",
        "piece_size=32",
        "--grid",
        2,
    )
    out = puzlm(
        "tokenize",
        tmp_path / "images",
        "--tokenizer",
        tmp_path / "tok",
        "-o",
        tmp_path / "t.npy",
        "--grid",
        2,
        "--json",
    )
    assert json.loads(out.stdout)["puzzles"] == 24
    assert np.load(tmp_path / "t.npy").shape == (24, 4, 12, 1)
    (tmp_path / "r.toml").write_text(
        f"tokenizer_path = '{tmp_path / 'tok'}'\n[data]\ntokens = '{tmp_path / 't.npy'}'\n"
        "[cut]\ngrid = 2\n[model]\nsize = 'tiny'\n[train]\nsteps = 3\nbatch = 8\nlog_every = 1\n"
    )
    out = puzlm(
        "train", tmp_path / "r.toml", "-o", tmp_path / "m", "--set", "train.steps=4", "--json"
    )
    assert json.loads(out.stdout)["step"] == 4
    out = puzlm(
        "evaluate",
        "--model",
        tmp_path / "m",
        "--images",
        tmp_path / "images",
        "--grid",
        2,
        "--erode",
        0.1,
        "--missing",
        1,
        "--limit",
        6,
        "--json",
    )
    found = json.loads(out.stdout)
    assert found["puzzles"] == 6
    for name in ("absolute", "perfect", "neighbour"):
        assert 0 <= found[name]["low"] <= found[name]["value"] <= found[name]["high"] <= 100
    out = puzlm("evaluate", "--solver", "classic", "--images", SAMPLE, "--json")
    assert json.loads(out.stdout)["perfect"]["value"] == 100


def test_models_are_listed():
    cards = json.loads(puzlm("models", "--json").stdout)
    assert [card["name"] for card in cards] == ["puzlm", "puzlm-3x3", "vision"]
    assert cards[1]["grids"] == ["3x3"]


def bad_files(folder):
    """One folder of everything that people get wrong."""
    (folder / "text.png").write_text("hello")
    whole = folder / "whole.png"
    Image.open(SAMPLE).crop((0, 0, 200, 200)).save(whole)
    (folder / "cut.png").write_bytes(whole.read_bytes()[:2000])
    Image.new("RGB", (1, 1)).save(folder / "pixel.png")
    (folder / "large.ppm").write_bytes(b"P5 9600 9600 255\n")  # refused by its head alone
    pieces = folder / "pieces"
    pieces.mkdir()
    for i in range(9):
        Image.new("RGB", (20, 20 + 5 * (i == 4))).save(pieces / f"{i}.png")
    return folder


CASES = {
    "missing file": (["solve", "{d}/none"], "no such file"),
    "not an image": (["make", "{d}/text.png", "-o", "{d}/out"], "not an image"),
    "truncated": (["make", "{d}/cut.png", "-o", "{d}/out"], "damaged or cut short"),
    "one pixel": (["make", "{d}/pixel.png", "-o", "{d}/out"], "too small"),
    "too large": (["make", "{d}/large.ppm", "-o", "{d}/out"], "more than the"),
    "sizes differ": (["solve", "{d}/pieces"], "differ in size"),
    "no seams": (["solve", "{d}/whole.png"], "no seams found"),
    "bad grid": (["solve", "{d}/whole.png", "--grid", "three"], "grid 'three'"),
    "no model": (["solve", "{d}/whole.png", "--grid", "3", "--model", "none"], "model 'none'"),
    "too many pieces": (
        ["solve", "{d}/whole.png", "--grid", "20", "--decode", "valid"],
        "trained for 3x3, up to 100 pieces",
    ),
    "unwritable": (
        ["solve", "{d}/whole.png", "--grid", "3", "--solver", "classic", "-o", "/proc/none/x.png"],
        "cannot be written",
    ),
    "odd suffix": (
        ["solve", "{d}/whole.png", "--grid", "3", "--solver", "classic", "-o", "{d}/x.doc"],
        "unknown picture type",
    ),
    "bad given": (["solve", "{d}/whole.png", "--grid", "3", "--given", "a=b"], "PIECE=CELL"),
    "bad solver": (
        ["solve", "{d}/whole.png", "--grid", "3", "--solver", "atuo"],
        "did you mean 'auto'",
    ),
    "no recipe": (["train", "{d}/none.toml"], "no such recipe"),
    "no images": (["evaluate", "--images", "{d}/none"], "no such file"),
    "no protocol": (["evaluate", "--protocol", "imagenet", "--data", "{d}"], "imagenet"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_and_exit_code_2(case, tmp_path):
    arguments, message = CASES[case]
    folder = bad_files(tmp_path)
    before = sorted(str(p) for p in folder.rglob("*"))
    done = puzlm(*[a.format(d=folder) for a in arguments], code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("puzlm: ")
    assert sorted(str(p) for p in folder.rglob("*")) == before  # nothing half-written


def test_full_disk_leaves_nothing(tmp_path):
    """No file may grow beyond 20 kB, as on a full disk: one line, exit 2, no half picture."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        "sys.argv = ['puzlm', 'solve', 'puzlm/samples/flower.jpg', '--grid', '3', '--solver',"
        f"'classic', '-o', '{tmp_path}/s.png']; from puzlm.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "cannot be written (File too large)" in done.stderr
    assert not list(tmp_path.iterdir())
