"""Write docs/leaderboard.md and the first screen of docs/results.md from results files.

    python -m tools.make_field                        # seconds
    python -m tools.make_field --pack RUNS/*.json     # also take in rows of others' solvers

Files of `puzlm evaluate` with a solver of peers/ are named PROTOCOL.SET.PEER.json, as in
results/clean/, and lie in results/peers/, answers packed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from puzlm.harness.compare import pair
from puzlm.harness.page_sets import PAGE_SETS
from puzlm.harness.protocols import PROTOCOLS, Published
from puzlm.harness.results_files import pack, read_folder, read_results
from tools.make_clean import IMAGES
from tools.make_results import WHAT
from tools.results_costs import interval, table

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "results" / "peers"
OURS = ("auto", "reader", "seq2seq", "symbols", "vision", "vision-pairs", "bigram", "classic")
OURS += ("paper", "strokes", "random")
FIRST = (  # protocols of the first screen, with the set of original files that is shown
    ("imagenet-3x3", "imagenet-val-288"),
    ("imagenet-3x3-missing-1", "imagenet-val-288"),
    ("imagenet-3x3-missing-2", "imagenet-val-288"),
    ("imagenet-3x3-missing-3", "imagenet-val-288"),
    ("imagenet-3x3-eroded", "imagenet-val-288"),
    ("imagenet-3x3-fcvit", "imagenet-val-288"),
    ("jpwleg-3", "paintings"),
    ("jpwleg-5", "paintings"),
    ("worn-4x4", "imagenet-val-288"),
    ("imagenet-lsej-10x10-2", "imagenet-val-500"),
    ("imagenet-lsej-10x10-5", "imagenet-val-500"),
    ("classic-mcgill-540", "mcgill-540"),
)
RECOMPRESSED = "images compressed again"
SETS = IMAGES | {"test": "the set's test split", "mechanical": "a real shredder's strips"}
Results = dict[tuple[str, str], dict[str, dict]]  # (protocol, images) -> solver -> result


def load() -> Results:
    """Read every row that stands: of original files, of peers, and of sets that were compressed."""
    found: Results = {}
    for folder in (ROOT / "results" / "clean", PEERS):
        for stem, result in read_folder(folder).items():
            protocol, *codec, images, solver = stem.split(".")
            if not codec:
                found.setdefault((protocol, images), {})[solver] = result
    for stem, result in read_folder(ROOT / "results").items():
        protocol, solver = stem.rsplit(".", 1)
        if solver in OURS or protocol in PAGE_SETS:
            name = Path(result["data"]["name"]).stem
            images = RECOMPRESSED if "val-dev" in name or name.startswith("art-") else name
            found.setdefault((protocol, images), {})[solver] = result
    return found


def is_peer(solver: str, result: dict) -> bool:
    """Whether a row is another's solver."""
    return bool((result.get("settings") or {}).get("about")) or solver not in OURS


# ---- the first screen -----------------------------------------------------------------------


def first_screen(results: Results) -> str:
    """One line a protocol: paper, best published, best peer, our reproduction, reader, `auto`."""
    lines = []
    behind: list[str] = []
    for protocol, images in FIRST:
        known = PROTOCOLS[protocol].published
        paper = next((k for k in known if k.method == "PuzLM"), None)
        others = [k for k in known if k.method != "PuzLM" and (k.perfect or k.absolute)]
        best = max(others, key=lambda k: (k.perfect or 0.0, k.absolute or 0.0), default=None)
        clean = results.get((protocol, images), {})
        rows = {s: (r, "") for s, r in results.get((protocol, RECOMPRESSED), {}).items()}
        rows = {s: (r, " ‡") for s, (r, _) in rows.items()} | {s: (r, "") for s, r in clean.items()}
        peers = [(s, r) for s, (r, _) in rows.items() if is_peer(s, r)]
        peer = max(
            peers,
            key=lambda p: (p[1]["perfect"]["value"], p[1]["absolute"]["value"]),
            default=None,
        )
        reader = rows.get("reader") or rows.get("seq2seq")
        lines.append(
            [
                f"[`{protocol}`](leaderboard.md#{protocol})",
                _published(paper, named=False),
                _published(best),
                f"{_short(peer[1])} ({peer[0]})" if peer else "-",
                *(_short(*row) if row else "-" for row in (rows.get("paper"), reader)),
                _short(*rows["auto"]) if "auto" in rows else "-",
            ]
        )
        if above := _above(known, rows.get("auto")):
            behind.append(f"`{protocol}` ({'; '.join(above)})")
    head = ["protocol", "the paper", "best other published", "best peer run here"]
    screen = table([*head, "`paper`, our reproduction", "the reader alone", "`auto`"], lines)
    told = f"`auto` is behind a published number on {', '.join(behind)}." if behind else ""
    return f"{screen}\n\n{told}".rstrip()


