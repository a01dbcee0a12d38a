"""Figures of ablations from the lines of rows.jsonl. Draws; the numbers come from `ablate.py`.

Colours and marks are those of plots.py. In curves filled marks are absolute accuracy and hollow
ones perfect accuracy; in bars the full inner bar is perfect accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from puzlm.metrics import Interval, bootstrap
from puzlm.plots import GREY, _pyplot, _save, style
from puzlm.puzzle import parse_grid

Line = dict[str, Any]
Score = dict[str, float]  # value, low, high in percent


def scores(lines: Sequence[Line], kind: str, way: str, measure: str) -> Score | None:
    """Mean over the seeds of one row, and the span of all their 95 % intervals."""
    found = [x["results"][kind][way][measure] for x in lines
             if x["status"] == "done" and way in x["results"].get(kind, {})]  # fmt: skip
    if not found:
        return None
    return {"value": sum(f["value"] for f in found) / len(found),
            "low": min(f["low"] for f in found), "high": max(f["high"] for f in found)}  # fmt: skip


def gain(
    lines: Sequence[Line], base: Sequence[Line], kind: str, way: str = "valid", base_way: str = ""
) -> Interval | None:
    """Points of absolute accuracy above the base: on the same puzzles, means over the seeds."""

    def share(rows: Sequence[Line], way: str) -> Any:
        found = [x for x in rows if x["status"] == "done" and way in x["results"].get(kind, {})]
        if not found:
            return None
        cells = math.prod(parse_grid(found[0]["settings"]["recipe"]["cut"]["grid"]))
        return np.mean([x["results"][kind][way]["right"] for x in found], 0) / cells

    one, other = share(lines, way), share(base, base_way or way)
    if one is None or other is None:
        return None
    return bootstrap(one - other[: len(one)])  # slow ways see the first puzzles only


def sweeps(
    panels: Mapping[str, Mapping[float, Sequence[Line]]], titles: Mapping[str, str],
    kinds: Sequence[str], base: Mapping[str, float], path: str | Path, way: str = "valid",
) -> None:  # fmt: skip
    """Draw accuracy against one setting, a panel each.

    `panels[group][x]` are the lines of the row at x; `base[group]` is the base's x, drawn large.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.9), sharey=True,
                                layout="constrained", squeeze=False)  # fmt: skip
    for panel, (group, rows) in zip(axes[0], panels.items(), strict=True):
        places = {x: number for number, x in enumerate(sorted(rows, key=_place))}
        for kind in kinds:
            for measure, fill in (("absolute", None), ("perfect", "white")):
                points = {x: scores(rows[x], kind, way, measure) for x in places}
                shown = {x: s for x, s in points.items() if s is not None}
                _errors(panel, [places[x] for x in shown], list(shown.values()), kind,
                        f"{kind}, {measure}", fill)  # fmt: skip
        panel.axhline(100 / 9, color=GREY, lw=0.8, linestyle=":", label="chance, absolute")
        if base.get(group) in places:
            panel.axvline(places[base[group]], color=GREY, lw=6, alpha=0.18, zorder=0, label="base")
        for x in (x for x in places if any("disturbed" in line for line in rows[x])):
            panel.annotate("†", (places[x], 3), ha="center", color=GREY)
        panel.set_xticks(list(places.values()), [_text(x) for x in places])
        panel.set(xlabel=titles[group], xlim=(-0.4, len(places) - 0.6))
        if not any(rows.values()):
            panel.text(0.5, 0.5, "not run", ha="center", transform=panel.transAxes, color=GREY)
    axes[0][0].set(ylabel="accuracy on validation puzzles (%)")
    axes[0][0].set_ylim(0, 100)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    _save(figure, path)


