"""Figures of ablations from the lines of rows.jsonl. Draws; ablation_gains.py counts.

Colours and marks are those of plots.py. In curves filled marks are absolute accuracy and hollow
ones perfect accuracy; in bars the full inner bar is perfect accuracy. Where a row has several seeds
the mean is drawn with its interval over puzzles, and a small dot for every seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from puzlm.plots import GREY, STYLES, pyplot, save_figure, style
from puzlm.puzzle import parse_grid
from puzlm.study.ablation_gains import Line, Score, each, results, scores

MARK_EVERY = 7  # logged points of a curve from one mark to the next
DOT = {"marker": "o", "ms": 3.5, "mec": "black", "mfc": "white", "lw": 0, "zorder": 5}


def sweeps(
    panels: Mapping[str, Mapping[float, Sequence[Line]]],
    shorter: Mapping[str, Mapping[float, Sequence[Line]]],
    titles: Mapping[str, str],
    kinds: Sequence[str],
    base: Mapping[str, float],
    path: str | Path,
    way: str = "valid",
) -> None:
    """Draw accuracy against one setting, a panel each.

    `panels[group][x]` are the lines of the row at x; `base[group]` is the base's x, marked. Rows
    that had less time, `shorter`, are drawn thin, without their perfect accuracy.
    """
    plt = pyplot()
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(4.4 * len(panels), 3.9),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for panel, (group, rows) in zip(axes[0], panels.items(), strict=True):
        before = shorter.get(group, {})
        places = {x: number for number, x in enumerate(sorted({*rows, *before}, key=_place))}
        for kind in kinds:
            found = {x: scores(lines, kind, way, "absolute") for x, lines in before.items()}
            known = {places[x]: s["value"] for x, s in found.items() if s is not None}
            thin = style(kind) | {"lw": 0.9, "ms": 3, "alpha": 0.55}
            panel.plot(
                sorted(known),
                [known[x] for x in sorted(known)],
                **thin,
                label=f"{kind}, absolute, {_time(before.values())}",
            )
            for measure, fill in (("absolute", None), ("perfect", "white")):
                points = {x: scores(rows.get(x, []), kind, way, measure) for x in places}
                shown = {x: s for x, s in points.items() if s is not None}
                _errors(
                    panel,
                    [places[x] for x in shown],
                    list(shown.values()),
                    kind,
                    f"{kind}, {measure}, {_time(rows.values())}",
                    fill,
                )
            for x, place in places.items():
                several = each(rows[x], kind, way) if len(rows.get(x, [])) > 1 else []
                panel.plot([place + 0.13] * len(several), several, **DOT)
        panel.axhline(100 / 9, color=GREY, lw=0.8, linestyle=":", label="chance, absolute")
        if base.get(group) in places:
            panel.axvline(places[base[group]], color=GREY, lw=6, alpha=0.18, zorder=0, label="base")
        panel.set_xticks(list(places.values()), [_text(x) for x in places])
        panel.set(xlabel=titles[group], xlim=(-0.4, len(places) - 0.6))
        if not any(rows.values()):
            panel.text(0.5, 0.5, "not run", ha="center", transform=panel.transAxes, color=GREY)
    axes[0][0].set(ylabel="accuracy on validation puzzles (%)")
    axes[0][0].set_ylim(0, None)
    axes[0][0].plot([], [], **DOT, label="a seed, absolute")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    save_figure(figure, path)


def bars(
    rows: Mapping[str, Sequence[Line]],
    kinds: Sequence[str],
    path: str | Path,
    title: str,
    way: str = "valid",
    ways: Mapping[str, str] | None = None,
    shorter: Mapping[str, Sequence[Line]] | None = None,
) -> None:
    """Draw rows as horizontal bars, the first one as the line to compare with.

    `rows` maps labels to lines; a black tick is the same row with less time, from `shorter`. With
    `ways` (label -> way of decoding) one row is shown instead, decoded in each of these ways.
    """
    plt = pyplot()
    shown = dict(rows)
    if ways is not None:
        lines = next(iter(rows.values()))
        shown = dict.fromkeys(ways, lines)
    height = 0.8 / len(kinds)
    missing = f"not run for {_time(shown.values())}" if shorter else "not run"
    figure, axes = plt.subplots(figsize=(8.2, 1.2 + 0.55 * len(shown)), layout="constrained")
    for number, kind in enumerate(kinds):
        look = style(kind, list(kinds))
        for place, (label, lines) in enumerate(shown.items()):
            asked = way if ways is None else ways[label]
            y = place + (number - (len(kinds) - 1) / 2) * height
            if (
                less := scores((shorter or {}).get(label, []), kind, asked, "absolute")
            ) is not None:
                axes.plot(less["value"], y, "|", ms=13, zorder=1.5, **_tick())
            for measure, full in (("absolute", False), ("perfect", True)):
                score = scores(lines, kind, asked, measure)
                if score is None:
                    if not full and number == 0:
                        axes.text(1, place, missing, va="center", fontsize=8, color=GREY)
                    continue
                axes.barh(
                    y,
                    score["value"],
                    height * (0.45 if full else 0.95),
                    color=look["color"] if full else "white",
                    edgecolor=look["color"],
                    hatch=None if full else ("", "//")[number % 2],
                    lw=1.1,
                    label=f"{kind}, {measure}" if place == 0 else None,
                )
                if not full:
                    low, high = score["value"] - score["low"], score["high"] - score["value"]
                    axes.errorbar(
                        score["value"], y, xerr=[[max(0, low)], [max(0, high)]], color="black", lw=1
                    )
                    several = each(lines, kind, asked) if len(lines) > 1 else []
                    axes.plot(several, [y] * len(several), **DOT)
                    if place == 0:
                        axes.axvline(
                            score["value"], color=look["color"], lw=0.9, linestyle=look["linestyle"]
                        )
    axes.axvline(100 / 9, color=GREY, lw=0.8, linestyle=":")
    axes.set_yticks(range(len(shown)), list(shown))
    axes.set_ylim(len(shown) - 0.4, -0.6)
    time = f"trained for {_time(shown.values())}; dotted: chance"
    axes.set(xlabel=f"accuracy on validation puzzles (%), {time}", title=title)
    axes.set_xlim(0, min(100.5, axes.get_xlim()[1]))  # the whole edge of a bar that ends at 100
    if any(len(lines) > 1 for lines in shown.values()):
        axes.plot([], [], **DOT, label="a seed, absolute")
    if shorter and any(shorter.values()):
        text = f"trained for {_time(shorter.values())}, absolute"
        axes.plot([], [], "|", ms=9, label=text, **_tick())
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
    save_figure(figure, path)


def sizes(
    families: Mapping[str, Sequence[Sequence[Line]]],
    shorter: Mapping[str, Sequence[Sequence[Line]]],
    kinds: Sequence[str],
    path: str | Path,
) -> None:
    """Draw every run of every backbone, a panel a kind, the sizes of one backbone side by side.

    Filled marks are read from the decoder, hollow ones from the head on the encoder; lines join
    the means. Runs are shown one by one, because the mean of one that learned and one that did not
    is the accuracy of neither. Rows that had less time, `shorter`, are black ticks.
    """
    plt = pyplot()
    figure, panels = plt.subplots(
        1,
        len(kinds),
        figsize=(6.4 * len(kinds), 4.4),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    # Of each backbone the sizes that were run: (rows, rows with less time).
    known = {
        name: [pair for pair in zip(members, shorter[name], strict=True) if any(pair)]
        for name, members in families.items()
    }
    texts = [
        "\n".join([name, *(f"{(a or b)[0]['parameters'] / 1e6:.1f} M" for a, b in pairs)])
        for name, pairs in known.items()
    ]
    tick = {"color": "black", "marker": "_", "ms": 9, "mew": 2, "lw": 0}
    for axes, kind in zip(panels[0], kinds, strict=True):
        look = style(kind)
        for place, pairs in enumerate(known.values()):
            spots = [place + 0.36 * (i - (len(pairs) - 1) / 2) for i in range(len(pairs))]
            for way, fill, shift in (("valid", look["color"], -0.04), ("head", "white", 0.04)):
                means = [np.mean(each(lines, kind, way) or np.nan) for lines, _ in pairs]
                line = "-" if way == "valid" else ":"
                moved = [spot + shift for spot in spots]
                axes.plot(moved, means, line, lw=1, color=look["color"])
                for spot, (lines, _) in zip(moved, pairs, strict=True):
                    found = [s["absolute"] for s in results(lines, kind, way)]
                    _errors(axes, [spot] * len(found), found, kind, "", fill, line="")
            for spot, (_, lines) in zip(spots, pairs, strict=True):
                values = each(lines, kind)
                axes.plot([spot - 0.04] * len(values), values, **tick)
        axes.axhline(100 / 9, color=GREY, lw=0.8, linestyle=":")
        axes.set_xticks(range(len(texts)), texts, fontsize=8)
        axes.set(title=kind, xlim=(-0.5, len(texts) - 0.5))
        axes.set_xlabel("backbone and its parameters, from left to right")
        if not any(known.values()):
            axes.text(0.5, 0.5, "not run", ha="center", transform=axes.transAxes, color=GREY)
    panels[0][0].set(ylabel="absolute accuracy on validation puzzles (%)", ylim=(0, None))
    mark = {"color": "black", "marker": "o", "ms": 5, "lw": 1}
    hollow = {"linestyle": ":", "markerfacecolor": "white"}
    times = [_time(chain.from_iterable(rows.values())) for rows in (families, shorter)]
    handles = [
        plt.Line2D([], [], label=f"a run, its decoder, {times[0]} (line: mean)", **mark),
        plt.Line2D([], [], label="the same run, the head on its encoder", **mark, **hollow),
        plt.Line2D([], [], label=f"its decoder, {times[1]}", **tick),
        plt.Line2D([], [], color=GREY, linestyle=":", lw=0.8, label="chance"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    save_figure(figure, path)


def curves(rows: Mapping[str, Line], path: str | Path) -> None:
    """Draw how the decoder and the heads learn, one line a row, over the puzzles seen.

    Rows may be named "thing, seed 1": seeds of one thing share its colour, later ones are hollow.
    Things have the look of plots.STYLES, by their name or by that of their row in the plan.
    """
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.9), layout="constrained")
    things = {name: name.split(", seed")[0] for name in rows}
    things |= {
        name: rows[name]["name"].removeprefix("long-")
        for name, thing in things.items()
        if thing not in STYLES
    }
    for number, (name, line) in enumerate(rows.items()):
        look = style(things[name], list(things.values())) | {"ms": 5}
        if line["seed"]:
            look |= {"markerfacecolor": "white"}
        # Few marks, not above one another, so that the dashes between them show.
        look |= {"markevery": (3 * number % min(MARK_EVERY, len(line["curve"])), MARK_EVERY)}
        batch = line["puzzles_seen"] / line["steps"] / 1e3
        seen = [batch * point[0] for point in line["curve"]]
        left.plot(seen, [100 * point[2] for point in line["curve"]], label=name, **look)
        if any(point[3] for point in line["curve"]):
            right.plot(seen, [point[3] for point in line["curve"]], **look)
    grid = parse_grid(next(iter(rows.values()))["settings"]["recipe"]["cut"]["grid"])
    cells = math.prod(grid)
    for share, text, dash in (
        (1 / cells, "guessing any cell", ":"),
        (guessing_free(cells), "guessing among free cells", (0, (5, 4))),
    ):
        percent = f"{text} ({100 * share:.0f} %)"
        left.axhline(100 * share, color=GREY, lw=1, linestyle=dash, label=percent)
    right.axhline(guessing(*grid), color=GREY, lw=1, linestyle=":")
    right.annotate(
        "heads that guess",
        (1, guessing(*grid)),
        (0, -3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        va="top",
        color=GREY,
    )
    left.set(ylabel="next cell right, earlier ones given (%)", ylim=(0, 100))
    right.set(ylabel="loss of the training-only heads (nats)", ylim=(0, None))
    for axes in (left, right):
        axes.set(xlabel="training puzzles seen (thousands)", xlim=(0, None))
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=4
    )
    save_figure(figure, path)


def guessing_free(cells: int) -> float:
    """Share of pieces right by guessing one of the cells that earlier pieces have left free.

    >>> round(guessing_free(9), 3)
    0.314
    """
    return sum(1 / free for free in range(1, cells + 1)) / cells


def guessing(rows: int, columns: int) -> float:
    """Loss of the heads when their answer is the same for every piece of every puzzle.

    The cell costs log(cells). A neighbour is none at one edge, else any of the pieces.

    >>> round(guessing(3, 3), 3)
    4.299
    """
    cells = rows * columns
    sides = 0.0
    for none in (1 / columns, 1 / rows):  # right of the last column, below the last row
        shares = [(none, none), (1 - none, (1 - none) / cells)]  # how often, with which odds
        sides -= sum(often * math.log(odds) for often, odds in shares if often)
    return math.log(cells) + sides / 2


def _errors(
    axes: Any,
    x: Sequence[float],
    found: Sequence[Score],
    name: str,
    label: str,
    fill: str | None,
    line: str | None = None,
) -> None:
    look = style(name) | ({} if line is None else {"linestyle": line})
    if fill is not None:
        look |= {"markerfacecolor": fill, "lw": 1, "alpha": 0.8}
    low = [max(0.0, s["value"] - s["low"]) for s in found]
    high = [max(0.0, s["high"] - s["value"]) for s in found]
    if found:
        axes.errorbar(x, [s["value"] for s in found], [low, high], ms=5, label=label, **look)


def _place(x: Any) -> float:
    """Order along an axis: no PCA, written 0, comes last."""
    return float(x) if x else float("inf")


def _text(x: Any) -> str:
    return str(x) if x else "none"


def _tick() -> dict[str, Any]:
    """Look of a row with less time: black with a white edge, which shows on any bar."""
    from matplotlib.patheffects import withStroke

    edge = withStroke(linewidth=4.5, foreground="white")
    return {"color": "black", "mew": 2.5, "path_effects": [edge]}


def _time(rows: Iterable[Sequence[Line]]) -> str:
    """How long these rows were trained."""
    found = sorted({line["settings"]["seconds"] for lines in rows for line in lines})
    return " or ".join(f"{seconds:g} s" for seconds in found) or "not run"
