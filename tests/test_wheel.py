"""The package as people get it: a wheel beside the packages it names, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: object, **how: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Python of a fresh environment that holds the wheel and what it names."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: building leaves a folder beside the code
    shutil.copytree(ROOT / "puzlm", source / "puzlm")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "env")
    there = folder / "env" / "bin" / "python"
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    run(there, "-m", "pip", "install", "-q", "--disable-pip-version-check", *named)
    run(there, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", wheel)
    return there


def test_a_fresh_environment_without_torch_solves(python, tmp_path):
    """Touching, worn, 5x5 worn, turned, with a piece missing; every model of the box is asked."""
    puzlm = [python, "-m", "puzlm"]
    sample = ROOT / "puzlm" / "samples" / "china.jpg"
    cuts = {
        "touching": ["--grid", "4"],
        "worn": ["--grid", "3", "--erode", "0.3"],
        "worn5": ["--grid", "5", "--erode", "0.15"],
        "missing": ["--grid", "3", "--missing", "1"],
    }
    for name, cut in cuts.items():
        run(*puzlm, "make", sample, *cut, "--seed", "7", "-o", tmp_path / name, cwd=tmp_path)
        solve = [*puzlm, "solve", tmp_path / name, "--incomplete", "--json"]
        answer = json.loads(run(*solve, cwd=tmp_path))
        truth = json.loads((tmp_path / name / "puzzle.json").read_text())["truth"]
        right = sum(a == b for a, b in zip(answer["positions"], truth, strict=True))
        assert right >= len(truth) - 2, (name, answer)
    for solver in ("symbols", "seq2seq", "vision-pairs", "bigram", "classic"):
        run(*puzlm, "solve", tmp_path / "worn", "--solver", solver, cwd=tmp_path)


def test_commands_that_need_more_say_what_to_install(python, tmp_path):
    sample = ROOT / "puzlm" / "samples"
    for command, extra in (
        (["fit-tokenizer", sample, "-o", "t"], "train"),
        (["web", "--port", "1"], "web"),
    ):
        done = subprocess.run(
            [python, "-m", "puzlm", *command], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert f"pip install 'puzlm[{extra}]'" in done.stderr
        assert not list(tmp_path.iterdir())
