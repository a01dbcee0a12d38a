"""Write docs/study.md and its figures from committed files: analyses and rows of ablations.

python docs/make_study.py

study.template.md holds the words; every measured number in it is a {name} that is filled in from
docs/analysis/**/analysis.json, docs/study/rows.jsonl and memory.json, and runs/study-shared.json.
Rows of plans/study.toml that have not been run are named as missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))

from study_analysis import Numbers, analysis_numbers, span  # noqa: E402

from puzlm import ablation_plots as drawn  # noqa: E402
from puzlm.ablate import read_rows  # noqa: E402
from puzlm.ablation_plots import each, gain, scores, seed_noise, steady  # noqa: E402
from puzlm.backbones import BACKBONES  # noqa: E402
from puzlm.metrics import Interval  # noqa: E402
from puzlm.plan import Plan, Row  # noqa: E402

DOCS = ROOT / "docs"
ROWS = DOCS / "study" / "rows.jsonl"
KINDS = ("photos-3x3", "art-3x3")
CURVES = ("long-base", "long-no-heads-slow", "long-random-start", "long-strips", "long-two-symbols")
SWEEPS = {
    "granularity": "granularity B (patches a side)",
    "dimension": "dimensions kept by the PCA (d)",
    "vocabulary": "vocabulary size (k)",
}
BASE_AT = {"granularity": 4, "dimension": 1024, "vocabulary": 4096}
LETTER = {"granularity": "B", "dimension": "d", "vocabulary": "k"}
TABLES = {
    "sweep": tuple(SWEEPS),
    "switch": ("switches",),
    "tokenizer": ("tokenizers",),
    "lever": ("levers",),
    "backbone": ("backbones-256", "backbones-128"),
}
WAYS = {
    "one pass over free cells": "valid",
    "one pass, any cell (the paper's)": "greedy",
    "the head on the encoder": "head",
    "beam of 16": "beam",
    "assignment of beam marginals": "assign",
    "two views": "views-2",
    "eight views": "views-8",
    "beam marginals and pixels": "fusion",
    "pixels alone": "pixels",
}
Lines = list[dict[str, Any]]
Rows = list[tuple[str, Lines]]  # what a row is called, and its runs
Between = dict[str, float]  # kind: standard deviation between seeds in points


# ---- ablations ------------------------------------------------------------------------------


def signed(value: Interval) -> str:
    return f"{value.value:+.1f} [{value.low:+.1f}, {value.high:+.1f}]"


def by_name(lines: Lines) -> dict[str, Lines]:
    found: dict[str, Lines] = {}
    for line in lines:
        # Rows that trained side by side had not equal time: they are in runs/study-shared.json.
        if line["status"] == "done" and "share" not in line["settings"]:
            found.setdefault(line["name"], []).append(line)
    return found


def label(row: Row) -> str:
    """What a row is called in a table."""
    if (sweep := row.group.removeprefix("long-")) in LETTER:
        return f"{LETTER[sweep]} = {row.x or 'no PCA'}"
    if row.group.startswith("backbones-"):
        return f"{row.x}, d_model {128 if '128' in row.group else 256}"
    return str(row.x or row.name)


def longer(name: str) -> str:
    """What a row, or a group of rows, is called where it has two minutes."""
    if name.startswith("backbones-256"):
        return name.replace("256", "long")
    return name.replace("128", "128-long") if name.startswith("backbones") else f"long-{name}"


def row_table(rows: Rows, between: Between) -> str:
    """Rows with their gain over the first; `between`: what lies between seeds, of each kind."""
    lines = [
        "| row | photos 3x3: absolute | each seed | perfect | gain | art 3x3, gap 50 %: "
        "absolute | each seed | perfect | gain | head: photos / art | tokens a puzzle "
        "| parameters (M) | puzzles seen (M) | tokenising (ms) |",
        "|" + "---|" * 14,
    ]
    for number, (name, found) in enumerate(rows):
        if not found:
            lines.append(f"| {name} | not run" + " |" * 13)
            continue
        cells = []
        for kind in KINDS:
            values = each(found, kind)
            cells += [
                _score(scores(found, kind, "valid", "absolute")),
                " / ".join(f"{v:.1f}" for v in values) if len(values) > 1 else "",
                _score(scores(found, kind, "valid", "perfect")),
                _gain(found, rows[0][1], kind, between[kind]) if number else "",
            ]
        heads = [each(found, kind, "head") for kind in KINDS]
        cells.append(" / ".join(f"{sum(h) / len(h):.1f}" for h in heads if h))
        mean = {k: sum(x[k] for x in found) / len(found) for k in ("puzzles_seen", "tokenise_ms")}
        first = found[0]
        where = " (CPU)" if first["device"] == "CPU" else ""
        lines.append(
            f"| {name}{where} | {' | '.join(cells)} | "
            f"{first['tokens_per_puzzle']} | {first['parameters'] / 1e6:.1f} | "
            f"{mean['puzzles_seen'] / 1e6:.2f} | {mean['tokenise_ms']:.3f} |"
        )
    return "\n".join(lines)


def _score(score: dict[str, float] | None) -> str:
    return "" if score is None else span(score, 1)


def _gain(found: Lines, base: Lines, kind: str, between: float) -> str:
    more = gain(found, base, kind)
    if more is None or not steady(found, kind):
        return "" if more is None else "depends on the seed"
    return f"{signed(more)} ± {seed_noise(found, base, between):.1f}"


def decoding_table(found: Lines) -> str:
    if not found:
        return "Not run yet."
    lines = [
        "| decoding | puzzles | photos 3x3: absolute | perfect | gain | art 3x3, gap 50 %: "
        "absolute | perfect | gain | ms a puzzle |",
        "|" + "---|" * 9,
    ]
    for text, way in WAYS.items():
        results = [found[0]["results"][kind].get(way) for kind in KINDS]
        if results[0] is None or results[1] is None:
            continue
        cells = ""
        for kind, r in zip(KINDS, results, strict=True):
            more = gain(found, found, kind, way, "valid") if way != "valid" else None
            shown = "" if more is None else signed(more)
            cells += f"{span(r['absolute'], 1)} | {span(r['perfect'], 1)} | {shown} | "
        lines.append(
            f"| {text} | {results[0]['puzzles']} / {results[1]['puzzles']} | {cells}"
            f"{results[1]['ms']:.1f} |"
        )
    return "\n".join(lines)


def tokenizer_facts(found: dict[str, Lines], rows: list[Row]) -> str:
    lines = [
        "| tokenizer | tokens a piece | symbols | learned numbers (M) | fitted in (s) | codes "
        "used | error / variance |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, text in [("base", "PuzLM's (base)"), *((r.name, str(r.x)) for r in rows)]:
        if name not in found:
            continue
        line = found[name][0]
        s = line["settings"].get("learned") or line["settings"]["recipe"]["tokenizer"]
        facts = line.get("learned", {})
        error = f"{facts['error'] / facts['variance']:.2f}" if facts else ""
        pieces = (line["tokens_per_puzzle"] - 8) // 9
        lines.append(
            f"| {text} | {pieces} | {s['vocab_size']:,} | "
            f"{line['tokenizer_parameters'] / 1e6:.2f} | {line['fit_seconds']:.0f} | "
            f"{facts.get('codes_used', '')} | {error} |"
        )
    return "\n".join(lines)


def clear(found: Lines, base: Lines, kind: str, between: float) -> int:
    """1 or -1 for a gain that neither puzzles nor seeds explain, else 0."""
    more = gain(found, base, kind)
    if more is None or abs(more.value) <= seed_noise(found, base, between):
        return 0
    return (more.low > 0) - (more.high < 0)


def verdict(base: Lines, rows: Rows, between: Between) -> str:
    """Say which rows lie above or below the base by more than puzzles and seeds explain."""
    if not base or not any(found for _, found in rows):
        return "No row of this group has been run yet."
    texts = []
    for kind in KINDS:
        parts: dict[str, list[str]] = {
            "better": [],
            "worse": [],
            "depends on the seed": [],
            "no clear effect": [],
        }
        for name, found in rows:
            more = gain(found, base, kind) if found else None
            if more is None:
                continue
            sign = clear(found, base, kind, between[kind])
            where = ("no clear effect", "better", "worse")[sign]
            text = f"{more.value:+.1f} ± {seed_noise(found, base, between[kind]):.1f}"
            if not steady(found, kind):
                where, text = (
                    "depends on the seed",
                    " and ".join(f"{value:.1f}" for value in each(found, kind)),
                )
            parts[where].append(f"{name} ({text})")
        said = [f"{where}: {', '.join(names)}" for where, names in parts.items() if names]
        own = sum(each(base, kind)) / len(base)
        texts.append(f"**{kind}** (base {own:.1f}): {'; '.join(said)}.")
    return "\n\n".join(texts)


def best(group: str, rows: dict[Any, Lines], between: Between) -> str:
    """Where a sweep peaks, for both kinds."""
    said = []
    for kind in KINDS:
        found = {x: scores(lines, kind, "valid", "absolute") for x, lines in rows.items()}
        known = {x: s for x, s in found.items() if s is not None}
        if len(known) < 2:
            return f"{LETTER[group]}: not run yet."
        top = max(known, key=lambda x: known[x]["value"])
        even = [x for x in known if x != top and not clear(rows[x], rows[top], kind, between[kind])]
        text = f"{kind} is best at {LETTER[group]} = {top or 'no PCA'} "
        text += f"({known[top]['value']:.1f} absolute"
        if even:
            order = sorted(even, key=lambda x: x or float("inf"))
            text += f"; no clear difference to {', '.join(str(x or 'no PCA') for x in order)}"
        said.append(text + ")")
    return "; ".join(said) + "."


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
        {kind: drawn.deviation(drawn.of_time(found.values(), long), kind) for kind in KINDS}
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
    numbers |= {
        "tokenizer facts": tokenizer_facts(found, groups["tokenizers"]),
        "long tokenizer facts": tokenizer_facts(found, groups["long-tokenizers"]),
        "decoding table": decoding_table(found.get("test-time", [])),
    }
    long = next(r for r in plan.rows if r.name == "long-base")
    numbers |= {"long seconds": f"{long.seconds:g}", "long puzzles": f"{long.puzzles:,}"}
    for kind in KINDS:
        numbers[f"between {kind}"] = f"{between[kind]:.1f}"
        numbers[f"long between {kind}"] = f"{later[kind]:.1f}"
    for name, mine in found.items():
        for line in mine:
            numbers |= run_numbers(name if line is mine[0] else f"{name} {line['seed']}", line)
        for way, text in (("valid", "decoder"), ("head", "head")):
            values = each(mine, "photos-3x3", way) or [float("nan")]
            numbers[f"mean {text} {name}"] = f"{sum(values) / len(values):.1f}"
    figures |= {
        "decoding": found.get("test-time", []),
        "curves": {str(found[n][0]["x"] or n): found[n][0] for n in CURVES if n in found},
        "learning": {
            f"{row.x}, seed {x['seed']}" if len(found[row.name]) > 1 else str(row.x): x
            for row in groups["backbones-long"]
            for x in found.get(row.name, [])
        },
        "backbones": {
            name: [
                found.get(f"backbones-{size}-{name}", [])
                for size in ("128", "128-long", "256", "long")
            ]
            for name in BACKBONES
        },
    }
    return numbers, figures


def run_numbers(name: str, line: dict[str, Any]) -> Numbers:
    """What the words say of single runs: accuracy by decoder and head, how training ended."""
    made = {
        f"steps {name}": f"{line['steps']:,}",
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


def shared_numbers(plan: Plan, found: dict[str, Lines], record: dict[str, Any]) -> Numbers:
    """Rows that trained six at a time (runs/study-shared.json), beside the shorter ones alone."""
    runs: dict[str, Lines] = {}
    for run in sorted(record["rows"], key=lambda run: run["seed"]):
        same = "base" if run["name"] == "test-time" else run["name"]  # decoded in more ways
        runs.setdefault(same, []).append(run)
    lines = [
        "| row | alone, shorter: photos / art | side by side: photos, each run "
        "| art, each run | steps, each run |",
        "|---|---|---|---|---|",
    ]
    for row in (row for row in plan.rows if row.name in runs):
        short = found.get(row.name, [])
        alone = [f"{sum(v) / len(v):.1f}" for kind in KINDS if (v := each(short, kind))]
        cells = [" / ".join(alone) + (f" ({short[0]['seconds']:.0f} s)" if short else "")]
        cells += [" / ".join(f"{run[kind][0]:.1f}" for run in runs[row.name]) for kind in KINDS]
        cells.append(" / ".join(f"{run['steps']:,}" for run in runs[row.name]))
        lines.append(f"| {label(row)} | {' | '.join(cells)} |")
    pace, steps = record["base_steps_per_second"], [run["steps"] for run in runs["base"]]
    widest = [f"{196 * (0.25 / record['puzzles'][kind]) ** 0.5:.1f}" for kind in KINDS]
    numbers = {
        "shared table": "\n".join(lines),
        "shared runs": str(len(record["rows"])),
        "shared seconds": f"{record['seconds']:g}",
        "shared count": str(record["at_once"]),
        "shared alone": f"{pace['alone']:.0f}",
        "shared sum": f"{sum(pace['together']):.0f}",
        "shared least": f"{min(steps):,}",
        "shared most": f"{max(steps):,}",
        "shared photos": widest[0],
        "shared art": widest[1],
    }
    for name, mine in runs.items():
        values = sorted(run[KINDS[0]][0] for run in mine)
        text = f"{values[0]:.1f}" if len(values) == 1 else f"{values[0]:.1f} to {values[-1]:.1f}"
        numbers[f"shared {name}"] = text
    return numbers


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
    shared = json.loads((DOCS / "runs" / "study-shared.json").read_text())
    numbers |= shared_numbers(plan, by_name(lines), shared)
    return (DOCS / "study.template.md").read_text().format_map(numbers)


def draw() -> None:
    """Every figure of the page."""
    from puzlm import plots

    result, models, plan, lines = load()
    for suffix in ("png", "svg"):
        plots.sequence_analysis(result, DOCS / "analysis" / f"analysis.{suffix}")
        plots.beyond(result, DOCS / "analysis" / f"analysis-beyond.{suffix}")
    for name, found in models.items():
        plots.beyond(found, DOCS / "analysis" / name / "analysis-beyond.png")
    f, folder = ablation_numbers(plan, lines)[1], DOCS / "study"
    drawn.sweeps(f["long panels"], f["panels"], SWEEPS, KINDS, BASE_AT, folder / "sweeps.png")
    titles = {
        "switch": "Design choices of the tokenizer",
        "tokenizer": "Tokenizers",
        "lever": "Levers of our own recipe",
    }
    for text, title in titles.items():
        name = "switches" if text == "switch" else f"{text}s"
        drawn.bars(
            f[f"long {text}"],
            KINDS,
            folder / f"{name}.png",
            f"{title}, two minutes each",
            shorter=f[text],
        )
    drawn.sizes(f["backbones"], KINDS, folder / "backbones.png")
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
