"""Tables of what `auto` was chosen by, on validation puzzles: for make_results.py."""

from __future__ import annotations

import json

from tools.results_costs import RUNS, table


def bleed_block() -> str:
    """Sheets compressed after shuffling: how often that is seen, and what mending them gives."""
    record = json.loads((RUNS / "bleed-val.json").read_text())
    counts = {"compressed": [0.0, 0], "clean": [0.0, 0]}
    for kind, found in record["seen"].items():
        if kind != "ready-made":
            count = counts[kind.rpartition(", ")[2]]
            count[0] += found["above"] * found["sheets"] / 100
            count[1] += found["sheets"]
    (seen, all_), (wrong, clean) = counts["compressed"], counts["clean"]
    ready = record["seen"]["ready-made"]
    said = (
        f"The correlation is above {record['leans']} for {100 * seen / all_:.0f} % of {all_:,} "
        f"compressed validation sheets, for {ready['above']:.0f} % of {ready['sheets']:,} "
        f"ready-made ones, and for {wrong:.0f} of {clean:,} clean ones."
    )
    kinds = [kind.removesuffix(", clean") for kind in record["solved"] if kind.endswith("clean")]
    rows = []
    for kind in kinds:
        whole, ran = (record["solved"][f"{kind}, {state}"] for state in ("clean", "compressed"))
        marks = (whole["auto"], ran["without mending"], ran["auto"])
        cells = [f"{absolute:.1f} / {perfect:.1f}" for absolute, perfect, _ in marks]
        rows.append([kind, str(ran["puzzles"]), *cells, f"{ran['auto'][2]:.1f}"])
    head = ["cut", "puzzles", "clean", "compressed, not mended", "compressed, `auto`", "said (%)"]
    return f"{said}\n\n{table(head, rows)}"


def grids_block() -> str:
    """Grids that the ViT has no output for, with and without what it says of neighbours."""
    record = json.loads((RUNS / "grids-val.json").read_text())
    rows = []
    for kind, sums in record.items():
        before, after = (
            next(marks for what, marks in sums.items() if what.endswith(end))
            for end in ("(before)", "(auto)")
        )
        cells = [f"{absolute:.1f} / {perfect:.1f}" for absolute, perfect in (before, after)]
        rows.append([kind, str(sums["puzzles"]), *cells])
    head = ["cut", "puzzles", "pixel sides and pixels", "and the ViT's neighbours"]
    return table(head, rows)


def fusion_table() -> str:
    """What sums of evidence solve on validation puzzles."""
    path = RUNS / "fusion-val.json"
    if not path.exists():
        return ""
    record = json.loads(path.read_text())
    sets = list(record["puzzles"])
    head = ["evidence", *(f"{s} ({record['puzzles'][s]})" for s in sets)]
    rows = [
        [
            what,
            *(
                f"{c['absolute']:.1f} / {c['perfect']:.1f}" if (c := cells.get(s)) else ""
                for s in sets
            ),
        ]
        for what, cells in record["sums"].items()
    ]
    return table(head, rows)
