"""Write the tables of original files into docs/results.md, and judge which protocols leak.

    python -m tools.make_clean                          # the tables, seconds
    python -m tools.make_clean --pack RUNS/*.json       # also take new results files in

A results file of `puzlm evaluate` is named PROTOCOL[.CODEC].SET.SOLVER.json. SET is a tar of
`tools/clean_sets.py`; CODEC is empty, "picture" (the whole picture was compressed before it was
cut) or "pieces" (each piece was, after cutting). They lie in results/clean/, answers packed.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from puzlm.harness.compare import Paired, pair
from puzlm.harness.protocols import PROTOCOLS
from puzlm.harness.results_files import pack, read_folder, read_results
from tools.results_costs import table

ROOT = Path(__file__).parents[1]
CLEAN = ROOT / "results" / "clean"
BEFORE = ROOT / "results" / "recompressed"  # summaries of rows that were withdrawn
CODECS = ("", "picture", "pieces")
SOLVERS = ("auto", "auto-before", "seq2seq", "symbols", "classic")
IMAGES = {
    "imagenet-val-288": "ILSVRC photos, 288 px or more",
    "imagenet-val-500": "ILSVRC photos, 500 px or more",
    "imagenet-val-1000": "ILSVRC photos, 1,000 px or more",
    "paintings": "paintings, 534 px or more",
    "museum": "museum photographs, 534 px or more",
    "bgu-805": "the classic set's photos",
    "mcgill-540": "the classic set's photos",
}


@dataclass(frozen=True)
class Row:
    """One results file: what was asked, of which images, in which form."""

    protocol: str
    codec: str
    images: str
    solver: str
    result: dict


def load() -> list[Row]:
    """Read all results on original files, protocols in their order."""
    rows = []
    for stem, result in read_folder(CLEAN).items():
        protocol, *codec, images, solver = stem.split(".")
        rows.append(Row(protocol, codec[0] if codec else "", images, solver, result))
    order = list(PROTOCOLS)
    rows.sort(key=lambda r: (order.index(r.protocol), r.images, SOLVERS.index(r.solver), r.codec))
    return rows


def score(result: dict, measure: str) -> str:
    """Show one measure with its interval."""
    value = result[measure]
    return f"{value['value']:.1f} [{value['low']:.1f}, {value['high']:.1f}]"


def before(protocol: str, images: str, solver: str) -> str:
    """Show the row that was measured on compressed images."""
    for folder in (BEFORE, ROOT / "results"):
        path = folder / f"{protocol}.{solver}.json"
        if path.is_file():
            old = json.loads(path.read_text())
            other = old["data"]["name"].startswith("art") and images != "paintings"
            pair_of = " / ".join(f"{old[m]['value']:.1f}" for m in ("absolute", "perfect"))
            low, high = (old["perfect"][end] for end in ("low", "high"))
            return f"{pair_of} [{low:.1f}, {high:.1f}] ({old['puzzles']}{' paintings' * other})"
    return ""


def rows_table(rows: list[Row]) -> str:
    """Every row on original files beside the one it replaces."""
    lines = []
    for row in rows:
        if row.codec:
            continue
        result = row.result
        low, high = result["data"]["scale"]
        scale = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
        best = max(
            (p for p in PROTOCOLS[row.protocol].published if p.perfect is not None),
            key=lambda p: p.perfect or 0.0,
            default=None,
        )
        theirs = f"{best.absolute or '-'} / {best.perfect} ({best.method})" if best else ""
        lines.append(
            [
                f"`{row.protocol}`",
                IMAGES.get(row.images, row.images),
                row.solver,
                str(result["puzzles"]),
                scale,
                score(result, "absolute"),
                score(result, "perfect"),
                before(row.protocol, row.images, row.solver),
                theirs if row.solver == "auto" else "",
            ]
        )
    head = ["protocol", "images", "solver", "puzzles", "scale", "absolute", "perfect"]
    head += ["before: absolute / perfect [perfect's interval] (puzzles)", "published *"]
    return table(head, lines)


def gain(plain: dict, other: dict) -> Paired | None:
    """Pair the same puzzles before and after a codec."""
    return pair({**plain, "protocol": 0}, {**other, "protocol": 0})


def leaks(paired: Paired) -> bool:
    """Whether compressed pictures are solved better, at 5 %, in either measure."""
    return paired.absolute.low > 0 or (paired.won > paired.lost and paired.p < 0.05)


def codec_table(rows: list[Row]) -> str:
    """The same puzzles without a codec, with one before cutting, with one after it."""
    lines = []
    found = {(r.protocol, r.images, r.solver, r.codec): r.result for r in rows}
    for (protocol, images, solver, codec), plain in found.items():
        picture = found.get((protocol, images, solver, "picture"))
        if codec or picture is None:
            continue
        paired = gain(plain, picture)
        assert paired is not None
        cells = []
        for form in CODECS:
            result = found.get((protocol, images, solver, form))
            cells.append("" if result is None else among(result, plain, picture))
        pieces = found.get((protocol, images, solver, "pieces"))
        after = gain(plain, pieces) if pieces else None
        lines.append(
            [
                f"`{protocol}`",
                solver,
                str(paired.puzzles),
                *cells,
                f"{paired.absolute}; {paired.won} won, {paired.lost} lost, p = {paired.p:.2g}",
                "**leaks**" if leaks(paired) else "no clear gain",
                f"{after.absolute}" if after else "",
            ]
        )
    head = ["protocol", "solver", "puzzles", "original files", "picture compressed, then cut"]
    head += ["cut, then each piece compressed", "gain by the picture's compression", ""]
    head += ["gain by the pieces'"]
    return table(head, lines)


def among(result: dict, *others: dict) -> str:
    """Absolute / perfect on the puzzles that all hold."""
    keys = set.intersection(*({r["index"] for r in other["outcomes"]} for other in others))
    mine = [r for r in result["outcomes"] if r["index"] in keys]
    mean = [100 * sum(r[m] for r in mine) / len(mine) for m in ("absolute", "perfect")]
    fewer = f" ({len(mine)} puzzles)" if len(mine) < len(keys) else ""
    return f"{mean[0]:.1f} / {mean[1]:.1f}{fewer}"


def page(text: str) -> str:
    """Put the tables between their marks in docs/results.md."""
    rows = load()
    for mark, content in (("clean rows", rows_table(rows)), ("clean codecs", codec_table(rows))):
        block = f"<!-- {mark} -->\n{content}\n<!-- end {mark} -->"
        text = re.sub(
            f"<!-- {mark} -->.*?<!-- end {mark} -->", lambda _, b=block: b, text, flags=re.S
        )
    return text


def main() -> None:
    """Take in new files, then write the page."""
    if sys.argv[1:2] == ["--pack"]:
        pack(CLEAN, {Path(name).stem: read_results(name) for name in sys.argv[2:]})
    path = ROOT / "docs" / "results.md"
    path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main()
