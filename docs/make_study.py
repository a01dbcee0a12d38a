"""Write docs/study.md and its figures from committed files: analyses and rows of ablations.

python docs/make_study.py

study.template.md holds the words; every measured number in it is a {name} that is filled in from
docs/analysis/**/analysis.json and docs/study/rows.jsonl. Rows of plans/study.toml that have not
been run are named as missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from puzlm.ablate import Plan, Row, read_rows
from puzlm.ablation_plots import bars, curves, gain, scores, sizes, sweeps
from puzlm.backbones import BACKBONES
from puzlm.metrics import Interval

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ROWS = DOCS / "study" / "rows.jsonl"
KINDS = ("photos-3x3", "art-3x3")
CURVES = ("base", "no-heads", "random-start", "strips", "two-symbols")
SWEEPS = {"granularity": "granularity B (patches a side)",
          "dimension": "dimensions kept by the PCA (d)",
          "vocabulary": "vocabulary size (k)"}  # fmt: skip
BASE_AT = {"granularity": 4, "dimension": 1024, "vocabulary": 4096}
LETTER = {"granularity": "B", "dimension": "d", "vocabulary": "k"}
WAYS = {
    "one pass over free cells": "valid", "one pass, any cell (the paper's)": "greedy",
    "the head on the encoder": "head", "beam of 16": "beam",
    "assignment of beam marginals": "assign", "two views": "views-2",
    "eight views": "views-8", "beam marginals and pixels": "fusion",
    "pixels alone": "pixels",
}  # fmt: skip
GEOMETRY = ("looks", "compatibility", "only_looks", "only_compatibility")
Lines = list[dict[str, Any]]
Numbers = dict[str, str]


# ---- sequence analysis ----------------------------------------------------------------------


def span(value: dict[str, float], digits: int = 2) -> str:
    return f"{value['value']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def signed(value: Interval) -> str:
    return f"{value.value:+.1f} [{value.low:+.1f}, {value.high:+.1f}]"


def label(part: dict[str, Any]) -> str:
    gap = f", gap {100 * part['gap']:g} %" if part["gap"] else ""
    return f"{part['name']}{gap}"


def shown_sets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The first set of every name: the ones of the three panels."""
    found: dict[str, dict[str, Any]] = {}
    for part in result["sets"]:
        found.setdefault(part["name"], part)
    return list(found.values())


