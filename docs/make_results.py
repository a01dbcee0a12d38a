"""Write the tables of README.md, docs/results.md and the model's card from docs/results/*.json.

python docs/make_results.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ORDER = ["imagenet-3x3", "imagenet-3x3-missing-1", "imagenet-3x3-missing-2",
         "imagenet-3x3-missing-3", "imagenet-3x3-eroded", "jpwleg-3", "classic-mcgill-540",
         "classic-bgu-805", "classic-bgu-2360", "classic-bgu-3300"]  # fmt: skip
WHAT = {
    "imagenet-3x3": "photos, pieces touch",
    "imagenet-3x3-missing-1": "photos, 1 of 9 missing",
    "imagenet-3x3-missing-2": "photos, 2 of 9 missing",
    "imagenet-3x3-missing-3": "photos, 3 of 9 missing",
    "imagenet-3x3-eroded": "photos, gap of half a piece",
    "jpwleg-3": "paintings, gap of half a piece",
    "classic-mcgill-540": "540 pieces of 28 px",
    "classic-bgu-805": "805 pieces of 28 px",
    "classic-bgu-2360": "2,360 pieces of 28 px",
    "classic-bgu-3300": "3,300 pieces of 28 px",
}
SOLVERS = ["seq2seq", "auto", "classic", "bigram"]


def load() -> dict[tuple[str, str], dict]:
    found = {}
    for path in sorted((ROOT / "docs" / "results").glob("*.json")):
        protocol, solver = path.name[: -len(".json")].rsplit(".", 1)
        found[protocol, solver] = json.loads(path.read_text())
    return found


def short(result: dict | None) -> str:
    if result is None:
        return ""
    return f"{result['absolute']['value']:.1f} / {result['perfect']['value']:.1f}"


def interval(result: dict, name: str) -> str:
    value = result[name]
    return f"{value['value']:.1f} [{value['low']:.1f}, {value['high']:.1f}]"


def readme_table(results: dict) -> str:
    lines = ["| test | puzzles | seq2seq | auto | pixels alone (classic) | side model alone |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for protocol in ORDER:
        rows = [results.get((protocol, s)) for s in SOLVERS]
        if rows[0] is None:
            continue
        cells = " | ".join(short(r) for r in rows)
        lines.append(f"| {WHAT[protocol]} (`{protocol}`) | {rows[0]['puzzles']} | {cells} |")
    return "\n".join(lines)


def full_tables(results: dict) -> str:
    parts = []
    for protocol in ORDER:
        rows = [(s, results[protocol, s]) for s in SOLVERS if (protocol, s) in results]
        if not rows:
            continue
        data = rows[0][1]["data"]
        scale = "" if data["scale"] == [1.0, 1.0] else f", geometry x {data['scale'][0]:g}"
        parts.append(f"### {protocol}\n\n{WHAT[protocol]}; {rows[0][1]['puzzles']} puzzles of "
                     f"{data['name']}{scale}\n")  # fmt: skip
        names = ("solver", "absolute", "perfect", "neighbour", "ECE", "s a puzzle")
        parts.append(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
        for solver, r in rows:
            ece = "" if r.get("ece") is None else f"{r['ece']:.3f}"
            scores = " | ".join(interval(r, m) for m in ("absolute", "perfect", "neighbour"))
            parts.append(f"| {solver} | {scores} | {ece} | {r['seconds_per_puzzle']:.3f} |")
        parts.append("")
    return "\n".join(parts).rstrip()


def fill(path: Path, text: str) -> None:
    old = path.read_text()
    new = re.sub(r"(<!-- results -->\n).*?(<!-- /results -->)", lambda m: m[1] + text + "\n" + m[2],
                 old, flags=re.DOTALL)  # fmt: skip
    path.write_text(new)


def main() -> None:
    results = load()
    fill(ROOT / "README.md", readme_table(results))
    fill(ROOT / "docs" / "results.md", full_tables(results))
    card_path = ROOT / "puzlm" / "models" / "puzlm-3x3" / "card.json"
    card = json.loads(card_path.read_text())
    card["results"] = [
        {"protocol": p, "solver": s, "puzzles": results[p, s]["puzzles"],
         "absolute": results[p, s]["absolute"], "perfect": results[p, s]["perfect"]}
        for p in ORDER for s in ("seq2seq", "auto") if (p, s) in results
    ]  # fmt: skip
    card_path.write_text(json.dumps(card, indent=1) + "\n")


if __name__ == "__main__":
    main()
