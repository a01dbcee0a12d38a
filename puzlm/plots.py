"""Figures from result dictionaries and files. Draws; never computes a result.

One thing has one colour, dash and marker in every figure. The colours are Okabe and Ito's, told
apart by colour-blind eyes; dashes and markers tell them apart in grey.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from puzlm.errors import PuzlmError
from puzlm.images import write_bytes

Result = dict[str, Any]
Style = dict[str, Any]

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#777777"

STYLES: dict[str, Style] = {  # thing: colour, dash, marker
    "photos-3x3": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "art-3x3": {"color": RED, "linestyle": "--", "marker": "s"},
    "art-5x5": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "English": {"color": BLACK, "linestyle": ":", "marker": "D"},
    "uniform": {"color": GREY, "linestyle": (0, (1, 1)), "marker": ""},
    "before": {"color": "#BBBBBB", "hatch": "..", "marker": "v"},
    "after": {"color": "#333333", "hatch": "", "marker": "P"},
    "learned": {"color": SKY, "hatch": "//", "marker": "X"},
    "bart": {"color": "#004C7F", "linestyle": "-", "marker": "o"},
    "t5": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "pegasus": {"color": "#006B4F", "linestyle": "-.", "marker": "^"},
    "lstm": {"color": PINK, "linestyle": ":", "marker": "D"},
    "gru": {"color": SKY, "linestyle": (0, (6, 2)), "marker": "v"},
    "encoder": {"color": BLACK, "linestyle": (0, (3, 1, 1, 1)), "marker": "P"},
    "decoder": {"color": "#8C6D1F", "linestyle": (0, (8, 1)), "marker": "X"},
}
OTHERS: list[Style] = [  # for things without a style of their own, by first appearance
    {"color": ORANGE, "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": PINK, "linestyle": (0, (6, 2)), "marker": "P"},
    {"color": SKY, "linestyle": (0, (3, 1, 1, 1)), "marker": "X"},
    {"color": "#8C6D1F", "linestyle": (0, (8, 1)), "marker": "*"},
]


def style(name: str, others: Sequence[str] = ()) -> Style:
    """Colour, dash and marker of a thing; `others` lists the unstyled names of the figure."""
    if name in STYLES:
        return dict(STYLES[name])
    unknown = [n for n in dict.fromkeys(others) if n not in STYLES]
    return dict(OTHERS[(unknown.index(name) if name in unknown else 0) % len(OTHERS)])


# ---- sequence analysis ----------------------------------------------------------------------


def sequence_analysis(result: Result, path: str | Path) -> None:
    """Draw the paper's three panels (entropy, Zipf, Heaps) from analysis.json."""
    plt = pyplot()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    names = list(dict.fromkeys(s["name"] for s in result["sets"]))
    shown = [next(s for s in result["sets"] if s["name"] == name) for name in names]
    shown.append(result["english"])

    uniform, k = result["uniform"], result["uniform"]["vocab_size"]
    left.axhline(uniform["bound"], color=GREY, lw=0.8)
    left.text(
        8,
        uniform["bound"] - 0.12,
        f"bound log2({k}) = {uniform['bound']:.4g}",
        va="top",
        fontsize=8,
    )
    left.fill_between(uniform["tokens"], uniform["low"], uniform["high"], color=GREY, alpha=0.3)
    left.plot(uniform["tokens"], uniform["mean"], label="drawn uniformly", **style("uniform"))
    for part in shown:
        e, look = part["entropy"], style(part["name"], names)
        errors = [np.subtract(e["mean"], e["low"]), np.subtract(e["high"], e["mean"])]
        left.errorbar(e["tokens"], e["mean"], errors, ms=5, lw=1.3, label=_label(part), **look)
    left.set(xscale="log", title="Entropy of one puzzle, mean over puzzles")
    left.set(xlabel="sequence length (tokens)", ylabel="Shannon entropy (bits a token)")
    left.legend(loc="lower right")

    for part in shown:
        z, look = part["zipf"], style(part["name"], names)
        marker, s = look.pop("marker"), z["exponent"]
        fit = f"s = {s['value']:.3f} ± {(s['high'] - s['low']) / 2:.3f}"
        middle.plot(
            z["rank"],
            z["frequency"],
            lw=1.6,
            marker=marker,
            ms=4,
            markevery=0.12,
            label=f"{_label(part)}: {fit}",
            **look,
        )
        middle.plot(z["rank"], z["fitted_frequency"], lw=0.7, color=look["color"], alpha=0.7)
    middle.set(xscale="log", yscale="log", title="Zipf: thin lines are the fitted laws")
    middle.set(xlabel="rank of the symbol", ylabel="frequency (share of all tokens)")
    middle.legend(loc="lower left")

    longest = max(part["tokens"] for part in shown)
    right.plot([1, longest], [1, longest**0.5], lw=1.2, label="reference n^0.5", **style("uniform"))
    for part in shown:
        h, look = part["heaps"], style(part["name"], names)
        b = h["beta"]
        beta = f"beta = {b['value']:.2f} ± {(b['high'] - b['low']) / 2:.2f}"
        right.plot(
            h["tokens"],
            h["distinct"],
            lw=1.6,
            ms=4,
            markevery=0.12,
            label=f"{_label(part)}: {beta}",
            **look,
        )
    low, high = shown[0]["heaps"]["range"]
    right.axvspan(low, high, color=GREY, alpha=0.12, lw=0, label=f"fitted: {low} to {high} tokens")
    right.set(
        xscale="log",
        yscale="log",
        xlabel="tokens read (n)",
        ylabel="distinct symbols",
        title="Heaps: new symbols as puzzles go by",
    )
    right.legend(loc="lower right")
    save_figure(figure, path)


