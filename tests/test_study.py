"""The study's page says what the committed files say, and says what is missing."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("make_study", ROOT / "docs" / "make_study.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_is_that_of_the_files(study):
    page = (ROOT / "docs" / "study.md").read_text()
    assert page == study.render(), "run python docs/make_study.py"
    for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page):
        assert (ROOT / "docs" / name).stat().st_size < 400_000


def test_measured_numbers_are_not_written_by_hand(study):
    """Decimals in the words are filled in; the exceptions are settings, not results."""
    words = (ROOT / "docs" / "study.template.md").read_text().split("## 3. Again")[0]
    found = set(re.findall(r"\d+\.\d+", words)) - {"5.2", "0.5"}
    assert not found, f"measured? {found}"


def line(name, seed, value, status="done", **more):
    score = {"value": value, "low": value - 2, "high": value + 2}
    right = [9] * value + [0] * (100 - value)
    ways = {"valid": {"absolute": score, "perfect": score, "puzzles": 10, "ms": 1.0,
                      "right": right}}  # fmt: skip
    return {
        "name": name, "seed": seed, "status": status, "device": "CPU", "error": "out of luck",
        "settings": {"seconds": 9, "recipe": {"tokenizer": {"vocab_size": 4096},
                                              "cut": {"grid": "3"}}},
        "results": {"photos-3x3": ways, "art-3x3": ways}, "steps": 7, "puzzles_seen": 70,
        "tokenise_ms": 0.5, "parameters": 5_000_000, "tokens_per_puzzle": 116,
        "tokenizer_parameters": 100, "fit_seconds": 1.0, "group": "levers", "x": None,
        "curve": [[250, 2.1, 0.2, 3.9], [500, 1.9, 0.4, 3.1]], **more,
    }  # fmt: skip


def test_rows_missing_failed_and_done_are_told_apart(study):
    plan = study.load()[2]
    lines = [line("base", 0, 50), line("base", 1, 54), line("granularity-3", 0, 80),
             line("granularity-6", 0, 30), line("no-order", 0, 20), line("raster", 0, 51),
             line("no-border", 0, 0, "failed")]  # fmt: skip
    made, figures = study.ablation_numbers(plan, lines)
    assert "trained for 9 s each on CPU" in made["state"]
    assert "Failed: no-border (out of luck)" in made["state"]
    assert "vqvae-64" in made["state"].split("Missing:")[1]
    assert "photos-3x3 is best at B = 3 (80.0 absolute)" in made["best granularity"]
    assert made["best vocabulary"] == "k: not run yet."
    assert made["switch verdict"] == (
        "Against the base's 52.0 absolute on art-3x3: worse: without lexicographic order "
        "(-32.0); not told apart: raster instead of clockwise (-1.0)."
    )
    assert "| base (CPU) | 2 | 52.0 [48.0, 56.0] |" in made["switch table"]
    assert "| 20.0 [18.0, 22.0] | -32.0 [" in made["switch table"]
    assert "| without border selection | not run |" in made["switch table"]
    assert made["lever verdict"].startswith("No row of this group")
    assert [x for x, rows in figures["panels"]["granularity"].items() if rows] == [4, 3, 6]


def test_figures_are_drawn_from_few_rows(study, tmp_path):
    from puzlm.ablation_plots import bars, curves, sizes, sweeps

    plan = study.load()[2]
    lines = [line("base", 0, 50), line("granularity-3", 0, 80), line("backbones-256-t5", 0, 30)]
    figures = study.ablation_numbers(plan, lines)[1]
    sweeps(figures["panels"], study.SWEEPS, study.KINDS, study.BASE_AT, tmp_path / "a.png")
    bars(dict(figures["first"] + figures["levers"]), study.KINDS, tmp_path / "b.png", "levers")
    bars({"base": lines[:1]}, study.KINDS, tmp_path / "c.png", "ways", ways=study.WAYS)
    sizes(figures["backbones"], study.KINDS, tmp_path / "d.png")
    curves(figures["curves"], tmp_path / "e.png")
    assert all((tmp_path / f"{n}.png").stat().st_size > 5000 for n in "abcde")


def test_committed_rows_are_whole():
    path = ROOT / "docs" / "study" / "rows.jsonl"
    for text in path.read_text().splitlines():
        row = json.loads(text)
        assert row["status"] in ("done", "failed") and row["settings"]["recipe"]
        if row["status"] == "done":
            assert {"steps", "seconds", "puzzles_seen", "parameters", "results"} <= set(row)
