"""Figures of the sequence analysis from its result dictionaries. Draws; never computes a result.

Colours, dashes and marks are those of plots.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from puzlm.plots import BLACK, GREY, STYLES, Result, finish, pyplot, save_figure, style


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
        middle.plot(z["rank"], z["fitted_frequency"], lw=0.8, **look)
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
    """Draw what the paper does not measure: touching borders and embeddings.

    A gap has a panel if some set comes with several, embeddings if there is a trained model.
    """
    plt = pyplot()
    sets, embeddings = result["sets"], result["embeddings"]
    names = [s["name"] for s in sets]
    several = len(names) > len(set(names))
    trained = "after" in embeddings  # else there is no embedding to look at
    panels = several + 1 + trained
    has_patches = trained and "nearest" in embeddings
    width, upper_height = 13 if has_patches else 4.5 * max(panels, 2), 4.4  # inches
    lower_height = width * _Blocks(embeddings).aspect if has_patches else 0.0
    figure = plt.figure(figsize=(width, upper_height + lower_height), layout="constrained")
    upper, lower = figure, None
    if has_patches:
        upper, lower = figure.subfigures(2, 1, height_ratios=[upper_height, lower_height])
    axes = list(np.atleast_1d(upper.subplots(1, panels)))
    if several:
        _information_by_gap(axes.pop(0), sets)
    _information_by_distance(axes.pop(0), sets, floor=not several)
    for right in axes:
        _geometry_bars(right, embeddings)
    if lower is not None:
        _nearest_patches(lower, embeddings)
    save_figure(figure, path)


def _information_by_gap(axes: Any, sets: Sequence[Result]) -> None:
    measured = [s for s in sets if "touching" in s["borders"]]
    names = [s["name"] for s in measured]
    for name in dict.fromkeys(names):
        group = sorted((s for s in measured if s["name"] == name), key=lambda s: s["gap"])
        for key, text in (("touching", "touching"), ("same_picture", "another side, same picture")):
            rows = [s for s in group if key in s["borders"]]
            gaps = [100 * s["gap"] if s["gap"] < 1 else s["gap"] for s in rows]
            m, look = [s["borders"][key] for s in rows], style(name, names)
            errors = [[x["value"] - x["low"] for x in m], [x["high"] - x["value"] for x in m]]
            if key != "touching":
                look |= {"alpha": 0.55, "markerfacecolor": "white", "lw": 1}
            if rows:
                axes.errorbar(
                    gaps, [x["value"] for x in m], errors, ms=5, label=f"{name}, {text}", **look
                )
    pixels = any(s["gap"] >= 1 for s in measured)
    axes.set(ylabel="mutual information (bits)", title="Facing symbols, by gap")
    axes.set(xlabel=f"gap between pieces ({'pixels' if pixels else '% of a piece'})")
    finish(axes, measured, "mutual information needs a tokenizer folder", room=1.4)


def _information_by_distance(axes: Any, sets: Sequence[Result], floor: bool) -> None:
    """One set of each group: the one with the narrowest gap. `floor` draws other sides, too."""
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
        if floor and "same_picture" in part["borders"]:
            look = style(name, names) | {"marker": "", "alpha": 0.55, "lw": 1}
            level = part["borders"]["same_picture"]["value"]
            text = f"{_label(part)}, another side, same picture"
            axes.axhline(level, label=text, **look)
    axes.set(
        xlabel="distance along the border (positions)",
        ylabel="mutual information (bits)",
        title="Symbols further apart",
    )
    finish(axes, measured, "mutual information needs a tokenizer folder", room=1.4)


def _geometry_bars(axes: Any, embeddings: Result) -> None:
    rows = {
        "looks": "looks",
        "compatibility": "fit",
        "only_looks": "looks\n(fit held)",
        "only_compatibility": "fit\n(looks held)",
    }
    from matplotlib.patheffects import withStroke

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
        bars = axes.bar(
            place,
            [x["value"] for x in m],
            0.25,
            yerr=errors,
            color=STYLES[name]["color"],
            hatch=STYLES[name]["hatch"],
            edgecolor="black",
            lw=0.6,
            capsize=2,
            ecolor=BLACK,
            label=texts[name],
        )
        for part in (*bars.errorbar[1], *bars.errorbar[2]):  # black would be lost on dark bars
            part.set_path_effects([withStroke(linewidth=3, foreground="white")])
    axes.axhline(0, color=BLACK, lw=0.6)
    axes.set_xticks(range(4), rows.values())
    axes.set(xlabel="shared by two symbols", title="What near embeddings share")
    axes.set_ylabel("rank correlation with closeness\nof embeddings (Spearman)")
    finish(axes, shown, "nothing learned")


PATCH_TITLES = {
    "looks": "nearest by looks",
    "compatibility": "most often beside it,\ncompared with chance",
    "before": "nearest embedding\nbefore training",
    "after": "nearest embedding\nafter training",
    "learned": "nearest by what\ntraining added",
}


class _Blocks:
    """Where patches lie, in patch heights: a symbol, then a block of neighbours of each kind."""

    neighbours, space = 4, 0.06  # of a block; white between patches

    def __init__(self, embeddings: Result) -> None:
        near = embeddings["nearest"]
        self.high, self.wide = map(int, embeddings["patch_shape"])
        self.width = self.wide / self.high
        self.columns = 2 if self.width > 1.5 else 4  # strips: two rows of two
        self.rows = self.neighbours // self.columns
        self.pitch = self.rows + (0.3 if self.rows > 1 else 0.0)  # from symbol to symbol
        self.kinds = [kind for kind in PATCH_TITLES if kind in near]
        self.right = self.start(len(self.kinds)) - 0.4 * self.width
        self.bottom = self.pitch * len(near["queries"])
        self.top = -self.right / 20  # room for two lines of titles

    def start(self, block: int) -> float:
        """Left end of a block."""
        return self.width * (1.4 + block * (self.columns + 0.5))

    @property
    def aspect(self) -> float:
        """Height of the whole for a width of 1."""
        return (self.bottom - self.top) / (self.right + 0.2)


def _nearest_patches(figure: Any, embeddings: Result) -> None:
    near, patches, at = embeddings["nearest"], embeddings["patches"], _Blocks(embeddings)
    axes = figure.subplots(1, 1)

    def draw(symbol: int, x: float, y: float) -> None:
        picture = np.frombuffer(bytes.fromhex(patches[str(symbol)]), np.uint8)
        axes.imshow(
            picture.reshape(at.high, at.wide, 3),
            extent=(x, x + at.width - at.space, y + 1 - at.space, y),
            interpolation="nearest",
        )

    for row, query in enumerate(near["queries"]):
        draw(query, 0.0, row * at.pitch)
        for block, kind in enumerate(at.kinds):
            for place, symbol in enumerate(near[kind][row][: at.neighbours]):
                down, across = divmod(place, at.columns)
                draw(symbol, at.start(block) + across * at.width, row * at.pitch + down)
    axes.set(xlim=(-0.2, at.right), ylim=(at.bottom, at.top))
    text = "strip, border\non top" if at.wide > at.high else "symbol"
    axes.text(at.width / 2, -0.15, text, ha="center", fontsize=9)
    for block, kind in enumerate(at.kinds):
        middle = at.start(block) + at.width * at.columns / 2
        axes.text(middle, -0.15, PATCH_TITLES[kind], ha="center", fontsize=9)
    axes.axis("off")


def _label(part: Result) -> str:
    """Name of a set with its gap: 'art-3x3, gap 50 %'."""
    gap = part.get("gap", 0)
    if not gap:
        return str(part["name"])
    return f"{part['name']}, gap {100 * gap:g} %" if gap < 1 else f"{part['name']}, gap {gap:g} px"
