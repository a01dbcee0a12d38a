"""Figures of ablations: one thing has one look, and what is drawn can be told apart in grey."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from puzlm.plots import STYLES
from puzlm.study import ablation_plots as drawn

ROOT = Path(__file__).parents[2]
DRAWN = {  # figures with a line a thing
    "curves.png": ("base", "no-heads-slow", "random-start", "strips", "two-symbols"),
    "learning.png": ("bart", "t5", "pegasus", "lstm", "gru", "encoder", "decoder"),
}


def line(name, seed=0, seconds=110):
    score = {"value": 50.0, "low": 48.0, "high": 52.0}
    way = {"absolute": score, "perfect": score, "right": [9] * 5 + [0] * 5}
    return {
        "name": name,
        "seed": seed,
        "status": "done",
        "settings": {"seconds": seconds, "recipe": {"cut": {"grid": "3"}}},
        "results": {"photos-3x3": {"valid": way}},
        "steps": 5000,
        "puzzles_seen": 50_000,
        "curve": [[250 * n, 2.1, 0.02 * n, 4 - 0.1 * n] for n in range(1, 21)],
    }


@pytest.fixture
def figures(monkeypatch):
    """What was drawn, not saved."""
    found = []
    monkeypatch.setattr(drawn, "save_figure", lambda figure, path: found.append(figure))
    yield found
    import matplotlib.pyplot as plt

    plt.close("all")


def lines_of(figure, panel=0):
    return {one.get_label(): one for one in figure.axes[panel].get_lines()}


def test_every_thing_of_the_study_has_a_look_of_its_own():
    study = importlib.import_module("tools.make_study")
    assert set(DRAWN["curves.png"]) == {name.removeprefix("long-") for name in study.CURVES}
    assert set(DRAWN["learning.png"]) == set(study.BACKBONES)
    colours = [look["color"] for look in STYLES.values()]
    assert len(set(colours)) == len(colours)
    for things in DRAWN.values():  # in grey: dash and marker
        for key in ("linestyle", "marker"):
            assert len({str(STYLES[thing][key]) for thing in things}) == len(things)


def test_the_look_does_not_depend_on_the_other_rows(figures):
    rows = {
        "base": line("long-base"),
        "border strips": line("long-strips"),
        "lstm, seed 0": line("backbones-long-lstm"),
        "lstm, seed 1": line("backbones-long-lstm", 1),
    }
    drawn.curves(rows, "all.png")
    drawn.curves(dict(list(rows.items())[1:2]), "one.png")
    for figure in figures:
        assert lines_of(figure)["border strips"].get_color() == STYLES["strips"]["color"]
    both = lines_of(figures[0])
    assert both["base"].get_color() == STYLES["base"]["color"]
    assert both["lstm, seed 0"].get_color() == both["lstm, seed 1"].get_color()
    assert both["lstm, seed 1"].get_markerfacecolor() == "white"
    marks = [one.get_markevery() for name, one in both.items() if name in rows]
    assert all(every > 3 for _, every in marks) and len(set(marks)) == len(marks)


def test_both_ways_of_guessing_are_drawn(figures):
    """Earlier cells are given: who only leaves these out is right more often than one in nine."""
    rows = {name: line(f"long-{name}") for name in DRAWN["curves.png"]}
    drawn.curves(rows, "curves.png")
    found = lines_of(figures[0])
    assert found["guessing any cell (11 %)"].get_ydata()[0] == pytest.approx(100 / 9)
    free = found["guessing among free cells (31 %)"]
    assert free.get_ydata()[0] == pytest.approx(31.433, abs=0.001)
    assert free.get_linestyle() != found["guessing any cell (11 %)"].get_linestyle()
    assert drawn.guessing_free(2) == 0.75  # a coin, then the cell that is left
    figures[0].canvas.draw()
    (legend,) = figures[0].legends
    assert legend.get_window_extent().width < 0.9 * figures[0].bbox.width


def test_the_tick_of_less_time_shows_on_a_bar(figures):
    rows = {"base": [line("long-base")]}
    drawn.bars(rows, ["photos-3x3"], "b.png", "bars", shorter={"base": [line("base", seconds=15)]})
    tick = lines_of(figures[0])["trained for 15 s, absolute"]
    assert tick.get_color() == "black" and tick.get_path_effects()
    assert "trained for 110 s" in figures[0].axes[0].get_xlabel()
