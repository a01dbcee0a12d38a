"""Write the tables and the figure of docs/paper.md: where we agree with the paper, where not.

    python -m tools.make_paper

Reads docs/study/rows.jsonl (`puzlm ablate`) and results files; the paper's numbers stand here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from puzlm.harness.protocols import PROTOCOLS
from puzlm.harness.results_files import read_folder, read_results
from puzlm.study.ablate import read_rows
from puzlm.study.ablation_gains import deviation, gain, of_time, scores, seed_noise
from tools.make_field import fill
from tools.results_costs import table
from tools.study_tables import KINDS, by_name

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "pictures" / "paper.png"
CHANCE = 100 / 9
BASE = 91.9  # the paper's absolute accuracy on JPwLEG-3
CHOICES = {  # its table 4: absolute accuracy without a choice; our row
    "lexicographic order": (67.6, "no-order"),
    "border selection": (72.2, "no-border"),
    "PCA": (81.1, "dimension-0"),
    "separator": (84.7, "no-separator"),
    "clockwise walk": (86.9, "raster"),
}
COLOURS = {"15 s": "#e69f00", "110 s": "#0072b2"}
BUDGETS = {"15 s": "", "110 s": "long-"}  # training time on one GPU, prefix of the rows
RECIPE = ("imagenet-3x3", "imagenet-3x3-missing-3", "jpwleg-3")  # rows `paper`


@dataclass(frozen=True)
class Effect:
    """What taking a choice away does to our absolute accuracy, in points."""

    base: float
    value: float
    noise: float  # that seeds alone explain

    def share(self, points: float) -> float:
        """Points as a share of what lies between chance and the base, in percent."""
        return 100 * points / (self.base - CHANCE)


def effects() -> dict[tuple[str, str, str], Effect]:
    """The effects of the paper's choices here, by choice, kind of puzzle and training time."""
    rows = by_name(read_rows(ROOT / "docs" / "study" / "rows.jsonl"))
    found = {}
    for kind in KINDS:
        for budget, prefix in BUDGETS.items():
            between = deviation(of_time(rows.values(), bool(prefix)), kind)
            base = rows[f"{prefix}base"]
            level = scores(base, kind, "valid", "absolute")
            for choice, (_, name) in CHOICES.items():
                mine = rows[f"{prefix}{name}"]
                value = gain(mine, base, kind)
                assert value is not None and level is not None
                noise = seed_noise(mine, base, between)
                found[choice, kind, budget] = Effect(level["value"], value.value, noise)
    return found


def choices_table() -> str:
    """Each choice: the paper's loss, ours, and whether ours excludes a loss of the same share."""
    ours = effects()
    lines = []
    for choice, (without, _) in CHOICES.items():
        lost = 100 * (BASE - without) / (BASE - CHANCE)
        cells = []
        for kind in KINDS:
            for budget in BUDGETS:
                one = ours[choice, kind, budget]
                same = lost / 100 * (one.base - CHANCE)  # points, were our loss the paper's share
                excluded = one.value - one.noise > -same
                cells.append(f"{one.value:+.1f} ± {one.noise:.1f}{' **no**' if excluded else ''}")
        lines.append([choice, f"-{BASE - without:.1f} (-{lost:.0f} %)", *cells])
    names = {"photos-3x3": "photos, touching", "art-3x3": "paintings, worn"}
    head = ["without", "the paper, JPwLEG-3"]
    return table([*head, *(f"{names[k]}, {b}" for k in KINDS for b in BUDGETS)], lines)


def images_table() -> str:
    """The same protocols on museum photographs and on paintings, both original files."""
    clean = read_folder(ROOT / "results" / "clean")
    lines = []
    for protocol in ("jpwleg-3", "jpwleg-5"):
        for solver in ("reader", "seq2seq", "auto", "classic"):
            pair = [
                clean.get(f"{protocol}.{images}.{solver}") for images in ("museum", "paintings")
            ]
            if all(pair):
                lines.append([f"`{protocol}`", solver, *map(_scores, pair)])
    return table(["protocol", "solver", "museum photographs", "paintings"], lines)


def recipe_table() -> str:
    """The paper's recipe, trained by us, beside the paper's numbers."""
    lines = []
    for protocol in RECIPE:
        result = read_results(ROOT / "results" / f"{protocol}.paper.json")
        paper = next(k for k in PROTOCOLS[protocol].published if k.method == "PuzLM")
        theirs = f"*{paper.absolute} / {paper.perfect}*"
        lines.append([f"`{protocol}`", theirs, _scores(result)])
    return table(["protocol", "the paper", "its recipe, trained here"], lines)


def _scores(result: dict | None) -> str:
    assert result is not None
    perfect = result["perfect"]
    return (
        f"{result['absolute']['value']:.1f} / {perfect['value']:.1f} "
        f"[{perfect['low']:.1f}, {perfect['high']:.1f}], {result['puzzles']}"
    )


def figure() -> None:
    """Draw what each choice is worth, as a share of what lies above chance."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ours = effects()
    drawn, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for axis, kind in zip(axes, KINDS, strict=True):
        for row, (choice, (without, _)) in enumerate(CHOICES.items()):
            lost = -100 * (BASE - without) / (BASE - CHANCE)
            axis.plot(lost, row, "D", color="black", label="the paper" if row == 0 else None)
            for shift, (budget, colour) in enumerate(COLOURS.items()):
                one = ours[choice, kind, budget]
                axis.errorbar(
                    one.share(one.value),
                    row + 0.16 + 0.2 * shift,
                    xerr=one.share(one.noise),
                    fmt="o",
                    color=colour,
                    capsize=2,
                    label=f"here, {budget}" if row == 0 else None,
                )
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set_title({"photos-3x3": "photos, touching", "art-3x3": "paintings, worn"}[kind])
        axis.set_xlabel("effect, % of what lies above chance")
    axes[0].set_yticks(range(len(CHOICES)), [f"without {choice}" for choice in CHOICES])
    axes[0].invert_yaxis()
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    drawn.savefig(FIGURE, dpi=110)


def page(text: str) -> str:
    """Put the tables between their marks in docs/paper.md."""
    for name, block in (
        ("choices", choices_table()),
        ("images", images_table()),
        ("recipe", recipe_table()),
    ):
        text = fill(text, name, block)
    return text


def main() -> None:
    """Write the page and its figure."""
    path = ROOT / "docs" / "paper.md"
    path.write_text(page(path.read_text()))
    figure()


if __name__ == "__main__":
    main()
