"""Gather the evidence of every solver on validation puzzles, and what sums of it solve.

    python docs/choose_fusion.py gather DATA OUT.pkl PUZZLES [PROTOCOL...]
    python docs/choose_fusion.py table docs/runs/fusion-val.json IN.pkl...

DATA holds photos-val.tar, art-val.tar and kaggle/valid.csv (protocol kaggle-3x3, from its splits
valid and train). The weights of `auto` are chosen on such puzzles only, never on a test set. Sheets
whose colours ran are asked twice, as they are and mended (bleed.py), which `auto` does.
"""

from __future__ import annotations

import json
import pickle
import sys
from itertools import islice
from pathlib import Path

import numpy as np

from puzlm import assembly, classic
from puzlm.bleed import mended
from puzlm.evidence import ALIKE, MENDED, SEAMS, TOUCHING, WITH_VISION, added, border_weights
from puzlm.images import write_bytes
from puzlm.metrics import absolute, perfect
from puzlm.protocols import PROTOCOLS, read_data
from puzlm.puzzle import Puzzle
from puzlm.solution import grid_name
from puzlm.solver import Solver
from puzlm.tokenizer import side_symbols

SETS = {
    "imagenet-3x3": "photos",
    "imagenet-3x3-missing-2": "photos",
    "imagenet-3x3-missing-3": "photos",
    "imagenet-3x3-eroded": "photos",
    "imagenet-3x3-cfn": "photos",
    "imagenet-3x3-fcvit": "photos",
    "jpwleg-3": "art",
    "jpwleg-5": "art",
    "imagenet-lsej-10x10-2": "photos",
    "imagenet-lsej-10x10-5": "photos",
    "kaggle-3x3": "ready",
}


def gather(data: str, out: str, count: str, *names: str) -> None:
    """Ask every model about the first puzzles of a validation set."""
    solver = Solver.from_pretrained()
    found = {}
    for name in names or SETS:
        kind = SETS[name]
        path = f"{data}/kaggle/valid.csv" if kind == "ready" else f"{data}/{kind}-val.tar"
        many = int(count) if "10x10" not in name else int(count) // 5
        rows = []
        for _, puzzle in islice(read_data(path, PROTOCOLS[name]), many):
            row = asked(solver, puzzle)
            if (other := mended(puzzle)) is not puzzle:
                row["mended"] = asked(solver, other, 1.0)
            rows.append(row)
        found[name] = rows
        print(name, len(rows), flush=True)
        Path(out).write_bytes(pickle.dumps(found))


def asked(solver: Solver, puzzle: Puzzle, bled: float | None = None) -> dict:
    """What every model says of one puzzle."""
    row = {"truth": puzzle.truth, "grid": puzzle.grid, "n": len(puzzle.pieces)}
    row["pixels"] = classic.evidence(puzzle.pieces, bled)
    row["edges"] = solver.edges.scores(puzzle.pieces)
    symbols = side_symbols(solver.tokenizer.encode(puzzle.pieces), solver.tokenizer)
    row["sides"] = solver.sides.scores(symbols)
    if grid_name(puzzle.grid) in solver.vision.settings.grids:
        row["vision"], *near = solver._look([puzzle])[0]
        row["context"] = tuple(near)
        row["seq2seq"] = np.log(solver._read([puzzle], [{}])[0].marginals + 1e-4)
    return row


# What `auto` could be made of, from the parts alone to all together.
SUMS = {
    "language model": {"seq2seq": 1},
    "language model + pixels": {"seq2seq": 1, "pixels": 1},
    "pixels": {"pixels": 1},
    "symbolic sides": {"sides": 1},
    "pixel sides": {"edges": 1},
    "pixel sides + pixels": {"edges": 1, "pixels": 1},
    "ViT, cells": {"vision": 1},
    "ViT, cells + neighbours": {"vision": 1, "context": 1},
    "... + pixel sides": {"vision": 1, "context": 1, "edges": 0.5},
    "... + pixels": {"vision": 1, "context": 1, "edges": 0.5, "pixels": 0.25},
    "... + language model": WITH_VISION,
    "... + language model 0.5, symbolic sides 0.5": {**WITH_VISION, **MENDED},
    "... + language model; pixels 4 where borders touch; mended (auto)": {
        **WITH_VISION,
        "auto": [TOUCHING, SEAMS, ALIKE, MENDED],
    },
    "... + language model with weight 0.5": {**WITH_VISION, "seq2seq": 0.5},
    "all with weight 1": dict.fromkeys(WITH_VISION, 1),
}


def arrange(row: dict, weights: dict[str, float]) -> np.ndarray:
    """Search for the best arrangement by a weighted sum, as fusion.py does."""
    n = row["n"]
    if "auto" in weights and n == row["grid"][0] * row["grid"][1]:
        bled, row = "mended" in row, row.get("mended", row)
        pixels = tuple(_of(x) for x in row["pixels"])
        weights = {**weights, **border_weights({"pixels": pixels}, row["grid"], bled, True)}
    names = ("context", "edges", "pixels", "sides")
    pairs = {k: tuple(_of(x) for x in row[k]) for k in names if weights.get(k)}
    cells = {k: row[k] for k in ("seq2seq", "vision") if k in weights}
    right, below, where = added(pairs, cells, weights, n)
    if n <= assembly.SMALL_GRID:
        return assembly.beam_search(right, below, row["grid"], where, hole=0.0)[0][0]
    return assembly.assemble(right, below, row["grid"], where, hole=0.0)


def _of(scores: np.ndarray) -> np.ndarray:
    scores = np.array(scores, float)
    np.fill_diagonal(scores, -np.inf)
    return scores


def table(out: str, *files: str) -> None:
    """Write absolute and perfect accuracy of every sum on every set, in percent.

    What OUT holds of other sets by the same sums stays.
    """
    sets = {k: v for f in files for k, v in pickle.loads(Path(f).read_bytes()).items()}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, rows in sets.items():
        for what, weights in SUMS.items():
            needs = set(weights) - {"temperature", "auto"}
            if not needs <= set(rows[0]):
                continue
            marks = [
                (absolute(x, r["truth"]), perfect(x, r["truth"]))
                for r in rows
                for x in [arrange(r, weights)]
            ]
            a, p = 100 * np.mean(marks, 0)
            found.setdefault(what, {})[name] = {"absolute": round(a, 1), "perfect": round(p, 1)}
            print(name, what, round(a, 1), round(p, 1), flush=True)
    puzzles = {k: len(v) for k, v in sets.items()}
    old = json.loads(Path(out).read_text()) if Path(out).is_file() else {"sums": {}}
    for what, cells in old["sums"].items():
        for name in cells.keys() - sets.keys() if SUMS.get(what) == old["weights"][what] else ():
            found[what][name], puzzles[name] = cells[name], old["puzzles"][name]
    record = {"puzzles": puzzles, "sums": found, "weights": SUMS}
    write_bytes(Path(out), (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    {"gather": gather, "table": table}[sys.argv[1]](*sys.argv[2:])