def beyond(result: Result, path: str | Path) -> None:
    """Draw what the paper does not measure: touching borders and embeddings."""
    plt = pyplot()
    trained = "after" in result["embeddings"]  # else there is no embedding to look at
    has_patches = trained and "nearest" in result["embeddings"]
    size = (13 if trained else 9, 8.6 if has_patches else 4.4)
    figure = plt.figure(figsize=size, layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1, 1]) if has_patches else (figure, None)
    left, middle, *rest = upper.subplots(1, 3 if trained else 2)
    _information_by_gap(left, result["sets"])
    _information_by_distance(middle, result["sets"])
    for right in rest:
        _geometry_bars(right, result["embeddings"])
    if lower is not None:
        _nearest_patches(lower, result["embeddings"])
    save_figure(figure, path)


def _information_by_gap(axes: Any, sets: Sequence[Result]) -> None:
    measured = [s for s in sets if "touching" in s["borders"]]
    names = [s["name"] for s in measured]
    for name in dict.fromkeys(names):
        rows = sorted((s for s in measured if s["name"] == name), key=lambda s: s["gap"])
        gaps = [100 * s["gap"] if s["gap"] < 1 else s["gap"] for s in rows]
        for key, text in (("touching", "touching"), ("same_picture", "another side, same picture")):
            m, look = [s["borders"][key] for s in rows], style(name, names)
            errors = [[x["value"] - x["low"] for x in m], [x["high"] - x["value"] for x in m]]
            if key != "touching":
                look |= {"alpha": 0.55, "markerfacecolor": "white", "lw": 1}
            axes.errorbar(
                gaps, [x["value"] for x in m], errors, ms=5, label=f"{name}, {text}", **look
            )
    pixels = any(s["gap"] >= 1 for s in measured)
    axes.set(ylabel="mutual information (bits)", title="Facing symbols, by gap")
    axes.set(xlabel=f"gap between pieces ({'pixels' if pixels else '% of a piece'})")
    _finish(axes, measured, "mutual information needs a tokenizer folder", room=1.4)


def _information_by_distance(axes: Any, sets: Sequence[Result]) -> None:
    """One set of each group: the one with the narrowest gap."""
    measured = [s for s in sets if "touching" in s["borders"]]
    names = [s["name"] for s in measured]
    for name in dict.fromkeys(names):
        part = min((s for s in measured if s["name"] == name), key=lambda s: s["gap"])
        for key, text, first in (
            ("own_border", "along one piece", 1),
            ("offset", "across the cut", 0),
        ):
            rows, look = part["borders"].get(key, []), style(name, names)
            if key == "own_border":
                look |= {"alpha": 0.55, "markerfacecolor": "white", "lw": 1}
            axes.plot(
                range(first, first + len(rows)),
                [r["value"] for r in rows],
                ms=5,
                label=f"{_label(part)}, {text}",
                **look,
            )
    axes.set(
        xlabel="distance along the border (positions)",
        ylabel="mutual information (bits)",
        title="Symbols further apart",
    )
    _finish(axes, measured, "mutual information needs a tokenizer folder", room=1.4)


