"""Write every number of README.md, docs/results.md and the models' cards from files of this repo.

    python -m tools.make_results              # tables and plots, seconds
    python -m tools.make_results --pictures   # also solve the sample photos for the strips, minutes

Reads results/PROTOCOL.SOLVER.json (`puzlm evaluate`), docs/runs/generalisation.json
(`puzlm generalise`), docs/runs/costs.json (`puzlm costs`), docs/runs/*.metrics.jsonl and
*.sides.json (training logs) and docs/study/rows.jsonl (`puzlm ablate`). What is not there is left
out.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from puzlm.harness.compare import pair
from puzlm.harness.protocols import PROTOCOLS
from puzlm.harness.results_files import read_folder
from tools.results_costs import (
    RUNS,
    costs_table,
    equal_time_table,
    interval,
    levers_table,
    table,
)

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
FIELD = (  # task, protocol, set of original files
    ("photos 3x3, pieces touch", "imagenet-3x3", "imagenet-val-288"),
    ("photos 3x3, 3 missing", "imagenet-3x3-missing-3", "imagenet-val-288"),
    ("photos 3x3, half a piece gone", "imagenet-3x3-eroded", "imagenet-val-288"),
    ("paintings 3x3, half a piece gone", "jpwleg-3", "paintings"),
    ("paintings 5x5, an eighth gone", "jpwleg-5", "paintings"),
    ("photos 4x6, a quarter gone", "worn-4x6", "imagenet-val-288"),
    ("photos 6x6, a quarter gone", "worn-6x6", "imagenet-val-288"),
    ("photos 10x10, 2 of 50 px gone", "imagenet-lsej-10x10-2", "imagenet-val-500"),
    ("photos 10x10, 5 of 50 px gone", "imagenet-lsej-10x10-5", "imagenet-val-500"),
)
WHAT = {
    "imagenet-3x3": "photos, pieces touch",
    "imagenet-3x3-missing-1": "photos, 1 of 9 missing",
    "imagenet-3x3-missing-2": "photos, 2 of 9 missing",
    "imagenet-3x3-missing-3": "photos, 3 of 9 missing",
    "imagenet-3x3-eroded": "photos, gap of half a piece",
    "imagenet-3x3-cfn": "photos, pieces anywhere in their cells, gap of a third of a piece",
    "imagenet-3x3-fcvit": "photos, pieces anywhere in their cells, enlarged to fill them",
    "jpwleg-3": "paintings, gap of half a piece",
    "jpwleg-3-fixed-centre": "paintings, gap of half a piece, centre given",
    "jpwleg-5": "paintings 5x5, gap of an eighth",
    "jpwleg-5-fixed-centre": "paintings 5x5, gap of an eighth, centre given",
    "imagenet-lsej-10x10-2": "photos 10x10, 2 of 50 px eroded",
    "imagenet-lsej-10x10-5": "photos 10x10, 5 of 50 px eroded",
    "classic-mit-432": "432 pieces of 28 px",
    "classic-mcgill-540": "540 pieces of 28 px",
    "classic-bgu-805": "805 pieces of 28 px",
    "classic-bgu-2360": "2,360 pieces of 28 px",
    "classic-bgu-3300": "3,300 pieces of 28 px",
    "classic-sholomon-5015": "5,015 pieces of 28 px, pictures 1 to 10 of the set",
    "classic-sholomon-10375": "10,375 pieces of 28 px, of pictures 1 to 10 of the set",
    "classic-sholomon-22834": "22,755 pieces of 28 px, of pictures 1 to 10 of the set",
    "worn-mit-432": "432 pieces of 25 px, gap of an eighth",
    "worn-mcgill-540": "540 pieces of 25 px, gap of an eighth",
    "worn-2x2": "photos 2x2, gap of half a piece",
    "worn-3x4": "paintings 3x4, gap of half a piece",
    "worn-4x4": "paintings 4x4, gap of half a piece",
    "worn-4x6": "photos 4x6, gap of a quarter",
    "worn-6x6": "photos 6x6, gap of a quarter",
    "kaggle-3x3": "ready-made puzzles of others",
    "light-8x8": "photos 8x8, each piece in another light",
    "noise-8x8": "photos 8x8, noise on every pixel",
    "light-jpeg-8x8": "photos 8x8, another light and JPEG 50 a piece",
    "cut-8x8": "photos 8x8, 2 px cut off each side and the piece rescaled",
    "scan-4x4": "photos 4x4, scanned: sizes, ground, brightness, turn, blur",
    "scan-6x8": "photos 6x8, scanned: sizes, ground, brightness, turn, blur",
    "table-3x3": "drawn photos of 3x3 loose pieces on a table",
    "table-5x5": "drawn photos of 5x5 loose pieces on a table",
    "table-8x8": "drawn photos of 8x8 loose pieces on a table",
    "table-3x3-clean": "the pieces of table-3x3, cut cleanly, turned",
    "table-5x5-clean": "the pieces of table-5x5, cut cleanly, turned",
}
# The README shows the main protocols and solvers only.
SOLVERS = [
    "random",
    "classic",
    "bigram",
    "vision",
    "vision-pairs",
    "paper",
    "seq2seq",
    "symbols",
    "auto",
]
# Files PROTOCOL.seq2seq-DECODING.json; plain seq2seq is decoded "valid".
DECODINGS = {
    "greedy": "greedy, any cell at any time",
    "beam": "beam of 16",
    "assign": "assignment of beam marginals",
}


def load() -> dict[tuple[str, str], dict]:
    """Read the results files, by protocol and solver; of leaking protocols those on originals."""
    found = {}
    for stem, result in read_folder(ROOT / "results" / "clean").items():
        protocol, *form, solver = stem.split(".")
        if PROTOCOLS[protocol].leaks and len(form) == 1:  # no codec
            found[protocol, solver] = result
    for stem, result in read_folder(ROOT / "results").items():
        protocol, solver = stem.rsplit(".", 1)
        if protocol in PROTOCOLS:  # pages have a page of their own
            found[protocol, solver] = result
    return found


def ordered(results: dict, protocol: str) -> list[tuple[str, dict]]:
    """Give a protocol's solvers in the usual order, unknown ones after the known."""
    mine = [s for p, s in results if p == protocol]
    rank = {s: i for i, s in enumerate(SOLVERS)}
    rank |= {f"seq2seq-{d}": rank["seq2seq"] + 0.5 for d in DECODINGS}
    mine.sort(key=lambda s: (rank.get(s, rank["paper"] + 0.5), s))
    return [(s, results[protocol, s]) for s in mine]


