"""The house: which room may ask which, how many modules a room has, and how heavy a file may be."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_MODULES = 16
MOST_BYTES = 1_000_000
# Puzzle.load reads a folder, which makes a Puzzle of repaired pieces.
KNOWN = {"puzlm.puzzle"} | {f"puzlm.pieces.{m}" for m in ("folder", "repair", "colour_bleed")}
PACKAGES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts) for p in ROOT.rglob("puzlm/**/__init__.py")
}

# What each room may import besides the modules at the root of the package and itself.
ASKS = {
    "pieces": set(),
    "tokenizer": set(),
    "models": {"tokenizer"},
    "solving": {"models", "tokenizer", "pieces"},
    "training": {"models", "tokenizer"},
    "harness": {"solving", "models", "tokenizer", "pieces"},
    "study": {"training", "solving", "models", "tokenizer", "pieces"},
    "web": {"solving", "models", "tokenizer", "pieces"},
    "cli": {"web", "study", "harness", "training", "solving", "models", "tokenizer", "pieces"},
}


def modules() -> dict[str, Path]:
    """Modules of the package by dotted name."""
    files = sorted((ROOT / "puzlm").rglob("*.py"))
    return {".".join(f.relative_to(ROOT).with_suffix("").parts): f for f in files}


def imports(path: Path, known: set[str]) -> set[str]:
    """Modules of the package that a file imports, wherever in the file it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found & known


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    files = modules()
    return {name: imports(path, set(files)) - {name} for name, path in files.items()}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (ROOT / "puzlm" / parts[-1]).is_dir() else ""


def test_arrows_between_rooms(graph):
    wrong = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if room(module) and room(other) not in {"", room(module), *ASKS[room(module)]}
    ]
    assert not wrong, wrong


def test_no_module_is_imported_by_nobody(graph):
    """But for packages, and `python -m puzlm` with what it starts."""
    asked = set().union(*graph.values()) | {"puzlm.__main__"}
    for path in [*ROOT.glob("bench/*.py"), *ROOT.glob("tools/*.py")]:
        asked |= imports(path, set(graph))
    alone = [m for m, path in modules().items() if path.stem != "__init__" and m not in asked]
    assert not alone, alone


def test_no_import_cycles_lazy_ones_counted(graph):
    """No module reaches itself through its imports; those of __init__.py name rooms only."""

    def reached(module: str) -> set[str]:
        found: set[str] = set()
        ahead = [module]
        while ahead:
            new = graph[ahead.pop()] - found - PACKAGES
            found |= new
            ahead += new
        return found

    cycles = {module for module in graph if module in reached(module)}
    assert cycles <= KNOWN, cycles


def test_rooms_have_at_most_sixteen_modules():
    for folder in {path.parent for path in modules().values()}:
        count = len([p for p in folder.glob("*.py") if p.stem != "__init__"])
        assert count <= MOST_MODULES, f"{folder}: {count}"


def test_files_are_light():
    """Weights and packed answers may be heavy; nothing else that git keeps."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    heavy = [
        name
        for name in listed.stdout.splitlines()
        if (ROOT / name).is_file()
        and (ROOT / name).stat().st_size > MOST_BYTES
        and not name.endswith(".safetensors")
        and not name.startswith("results/")
    ]
    assert heavy in ([], ["docs/study/rows.jsonl"]), heavy
