"""Tables of levers, training time and cost: a part of docs/results.md, for make_results.py."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from puzlm.study.ablate import read_rows
from puzlm.study.ablation_gains import deviation, gain, of_time, scores
from tools.study_tables import by_name

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "docs" / "runs"
WAYS = {
    "beam": "beam of 16",
    "assign": "assignment of beam marginals",
    "views-2": "two views",
    "views-8": "eight views",
    "fusion": "beam marginals and pixels",
}
LOGS = {  # of a model that are not named like it
    "puzlm-3x3": ["photos-3x3", "more-3x3", "split-3x3", "split-more"]
}
BATCH = 1024  # puzzles a step of both recipes
RECIPES = {"paper": "the paper's recipe", "photos-3x3": "ours"}  # their logs, in [equal time]


def interval(value: dict, sign: str = "") -> str:
    return f"{value['value']:{sign}.1f} [{value['low']:{sign}.1f}, {value['high']:{sign}.1f}]"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def levers_table(path: Path = ROOT / "docs" / "study" / "rows.jsonl") -> str:
    """Rows of the study that change one thing of the base, and other ways to decode one model."""
    found = by_name(read_rows(path))
    if "base" not in found:
        return "No levers were measured yet."
    names = [name for name, mine in found.items() if mine[0]["group"] == "levers"]
    kinds = list(found["base"][0]["results"])
    again = found.get("test-time", [])

    def row(name: str, mine: list, other: list, cost: str, way: str = "valid") -> list[str]:
        own = [interval(scores(mine, k, way, "absolute")) for k in kinds]
        alike = mine is other and way == "valid"
        gains = [None if alike else gain(mine, other, k, way, "valid") for k in kinds]
        more = [interval(vars(g), "+") if g else "" for g in gains]
        return [name, *own, *more, str(len(mine)), cost]

    def rate(line: dict) -> str:
        more = f" + {line['side_seconds']:.0f} s before" if "side_seconds" in line else ""
        return f"{line['puzzles_seen'] / line['seconds'] / 1e3:.1f}{more}"

    def levers(prefix: str) -> str:
        base = found[f"{prefix}base"]
        here = [("base", base), *((n, found.get(prefix + n, [])) for n in names)]
        rows = [
            row(str(mine[0]["x"] or name), mine, base, rate(mine[0]))
            if mine
            else [str(found[name][0]["x"]), "not run", *[""] * 5]
            for name, mine in here
        ]
        rivals = of_time(found.values(), long=bool(prefix))
        between = " and ".join(f"{deviation(rivals, kind):.1f}" for kind in kinds)
        time, cost = f"{base[0]['settings']['seconds']:g} s", "thousand training puzzles/s"
        said = f"**{time}** (seeds of one row differ by a standard deviation of {between} points):"
        return f"{said}\n\n{table([*head, cost], rows)}"

    head = [
        "lever",
        *(f"{k}, absolute" for k in kinds),
        *(f"gain, {k}" for k in kinds),
        "seeds",
    ]
    about = (
        f"Small models, each trained for the same time on one {found['base'][0]['device']}, "
        "validation puzzles; the base is the paper's tokenizer with heads and centroid start. "
        "Accuracies are means over the seeds, gains over those that the base has too, puzzle by "
        "puzzle; they may be the seeds' alone. [The study](study.md) has all rows, and says which "
        "are clear."
    )
    parts = [about, *(levers(prefix) for prefix in ("long-", "") if f"{prefix}base" in found)]
    if again:
        ways = again[0]["results"][kinds[-1]]
        rows = [row(WAYS[w], again, again, f"{ways[w]['ms']:.1f}", w) for w in WAYS if w in ways]
        first = row("one pass", again, again, f"{ways['valid']['ms']:.1f}")
        said = "**Decoding**, the base of the shorter time, against one pass of the same model:"
        parts.append(f"{said}\n\n{table([*head, 'ms a puzzle'], [first, *rows])}")
    return "\n\n".join(parts)


def minutes(path: Path) -> float | None:
    """Minutes of training in a log; a resumed run begins its clock anew."""
    if not path.is_file():
        return None
    text = path.read_text()
    lines = json.loads(text) if path.suffix == ".json" else map(json.loads, text.splitlines())
    clock = [line["seconds"] for line in lines if "seconds" in line]
    ends = [a for a, b in zip(clock, clock[1:], strict=False) if b < a] + clock[-1:]
    return sum(ends) / 60


def equal_time_table() -> str:
    """The paper's recipe beside ours: exams while training, by GPU minutes spent on steps."""
    rows = []
    for name, recipe in RECIPES.items():
        text = (RUNS / f"{name}.metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        pace = median(line["puzzles_per_second"] for line in lines if "loss" in line)
        for line in lines:
            if "gap_0_absolute" in line:
                scores = [
                    f"{line[f'gap_{gap}_absolute']:.1f} / {line[f'gap_{gap}_perfect']:.1f}"
                    for gap in ("0", "0.5")
                ]
                spent = line["step"] * BATCH / pace / 60
                rows.append((spent, [recipe, f"{line['step']:,}", f"{spent:.1f}", *scores]))
    head = ["recipe", "steps", "GPU minutes", "photos, touching", "photos, gap of half a piece"]
    return table(head, [row for _, row in sorted(rows)])


def training_minutes(solver: str, model: str) -> str:
    runs = LOGS.get(model, [model])
    words, sides = [f"{run}.metrics.jsonl" for run in runs], [f"{runs[0]}.sides.json"]
    logs = {
        "bigram": sides,
        "auto": [*words, *sides],
        "vision": [f"{run}.metrics.jsonl" for run in ("vision", "vision-worn", "vision-grids")],
        "vision-pairs": ["vision-pairs.metrics.jsonl"],
    }
    found = [minutes(RUNS / name) for name in logs.get(solver, words)]
    return f"{sum(m for m in found if m):.1f}" if any(found) else "?"


def costs_table() -> str:
    path = RUNS / "costs.json"
    if not path.is_file():
        return "No costs were measured yet."
    record = json.loads(path.read_text())
    sizes = list(dict.fromkeys(s for f in record["solvers"].values() for s in f["sizes"]))
    fixed, times = [], []
    for name, found in record["solvers"].items():
        solver, _, model = name.partition("@")
        trained = training_minutes(solver, model) if found["parameters"] else "0"
        peaks = [found["sizes"].get(s, {}).get("peak_mb") for s in sizes]
        size = [f"{found['parameters'] / 1e6:.1f}", f"{found['megabytes']:.0f}"]
        memory = ["-" if peak is None else f"{peak:.0f}" for peak in peaks]
        fixed.append([name, *size, trained, *memory])
        times.append([name, *(_time(found["sizes"].get(s)) for s in sizes)])
    machine = record["machine"]
    about = (
        f"{machine['cores']} cores ({machine['processor']}), {machine['threads']} threads, load "
        f"{machine['load']}; pieces of {record['piece']} px. A dash: the solver does not take "
        "this grid. Memory is the peak of a fresh process that solves one puzzle."
    )
    return "\n\n".join(
        [
            about,
            table(
                [
                    "solver",
                    "weights (M)",
                    "MB",
                    "training (min)",
                    *(f"{s}, peak MB" for s in sizes),
                ],
                fixed,
            ),
            "Seconds a puzzle, warm, and in brackets the ratio to `classic` in the same rounds:",
            table(["solver", *sizes], times),
        ]
    )


def _time(cell: dict | None) -> str:
    if cell is None:
        return "-"
    ratio = cell["against_classic"]["median"]
    return f"{_digits(cell['seconds']['median'])} ({_digits(ratio)} x)"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value else "<0.01"