def analysis_table(result: dict[str, Any]) -> str:
    lines = ["| set | puzzles | tokens | entropy (bits) | uniform (bits) | Zipf s | KS distance "
             "| dead / rare of k | Heaps beta | equal super-tokens in a puzzle |",
             "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for part in [*shown_sets(result), result["english"]]:
        e, z = part["entropy"], part["zipf"]
        english = part is result["english"]
        equal = "" if english else f"{100 * part['equal_super_tokens']['in_same_puzzle']:.2f} %"
        name = "English words" if english else label(part)
        count = "" if english else f"{part['puzzles']:,}"
        lines.append(
            f"| {name} | {count} | {part['tokens']:,} | {e['bits']:.2f} | {e['uniform'][-1]:.2f} | "
            f"{span(z['exponent'], 3)} | {z['ks_distance']:.3f} | {z['dead']} / {z['rare']} of "
            f"{part['vocab_size']:,} | {span(part['heaps']['beta'])} | {equal} |"
        )
    return "\n".join(lines)


def gap_table(result: dict[str, Any]) -> str:
    measured = [s for s in result["sets"] if "touching" in s["borders"]]
    names = list(dict.fromkeys(s["name"] for s in measured))
    gaps = sorted({s["gap"] for s in measured})
    lines = ["| gap (% of a piece) | " + " | ".join(f"{100 * g:g}" for g in gaps) + " |",
             "|---|" + "---|" * len(gaps)]  # fmt: skip
    for name in names:
        for key, text in (("touching", "touching"), ("same_picture", "another side")):
            found = {s["gap"]: s["borders"][key]["value"] for s in measured if s["name"] == name}
            cells = " | ".join(f"{found[g]:.2f}" if g in found else "" for g in gaps)
            lines.append(f"| {name}, {text} | {cells} |")
    return "\n".join(lines)


def geometry_table(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| model | embeddings | looks | fit | looks (fit held) | fit (looks held) |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for name, result in results.items():
        found = result["embeddings"]
        for key, text in (("before", "before"), ("after", "after"), ("learned", "what was added")):
            if key in found:
                cells = " | ".join(span(found[key][measure]) for measure in GEOMETRY)
                lines.append(f"| {name} | {text} | {cells} |")
    return "\n".join(lines)


def analysis_numbers(result: dict[str, Any], models: dict[str, dict[str, Any]]) -> Numbers:
    sets = {s["name"]: s for s in shown_sets(result)}
    photos, art, five = sets["photos-3x3"], sets["art-3x3"], sets["art-5x5"]
    english, at = result["english"], {(s["name"], s["gap"]): s for s in result["sets"]}
    made: Numbers = {"analysis table": analysis_table(result), "gap table": gap_table(result),
                     "geometry table": geometry_table(models)}  # fmt: skip
    for name, part in (("photos", photos), ("art", art), ("art5", five), ("English", english)):
        e, z = part["entropy"], part["zipf"]
        made |= {
            f"bits {name}": f"{e['bits']:.2f}", f"uniform {name}": f"{e['uniform'][-1]:.2f}",
            f"first below {name}": f"{e['below_uniform'][0]:.2f}",
            f"last below {name}": f"{e['below_uniform'][-1]:.2f}",
            f"mixed below {name}": f"{e['uniform'][-1] - e['shuffled'][-1]:.2f}",
            f"s {name}": f"{z['exponent']['value']:.2f}", f"ks {name}": f"{z['ks_distance']:.2f}",
            f"head slope {name}": f"{z['slopes'][0]['exponent']:.2f}",
            f"tail slope {name}": f"{z['slopes'][-1]['exponent']:.2f}",
            f"tail seen {name}": f"{100 * z['tail_share']['observed']:.0f}",
            f"tail fitted {name}": f"{100 * z['tail_share']['fitted']:.0f}",
            f"dead {name}": str(z["dead"]), f"beta {name}": f"{part['heaps']['beta']['value']:.2f}",
        }  # fmt: skip
        if "equal_super_tokens" in part:
            made[f"equal {name}"] = f"{100 * part['equal_super_tokens']['in_same_puzzle']:.2f}"
    for name, part in (("photos", "photos-3x3"), ("art", "art-3x3")):
        plain, worn = at[part, 0.0]["borders"], at[part, 0.5]["borders"]
        here, there = plain["touching"]["value"], worn["touching"]["value"]
        floor, worn_floor = plain["same_picture"]["value"], worn["same_picture"]["value"]
        thin = at[part, 0.03125]["borders"]["touching"]["value"]
        made |= {
            f"touch {name}": f"{here:.2f}", f"touch worn {name}": f"{there:.2f}",
            f"floor {name}": f"{floor:.2f}", f"floor worn {name}": f"{worn_floor:.2f}",
            f"touch thin {name}": f"{thin:.2f}",
            f"left {name}": f"{100 * (there - worn_floor) / (here - floor):.0f}",
            f"one along {name}": f"{plain['offset'][1]['value']:.2f}",
            f"two along {name}": f"{plain['offset'][2]['value']:.2f}",
            f"own one {name}": f"{plain['own_border'][0]['value']:.2f}",
        }  # fmt: skip
    for name, found in models.items():
        g = found["embeddings"]
        picture = f"analysis/{name}/analysis-beyond.png"
        made[f"picture {name}"] = f"![Nearest symbols of the model {name}]({picture})"
        made[f"symbols {name}"] = f"{g['symbols']:,}"
        made[f"reliability {name}"] = f"{g['compatibility_reliability']:.2f}"
        made[f"alike fit {name}"] = f"{g['looks_and_compatibility']:.2f}"
        for stage in ("before", "after", "learned"):
            for key in GEOMETRY:
                made[f"{stage} {key} {name}"] = f"{g[stage][key]['value']:.2f}"
    return made


# ---- ablations ------------------------------------------------------------------------------


def by_name(lines: Lines) -> dict[str, Lines]:
    found: dict[str, Lines] = {}
    for line in lines:
        if line["status"] == "done":
            found.setdefault(line["name"], []).append(line)
    return found


def row_table(rows: list[tuple[str, Lines]], way: str = "valid") -> str:
    """Rows with their gain over the first."""
    lines = ["| row | seeds | photos 3x3: absolute | perfect | gain | art 3x3, gap 50 %: absolute "
             "| perfect | gain | tokens a puzzle | parameters (M) | puzzles seen (M) "
             "| tokenising (ms) |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for number, (name, found) in enumerate(rows):
        if not found:
            lines.append(f"| {name} | not run | | | | | | | | | | |")
            continue
        cells = []
        for kind in KINDS:
            for measure in ("absolute", "perfect"):
                score = scores(found, kind, way, measure)
                cells.append("" if score is None else span(score, 1))
            more = gain(found, rows[0][1], kind, way) if number else None
            cells.append("" if more is None else signed(more))
        mean = {k: sum(x[k] for x in found) / len(found)
                for k in ("puzzles_seen", "tokenise_ms")}  # fmt: skip
        first = found[0]
        where = " (CPU)" if first["device"] == "CPU" else ""
        where += " †" if any("disturbed" in x for x in found) else ""
        lines.append(
            f"| {name}{where} | {len(found)} | {' | '.join(cells)} | "
            f"{first['tokens_per_puzzle']} | {first['parameters'] / 1e6:.1f} | "
            f"{mean['puzzles_seen'] / 1e6:.2f} | {mean['tokenise_ms']:.3f} |"
        )
    return "\n".join(lines)


def decoding_table(found: Lines) -> str:
    if not found:
        return "Not run yet."
    lines = ["| decoding | puzzles | photos 3x3: absolute | perfect | art 3x3, gap 50 %: absolute "
             "| perfect | ms a puzzle |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for text, way in WAYS.items():
        results = [found[0]["results"][kind].get(way) for kind in KINDS]
        if results[0] is None or results[1] is None:
            continue
        cells = " | ".join(span(r[m], 1) for r in results for m in ("absolute", "perfect"))
        lines.append(f"| {text} | {results[0]['puzzles']} / {results[1]['puzzles']} | {cells} | "
                     f"{results[1]['ms']:.1f} |")  # fmt: skip
    return "\n".join(lines)


def tokenizer_facts(found: dict[str, Lines], rows: list[Row]) -> str:
    lines = ["| tokenizer | tokens a piece | symbols | learned numbers (M) | fitted in (s) | codes "
             "used | error / variance |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, text in [("base", "PuzLM's (base)"), *((r.name, str(r.x)) for r in rows)]:
        if name not in found:
            continue
        line = found[name][0]
        s = line["settings"].get("learned") or line["settings"]["recipe"]["tokenizer"]
        facts = line.get("learned", {})
        error = f"{facts['error'] / facts['variance']:.2f}" if facts else ""
        pieces = (line["tokens_per_puzzle"] - 8) // 9
        lines.append(f"| {text} | {pieces} | {s['vocab_size']:,} | "
                     f"{line['tokenizer_parameters'] / 1e6:.2f} | {line['fit_seconds']:.0f} | "
                     f"{facts.get('codes_used', '')} | {error} |")  # fmt: skip
    return "\n".join(lines)


def spread(base: Lines, kind: str) -> float:
    """Points between the best and the worst seed of the base: what chance alone does."""
    values = [x["results"][kind]["valid"]["absolute"]["value"] for x in base]
    return max(values) - min(values)


def verdict(base: Lines, rows: list[tuple[str, Lines]], kind: str = "art-3x3") -> str:
    """Say which rows lie above or below the base by more than puzzles and seeds explain."""
    own = scores(base, kind, "valid", "absolute")
    if own is None or not any(found for _, found in rows):
        return "No row of this group has been run yet."
    parts: dict[str, list[str]] = {"better": [], "worse": [], "not told apart": []}
    for name, found in rows:
        more = gain(found, base, kind) if found else None
        if more is not None:
            clear = abs(more.value) > spread(base, kind)
            where = ("better" if clear and more.low > 0 else
                     "worse" if clear and more.high < 0 else "not told apart")  # fmt: skip
            parts[where].append(f"{name} ({more.value:+.1f})")
    said = [f"{where}: {', '.join(names)}" for where, names in parts.items() if names]
    return f"Against the base's {own['value']:.1f} absolute on {kind}: {'; '.join(said)}."


def best(group: str, rows: dict[Any, Lines]) -> str:
    """Where a sweep peaks, for both kinds."""
    said = []
    for kind in KINDS:
        found = {x: scores(lines, kind, "valid", "absolute") for x, lines in rows.items()}
        known = {x: s for x, s in found.items() if s is not None}
        if len(known) < 2:
            return f"{LETTER[group]}: not run yet."
        top = max(known, key=lambda x: known[x]["value"])
        gains = {x: gain(rows[x], rows[top], kind) for x in known if x != top}
        even = [x for x, more in gains.items() if more is not None and more.high >= 0]
        text = f"{kind} is best at {LETTER[group]} = {top or 'no PCA'} "
        text += f"({known[top]['value']:.1f} absolute"
        if even:
            text += f"; not told apart from {', '.join(str(x or 'no PCA') for x in sorted(even))}"
        said.append(text + ")")
    return "; ".join(said) + "."


def ablation_numbers(plan: Plan, lines: Lines) -> tuple[Numbers, dict[str, Any]]:
    """Texts for the template, and what the figures need."""
    found, groups = by_name(lines), {}
    for row in plan.rows:
        groups.setdefault(row.group, []).append(row)
    base = found.get("base", [])
    wanted = [(row.name, seed) for row in plan.rows for seed in plan.seeds(row)]
    done = {(x["name"], x["seed"]) for x in lines if x["status"] == "done"}
    failed = [x for x in lines if x["status"] != "done"]
    missing = [w for w in wanted if w not in done]
    times = sorted({f"{x['settings']['seconds']:g} s" for x in lines if x["status"] == "done"})
    devices = sorted({x["device"] for x in lines if x["status"] == "done"})
    state = f"{len(set(wanted) & done)} of the {len(wanted)} runs of `plans/study.toml` are there"
    state += f", trained for {', '.join(times)} each on {', '.join(devices)}." if done else "."
    if failed:
        state += " Failed: " + "; ".join(f"{x['name']} ({x['error']})" for x in failed) + "."
    if missing:
        names = list(dict.fromkeys(name for name, _ in missing))
        state += f" Missing: {', '.join(names)}."

    def named(group: str) -> list[tuple[str, Lines]]:
        return [(str(r.x or r.name), found.get(r.name, [])) for r in groups.get(group, [])]

    panels = {group: {BASE_AT[group]: base} | {r.x: found.get(r.name, []) for r in groups[group]}
              for group in SWEEPS}  # fmt: skip
    backbones = {name: [found.get(f"backbones-{d}-{name}", []) for d in (128, 256)]
                 for name in BACKBONES}  # fmt: skip
    large = [(f"{n}, d_model 256", found.get(f"backbones-256-{n}", [])) for n in backbones]
    small = [(f"{n}, d_model 128", found.get(f"backbones-128-{n}", []))
             for n in backbones if n not in ("encoder", "decoder")]  # fmt: skip
    first, bart = [("base", base)], found.get("backbones-256-bart", [])
    sweep_rows = [(f"{LETTER[g]} = {x or 'no PCA'}", rows) for g, panel in panels.items()
                  for x, rows in panel.items() if x != BASE_AT[g]]  # fmt: skip
    numbers = {
        "state": state, "sweep table": row_table(first + sweep_rows),
        "best granularity": best("granularity", panels["granularity"]),
        "best dimension": best("dimension", panels["dimension"]),
        "best vocabulary": best("vocabulary", panels["vocabulary"]),
        "switch table": row_table(first + named("switches")),
        "switch verdict": verdict(base, named("switches")),
        "switch verdict photos": verdict(base, named("switches"), "photos-3x3"),
        "tokenizer table": row_table(first + named("tokenizers")),
        "tokenizer facts": tokenizer_facts(found, groups["tokenizers"]),
        "tokenizer verdict": verdict(base, named("tokenizers")),
        "backbone table": row_table(large + small),
        "backbone verdict": verdict(bart, large[1:]).replace("the base's", "BART's"),
        "backbone verdict photos": verdict(bart, large[1:], "photos-3x3")
        .replace("the base's", "BART's"),
        "lever table": row_table(first + named("levers")),
        "lever verdict": " ".join(verdict(base, named("levers"), kind) for kind in KINDS),
        "decoding table": decoding_table(found.get("test-time", [])),
    }  # fmt: skip
    for name, (line, *_) in found.items():
        for way, text in (("valid", "decoder"), ("head", "head")):
            score = line["results"]["photos-3x3"].get(way)
            numbers[f"{text} {name}"] = f"{score['absolute']['value']:.1f}" if score else ""
        numbers[f"steps {name}"] = f"{line['steps']:,}"
    figures = {"panels": panels, "backbones": backbones, "first": first,
               "switches": named("switches"), "tokenizers": named("tokenizers"),
               "levers": named("levers"), "decoding": found.get("test-time", []),
               "curves": {str(found[n][0]["x"] or n): found[n][0] for n in CURVES if n in found},
               }  # fmt: skip
    return numbers, figures


# ---- the page -------------------------------------------------------------------------------


def load() -> tuple[dict[str, Any], dict[str, dict[str, Any]], Plan, Lines]:
    result = json.loads((DOCS / "analysis" / "analysis.json").read_text())
    models = {path.parent.name: json.loads(path.read_text())
              for path in sorted((DOCS / "analysis").glob("*/analysis.json"))}  # fmt: skip
    return result, models, Plan.load(ROOT / "plans" / "study.toml"), read_rows(ROWS)


def render() -> str:
    """The whole page."""
    result, models, plan, lines = load()
    numbers = analysis_numbers(result, models) | ablation_numbers(plan, lines)[0]
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
    sweeps(f["panels"], SWEEPS, KINDS, BASE_AT, folder / "sweeps.png")
    titles = {"switches": "Design choices of the tokenizer", "tokenizers": "Tokenizers",
              "levers": "Levers of our own recipe"}  # fmt: skip
    for group, title in titles.items():
        bars(dict(f["first"] + f[group]), KINDS, folder / f"{group}.png",
             f"{title}, equal training time")  # fmt: skip
    sizes(f["backbones"], KINDS, folder / "backbones.png")
    curves(f["curves"], folder / "curves.png")
    bars({"base": f["decoding"]}, KINDS, folder / "decoding.png", "One model, decoded in many ways",
         ways=WAYS)  # fmt: skip


def main() -> None:
    draw()
    (DOCS / "study.md").write_text(render())


if __name__ == "__main__":
    main()
