"""Tables and verdicts of the ablations, from their runs: words for tools/make_study.py."""

from __future__ import annotations

from typing import Any

from puzlm.metrics import Interval
from puzlm.study.ablation_gains import each, gain, scores, seed_noise, steady
from puzlm.study.plan import Row
from tools.study_analysis import span

KINDS = ("photos-3x3", "art-3x3")
LETTER = {"granularity": "B", "dimension": "d", "vocabulary": "k"}
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
        "| parameters of the model (M) | puzzles seen (M) | tokenising on the GPU (ms a puzzle) |",
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


def tokenizer_facts(found: dict[str, Lines], base: str, rows: list[Row]) -> str:
    lines = [
        "| tokenizer | tokens a piece | symbols | learned numbers (M) | fitted in (s) | codes "
        "used | error / variance |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, text in [(base, "PuzLM's (base)"), *((r.name, str(r.x)) for r in rows)]:
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
