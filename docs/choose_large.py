"""Gather what pixels and pixel sides say of large puzzles, and what sums of it solve.

    python docs/choose_large.py PHOTOS docs/runs/large-val.json [PUZZLES [SCALE [GAP]]]

PHOTOS is a folder of photos of about 1,000 px, none of them of the classic sets: each is scaled
and its middle cut into up to 23x35 pieces of 28 px. How `auto` treats grids above
`assembly.SMALL_GRID`, which no ViT reads, is chosen on them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from puzlm import assembly, classic
from puzlm.board import best_buddies
from puzlm.evidence import pair_confidence
from puzlm.images import read_image, write_bytes
from puzlm.metrics import absolute, neighbour, perfect
from puzlm.puzzle import Puzzle, cut
from puzlm.solver import Solver

PIECE, MOST = 28, (23, 35)  # pixels; rows and columns of the set of 805 pieces
MARKS = ("absolute", "perfect", "neighbour", "own agreement", "truth's score above the answer's")
EDGES = (0.0, 0.25, 0.5, 1.0)  # weights of the pixel sides beside pixels of weight 1


def puzzle_of(path: Path, index: int, scale: float, gap: int) -> Puzzle:
    """Cut the middle of a photo, `gap` px between its pieces, and shuffle it."""
    image = read_image(path.read_bytes(), name=path.name)
    height, width = (round(scale * side) for side in image.shape[:2])
    image = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))
    grid = tuple(side // PIECE for side in image.shape[:2])
    grid = tuple(np.minimum(grid, MOST if grid[0] <= grid[1] else MOST[::-1]).tolist())
    top, left = ((side - PIECE * k) // 2 for side, k in zip(image.shape, grid, strict=False))
    image = image[top : top + PIECE * grid[0], left : left + PIECE * grid[1]]
    order = np.random.default_rng(index).permutation(grid[0] * grid[1])
    pieces = cut(image, grid)[order, gap // 2 : PIECE - gap + gap // 2]
    pieces = pieces[:, :, gap // 2 : PIECE - gap + gap // 2]
    return Puzzle(pieces, grid, order.astype(np.int64))


def measure(puzzle: Puzzle, solver: Solver) -> dict:
    """Solve one puzzle by every sum; the marks are named in `MARKS`."""
    pixels = [x.astype(np.float64) for x in classic.evidence(puzzle.pieces)]
    edges = [np.nan_to_num(x, neginf=0.0) for x in solver.edges.scores(puzzle.pieces)]
    record = {"grid": list(puzzle.grid), "bleeding": classic.bleeding(puzzle.pieces), "sums": {}}
    for weight in EDGES:
        pair = [p + weight * e for p, e in zip(pixels, edges, strict=True)]
        for scores in pair:
            np.fill_diagonal(scores, -np.inf)
        if not weight:
            record["best buddies"] = round(best_buddies(*pair), 4)
        found = assembly.assemble(*pair, puzzle.grid, hole=0.0)
        marks = (
            absolute(found, puzzle.truth),
            perfect(found, puzzle.truth),
            neighbour(found, puzzle.truth, puzzle.grid[1]),
        )
        lost = assembly.objective(puzzle.truth, *pair, puzzle.grid) - assembly.objective(
            found, *pair, puzzle.grid
        )
        agrees = float(pair_confidence(found, *pair, puzzle.grid).mean())
        record["sums"][str(weight)] = [round(float(x), 4) for x in (*marks, agrees, lost)]
    return record


def main(photos: str, out: str, count: str = "24", scale: str = "1", gap: str = "0") -> None:
    """Measure the first photos and write what came."""
    solver, rows = Solver.from_pretrained(), []
    for index, path in enumerate(sorted(Path(photos).iterdir())[: int(count)]):
        puzzle = puzzle_of(path, index, float(scale), int(gap))
        rows.append({"photo": path.name, **measure(puzzle, solver)})
        print(json.dumps(rows[-1]), flush=True)
    record = {"scale": scale, "gap": gap, "marks": MARKS, "puzzles": rows}
    write_bytes(Path(out), (json.dumps(record) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
