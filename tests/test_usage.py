"""What people type and meet: the command in this process, told in one line each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from evaluating import write_photos

from puzlm import cli


@pytest.fixture
def run(capfd, monkeypatch):
    """Run the command here; gives exit code, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["puzlm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call


@pytest.fixture
def refused(run):
    """Run the command, which must end with one line on stderr and exit code 2; gives the line."""

    def call(*arguments):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "") and err.count("\n") == 1 and err.startswith("puzlm: "), err
        return err

    return call


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in an empty folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("my_own",):
        sys.modules.pop(name, None)


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
    head = {key: record[key] for key in ("version", "protocol", "solver", "settings", "commit")}
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
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(cli.__file__))}
    process = subprocess.Popen(
        [sys.executable, "-m", "puzlm", *rules],
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
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