def protocols(results: dict) -> list[str]:
    """Protocols that have files, in the order of protocols.py; unknown ones last."""
    there = {p for p, _ in results}
    return [p for p in PROTOCOLS if p in there] + sorted(there - set(PROTOCOLS))


# ---- accuracy -------------------------------------------------------------------------------


def readme_table() -> str:
    """One line a task: the paper, the language model alone, `auto`, the best published number."""
    rows = []
    clean = read_folder(ROOT / "results" / "clean")
    for task, protocol, images in FIELD:
        found = [clean.get(f"{protocol}.{images}.{solver}") for solver in ("seq2seq", "auto")]
        if found[1] is None:
            continue
        theirs = [k for k in known(protocol) if k.absolute is not None]
        paper = next((k for k in theirs if k.method == "PuzLM"), None)
        best = max(theirs, key=lambda k: (k.perfect or 0, k.absolute), default=None)
        rows.append([task, _both(paper), *map(_ours, found), _both(best, named=True)])
    return table(["task", "the paper", "one pass", "`auto`", "best published"], rows)


def _both(k: Any, named: bool = False) -> str:
    if k is None:
        return "-"
    perfect = "-" if k.perfect is None else f"{k.perfect:.1f}"
    return f"{k.absolute:.1f} / {perfect}" + (f" ({k.method})" if named else "")


def _ours(r: dict | None) -> str:
    if r is None:
        return "-"
    return f"{r['absolute']['value']:.1f} / {r['perfect']['value']:.1f} (of {r['puzzles']})"


