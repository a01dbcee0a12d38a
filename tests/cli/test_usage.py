"""What people type and meet: the command in this process, told in one line each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from evaluating import write_photos

import puzlm
from puzlm.cli import main as cli
from puzlm.devices import pick_device
from puzlm.errors import PuzlmError
from puzlm.images import write_image
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

# ---- evaluate ---------------------------------------------------------------------------------


def test_a_solver_that_fails_is_told(run, here):
    (here / "photos").mkdir()
    write_photos(here / "photos", 6)
    (here / "my_own.py").write_text("def solve(pieces, grid):\n    raise RuntimeError('no idea')\n")
    code, out, err = run("evaluate", "--images", "photos", "--solver", "my_own:solve")
    assert code == 0 and "6 puzzles" in out and "; 6 failed" in out
    assert err == "puzlm: 6 of 6 puzzles failed; the first: RuntimeError: no idea\n"


def test_cells_taken_twice_and_another_scale_are_told(run, here):
    (here / "photos").mkdir()
    write_photos(here / "photos", 2)
    (here / "my_own.py").write_text("def solve(pieces, grid):\n    return [0] * len(pieces)\n")
    rules = ["--protocol", "imagenet-3x3", "--data", "photos", "--solver", "my_own:solve"]
    code, out, err = run("evaluate", *rules)
    assert (code, err) == (0, "") and "; 2 with a cell twice; geometry x 0.333\n" in out


def test_a_changed_solver_does_not_go_on_with_old_answers(run, refused, here):
    (here / "photos").mkdir()
    write_photos(here / "photos", 3)
    own = here / "my_own.py"
    rules = ["evaluate", "--images", "photos", "--solver", "my_own:solve", "-o", "r.json"]
    partial = here / "r.json.partial.jsonl"
    own.write_text("def solve(pieces, grid):\n    raise KeyboardInterrupt\n")
    code, _, err = run(*rules)
    assert code == 130
    assert err == "puzlm: r.json: the same command goes on where it stopped\npuzlm: stopped\n"
    kept = partial.read_text()
    sys.modules.pop("my_own")
    own.write_text("def solve(pieces, grid):\n    return range(9)\n")
    assert "another version of the solver's source file; delete it" in refused(*rules)
    assert partial.read_text() == kept
    partial.unlink()
    code, _, err = run(*rules)
    assert (code, err) == (0, "")
    record = json.loads((here / "r.json").read_text())
    known = ("version", "protocol", "solver", "settings", "puzlm", "files", "commit")
    head = {key: record[key] for key in known}
    lines = [head, *record["outcomes"][:2]]
    partial.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, _, err = run(*rules)
    assert (code, err) == (0, "puzlm: going on from 2 puzzles done before\n")


def test_ctrl_c_says_that_it_stopped(tmp_path):
    """A real signal to a real process, which is solving by then."""
    (tmp_path / "photos").mkdir()
    write_photos(tmp_path / "photos", 1)
    (tmp_path / "slow.py").write_text(
        "import time\n\ndef solve(pieces, grid):\n    open('begun', 'w').close()\n"
        "    time.sleep(60)\n"
    )
    rules = ["evaluate", "--images", "photos", "--solver", "slow:solve"]
    env = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-m", "puzlm", *rules],
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        # Who runs the tests in the background may have the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "puzlm: stopped\n" and process.returncode == 130


# ---- web --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "vision"], "there is none in it (tokenizer.json)"),
        (["--model", "none"], "model 'none'"),
        (["--port", "99999"], "--port 99999: must be from 0"),
        (["--port", "-1"], "--port -1: must be from 0"),
        (["--port", "{taken}"], "cannot listen there (Address already in use)"),
        (["--host", "no.such.host.invalid"], "no address of this machine"),
    ],
)
def test_web_says_what_is_wrong_before_any_address(refused, options, message):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert message in refused("web", *[o.format(taken=taken) for o in options])


def test_web_tells_the_address_that_it_took(run, monkeypatch):
    import uvicorn

    def ask(server, sockets):
        assert sockets[0].getsockname()[1] > 0

    monkeypatch.setattr(uvicorn.Server, "run", ask)
    code, out, err = run("web", "--port", "0")
    assert (code, err) == (0, "") and out.startswith("http://127.0.0.1:") and ":0 " not in out


# ---- numbers, files and disks -------------------------------------------------------------------

SAMPLE = str(Path(cli.__file__).parents[1] / "samples" / "china.jpg")
LONG = "x" * 256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make", SAMPLE, "-o", "out", "--seed", "-1"], "--seed"),
        (["make", SAMPLE, "-o", "out", "--erode", "nan"], "gap nan: must be 0 or more"),
        (["make", SAMPLE, "-o", "out", "--erode", "inf"], "gap inf: must be 0 or more"),
        (["make", SAMPLE, "-o", "out", "--grid", "99999999999x99999999999999"], "too small"),
        (["make", SAMPLE, "-o", "out", "--grid", "9" * 5000], "give one number"),
        (["make", SAMPLE, "-o", LONG], "File name too long"),
        (["make", f"{LONG}.png", "-o", "out"], "File name too long"),
        (["evaluate", "--images", SAMPLE, "--seed", "-1", "-o", "r.json"], "--seed"),
        (["evaluate", "--images", SAMPLE, "--limit", "-3", "-o", "r.json"], "--limit"),
        (["evaluate", "--images", SAMPLE, "--erode", "nan", "-o", "r.json"], "gap nan"),
        (["tokenize", SAMPLE, "--tokenizer", "puzlm-3x3", "-o", "t.npy", "--limit", "-2"], "limit"),
        (["solve", LONG], "File name too long"),
        (["solve", "sheet.png", "--grid", "2", "--solver", "random", "-o", f"{LONG}.png"], "long"),
        (["solve", "endless"], "damaged (OverflowError"),
        (["solve", "deep"], "damaged (nested too deeply)"),
        (["solve", "untrue"], "untrue/puzzle.json"),
        (["compare", "results.json"], "results.json: a damaged results file (TypeError"),
    ],
)
def test_what_cannot_be_is_one_line(refused, here, arguments, message):
    write_image(here / "sheet.png", np.zeros((20, 20, 3), np.uint8))
    for name, text in (
        ("endless", '{"pieces": ["a.png"], "grid": [1e400, 3]}'),
        ("deep", '{"pieces": ["a.png"], "grid": [1, 2], "truth": ' + "[" * 100_000),
        ("untrue", f'{{"pieces": ["a.png"], "grid": [1, 2], "truth": [{10**30}]}}'),
    ):
        write_image(here / name / "a.png", np.zeros((9, 9, 3), np.uint8))
        (here / name / "puzzle.json").write_text(text)
    found = {"version": 1, "protocol": {"name": "p"}, "solver": "s", "data": {}, "puzzles": 1}
    found |= {"outcomes": [], "absolute": 5, "perfect": 5, "neighbour": 5}
    (here / "results.json").write_text(json.dumps(found))
    before = sorted(here.rglob("*"))
    assert message in refused(*arguments)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("path", ["p", "p/piece_0.png", "p/shuffled.png"])
def test_what_may_not_be_read_is_one_line(refused, here, monkeypatch, photo, path):
    """Tests may run as root, who may read all: the system's refusal is put in its place."""
    Puzzle.from_image(photo, 2, seed=1).save(here / "p")
    hidden = here / (path if path != "p" else "p/puzzle.json")
    opened = os.open

    def refusing(name, *arguments, **more):
        if Path(name).absolute() == hidden:
            raise PermissionError(13, "Permission denied", str(name))
        return opened(name, *arguments, **more)

    monkeypatch.setattr(os, "open", refusing)
    asked = "p" if "shuffled" not in path else path
    line = refused("solve", asked, "--grid", "2")
    assert line == f"puzlm: {hidden.relative_to(here)}: cannot be read (Permission denied)\n"


