"""The study's page says what the committed files say, and says what is missing."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from puzlm.study.ablation_gains import scores

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study():
    return importlib.import_module("tools.make_study")


def test_the_page_is_that_of_the_files(study):
    page = (ROOT / "docs" / "study.md").read_text()
    assert page == study.render(), "run python -m tools.make_study"
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
    ways = {
        "valid": {"absolute": score, "perfect": score, "puzzles": 10, "ms": 1.0, "right": right}
    }
    return {
        "name": name,
        "seed": seed,
        "status": status,
        "device": "CPU",
        "error": "out of luck",
        "settings": {
            "seconds": 9,
            "recipe": {"tokenizer": {"vocab_size": 4096}, "cut": {"grid": "3"}},
        },
        "results": {"photos-3x3": ways, "art-3x3": ways},
        "steps": 7,
        "puzzles_seen": 70,
        "tokenise_ms": 0.5,
        "parameters": 5_000_000,
        "tokens_per_puzzle": 116,
        "tokenizer_parameters": 100,
        "fit_seconds": 1.0,
        "group": "levers",
        "x": None,
        "curve": [[250, 2.1, 0.2, 3.9], [500, 1.9, 0.4, 3.1]],
        "seconds": 9.0,
        **more,
    }


def test_rows_missing_failed_and_done_are_told_apart(study):
    plan = study.load()[2]
    lines = [
        line("base", 0, 50),
        line("base", 1, 54),
        line("granularity-3", 0, 80),
        line("granularity-6", 0, 30),
        line("no-order", 0, 20),
        line("raster", 0, 51),
        line("no-border", 0, 0, "failed"),
    ]
    made, figures = study.ablation_numbers(plan, lines)
    assert "trained for 9 s each on CPU" in made["state"]
    assert "Failed: no-border (out of luck)" in made["state"]
    assert "vqvae-64" in made["state"].split("Missing:")[1]
    assert "photos-3x3 is best at B = 3 (80.0 absolute)" in made["best granularity"]
    assert made["best vocabulary"] == "k: not run yet."
    # Two seeds 4 apart deviate by 2.83; one run against that of the same seed: 2 x 2.83 x sqrt(2).
    assert made["switch verdict"].split("\n\n")[1] == (
        "**art-3x3** (base 52.0): worse: without lexicographic order (-30.0 ± 8.0); "
        "no clear effect: raster instead of clockwise (+1.0 ± 8.0)."
    )
    assert "| base (CPU) | 52.0 [" in made["switch table"]
    assert "| 50.0 / 54.0 |" in made["switch table"]
    assert "| 20.0 [18.0, 22.0] |  | 20.0 [18.0, 22.0] | -30.0 [" in made["switch table"]
    assert "| without border selection | not run |" in made["switch table"]
    assert made["lever verdict"].startswith("No row of this group")
    assert [x for x, rows in figures["panels"]["granularity"].items() if rows] == [4, 3, 6]


def test_a_gain_inside_the_spread_of_seeds_is_no_effect(study):
    """A clear interval over puzzles is not enough; runs that did not learn are not averaged."""
    plan = study.load()[2]
    base = [line("base", seed, value) for seed, value in enumerate((50, 54, 52))]
    near = [line("raster", 0, 55), line("raster", 1, 53)]
    far = [line("no-order", 0, 60), line("no-order", 1, 61)]
    split = [line("no-separator", 0, 52), line("no-separator", 1, 11)]
    made, figures = study.ablation_numbers(plan, base + near + far + split)
    assert study.gain(near, base, "art-3x3").low > 0
    said = made["switch verdict"]
    assert "better: without lexicographic order (+8.5" in said
    assert "no clear effect: raster instead of clockwise (+2.0" in said
    assert "depends on the seed: without separator (52.0 and 11.0)" in said
    # Squares about the means, 8 + 2 + 0.5 over 4 degrees of freedom: the split row is left out.
    assert made["between art-3x3"] == f"{(10.5 / 4) ** 0.5:.1f}"
    assert made["decoder raster"] == "55.0" and made["decoder raster 1"] == "53.0"
    assert made["mean decoder raster"] == "54.0"
    long = [
        line("backbones-long-bart", 0, 50),
        line("backbones-long-t5", 0, 40),
        line("backbones-long-t5", 1, 11),
        line("long-base", 0, 80),
        line("long-no-order", 0, 60),
    ]
    made, figures = study.ablation_numbers(plan, base + long)
    assert list(figures["learning"]) == ["bart", "t5, seed 0", "t5, seed 1"]
    assert "(base 80.0): worse: without lexicographic order (-20.0" in made["long switch verdict"]
    # Rows of two minutes are compared by their own seeds, which differ more.
    two = {"seconds": 110, "recipe": line("base", 0, 1)["settings"]["recipe"]}
    long = [line("long-base", seed, value, settings=two) for seed, value in ((0, 60), (1, 90))]
    alone = study.ablation_numbers(plan, base)[0]
    made = study.ablation_numbers(plan, [*base, *long, line("long-no-order", 0, 60, settings=two)])[
        0
    ]
    assert made["between art-3x3"] == alone["between art-3x3"]
    assert made["long between art-3x3"] == f"{450**0.5:.1f}"
    assert "no clear effect: without lexicographic order (+0.0" in made["long switch verdict"]


def test_every_short_row_has_one_of_two_minutes(study):
    """Named after it, with the same change; learned tokenizers are fitted longer.

    Two sweeps go in steps of four there; every other row has its twin.
    """
    plan = study.load()[2]
    rows = {row.name: row for row in plan.rows}
    short = [row for row in plan.rows if (row.seconds or plan.plan.seconds) < 60]
    finer = {f"dimension-{d}" for d in (32, 128, 512)} | {
        f"vocabulary-{k}" for k in (512, 2048, 8192)
    }
    assert {row.name for row in short if study.longer(row.name) not in rows} == finer
    for row in short:
        if row.name in finer:
            continue
        long = rows[study.longer(row.name)]
        assert long.decode == row.decode
        if row.name == "test-time":  # the base, decoded in more ways, is called nothing
            continue
        assert (long.seconds, long.set, long.x or "base") == (110, row.set, row.x or "base")
        assert long.puzzles >= 2 * plan.plan.puzzles and study.label(long) == study.label(row)
        assert long.group == study.longer(row.group) and long.start == row.start
        assert {**long.learned, "fit_seconds": 0} == {**row.learned, "fit_seconds": 0}
    others = [row.name for row in plan.rows if row not in short]
    assert set(others) - {study.longer(row.name) for row in short} == {"long-no-heads-slow"}


def test_rows_that_trained_side_by_side_are_not_counted(study):
    shared = line("base", 1, 90)
    shared["settings"] = {**shared["settings"], "share": 6}
    assert study.by_name([line("base", 0, 50), shared])["base"] == [line("base", 0, 50)]


def test_scores_are_of_the_mean_over_seeds(study):
    lines = [line("base", 0, 40), line("base", 1, 60)]
    score = scores(lines, "art-3x3", "valid", "absolute")
    assert score["value"] == 50 and 40 < score["low"] < 50 < score["high"] < 60
    assert scores(lines[:1], "art-3x3", "valid", "absolute")["low"] == 38  # as in the file
    assert scores(lines, "art-3x3", "views-8", "absolute") is None


def test_what_heads_that_guess_lose(study):
    """As a run did that never began: one answer for all pieces."""
    assert study.drawn.guessing(3, 3) == pytest.approx(4.2986, abs=1e-3)
    # One row of three: right is as on 3x3, below is always nobody and costs nothing.
    assert study.drawn.guessing(1, 3) == pytest.approx(1.0986 + (0.6365 + 0.7324) / 2, abs=1e-3)


def test_figures_are_drawn_from_few_rows(study, tmp_path):
    from puzlm.study.ablation_plots import bars, curves, sizes, sweeps

    plan = study.load()[2]
    lines = [
        line("base", 0, 50),
        line("base", 1, 52),
        line("granularity-3", 0, 80),
        line("backbones-256-t5", 0, 30),
        line("backbones-256-encoder", 0, 30),
        line("backbones-256-encoder", 1, 11),
        line("backbones-long-t5", 0, 40),
        line("long-strips", 0, 90),
    ]
    figures = study.ablation_numbers(plan, lines)[1]
    sweeps(
        figures["long panels"],
        figures["panels"],
        study.SWEEPS,
        study.KINDS,
        study.BASE_AT,
        tmp_path / "a.png",
    )
    bars(figures["long lever"], study.KINDS, tmp_path / "b.png", "levers", shorter=figures["lever"])
    bars({"base": lines[:1]}, study.KINDS, tmp_path / "c.png", "ways", ways=study.WAYS)
    sizes(figures["long sizes"], figures["sizes"], study.KINDS, tmp_path / "d.png")
    curves(figures["curves"], tmp_path / "e.png")
    curves(figures["learning"], tmp_path / "f.png")
    assert all((tmp_path / f"{n}.png").stat().st_size > 5000 for n in "abcdef")


def test_committed_rows_are_whole():
    path = ROOT / "docs" / "study" / "rows.jsonl"
    for text in path.read_text().splitlines():
        row = json.loads(text)
        assert row["status"] in ("done", "failed") and row["settings"]["recipe"]
        if row["status"] == "done":
            assert {"steps", "seconds", "puzzles_seen", "parameters", "results"} <= set(row)
