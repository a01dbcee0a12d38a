"""The README and the guide tell the truth: their commands run, their numbers are in the files."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from puzlm.puzzle import Puzzle

ROOT = Path(__file__).parents[2]


def blocks(path, kind):
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def run(command, folder):
    words = shlex.split(command, comments=True)
    assert words[0] == "puzlm"
    done = subprocess.run(
        [sys.executable, "-m", "puzlm", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, photo):
    """A folder in which the documents' paths exist."""
    path = tmp_path_factory.mktemp("docs")
    (path / "puzlm").symlink_to(ROOT / "puzlm")
    (path / "recipes").symlink_to(ROOT / "recipes")
    Puzzle.from_image(photo, 3, seed=1).save(path / "PIECES_FOLDER")
    (path / "shuffled.png").write_bytes((path / "PIECES_FOLDER" / "shuffled.png").read_bytes())
    return path


def test_commands_of_the_guide(folder):
    lines = [x for block in blocks("docs/guide.md", "sh") for x in block.splitlines() if x.strip()]
    assert len(lines) > 8
    for line in lines:
        run(line, folder)
    assert (folder / "work" / "own.png").exists()


def test_commands_of_the_readme(folder):
    lines = [x for block in blocks("README.md", "sh") for x in block.splitlines() if x.strip()]
    ours = [x for x in lines if x.startswith("puzlm") and not x.startswith("puzlm web")]
    assert len(ours) == 2 and {"make demo", "make test"} <= {x.split("#")[0].strip() for x in lines}
    for line in ours:
        assert "solved.png" in run(line, folder)


def test_python_of_the_documents(folder):
    for path in ("README.md", "docs/guide.md"):
        (code,) = blocks(path, "python")
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            capture_output=True,
            text=True,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        assert "auto (" in done.stdout


def test_numbers_are_those_of_the_results_files():
    made = importlib.import_module("tools.make_results")
    results = made.load()
    assert len(results) >= 8
    assert made.readme_table() in (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "results.md").read_text()
    for name, text in made.blocks(results).items():
        assert f"<!-- {name} -->\n{text}\n<!-- /{name} -->" in page, f"{name}: run make_results.py"


def test_pictures_of_the_documents_are_there_and_small():
    for path in ("README.md", "docs/results.md"):
        shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / path).read_text())
        assert shown
        for name in shown:
            file = (ROOT / path).parent / name
            assert file.is_file(), f"{path} shows {name}"
            assert file.stat().st_size < 300_000
    strips = list((ROOT / "docs" / "pictures").glob("*.jpg"))
    assert len(strips) >= 19 and all(p.stat().st_size < 100_000 for p in strips)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