def test_a_folder_that_may_not_be_entered(refused, here, monkeypatch):
    def exists(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", exists)
    assert refused("solve", "locked/a.png") == "puzlm: locked/a.png: Permission denied\n"


@pytest.mark.parametrize("arguments", [["models"], ["--help"]])
def test_a_full_disk_behind_stdout(arguments):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "puzlm", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "puzlm: cannot go on: No space left on device\n"


# ---- help and documents -------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", [[], ["solve"]])
def test_help_is_short_for_h(run, option, command):
    code, out, err = run(*command, option)
    assert (code, err) == (0, "") and out.startswith("Usage: ")


def test_the_version(run):
    assert run("--version") == (0, f"puzlm {puzlm.__version__}\n", "")


def test_limit_says_which_images(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert "evenly spaced ones of --data" in run("evaluate", "--help")[1]


@pytest.mark.parametrize("name", ["tiny", "vision"])
def test_a_recipe_without_its_images_says_whose_they_are(refused, here, name):
    recipe = Path(cli.__file__).parents[2] / "recipes" / f"{name}.toml"
    line = refused("train", recipe, "-o", "run", "--set", 'data.train=["images"]')
    assert "data.train of the recipe: images: no such file or folder; name your images" in line
    assert not (here / "run").exists()
    (here / "images").mkdir()
    line = refused(
        "train", recipe, "-o", "run", "--set", 'data.train=["images"]', "--set", 'data.val=["exam"]'
    )
    assert "data.val of the recipe: exam: no such file" in line


def test_the_documented_comparison_names_its_rows(here, capsys):
    (here / "val").mkdir()
    write_photos(here / "val", 2)
    page = (Path(cli.__file__).parents[2] / "docs" / "protocols.md").read_text()
    code = page.split("with confidences and batches:")[1].split("\n## ")[0]
    exec(dedent(code.replace('"random.json", "mine.json"', '"random.json"')), {})
    assert "| random | measured | 2 |" in capsys.readouterr().out


# ---- from Python --------------------------------------------------------------------------------


def test_python_gets_clear_errors(photo):
    pieces = Puzzle.from_image(photo, [3, 3], seed=1)
    assert pieces.grid == (3, 3) and Puzzle(pieces.pieces, [3, 3]).grid == (3, 3)
    solver = Solver(solver="random")
    assert solver.solve(list(pieces.pieces), grid=[3, 3]).grid == (3, 3)
    for call, message in (
        (lambda: solver.solve([]), "no pieces"),
        (lambda: Puzzle(pieces.pieces, (0, 3)), "grid 0x3"),
        (lambda: Puzzle(pieces.pieces, (3, 3, 3)), "two whole numbers"),
        (lambda: Puzzle.from_image(photo, (1.5, 2)), "two whole numbers"),
        (lambda: Puzzle.from_image(photo, 3, seed=-1), "seed -1: must be 0 or more"),
    ):
        with pytest.raises(PuzlmError, match=message):
            call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", ["cuda", "cuda:7", "gpu", "cuda:x"])
def test_a_device_that_is_not_there(refused, here, name):
    with pytest.raises(PuzlmError, match=f"device {name}: "):
        Solver.from_pretrained(device=name)
    options = ["fit-tokenizer", SAMPLE, "-o", "out", "--device", name]
    assert f"device {name}: " in refused(*options)
    with pytest.raises(PuzlmError, match=f"train.device {name}: "):
        pick_device(name)
