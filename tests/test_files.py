"""Files of strangers and files of killed runs: a value or one line, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puzlm import files
from puzlm.errors import PuzlmError
from puzlm.files import MARK, YOUNG, parse_json, parse_toml, read_bytes, read_lines, write_bytes

DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * DEEP, "nested too deeply"),
        ('{"a":' * DEEP, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "a number of 5000 digits"),
        ('{"a": 9223372036854775808}', "more than 64 bits"),
        ('{"a": ', "damaged"),
        (b"\xff\xfe{", "damaged"),
    ],
)
def test_json_of_strangers(text, words):
    with pytest.raises(PuzlmError, match=words) as caught:
        parse_json(text, "x.json")
    assert str(caught.value).startswith("x.json: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * DEEP, "nested too deeply"),
        ("a = " + "9" * 5000, "not a readable TOML file"),
        ("a = [[1, 99999999999999999999]]", "more than 64 bits"),
        ("a = ", "not a readable TOML file"),
    ],
)
def test_toml_of_strangers(text, words):
    with pytest.raises(PuzlmError, match=words) as caught:
        parse_toml(text, "x.toml")
    assert str(caught.value).startswith("x.toml: ") and "\n" not in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_json_of_ours_comes_back(value):
    assert parse_json(json.dumps(value), "x") == value


@pytest.mark.parametrize("words", ["solve", "make"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_device_is_no_picture(refused, here, words, kind):
    """Opening a pipe that nobody writes into would wait for ever."""
    os.mkfifo(here / "pipe")
    path = "pipe" if kind == "pipe" else "/dev/zero"
    assert "is no plain file but a pipe or device" in refused(words, path, "--grid", "2", "-o", "o")
    with pytest.raises(PuzlmError, match="no plain file"):
        read_bytes(path)


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    (tmp_path / "log").write_text('{"step": 1}\n[2]\n{"step": 3}\n{"ste')
    assert read_lines(tmp_path / "log") == [{"step": 1}, {"step": 3}]


KILLED = """
import os, signal, sys
from pathlib import Path
from puzlm.files import temporary
with temporary(Path(sys.argv[1]) / "a.json") as one:
    with temporary(Path(sys.argv[1]) / "puzzle", folder=True) as two:
        one.write_text("half")
        (two / "piece.png").write_text("half")
        print("ready", flush=True)
        if sys.argv[2] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stdin.read()
"""


def grown_old(folder):
    """The temporary files of a folder, as old as those of a run killed an hour ago."""
    parts = sorted(folder.glob(f".*{MARK}"))
    for part in parts:
        os.utime(part, (time.time() - 60 * YOUNG,) * 2)
    return parts


def test_the_next_run_sweeps_what_a_killed_one_left(tmp_path, monkeypatch):
    """But not what a run that still lives is writing."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    alive = subprocess.Popen(
        [*command, "live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert alive.stdout.readline() == "ready\n"
    of_the_living = grown_old(tmp_path)
    done = subprocess.run([*command, "die"], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(of_the_living) == 2 and len(grown_old(tmp_path)) == 4
    write_bytes(tmp_path / "b.json", b"{}")
    assert sorted(tmp_path.glob(f".*{MARK}")) == of_the_living
    alive.communicate("")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.json"]


def test_a_young_file_is_not_swept(tmp_path, monkeypatch):
    """It may belong to a process that has not locked it yet."""
    young = tmp_path / f".a.123{MARK}"
    young.write_text("")
    write_bytes(tmp_path / "b.json", b"{}")
    assert young.exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    code = """
import resource, sys
from pathlib import Path
from puzlm.errors import PuzlmError
from puzlm.files import write_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_bytes(Path(sys.argv[1]) / "x.json", bytes(5000))
except PuzlmError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{tmp_path / 'x.json'}: cannot be written (File too large)\n"
    assert list(tmp_path.iterdir()) == []


def test_all_json_of_the_package_is_read_here():
    """One place for it: a `json.loads` elsewhere would meet what this one refuses."""
    root = Path(files.__file__).parent
    readers = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in ("json.load(", "tomllib.load"))
        or "json.loads(" in path.read_text().replace("json.loads(json.dumps(", "")
    ]
    # metrics.py is also the scorer that people get without the rest of the package.
    assert set(readers) - {"files.py"} <= {"web/intake.py", "web/archive.py", "metrics.py"}
