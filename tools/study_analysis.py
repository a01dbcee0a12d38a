"""Tables and numbers of the study's first section, from docs/analysis/**/analysis.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "analysis"
LARGER = FOLDER / "larger-fit.json"  # a code book of more patches
UNSEEN = FOLDER / "unseen.json"  # embeddings against fit on validation and on as many other images
GEOMETRY = ("looks", "compatibility", "only_looks", "only_compatibility")
CORRECTED = ("corrected_only_looks", "corrected_only_compatibility")
STAGES = {"before": "before", "after": "after", "learned": "what was added"}
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


def named_sets(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What the tables call a set, and the set; English comes last."""
    return [*((label(s), s) for s in shown_sets(result)), ("English words", result["english"])]


def analysis_table(result: dict[str, Any]) -> str:
    lines = [
        "| set | puzzles | tokens | entropy (bits) | uniform (bits) | Heaps beta "
        "| equal super-tokens in a puzzle |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, part in named_sets(result):
        e, same = part["entropy"], part.get("equal_super_tokens")
        equal = f"{100 * same['in_same_puzzle']:.2f} %" if same else ""
        count = f"{part['puzzles']:,}" if "puzzles" in part else ""
        lines.append(
            f"| {name} | {count} | {part['tokens']:,} | {e['bits']:.2f} | {e['uniform'][-1]:.2f} | "
            f"{span(part['heaps']['beta'])} | {equal} |"
        )
    return "\n".join(lines)


def zipf_table(result: dict[str, Any]) -> str:
    lines = [
        "| set | Zipf s | KS distance | p | slope, first 1/64 of the ranks "
        "| slope, last three quarters | rarer half: share seen / fitted | dead / rare of k |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, part in named_sets(result):
        z, first, last = part["zipf"], part["zipf"]["slopes"][0], part["zipf"]["slopes"][-1]
        tail = z["tail_share"]
        lines.append(
            f"| {name} | {span(z['exponent'], 3)} | {z['ks_distance']:.3f} | {z['p_value']:.4f} | "
            f"{first['exponent']:.2f} | {last['exponent']:.2f} | {100 * tail['observed']:.1f} / "
            f"{100 * tail['fitted']:.1f} % | {z['dead']} / {z['rare']} of {part['vocab_size']:,} |"
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


def geometry_table(found: dict[str, Any]) -> str:
    lines = [
        "| embeddings | looks | fit | looks (fit held) | fit (looks held) "
        "| both corrected: looks / fit |",
        "|---|---|---|---|---|---|",
    ]
    for key, text in STAGES.items():
        cells = " | ".join(span(found[key][measure]) for measure in GEOMETRY)
        freed = " / ".join(f"{found[key][measure]['value']:.2f}" for measure in CORRECTED)
        lines.append(f"| {text} | {cells} | {freed} |")
    return "\n".join(lines)


def fewer_table(found: dict[str, Any]) -> str:
    """Embeddings after training, seen with more and more of the puzzles."""
    lines = [
        "| puzzles | symbols | reliability of fit | looks (fit held) | fit (looks held) "
        "| both corrected: looks / fit |",
        "|---|---|---|---|---|---|",
    ]
    for part in [*found["fewer"], found]:
        looks, fit = (f"{part['after'][key]['value']:.2f}" for key in GEOMETRY[2:])
        freed = " / ".join(f"{part['after'][key]['value']:.2f}" for key in CORRECTED)
        lines.append(
            f"| {part['puzzles']:,} | {part['symbols']:,} | "
            f"{part['compatibility_reliability']:.2f} | {looks} | {fit} | {freed} |"
        )
    return "\n".join(lines)


def analysis_numbers(result: dict[str, Any], models: dict[str, dict[str, Any]]) -> Numbers:
    sets = {s["name"]: s for s in shown_sets(result)}
    photos, art, five = sets["photos-3x3"], sets["art-3x3"], sets["art-5x5"]
    english, at = result["english"], {(s["name"], s["gap"]): s for s in result["sets"]}
    made: Numbers = {
        "analysis table": analysis_table(result),
        "zipf table": zipf_table(result),
        "gap table": gap_table(result),
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
        thin, eighth = (at[part, g]["borders"] for g in (0.03125, 0.125))
        made |= {
            f"touch {name}": f"{here:.2f}",
            f"touch worn {name}": f"{there:.2f}",
            f"floor {name}": f"{floor:.2f}",
            f"floor worn {name}": f"{worn_floor:.2f}",
            f"touch thin {name}": f"{thin['touching']['value']:.2f}",
            f"touch eighth {name}": f"{eighth['touching']['value']:.2f}",
            f"floor eighth {name}": f"{eighth['same_picture']['value']:.2f}",
            f"left {name}": f"{100 * (there - worn_floor) / (here - floor):.0f}",
            f"one along {name}": f"{plain['offset'][1]['value']:.2f}",
            f"two along {name}": f"{plain['offset'][2]['value']:.2f}",
            f"own one {name}": f"{plain['own_border'][0]['value']:.2f}",
        }
    made["touch art5"] = f"{five['borders']['touching']['value']:.2f}"
    made["floor art5"] = f"{five['borders']['same_picture']['value']:.2f}"
    larger = json.loads(LARGER.read_text())["sets"][0]["zipf"]
    made |= {
        "larger tail seen photos": f"{100 * larger['tail_share']['observed']:.0f}",
        "larger tail fitted photos": f"{100 * larger['tail_share']['fitted']:.0f}",
        "larger head slope photos": f"{larger['slopes'][0]['exponent']:.2f}",
        "larger dead photos": str(larger["dead"]),
    }
    for name, g in json.loads(UNSEEN.read_text()).items():
        made[f"unseen looks {name}"] = f"{g['after']['only_looks']['value']:.2f}"
        made[f"unseen fit {name}"] = f"{g['after']['only_compatibility']['value']:.2f}"
    for name, found in models.items():
        g = found["embeddings"]
        made[f"geometry table {name}"] = geometry_table(g)
        made[f"fewer table {name}"] = fewer_table(g)
        made[f"puzzles {name}"] = f"{g['puzzles']:,}"
        made[f"fewest {name}"] = f"{g['fewer'][0]['puzzles']:,}"
        for part in found["sets"]:
            made[f"puzzles {part['name']} {name}"] = f"{part['puzzles']:,}"
        made[f"symbols {name}"] = f"{g['symbols']:,} of {found['sets'][0]['vocab_size']:,}"
        made[f"reliability {name}"] = f"{g['compatibility_reliability']:.2f}"
        made[f"alike fit {name}"] = f"{g['looks_and_compatibility']:.2f}"
        for stage in STAGES:
            for key in (*GEOMETRY, *CORRECTED):
                made[f"{stage} {key} {name}"] = f"{g[stage][key]['value']:.2f}"
    return made