def full_tables(results: dict) -> str:
    parts = []
    for protocol in protocols(results):
        rows = ordered(results, protocol)
        sets = sorted({r["data"]["name"] for _, r in rows})
        low, high = rows[0][1]["data"]["scale"]
        scale = "" if (low, high) == (1.0, 1.0) else f", geometry x {high:.3g}"
        what = WHAT.get(protocol, protocol)
        parts.append(f"### {protocol}\n\n{what}; {', '.join(sets)}{scale}\n")
        strip = PICTURES / f"{protocol}.jpg"
        if strip.is_file():
            parts.append(f"![{protocol}: pieces, answers, truth](pictures/{strip.name})\n")
        lines = [measured(s, r) for s, r in rows]
        lines += [published(k, sets) for k in known(protocol)]
        head = ["solver", "puzzles", "absolute", "perfect", "neighbour", "ECE", "s a puzzle"]
        head.append("note")
        parts.append(table(head, lines) + "\n")
        parts += [f"{text}\n" for text in (auto_against_best(rows), behind(rows, protocol)) if text]
    return "\n".join(parts).rstrip()


def known(protocol: str) -> tuple:
    return PROTOCOLS[protocol].published if protocol in PROTOCOLS else ()


def measured(solver: str, r: dict) -> list[str]:
    ece = "" if r.get("ece") is None else f"{r['ece']:.3f}"
    scores = [interval(r[m]) for m in ("absolute", "perfect", "neighbour")]
    model = (r.get("settings") or {}).get("model")
    uses = solver not in ("random", "classic", "paper") and model
    notes = [Path(model).name] if uses else []
    decoded = DECODINGS.get(solver.rpartition("-")[2])
    notes += [f"decoded: {decoded}"] if decoded else []
    on_gpu = (r.get("settings") or {}).get("device") == "cuda"  # seconds are those of CPU cores
    notes += ["asked on a GPU"] if on_gpu else []
    notes += [f"{r['failed']} failed"] if r.get("failed") else []
    notes += [f"{r['repeated']} with a cell twice"] if r.get("repeated") else []
    return [
        solver,
        str(r["puzzles"]),
        *scores,
        ece,
        "" if on_gpu else f"{r['seconds_per_puzzle']:.3f}",
        "; ".join(notes),
    ]


def published(k, sets: list[str]) -> list[str]:
    """A number from a paper; the dagger says that it was measured on other images."""
    mark = " †" if any(name.endswith(".tar") for name in sets) else ""
    scores = ["-" if v is None else f"{v:.1f}" for v in (k.absolute, k.perfect, k.neighbour)]
    note = "; ".join(filter(None, (f"published: {k.source}", k.note)))
    return [f"*{k.method}*{mark}", "", *scores, "", "", note]


def auto_against_best(rows: list[tuple[str, dict]]) -> str:
    """Say what the combination is worth: `auto` and the best single solver, puzzle by puzzle."""
    found = dict(rows)
    single = [(s, r) for s, r in rows if s != "random" and not s.startswith("auto")]
    if "auto" not in found or not single:
        return ""
    name, best = max(single, key=lambda row: row[1]["absolute"]["value"])
    paired = pair(best, found["auto"])
    if paired is None:
        return ""
    gain, perfect = paired.absolute, paired.perfect
    # In doubt against ourselves: better by both tests, worse by either.
    sure = paired.p < 0.05
    ahead = {"absolute": gain.low > 0, "perfect": sure and paired.won > paired.lost}
    if gain.high < 0 or (sure and paired.lost > paired.won):
        verdict = "**worse**"
    elif all(ahead.values()):
        verdict = "better"
    elif any(ahead.values()):
        one, other = sorted(ahead, key=ahead.get, reverse=True)
        verdict = f"better in {one}, no clear difference in {other}"
    else:
        verdict = "no clear difference"
    return (
        f"`auto` against `{name}`, the best single solver here: {verdict}, absolute "
        f"{interval(gain.as_dict(), '+')} points, perfect {interval(perfect.as_dict(), '+')} "
        f"({paired.won} puzzles won, {paired.lost} lost, p = {paired.p:.2g}; "
        f"{paired.puzzles} puzzles)."
    )