def bars(
    rows: Mapping[str, Sequence[Line]], kinds: Sequence[str], path: str | Path, title: str,
    way: str = "valid", ways: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Draw rows as horizontal bars, the first one as the line to compare with.

    `rows` maps labels to lines. With `ways` (label -> way of decoding) one row is shown instead,
    decoded in each of these ways.
    """
    plt = _pyplot()
    shown = dict(rows)
    if ways is not None:
        lines = next(iter(rows.values()))
        shown = dict.fromkeys(ways, lines)
    height = 0.8 / len(kinds)
    figure, axes = plt.subplots(figsize=(8.2, 1.2 + 0.55 * len(shown)), layout="constrained")
    for number, kind in enumerate(kinds):
        look = style(kind, list(kinds))
        for place, (label, lines) in enumerate(shown.items()):
            asked = way if ways is None else ways[label]
            y = place + (number - (len(kinds) - 1) / 2) * height
            for measure, full in (("absolute", False), ("perfect", True)):
                score = scores(lines, kind, asked, measure)
                if score is None:
                    if not full and number == 0:
                        axes.text(1, place, "not run", va="center", fontsize=8, color=GREY)
                    continue
                axes.barh(y, score["value"], height * (0.45 if full else 0.95),
                          color=look["color"] if full else "white", edgecolor=look["color"],
                          hatch=None if full else ("", "//")[number % 2], lw=1.1,
                          label=f"{kind}, {measure}" if place == 0 else None)  # fmt: skip
                if not full:
                    low, high = score["value"] - score["low"], score["high"] - score["value"]
                    axes.errorbar(score["value"], y, xerr=[[max(0, low)], [max(0, high)]],
                                  color="black", lw=1)  # fmt: skip
                    if place == 0:
                        axes.axvline(score["value"], color=look["color"], lw=0.9,
                                     linestyle=look["linestyle"])  # fmt: skip
    axes.axvline(100 / 9, color=GREY, lw=0.8, linestyle=":")
    axes.set_yticks(range(len(shown)), list(shown))
    axes.invert_yaxis()
    axes.set(
        xlabel="accuracy on validation puzzles (%); dotted: chance", title=title, xlim=(0, 100)
    )
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    _save(figure, path)


def sizes(
    families: Mapping[str, Sequence[Sequence[Line]]], kinds: Sequence[str], path: str | Path,
    way: str = "valid",
) -> None:  # fmt: skip
    """Draw accuracy against parameters, a line for each backbone over its sizes, a panel a kind."""
    plt = _pyplot()
    figure, panels = plt.subplots(1, len(kinds), figsize=(5.2 * len(kinds), 4.2), sharey=True,
                                  layout="constrained", squeeze=False)  # fmt: skip
    for axes, kind in zip(panels[0], kinds, strict=True):
        for name, members in families.items():
            points = [(lines[0]["parameters"] / 1e6, scores(lines, kind, way, "absolute"))
                      for lines in members if lines]  # fmt: skip
            known = sorted(((x, s) for x, s in points if s is not None), key=lambda p: p[0])
            _errors(axes, [x for x, _ in known], [s for _, s in known], name, name, None)
        axes.axhline(100 / 9, color=GREY, lw=0.8, linestyle=":", label="chance")
        axes.set(xlabel="parameters (millions)", ylim=(0, 100), title=kind)
        if not any(lines for members in families.values() for lines in members):
            axes.text(0.5, 0.5, "not run", ha="center", transform=axes.transAxes, color=GREY)
    panels[0][0].set(ylabel="absolute accuracy on validation puzzles (%)")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    _save(figure, path)


def curves(rows: Mapping[str, Line], path: str | Path) -> None:
    """Draw how the decoder and the heads learn, one line a row, over the puzzles seen."""
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    for name, line in rows.items():
        look = style(name, list(rows)[1:]) | {"ms": 4}
        if name == next(iter(rows)):
            look |= {"color": "black", "linestyle": "-", "marker": "o"}
        batch = line["puzzles_seen"] / line["steps"] / 1e3
        seen = [batch * point[0] for point in line["curve"]]
        left.plot(seen, [100 * point[2] for point in line["curve"]], label=name, **look)
        if any(point[3] for point in line["curve"]):
            right.plot(seen, [point[3] for point in line["curve"]], **look)
    left.set(ylabel="next cell right, earlier ones given (%)", ylim=(0, 100))
    right.set(ylabel="loss of the training-only heads (nats)", ylim=(0, None))
    for axes in (left, right):
        axes.set(xlabel="training puzzles seen (thousands)")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    _save(figure, path)


def _errors(axes: Any, x: Sequence[float], found: Sequence[Score], name: str, label: str,
            fill: str | None) -> None:  # fmt: skip
    look = style(name)
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
