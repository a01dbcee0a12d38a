"""Locks between processes: held once, waited for, and gone with their holder."""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import contextmanager

import pytest

from puzlm.errors import SettingsError
from puzlm.study.file_locks import Turns

pytest.importorskip("fcntl")  # Windows has none

ASK = """
import sys, time
from pathlib import Path
from puzlm.study.file_locks import Turns
turns = Turns(Path(sys.argv[1]), 2)
print("asks", flush=True)
with getattr(turns, sys.argv[2])(*sys.argv[3:]):
    print("holds", flush=True)
    time.sleep(60)
"""


@contextmanager
def another(folder, *what):
    """Another process that asks for a lock, and would keep it."""
    command = [sys.executable, "-c", ASK, str(folder), *what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        try:
            assert process.stdout.readline() == "asks\n"
            yield process
        finally:
            process.kill()


def holds(process):
    """Wait until the other process has its lock."""
    return process.stdout.readline() == "holds\n"


def waits(process):
    """Whether it has no lock a second after it asked."""
    return not select.select([process.stdout], [], [], 1)[0]


def test_a_row_is_claimed_once_and_free_again_when_its_process_dies(tmp_path):
    turns = Turns(tmp_path)
    with another(tmp_path, "claiming", "row a/b") as other:
        assert holds(other)
        with turns.claiming("row a/b") as mine, turns.claiming("row c") as free:
            assert not mine and free
    with turns.claiming("row a/b") as mine:
        assert mine


def test_what_another_process_makes_is_waited_for(tmp_path):
    asked = (tmp_path, "waiting", "library")
    with another(*asked) as first:
        assert holds(first)
        with another(*asked) as second:
            assert waits(second)
            first.kill()
            assert holds(second)


def test_as_many_as_there_are_places_are_on_the_device(tmp_path):
    """Two places, three processes: the third comes in when one has gone."""
    asked = (tmp_path, "on_device")
    with another(*asked) as one, another(*asked) as two:
        assert holds(one) and holds(two)
        with another(*asked) as third:
            assert waits(third)
            one.kill()
            assert holds(third) and two.poll() is None


def test_one_process_needs_no_locks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    turns = Turns()
    with turns.waiting("a"), turns.on_device(), turns.claiming("b") as mine:
        assert mine
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "out").write_text("")
    with (
        pytest.raises(SettingsError, match="cannot be written"),
        Turns(tmp_path / "out").waiting("a"),
    ):
        pass
