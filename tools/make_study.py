"""Write docs/study.md and its figures from committed files: analyses and rows of ablations.

python -m tools.make_study

study.template.md holds the words; every measured number in it is a {name} that is filled in from
docs/analysis/**/analysis.json, docs/study/rows.jsonl and memory.json.
Rows of plans/study.toml that have not been run are named as missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puzlm.models.backbones import BACKBONES
from puzlm.study import ablation_plots as drawn
from puzlm.study.ablate import read_rows
from puzlm.study.ablation_gains import deviation, each, gain, of_time
from puzlm.study.plan import Plan
from tools.study_analysis import Numbers, analysis_numbers
from tools.study_tables import (
    KINDS,
    WAYS,
    Lines,
    Rows,
    best,
    by_name,
    decoding_table,
    label,
    longer,
    row_table,
    signed,
    tokenizer_facts,
    verdict,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ROWS = DOCS / "study" / "rows.jsonl"
CURVES = ("long-base", "long-no-heads-slow", "long-random-start", "long-strips", "long-two-symbols")
SWEEPS = {
    "granularity": "granularity B (patches a side)",
    "dimension": "dimensions kept by the PCA (d)",
    "vocabulary": "vocabulary size (k)",
}
BASE_AT = {"granularity": 4, "dimension": 1024, "vocabulary": 4096}
TABLES = {
    "sweep": tuple(SWEEPS),
    "switch": ("switches",),
    "tokenizer": ("tokenizers",),
    "lever": ("levers",),
    "backbone": ("backbones-256", "backbones-128"),
}


# ---- ablations ------------------------------------------------------------------------------


def state_of(plan: Plan, lines: Lines) -> str:
    """Which runs of the plan are there, failed or missing."""
    wanted = [(row.name, seed) for row in plan.rows for seed in plan.seeds(row)]
    done = {(x["name"], x["seed"]) for x in lines if x["status"] == "done"}
    failed = [x for x in lines if x["status"] != "done"]
    missing = [w for w in wanted if w not in done]
    seconds = {x["settings"]["seconds"] for x in lines if x["status"] == "done"}
    times = [f"{time:g} s" for time in sorted(seconds)]
    devices = sorted({x["device"] for x in lines if x["status"] == "done"})
    there = f"{len(set(wanted) & done)} of the {len(wanted)}" if missing else f"All {len(wanted)}"
    state = f"{there} runs of `plans/study.toml` are there"
    state += f", trained for {' or '.join(times)} each on {', '.join(devices)}." if done else "."
    if failed:
        state += " Failed: " + "; ".join(f"{x['name']} ({x['error']})" for x in failed) + "."
    if missing:
        names = list(dict.fromkeys(name for name, _ in missing))
        state += f" Missing: {', '.join(names)}."
    return state


def ablation_numbers(plan: Plan, lines: Lines) -> tuple[Numbers, dict[str, Any]]:
    """Texts for the template, and what the figures need."""
    found, groups = by_name(lines), {}
    for row in plan.rows:
        groups.setdefault(row.group, []).append(row)
    between, later = (
        {kind: deviation(of_time(found.values(), long), kind) for kind in KINDS}
        for long in (False, True)
    )

    def named(*names: str) -> Rows:
        return [(label(row), found.get(row.name, [])) for name in names for row in groups[name]]

    def panels(base: Lines, called: Callable[[str], str]) -> dict[str, dict[Any, Lines]]:
        """Runs of each sweep by its setting; the base is one of them."""
        return {
            group: {BASE_AT[group]: base}
            | dict((row.x, found.get(row.name, [])) for row in groups[called(group)])
            for group in SWEEPS
        }

    # Each table twice: rows of two minutes ("long"), and the shorter ones.
    numbers: Numbers = {"state": state_of(plan, lines)}
    figures: dict[str, Any] = {}
    for prefix, called, spread in (("long ", longer, later), ("", str, between)):
        base = found.get(called("base"), [])
        for text, members in TABLES.items():
            rows = named(*map(called, members))
            if text == "backbone":
                first, rows = rows[:1], rows[1:]
            else:
                first = [("base", base)]
            numbers[f"{prefix}{text} table"] = row_table(first + rows, spread)
            said = verdict(first[0][1], rows, spread)
            numbers[f"{prefix}{text} verdict"] = (
                said.replace("(base", "(BART") if text == "backbone" else said
            )
            figures[f"{prefix}{text}"] = dict(first + rows)
        figures[f"{prefix}panels"] = panels(base, called)
        for group, runs in figures[f"{prefix}panels"].items():
            numbers[f"{prefix}best {group}"] = best(group, runs, spread)
        numbers[f"{prefix}tokenizer facts"] = tokenizer_facts(
            found, called("base"), groups[called("tokenizers")]
        )
    decoded = found.get(longer("test-time")) or found.get("test-time", [])
    numbers["decoding table"] = decoding_table(decoded)
    long = next(r for r in plan.rows if r.name == "long-base")
    numbers |= {"long seconds": f"{long.seconds:g}", "long puzzles": f"{long.puzzles:,}"}
    for kind in KINDS:
        numbers[f"between {kind}"] = f"{between[kind]:.1f}"
        numbers[f"long between {kind}"] = f"{later[kind]:.1f}"
    for way in ("pixels", "assign"):
        more = gain(decoded, decoded, "art-3x3", "fusion", way)
        numbers[f"fusion over {way}"] = signed(more) if more else "?"
    for name, mine in found.items():
        seen = sum(x["puzzles_seen"] for x in mine) / len(mine)
        numbers[f"mean seen {name}"] = f"{seen / 1e6:.2f}"
        for line in mine:
            numbers |= run_numbers(name if line is mine[0] else f"{name} {line['seed']}", line)
        for way, text in (("valid", "decoder"), ("head", "head")):
            for kind, ending in zip(KINDS, ("", " art"), strict=True):
                values = each(mine, kind, way) or [float("nan")]
                numbers[f"mean {text} {name}{ending}"] = f"{sum(values) / len(values):.1f}"
    figures |= {
        "decoding": decoded,
        "curves": {str(found[n][0]["x"] or n): found[n][0] for n in CURVES if n in found},
        "learning": {
            f"{row.x}, seed {x['seed']}" if len(found[row.name]) > 1 else str(row.x): x
            for row in groups["backbones-long"]
            for x in found.get(row.name, [])
        },
    }
    for figure, sizes in (("long sizes", ("128-long", "long")), ("sizes", ("128", "256"))):
        figures[figure] = {
            name: [found.get(f"backbones-{size}-{name}", []) for size in sizes]
            for name in BACKBONES
        }
    return numbers, figures


def run_numbers(name: str, line: dict[str, Any]) -> Numbers:
    """What the words say of single runs: accuracy by decoder and head, how training ended."""
    made = {
        f"steps {name}": f"{line['steps']:,}",
        f"weights {name}": f"{line['parameters'] / 1e6:.1f}",
        f"seen {name}": f"{line['puzzles_seen'] / 1e6:.2f}",
        f"times {name}": f"{line['puzzles_seen'] / line['settings'].get('puzzles', 1):.0f}",
        f"last loss {name}": f"{line['curve'][-1][1]:.2f}",
        f"last right {name}": f"{100 * line['curve'][-1][2]:.0f}",
        f"last heads {name}": f"{line['curve'][-1][3]:.2f}",
    }
    for kind, ways in line["results"].items():
        for way, found in ways.items():
            text = f"{'decoder' if way == 'valid' else way} {name}"
            text += "" if kind == "photos-3x3" else " art"
            made[text] = f"{found['absolute']['value']:.1f}"
    return made


def memory_numbers(plan: Plan, record: dict[str, Any]) -> Numbers:
    """What small models know by heart, from study/memory.json."""
    sets = ["training puzzles", "training images", "new images"]
    lines = [
        "| row | training puzzles | training images, cut anew | new images |",
        "|---|---|---|---|",
    ]
    for name, found in record["absolute_perfect"].items():
        marks = " | ".join(f"{found[s][0]:.1f} / {found[s][1]:.1f}" for s in sets)
        lines.append(f"| {name.removesuffix('-0')} | {marks} |")
    return {
        "library": f"{plan.plan.puzzles:,}",
        "memory puzzles": str(record["puzzles"]),
        "memory table": "\n".join(lines),
    }


# ---- the page -------------------------------------------------------------------------------


def load() -> tuple[dict[str, Any], dict[str, dict[str, Any]], Plan, Lines]:
    result = json.loads((DOCS / "analysis" / "analysis.json").read_text())
    models = {
        path.parent.name: json.loads(path.read_text())
        for path in sorted((DOCS / "analysis").glob("*/analysis.json"))
    }
    return result, models, Plan.load(ROOT / "plans" / "study.toml"), read_rows(ROWS)


def render() -> str:
    """The whole page."""
    result, models, plan, lines = load()
    numbers = analysis_numbers(result, models) | ablation_numbers(plan, lines)[0]
    numbers |= memory_numbers(plan, json.loads((DOCS / "study" / "memory.json").read_text()))
    return (DOCS / "study.template.md").read_text().format_map(numbers)


def draw() -> None:
    """Every figure of the page."""
    from puzlm.study.analysis_plots import beyond, sequence_analysis

    result, models, plan, lines = load()
    for suffix in ("png", "svg"):
        sequence_analysis(result, DOCS / "analysis" / f"analysis.{suffix}")
        beyond(result, DOCS / "analysis" / f"analysis-beyond.{suffix}")
    for name, found in models.items():
        beyond(found, DOCS / "analysis" / name / "analysis-beyond.png")
    f, folder = ablation_numbers(plan, lines)[1], DOCS / "study"
    drawn.sweeps(f["long panels"], f["panels"], SWEEPS, KINDS, BASE_AT, folder / "sweeps.png")
    titles = {
        "switch": "Design choices of the tokenizer",
        "tokenizer": "Tokenizers",
        "lever": "Levers of our own recipe",
    }
    for text, title in titles.items():
        path = folder / f"{'switches' if text == 'switch' else f'{text}s'}.png"
        title = f"{title}, equal training time"
        drawn.bars(f[f"long {text}"], KINDS, path, title, shorter=f[text])
    drawn.sizes(f["long sizes"], f["sizes"], KINDS, folder / "backbones.png")
    drawn.curves(f["curves"], folder / "curves.png")
    drawn.curves(f["learning"], folder / "learning.png")
    drawn.bars(
        {"base": f["decoding"]},
        KINDS,
        folder / "decoding.png",
        "One model, decoded in many ways",
        ways=WAYS,
    )


def main() -> None:
    draw()
    (DOCS / "study.md").write_text(render())


if __name__ == "__main__":
    main()
