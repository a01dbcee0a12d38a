"""Gather the evidence of every solver on validation puzzles: what the weights of `auto` come from.

python docs/choose_fusion.py DATA OUT.pkl PUZZLES [PROTOCOL...]     (DATA holds photos-val.tar and art-val.tar)

Weights are chosen on these files only, never on a test set.
"""

from __future__ import annotations

import pickle
import sys
from itertools import islice
from pathlib import Path

import numpy as np

from puzlm import classic
from puzlm.protocols import PROTOCOLS, read_data
from puzlm.solver import Solver, grid_name
from puzlm.tokenizer import side_symbols

SETS = {
    "imagenet-3x3": "photos", "imagenet-3x3-missing-2": "photos", "imagenet-3x3-eroded": "photos",
    "imagenet-3x3-fcvit": "photos", "jpwleg-3": "art", "jpwleg-5": "art",
    "imagenet-lsej-10x10-2": "photos", "imagenet-lsej-10x10-5": "photos",
}  # fmt: skip


def main(data: str, out: str, count: int, *names: str) -> None:
    solver = Solver.from_pretrained()
    found = {}
    for name in names or SETS:
        kind = SETS[name]
        many = count if "10x10" not in name else count // 5
        rows = []
        for _, puzzle in islice(read_data(f"{data}/{kind}-val.tar", PROTOCOLS[name]), many):
            row = {"truth": puzzle.truth, "grid": puzzle.grid, "n": len(puzzle.pieces)}
            row["pixels"] = classic.evidence(puzzle.pieces)
            row["edges"] = solver.edges.scores(puzzle.pieces)
            symbols = side_symbols(solver.tokenizer.encode(puzzle.pieces), solver.tokenizer)
            row["sides"] = solver.sides.scores(symbols)
            if grid_name(puzzle.grid) in solver.vision.settings.grids:
                row["vision"], *near = solver._look([puzzle], [0])[0]
                row["context"] = tuple(near)
                row["seq2seq"] = np.log(solver._read([puzzle], [{}])[0].marginals + 1e-4)
            rows.append(row)
        found[name] = rows
        print(name, len(rows), flush=True)
        Path(out).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
