"""What the ViT's windows do for large worn boards, on validation images: docs/runs/windows-val.txt.

    python docs/windows_val.py FOLDER 12x16 0.15 16 -o out.jsonl

cuts the first 16 images of a folder that come out worn and solves each without the ViT, with the
ViT looking at the whole board (up to 200 pieces), at windows, and at windows twice.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from puzlm import classic, windows
from puzlm.evidence import FUSION, added, large_board
from puzlm.fusion import _alone, _arranged
from puzlm.images import iter_images
from puzlm.metrics import absolute, neighbour
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

WHOLE = 200  # pieces


def board(solver: Solver, puzzle: Puzzle) -> dict[str, list[float]] | None:
    """Absolute and neighbour accuracy and seconds of each way; None if the borders touch."""
    pairs = {
        "edges": _alone(*solver.edges.scores(puzzle.pieces)),
        "pixels": _alone(*classic.evidence(puzzle.pieces, None)),
    }
    other, worn = large_board(puzzle, pairs, False)
    if not worn:
        return None
    weights, found = {**FUSION, **other}, {}

    def arranged(name: str, start: float, **more):
        right, below, _ = added({**pairs, **more}, {}, weights, len(puzzle.pieces))
        one = _arranged(puzzle, right, below, None, {}, solver.frame)
        scores = absolute(one, puzzle.truth), neighbour(one, puzzle.truth, puzzle.grid[1])
        found[name] = [*(round(100 * s, 2) for s in scores), round(time.perf_counter() - start, 2)]
        return one, right, below

    now = time.perf_counter()
    made = arranged("without", now)
    if puzzle.cells <= WHOLE:
        now = time.perf_counter()
        arranged("whole", now, context=solver.neighbours(puzzle))
    now = time.perf_counter()
    for name in ("windows", "windows twice"):
        near = windows.neighbours(solver._look, puzzle, *made)
        made = arranged(name, now, context=near)
    return found


def main() -> None:
    """Solve, write a line a board, print the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("grid")
    parser.add_argument("gap", type=float)
    parser.add_argument("count", type=int)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--skip", type=int, default=0, help="images")
    args = parser.parse_args()
    solver, lines = Solver.from_pretrained(), []
    for seed, image in enumerate(iter_images([args.folder])):
        if seed < args.skip or len(lines) == args.count:
            continue
        puzzle = Puzzle.from_image(image, args.grid, gap=args.gap, seed=seed)
        if (found := board(solver, puzzle)) is not None:
            lines.append({"image": seed, "grid": args.grid, "gap": args.gap, **found})
            with args.output.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    for name in ("without", "whole", "windows", "windows twice"):
        rows = np.array([line[name] for line in lines if name in line])
        if len(rows):
            perfect = 100 * (rows[:, 0] == 100).mean()
            placed, near, seconds = rows.mean(0)
            print(f"{args.grid} {args.gap:g} {name:14} {len(rows)} boards", end=" ")
            print(f"{placed:.1f} / {perfect:.1f}, neighbours {near:.1f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