def behind(rows: list[tuple[str, dict]], protocol: str) -> str:
    """Name the published numbers that are higher than our best."""
    best = {m: max(r[m]["value"] for _, r in rows) for m in ("absolute", "perfect", "neighbour")}
    worse = []
    for k in known(protocol):
        more = [
            f"{m} {getattr(k, m):.1f} to our {best[m]:.1f}"
            for m in best
            if getattr(k, m) is not None and getattr(k, m) > best[m]
        ]
        if more:
            name = k.source if k.source.startswith(k.method) else f"{k.method}, {k.source}"
            worse.append(f"{name}: {', '.join(more)}")
    return f"**Behind published numbers**: {'; '.join(worse)}." if worse else ""


def missing(results: dict) -> str:
    """Name what nobody has measured, so that an absent row is not taken for a choice."""
    solvers = [s for s in SOLVERS if not any(s == solver for _, solver in results)]
    absent = [p for p in PROTOCOLS if p not in {p for p, _ in results}]
    half = [f"`{p}`" for p in protocols(results) if (p, "auto") not in results]
    lines = []
    if solvers:
        lines.append(f"- Solvers without any row: {', '.join(f'`{s}`' for s in solvers)}.")
    if absent:
        lines.append(f"- Protocols without any row: {', '.join(f'`{p}`' for p in absent)}.")
    if half:
        lines.append(f"- Protocols without the default solver's row: {', '.join(half)}.")
    return "\n".join(lines) or "Every solver and every protocol has rows."


def generalisation_block() -> str:
    if not (RUNS / "generalisation.json").is_file():
        return "Not measured yet."
    record = json.loads((RUNS / "generalisation.json").read_text())
    counts = sorted({c["puzzles"] for c in record["cells"]})
    shown = " to ".join(str(c) for c in dict.fromkeys((counts[0], counts[-1])))
    widest = max((c["absolute"]["high"] - c["absolute"]["low"]) / 2 for c in record["cells"])
    return (
        f"{shown} puzzles a cell; 95 % intervals (in `runs/generalisation.json`) are up to ± "
        f"{widest:.0f} points wide.\n\n![Accuracy of each solver by kind of image and gap]"
        "(pictures/generalisation.png)"
    )


def calibrated_block(results: dict) -> str:
    """Say how many rows keep to an error of 0.03, and which rows of `auto` do not."""
    said = []
    for solver in ("auto", "seq2seq", "symbols", "vision"):
        errors = {p: r["ece"] for (p, s), r in sorted(results.items()) if s == solver}
        good = sum(round(e, 3) <= 0.03 for e in errors.values())
        said.append(f"`{solver}` in {good} of {len(errors)}")
        if solver == "auto":
            above = {p: e for p, e in errors.items() if round(e, 3) > 0.03}
    rows = ", ".join(f"{p} ({e:.3f})" for p, e in above.items())
    few = f"In the rows of this page the error is at most 0.03 for {', '.join(said)}."
    return f"{few} Above it with `auto`: {rows}."


# ---- files ----------------------------------------------------------------------------------


def blocks(results: dict) -> dict[str, str]:
    """The generated parts of docs/results.md, by the name in their comments."""
    return {
        "results": full_tables(results),
        "missing": missing(results),
        "levers": levers_table(),
        "generalisation": generalisation_block(),
        "costs": costs_table(),
        "equal": equal_time_table(),
        "ece": calibrated_block(results),
    }


def fill(path: Path, name: str, text: str) -> None:
    old = path.read_text()
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    new, count = re.subn(pattern, lambda m: m[1] + text + "\n" + m[2], old, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{path}: has {count} blocks <!-- {name} -->, one is needed")
    path.write_text(new)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pictures", action="store_true", help="also solve the sample photos")
    results, chosen = load(), options.parse_args()
    from tools import make_pictures

    make_pictures.plots(results)
    if chosen.pictures:
        make_pictures.strips()
    fill(ROOT / "README.md", "results", readme_table())
    for name, text in blocks(results).items():
        fill(ROOT / "docs" / "results.md", name, text)


if __name__ == "__main__":
    main()
