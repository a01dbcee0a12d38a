from __future__ import annotations

import ast
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import puzlm
from puzlm import Puzzle, Solver


def test_public_names():
    assert puzlm.__all__ == [
        "SAMPLES",
        "PieceTokenizer",
        "Puzzle",
        "PuzlmError",
        "Solution",
        "Solver",
    ]
    for name in puzlm.__all__[1:]:
        assert getattr(puzlm, name).__name__ == name
    try:
        puzlm.nothing  # noqa: B018
    except AttributeError as error:
        assert "nothing" in str(error)
    else:
        raise AssertionError("unknown names must raise AttributeError")


def test_public_names_are_listed_before_they_are_used():
    code = "import puzlm; print(set(puzlm.__all__) <= set(dir(puzlm)), '__version__' in dir(puzlm))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "True"]


def test_puzzles_and_solutions_can_be_kept_in_lists_and_sets():
    pieces = np.zeros((4, 8, 8, 3), np.uint8)
    one, two = Puzzle(pieces, (2, 2)), Puzzle(pieces, (2, 2))
    answers = Solver(solver="classic").solve_many([one, two])
    for first, second in ((one, two), answers):
        assert first == first and first != second  # as objects: arrays have no one answer
        assert second in [first, second] and len({first, second, first}) == 2


def test_help_loads_nothing_heavy():
    """`puzlm --help` must answer at once: neither torch nor numpy may be imported for it."""
    code = (
        "import sys; from puzlm.cli.main import app; import typer.main;"
        "typer.main.get_command(app);"
        "heavy = ('torch', 'transformers', 'numpy', 'scipy', 'matplotlib');"
        "print([m for m in heavy if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_below_the_line_nothing_touches_a_pixel():
    """After tokenising: nothing that decoding brings along can read an image.

    Backbones know the tokenizer's class, which knows pictures; they import none themselves.
    """
    code = (
        "import sys, puzlm.models.decoding;"
        "print(sorted(m for m in sys.modules if m.startswith('puzlm.')),"
        "[m for m in ('PIL', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == (
        "['puzlm.errors', 'puzlm.models', 'puzlm.models.decoding', 'puzlm.tokenizer',"
        " 'puzlm.tokenizer.settings'] []"
    )
    for module in ("models/backbones.py", "training/fast/bart.py"):
        tree = ast.parse((Path(puzlm.__file__).parent / module).read_text())
        froms = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        plain = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        assert not (froms | plain) & {
            "PIL",
            "puzlm.images",
            "puzlm.puzzle",
            "puzlm.solving.classic",
        }


def test_shipped_folders_are_self_contained_and_small():
    for folder in (Path(puzlm.__file__).parent / "models").glob("*/"):
        if not (folder / "card.json").exists():
            continue
        names = {p.name for p in folder.iterdir()}
        language = {"model.json", "model.safetensors", "settings.json"}
        reader = {"reader.json", "reader.safetensors", "reader.onnx"}
        sides = {"edges.json", "edges.safetensors", "edges.onnx"}
        words = {"tokenizer.json", "tokenizer.safetensors"}
        assert {"card.json", "README.md", "manifest.json"} <= names
        assert language | words <= names or reader | words <= names or sides <= names
        assert sum(p.stat().st_size for p in folder.iterdir()) < 60_000_000


def test_what_a_notebook_shows(tmp_path):
    puzzle = Puzzle.from_image(puzlm.SAMPLES / "china.jpg", 3, seed=1)
    solver = Solver.from_pretrained()
    solution = solver.solve(puzzle)
    for thing in (puzzle, solver, solution):
        assert len(repr(thing)) < 120 and "\n" not in repr(thing)
    assert "9 of 9 pieces placed" in repr(solution)
    shown = Image.open(io.BytesIO(solution._repr_png_()))
    solution.save(tmp_path / "solved.png")
    for picture in (shown, solution.image, Image.open(tmp_path / "solved.png")):
        assert np.array_equal(np.asarray(picture), solution.array)