def _above(known: tuple[Published, ...], ours: tuple[dict, str] | None) -> list[str]:
    """Published numbers that are higher than a row of ours."""
    texts = []
    for one in known:
        more = [
            f"{measure} {value:.1f}"
            for measure in ("absolute", "perfect")
            if (value := getattr(one, measure)) is not None
            and ours is not None
            and value > ours[0][measure]["value"]
        ]
        if more:
            texts.append(f"{one.method}: {', '.join(more)}")
    return texts


def _published(one: Published | None, named: bool = True) -> str:
    if one is None:
        return "-"
    numbers = " / ".join("-" if v is None else f"{v:.1f}" for v in (one.absolute, one.perfect))
    return f"*{numbers}*" + (f" ({one.method})" if named else "")


def _short(result: dict, mark: str = "") -> str:
    perfect = result["perfect"]
    return (
        f"{result['absolute']['value']:.1f} / {perfect['value']:.1f} "
        f"[{perfect['low']:.0f}, {perfect['high']:.0f}], {result['puzzles']}{mark}"
    )


# ---- the leaderboard ------------------------------------------------------------------------


def leaderboard(results: Results) -> str:
    """A section a protocol, a table a set of images, a row a solver."""
    parts = []
    for protocol in [*PROTOCOLS, *PAGE_SETS]:
        sets = [images for name, images in results if name == protocol]
        if not sets:
            continue
        parts.append(f"## {protocol}\n\n{WHAT.get(protocol, '')}".rstrip())
        for images in sorted(sets, key=lambda name: (name == RECOMPRESSED, name)):
            rows = results[protocol, images]
            parts.append(f"{SETS.get(images, images)}:\n\n{_board(rows, images)}")
        known = PROTOCOLS[protocol].published if protocol in PROTOCOLS else ()
        lines = [
            [f"*{k.method}*", *(_value(v) for v in (k.absolute, k.perfect, k.neighbour)), note]
            for k in sorted(known, key=lambda k: (-(k.perfect or 0), -(k.absolute or 0)))
            if (note := "; ".join(filter(None, (k.source, k.note))))
        ]
        if lines:
            head = ["published", "absolute", "perfect", "neighbour", "source"]
            parts.append(table(head, lines))
        if protocol in PAGE_SETS:
            parts += [
                f"Published neighbour accuracy: {name} {value:.1f}."
                for name, value in PAGE_SETS[protocol].published
            ]
    return "\n\n".join(parts)


def _value(value: float | None) -> str:
    return "-" if value is None else f"*{value:.1f}*"


def _board(rows: dict[str, dict], images: str) -> str:
    first = rows.get("auto")
    lines = []
    for solver, result in sorted(
        rows.items(), key=lambda row: tuple(-row[1][m]["value"] for m in ("perfect", "absolute"))
    ):
        name = f"**{solver}**" if is_peer(solver, result) else solver
        name += ", published answers" if "published answers" in result["solver"] else ""
        scores = [interval(result[m]) for m in ("absolute", "perfect", "neighbour")]
        paired = pair(first, result) if first and solver != "auto" else None
        against = (
            f"{interval(vars(paired.absolute), '+')}; {paired.won} / {paired.lost}, "
            f"p {_p(paired.p)}; {paired.puzzles}"
            if paired
            else ""
        )
        seconds = f"{result['seconds_per_puzzle']:.2f}" if result["seconds_per_puzzle"] else "-"
        asked = str(result["puzzles"])
        if result.get("failed"):
            asked += f" ({result['failed']} failed)"
        lines.append([name, asked, *scores, against, seconds])
    head = ["solver", "puzzles", "absolute", "perfect", "neighbour", "against `auto`", "s a puzzle"]
    return table(head, lines)


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"


# ---- files ----------------------------------------------------------------------------------


def fill(text: str, name: str, block: str) -> str:
    """Put a generated block between its marks."""
    found, count = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)",
        lambda m: f"{m[1]}{block}\n{m[2]}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"{count} blocks <!-- {name} -->, one is needed")
    return found


def pages(results: Results) -> dict[Path, str]:
    """Both pages as they follow from the files."""
    docs = ROOT / "docs"
    blocks = {"results": first_screen(results), "leaderboard": leaderboard(results)}
    return {
        (path := docs / f"{page}.md"): fill(path.read_text(), "field", block)
        for page, block in blocks.items()
    }


def main() -> None:
    """Take in new files, then write the pages."""
    if sys.argv[1:2] == ["--pack"]:
        pack(PEERS, {Path(name).stem: read_results(name) for name in sys.argv[2:]})
    for path, text in pages(load()).items():
        path.write_text(text)


if __name__ == "__main__":
    main()
