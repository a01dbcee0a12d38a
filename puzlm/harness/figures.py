"""Figures of docs/results.md: generalisation, calibration, cost. Draws; never computes a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from puzlm.errors import PuzlmError
from puzlm.plots import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, pyplot, save_figure

Record = dict[str, Any]
SOLVERS: dict[str, Record] = {  # one solver, one look, told apart in grey by dash and marker
    "random": {"color": GREY, "linestyle": (0, (1, 1)), "marker": "x"},
    "classic": {"color": BLACK, "linestyle": ":", "marker": "D"},
    "bigram": {"color": ORANGE, "linestyle": "--", "marker": "v"},
    "vision": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "vision-pairs": {"color": PINK, "linestyle": (0, (6, 2)), "marker": "P"},
    "seq2seq": {"color": RED, "linestyle": (0, (5, 1, 1, 1)), "marker": "s"},
    "symbols": {"color": SKY, "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "*"},
    "auto": {"color": BLUE, "linestyle": "-", "marker": "o"},
}
MARKERS = "X*<>h8pd"
FEW = 30  # pieces; a bin with fewer says nothing about calibration and is not drawn


def look(name: str, others: Sequence[str] = ()) -> Record:
    """Colour, dash and marker of a solver; `others` are all names of the figure."""
    if name in SOLVERS:
        return dict(SOLVERS[name])
    unknown = [n for n in others if n not in SOLVERS]
    number = unknown.index(name) if name in unknown else 0
    dash = (0, (2 + number, 1, 1, 1))
    return {"color": SKY, "linestyle": dash, "marker": MARKERS[number % len(MARKERS)]}


def generalisation(record: Record, path: str | Path) -> None:
    """Draw one heat map a solver and grid: kinds of images against gaps, absolute / perfect."""
    cells = record["cells"]
    if not cells:
        raise PuzlmError("generalisation: there is nothing to draw")
    grids = sorted({c["grid"] for c in cells}, key=lambda g: [int(n) for n in g.split("x")])
    rows: list[list[tuple[str, str]]] = []  # of panels; a grid begins a new row
    for grid in grids:
        mine = list(dict.fromkeys((grid, c["solver"]) for c in cells if c["grid"] == grid))
        rows += [mine[i : i + 3] for i in range(0, len(mine), 3)]
    kinds = list(dict.fromkeys(c["kind"] for c in cells))
    gaps = sorted({c["gap"] for c in cells})
    plt = pyplot()
    down, across = len(rows), max(map(len, rows))
    size = (1.2 + across * (0.9 + 0.58 * len(gaps)), 0.5 + down * (0.85 + 0.42 * len(kinds)))
    figure, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.set_visible(False)
    panels = [(axes[y, x], *panel) for y, row in enumerate(rows) for x, panel in enumerate(row)]
    for axis, grid, solver in panels:
        axis.set_visible(True)
        here = {
            (c["kind"], c["gap"]): c for c in cells if (c["grid"], c["solver"]) == (grid, solver)
        }
        table = np.full((len(kinds), len(gaps)), np.nan)
        for (kind, gap), cell in here.items():
            row, column = kinds.index(kind), gaps.index(gap)
            table[row, column] = cell["absolute"]["value"]
            text = f"{cell['absolute']['value']:.0f}\n{cell['perfect']['value']:.0f}"
            colour = "black" if table[row, column] > 55 else "white"
            axis.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour)
        image = axis.imshow(table, cmap="cividis", aspect="auto", vmin=0, vmax=100)
        axis.set_xticks(range(len(gaps)), [_fraction(gap) for gap in gaps])
        axis.set_yticks(range(len(kinds)), kinds)
        axis.set_title(f"{solver}, {grid}", fontsize=9)
        axis.grid(False)
    figure.supxlabel("gap between pieces (share of a piece's side)", fontsize=9)
    counts = sorted({c["puzzles"] for c in cells})
    shown = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    figure.suptitle(
        f"Absolute (upper) and perfect (lower) accuracy in %, {shown} puzzles a cell", fontsize=10
    )
    figure.colorbar(image, ax=axes, label="absolute accuracy (%)", aspect=30, shrink=0.9)
    save_figure(figure, path)


def _fraction(gap: float) -> str:
    for below in (1, 2, 4, 8, 16):
        if abs(gap * below - round(gap * below)) < 1e-9:
            return f"{round(gap * below)}/{below}" if below > 1 else f"{gap:g}"
    return f"{gap:.2g}"


def reliability_panels(
    panels: Mapping[str, Mapping[str, Record]], path: str | Path, title: str = ""
) -> None:
    """Draw stated confidence against the share right: a panel a protocol, a line a solver.

    panels[protocol][solver] is {"ece": share, "bins": [{"confidence", "accuracy", "low", "high",
    "count"}]}, all shares 0 to 1, low and high the interval of the accuracy. Bins with fewer than
    FEW pieces are left out.
    """
    plt = pyplot()
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    figure, axes = plt.subplots(
        down,
        across,
        figsize=(0.5 + 3.1 * across, 0.4 + 3.0 * down),
        layout="constrained",
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (protocol, solvers) in zip(axes.flat, panels.items(), strict=False):
        axis.plot([0, 100], [0, 100], color=GREY, lw=0.8, label="as sure as right")
        for name, found in solvers.items():
            bins = [b for b in found["bins"] if b["count"] >= FEW]
            x = [100 * b["confidence"] for b in bins]
            y = [100 * b["accuracy"] for b in bins]
            errors = [
                [100 * max(0, b["accuracy"] - b["low"]) for b in bins],
                [100 * max(0, b["high"] - b["accuracy"]) for b in bins],
            ]
            axis.errorbar(
                x,
                y,
                errors,
                ms=3.5,
                lw=1.1,
                elinewidth=0.6,
                **look(name, names),
                label=f"{name}, ECE {found['ece']:.3f}",
            )
        axis.set(title=protocol, xlim=(-2, 102), ylim=(-2, 102))
        axis.legend(loc="upper left", fontsize=6.5)
    figure.supxlabel("stated confidence (%)", fontsize=9)
    figure.supylabel("right (% of pieces)", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def time_against_pieces(costs: Record, path: str | Path) -> None:
    """Draw seconds a puzzle against its number of pieces, both logarithmic."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    names = list(costs["solvers"])
    short = {name: name.partition("@")[0] for name in names}
    for name, found in costs["solvers"].items():
        twice = list(short.values()).count(short[name]) > 1
        points = [(s["pieces"], s["seconds"]["median"]) for s in found["sizes"].values()]
        if not points:
            continue
        style = look(short[name], list(short.values()))
        if twice and name != next(n for n in names if short[n] == short[name]):
            style["markerfacecolor"] = "white"
        axes.plot(*zip(*points, strict=True), ms=5, lw=1.2, label=name, **style)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="pieces",
        ylabel="seconds a puzzle (median)",
        title=f"Warm solve of one puzzle, pieces of {costs['piece']} px",
    )
    ticks = sorted({s["pieces"] for f in costs["solvers"].values() for s in f["sizes"].values()})
    axes.set_xticks(ticks, [str(t) for t in ticks], minor=False)
    axes.minorticks_off()
    axes.legend(loc="best")
    save_figure(figure, path)