def _geometry_bars(axes: Any, embeddings: Result) -> None:
    rows = {
        "looks": "looks",
        "compatibility": "fit",
        "only_looks": "looks\n(fit held)",
        "only_compatibility": "fit\n(looks held)",
    }
    texts = {
        "before": "before training",
        "after": "after training",
        "learned": "what training added",
    }
    shown = [name for name in texts if name in embeddings]
    for number, name in enumerate(shown):
        m = [embeddings[name][key] for key in rows]
        errors = [[x["value"] - x["low"] for x in m], [x["high"] - x["value"] for x in m]]
        place = np.arange(4) + 0.27 * (number - (len(shown) - 1) / 2)
        axes.bar(
            place,
            [x["value"] for x in m],
            0.25,
            yerr=errors,
            color=STYLES[name]["color"],
            hatch=STYLES[name]["hatch"],
            edgecolor="black",
            lw=0.6,
            capsize=2,
            ecolor=RED,
            label=texts[name],
        )
    axes.axhline(0, color=BLACK, lw=0.6)
    axes.set_xticks(range(4), rows.values())
    axes.set(xlabel="shared by two symbols", title="What near embeddings share")
    axes.set_ylabel("rank correlation with closeness\nof embeddings (Spearman)")
    _finish(axes, shown, "nothing learned")


def _nearest_patches(figure: Any, embeddings: Result) -> None:
    near, patches = embeddings["nearest"], embeddings["patches"]
    titles = {
        "looks": "nearest by looks",
        "compatibility": "touch it most\n(for their frequency)",
        "before": "nearest embedding\nbefore training",
        "after": "nearest embedding\nafter training",
        "learned": "nearest by what\ntraining added",
    }
    kinds = [key for key in titles if key in near]
    axes, step = figure.subplots(1, 1), 4.7  # patch widths from block to block
    for row, query in enumerate(near["queries"]):
        for block, symbols in enumerate([[query], *(near[kind][row] for kind in kinds)]):
            for place, symbol in enumerate(symbols):
                x = 0.0 if block == 0 else 1.7 + (block - 1) * step + place
                picture = np.frombuffer(bytes.fromhex(patches[str(symbol)]), np.uint8)
                axes.imshow(
                    picture.reshape(8, 8, 3),
                    extent=(x, x + 0.94, row + 0.94, row),
                    interpolation="nearest",
                )
    axes.set(xlim=(-0.2, 1.7 + step * len(kinds)), ylim=(len(near["queries"]) + 0.1, -1.1))
    axes.text(0.47, -0.15, "symbol", ha="center", fontsize=9)
    for block, kind in enumerate(kinds):
        axes.text(1.7 + block * step + 2, -0.15, titles[kind], ha="center", fontsize=9)
    axes.axis("off")


# ---- solver and training --------------------------------------------------------------------


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
    figure, grid = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
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
        _finish(panel, panel.get_lines(), "nothing logged")
    if absolute.get_lines():  # many lines: beside the panels, not over them
        absolute.get_legend().remove()
        perfect.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0))
        for panel in (absolute, perfect):
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
        raise PuzlmError("figures need matplotlib: pip install 'puzlm[plots]'") from error
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


def _label(part: Result) -> str:
    """Name of a set with its gap: 'art-3x3, gap 50 %'."""
    gap = part.get("gap", 0)
    if not gap:
        return str(part["name"])
    return f"{part['name']}, gap {100 * gap:g} %" if gap < 1 else f"{part['name']}, gap {gap:g} px"


def _finish(axes: Any, shown: Iterable[Any], empty: str, room: float | None = None) -> None:
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
    try:
        text = path.read_text().splitlines()
    except OSError as error:
        raise PuzlmError(f"{path}: cannot be read ({error.strerror})") from error
    lines = []
    for line in text:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return [x for x in lines if isinstance(x, dict) and "step" in x]


def save_figure(figure: Any, path: str | Path) -> None:
    """Write the figure by its name's suffix, without a date, so that equal results are equal."""
    import matplotlib.pyplot as plt

    suffix, buffer = Path(path).suffix.lstrip(".") or "png", io.BytesIO()
    metadata = {"Date": None} if suffix == "svg" else None
    figure.savefig(buffer, format=suffix, dpi=110, metadata=metadata)
    plt.close(figure)
    write_bytes(path, buffer.getvalue())
