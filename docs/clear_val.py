"""How many validation puzzles are clear to sides alone, and how many of those come out wrong.

    python docs/clear_val.py DATA docs/runs/clear-val.json

DATA holds photos-val.tar and art-val.tar. `auto` asks no large model about such puzzles
(fusion.sure_by_sides).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from puzlm.evidence import AHEAD_OF_SECOND, CLEAR, Evidence
from puzlm.fusion import sure_by_sides
from puzlm.images import iter_images, write_bytes
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

CUTS = (  # grid, gap, puzzles of each set
    *(((3, 3), gap, many) for gap, many in ((0, 500), (1 / 24, 200), (1 / 8, 100), (1 / 2, 100))),
    *((grid, 0, many) for grid, many in (((2, 2), 200), ((2, 3), 200), ((4, 4), 60), ((5, 5), 60))),
)
SEED = 500  # of the permutations; those of the protocols have 0


def main(data: str, out: str) -> None:
    """Ask the sides of every cut and write what came."""
    solver = Solver.from_pretrained()
    rows = []
    for kind in ("photos", "art"):
        images = list(iter_images([Path(f"{data}/{kind}-val.tar")], 500))
        for grid, gap, many in CUTS:
            said, right = [], []
            for n, image in enumerate(images[:many]):
                puzzle = Puzzle.from_image(image, grid, gap=gap, seed=SEED + n)
                found = sure_by_sides(solver, puzzle, Evidence())
                if found is not None:
                    said.append(float(found.confidences.mean()))
                    right.append(bool((found.positions == puzzle.truth).all()))
            row = {"images": kind, "grid": "{}x{}".format(*grid), "gap": round(gap, 4)}
            row |= {"puzzles": len(images[:many]), "clear": len(right)}
            row |= {
                "wrong": right.count(False),
                "said": round(float(np.mean(said)), 5) if said else None,
            }
            rows.append(row)
            print(row, flush=True)
    record = {"agrees": CLEAR, "ahead": AHEAD_OF_SECOND, "rows": rows}
    write_bytes(Path(out), (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
