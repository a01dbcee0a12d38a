"""Tables and numbers of the study's first section, from docs/analysis/**/analysis.json."""

from __future__ import annotations

from typing import Any

GEOMETRY = ("looks", "compatibility", "only_looks", "only_compatibility")
Numbers = dict[str, str]


def span(value: dict[str, float], digits: int = 2) -> str:
    return f"{value['value']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


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
    lines = [
        "| set | puzzles | tokens | entropy (bits) | uniform (bits) | Zipf s | KS distance "
        "| dead / rare of k | Heaps beta | equal super-tokens in a puzzle |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
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
    lines = [
        "| gap (% of a piece) | " + " | ".join(f"{100 * g:g}" for g in gaps) + " |",
        "|---|" + "---|" * len(gaps),
    ]
    for name in names:
        for key, text in (("touching", "touching"), ("same_picture", "another side")):
            found = {s["gap"]: s["borders"][key]["value"] for s in measured if s["name"] == name}
            cells = " | ".join(f"{found[g]:.2f}" if g in found else "" for g in gaps)
            lines.append(f"| {name}, {text} | {cells} |")
    return "\n".join(lines)


def geometry_table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| model | embeddings | looks | fit | looks (fit held) | fit (looks held) |",
        "|---|---|---|---|---|---|",
    ]
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
    made: Numbers = {
        "analysis table": analysis_table(result),
        "gap table": gap_table(result),
        "geometry table": geometry_table(models),
    }
    for name, part in (("photos", photos), ("art", art), ("art5", five), ("English", english)):
        e, z = part["entropy"], part["zipf"]
        made |= {
            f"bits {name}": f"{e['bits']:.2f}",
            f"uniform {name}": f"{e['uniform'][-1]:.2f}",
            f"first below {name}": f"{e['below_uniform'][0]:.2f}",
            f"last below {name}": f"{e['below_uniform'][-1]:.2f}",
            f"mixed below {name}": f"{e['uniform'][-1] - e['shuffled'][-1]:.2f}",
            f"s {name}": f"{z['exponent']['value']:.2f}",
            f"ks {name}": f"{z['ks_distance']:.2f}",
            f"head slope {name}": f"{z['slopes'][0]['exponent']:.2f}",
            f"tail slope {name}": f"{z['slopes'][-1]['exponent']:.2f}",
            f"tail seen {name}": f"{100 * z['tail_share']['observed']:.0f}",
            f"tail fitted {name}": f"{100 * z['tail_share']['fitted']:.0f}",
            f"dead {name}": str(z["dead"]),
            f"beta {name}": f"{part['heaps']['beta']['value']:.2f}",
        }
        if "equal_super_tokens" in part:
            made[f"equal {name}"] = f"{100 * part['equal_super_tokens']['in_same_puzzle']:.2f}"
    for name, part in (("photos", "photos-3x3"), ("art", "art-3x3")):
        plain, worn = at[part, 0.0]["borders"], at[part, 0.5]["borders"]
        here, there = plain["touching"]["value"], worn["touching"]["value"]
        floor, worn_floor = plain["same_picture"]["value"], worn["same_picture"]["value"]
        thin = at[part, 0.03125]["borders"]["touching"]["value"]
        made |= {
            f"touch {name}": f"{here:.2f}",
            f"touch worn {name}": f"{there:.2f}",
            f"floor {name}": f"{floor:.2f}",
            f"floor worn {name}": f"{worn_floor:.2f}",
            f"touch thin {name}": f"{thin:.2f}",
            f"left {name}": f"{100 * (there - worn_floor) / (here - floor):.0f}",
            f"one along {name}": f"{plain['offset'][1]['value']:.2f}",
            f"two along {name}": f"{plain['offset'][2]['value']:.2f}",
            f"own one {name}": f"{plain['own_border'][0]['value']:.2f}",
        }
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
