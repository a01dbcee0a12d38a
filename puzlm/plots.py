"""Figures from result dictionaries and files. Draws; never computes a result.

One thing has one colour, dash and marker in every figure. The colours are Okabe and Ito's, told
apart by colour-blind eyes; dashes and markers tell them apart in grey.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from puzlm.errors import missing
from puzlm.files import read_lines, write_bytes

Result = dict[str, Any]
Style = dict[str, Any]

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#777777"

STYLES: dict[str, Style] = {  # thing: colour, dash, marker
    "photos-3x3": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "more-3x3": {"color": "#1B2A6B", "linestyle": (0, (4, 1, 1, 1)), "marker": "p"},
    "split-3x3": {"color": "#7A0177", "linestyle": (0, (5, 2)), "marker": "<"},
    "split-more": {"color": "#C51B8A", "linestyle": (0, (1, 1)), "marker": ">"},
    "whole-3x3": {"color": "#F768A1", "linestyle": (0, (7, 1, 1, 1)), "marker": "h"},
    "art-3x3": {"color": RED, "linestyle": "--", "marker": "s"},
    "art-5x5": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "whole-5x5": {"color": "#005A32", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "H"},
    "English": {"color": BLACK, "linestyle": ":", "marker": "D"},
    "uniform": {"color": GREY, "linestyle": (0, (1, 1)), "marker": ""},
    "before": {"color": "#BBBBBB", "hatch": "..", "marker": "v"},
    "after": {"color": "#333333", "hatch": "", "marker": "P"},
    "learned": {"color": SKY, "hatch": "//", "marker": "X"},
    "bart": {"color": "#004C7F", "linestyle": "-", "marker": "o"},
    "t5": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "pegasus": {"color": "#006B4F", "linestyle": "-.", "marker": "^"},
    "lstm": {"color": PINK, "linestyle": ":", "marker": "D"},
    "gru": {"color": "#5D3A9B", "linestyle": (0, (6, 2)), "marker": "v"},
    "encoder": {"color": "#882255", "linestyle": (0, (3, 1, 1, 1)), "marker": "P"},
    "decoder": {"color": "#8C6D1F", "linestyle": (0, (8, 1)), "marker": "X"},
    # Rows of plans/study.toml.
    "base": {"color": "#44546A", "linestyle": "-", "marker": "h"},
    "no-heads-slow": {"color": "#AA4499", "linestyle": ":", "marker": "<"},
    "random-start": {"color": "#66A61E", "linestyle": "--", "marker": "d"},
    "strips": {"color": "#44AA99", "linestyle": "-.", "marker": ">"},
    "two-symbols": {"color": "#A0522D", "linestyle": (0, (7, 2, 1, 2, 1, 2)), "marker": "*"},
}
OTHERS: list[Style] = [  # for things without a style of their own, by first appearance
    {"color": ORANGE, "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": PINK, "linestyle": (0, (6, 2)), "marker": "P"},
    {"color": SKY, "linestyle": (0, (3, 1, 1, 1)), "marker": "X"},
    {"color": "#8C6D1F", "linestyle": (0, (8, 1)), "marker": "*"},
    {"color": "#5D3A9B", "linestyle": (0, (2, 1)), "marker": "h"},
]


def style(name: str, others: Sequence[str] = ()) -> Style:
    """Colour, dash and marker of a thing; `others` lists the unstyled names of the figure."""
    if name in STYLES:
        return dict(STYLES[name])
    unknown = [n for n in dict.fromkeys(others) if n not in STYLES]
    return dict(OTHERS[(unknown.index(name) if name in unknown else 0) % len(OTHERS)])


def reliability(bins: Sequence[Result], path: str | Path) -> None:
    """Draw stated confidence against the share that is right.

    Each bin is {"confidence": mean stated, "accuracy": share right, "count": answers}, with "low"
    and "high" where the accuracy's interval is known; all shares are 0 to 1.
    """
    plt = pyplot()
    bins = [b for b in bins if b.get("count", 1)]
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(5, 5.6), sharex=True, layout="constrained", height_ratios=[3, 1]
    )
    x, y = [100 * b["confidence"] for b in bins], [100 * b["accuracy"] for b in bins]
    low = [100 * (b["accuracy"] - b["low"]) if "low" in b else 0 for b in bins]
    high = [100 * (b["high"] - b["accuracy"]) if "high" in b else 0 for b in bins]
    upper.plot([0, 100], [0, 100], label="as sure as right", **style("uniform"))
    upper.errorbar(x, y, np.maximum([low, high], 0), color=BLUE, marker="o", ms=5, label="measured")
    upper.set(ylabel="right (% of answers)", title="Confidence calibration", ylim=(-2, 102))
    upper.legend(loc="upper left")
    lower.bar(x, [b.get("count", 0) for b in bins], 4, color=SKY, edgecolor=BLACK, lw=0.5)
    lower.set(xlabel="stated confidence (%)", ylabel="answers", xlim=(-2, 102))
    save_figure(figure, path)


def heat_map(
    rows: Sequence[Any],
    columns: Sequence[Any],
    values: Any,
    path: str | Path,
    title: str,
    unit: str,
) -> None:
    """Draw a table of numbers (rows, columns) as coloured cells; None or NaN stays empty."""
    plt = pyplot()
    table = np.array(values, dtype=float)
    if table.shape != (len(rows), len(columns)):
        raise ValueError(f"values {table.shape}: {len(rows)} rows x {len(columns)} columns needed")
    size = (2.2 + 0.75 * len(columns), 1.6 + 0.45 * len(rows))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    image = axes.imshow(table, cmap="cividis", aspect="auto")  # even steps in grey, too
    figure.colorbar(image, ax=axes, label=unit)
    for row, column in np.argwhere(np.isfinite(table)):
        light = image.norm(table[row, column]) > 0.5
        axes.text(
            column,
            row,
            f"{table[row, column]:.3g}",
            ha="center",
            va="center",
            fontsize=8,
            color="black" if light else "white",
        )
    axes.set_xticks(range(len(columns)), [str(c) for c in columns])
    axes.set_yticks(range(len(rows)), [str(r) for r in rows])
    axes.set_title(title)
    axes.grid(False)
    save_figure(figure, path)


def learning_curves(metrics_jsonl_paths: Sequence[str | Path], path: str | Path) -> None:
    """Draw loss, teacher-forced accuracy and exam scores of runs from their metrics.jsonl.

    A run is named by its folder (or its file, where that is not called metrics.jsonl).
    """
    plt = pyplot()
    runs: dict[str, list[Result]] = {}
    for file in map(Path, metrics_jsonl_paths):
        name = (
            file.resolve().parent.name
            if file.name == "metrics.jsonl"
            else file.stem.removesuffix(".metrics")
        )
        runs[name if name not in runs else str(file)] = _read_lines(file)
    figure, grid = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    loss, accuracy, absolute, perfect = grid.flat
    for name, lines in runs.items():
        look = style(name, list(runs)) | {"ms": 5, "markevery": 0.15}
        for panel, key, scale in ((loss, "loss", 1), (accuracy, "accuracy", 100)):
            points = [(x["step"], scale * x[key]) for x in lines if key in x]
            panel.plot(*_columns(_smooth(points)), label=name, **look)
        exams = dict.fromkeys(k for x in lines for k in x if k.endswith("_absolute"))
        for number, exam in enumerate(exams):
            dash = look["linestyle"] if number == 0 else (0, (1 + number, 2))
            mine = look | {"linestyle": dash, "markevery": 1}
            label = f"{name}: {exam.removesuffix('_absolute').replace('_', ' ')}"
            for panel, key in ((absolute, exam), (perfect, exam.replace("absolute", "perfect"))):
                points = [(x["step"], x[key]) for x in lines if key in x]
                panel.plot(*_columns(points), label=label, **mine)
    loss.set(ylabel="cross-entropy (nats a piece)", title="Training loss")
    accuracy.set(ylabel="pieces right, true past given (%)", title="Training accuracy")
    absolute.set(ylabel="absolute (%)", title="Exams on validation puzzles")
    perfect.set(ylabel="perfect (%)", title="Exams on validation puzzles")
    for panel in grid.flat:
        panel.set_xlabel("step")
        finish(panel, panel.get_lines(), "nothing logged")
    if absolute.get_lines():  # many lines: below the panels, not over them
        lines_and_names = absolute.get_legend_handles_labels()
        figure.legend(*lines_and_names, loc="outside lower center", ncols=5)
        for panel in (absolute, perfect):
            panel.get_legend().remove()
            panel.set_ylim(0, 102)
    save_figure(figure, path)


SMOOTH = 9  # logged steps whose median is drawn: mixed batches would be drawn as a hedge


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    half = SMOOTH // 2
    return [
        (step, median([y for _, y in points[max(0, i - half) : i + half + 1]]))
        for i, (step, _) in enumerate(points)
    ]


# ---- shared ---------------------------------------------------------------------------------


def pyplot() -> Any:
    """matplotlib without a window, in the house's look."""
    try:
        import matplotlib
    except ImportError as error:
        raise missing(error) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 10,
            "legend.fontsize": 7.5,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "grid.linewidth": 0.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "puzlm",
        }
    )
    return plt


def finish(axes: Any, shown: Iterable[Any], empty: str, room: float | None = None) -> None:
    """Put the legend, or say why the panel is empty."""
    if list(shown):
        axes.legend(loc="best" if room is None else "upper right")
        if room is not None:  # head-room for the legend above values that start at 0
            axes.set_ylim(0, room * axes.get_ylim()[1])
    else:
        axes.text(0.5, 0.5, empty, ha="center", va="center", transform=axes.transAxes)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _read_lines(path: Path) -> list[Result]:
    """Lines of a metrics file; one cut short by a killed run is left out."""
    return [line for line in read_lines(path) if "step" in line]


def save_figure(figure: Any, path: str | Path) -> None:
    """Write the figure by its name's suffix, without a date, so that equal results are equal."""
    import matplotlib.pyplot as plt

    suffix, buffer = Path(path).suffix.lstrip(".") or "png", io.BytesIO()
    metadata = {"Date": None} if suffix == "svg" else None
    figure.savefig(buffer, format=suffix, dpi=110, metadata=metadata)
    plt.close(figure)
    write_bytes(path, buffer.getvalue())
