"""Large boards with few best buddies: how much are their pixels to count? runs/touching-val.json.

python docs/touching_val.py DATA

DATA/large holds photos of 756 x 560 pixels or more, cut into touching pieces of 28 px; the images
of DATA/photos-val.tar and art-val.tar are cut 10x10 with 2 and 5 of 50 px worn. Boards with fewer
best buddies than evidence.TOUCHING, but more by pixels than by learned sides, are solved with three
weights of the pixels: that of worn boards, one that counts both alike, that of touching boards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from fit_calibration import write
from PIL import Image

from puzlm import classic, fusion
from puzlm.board import best_buddies
from puzlm.evaluate import current_commit
from puzlm.evidence import AHEAD, ALIKE, SEAMS, TOUCHING, WORN
from puzlm.images import iter_images
from puzlm.metrics import absolute, neighbour
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

SIDE, MOST = 28, (20, 27)  # pixels of a piece, rows and columns at most
WEIGHTS = {"worn": WORN, "alike": ALIKE, "touching": SEAMS}


def boards(data: Path) -> Iterator[tuple[str, Puzzle]]:
    shown = set()
    for seed, image in enumerate(iter_images([data / "large"])):
        rows, columns = (min(m, n // SIDE) for m, n in zip(MOST, image.shape[:2], strict=True))
        part = image[: rows * SIDE, : columns * SIDE]
        if part.tobytes() not in shown:
            yield "touching", Puzzle.from_image(part, f"{rows}x{columns}", seed=seed)
        shown.add(part.tobytes())
    for name in ("photos-val", "art-val"):
        for seed, image in enumerate(iter_images([data / f"{name}.tar"])):
            square = np.asarray(Image.fromarray(image).resize((500, 500), Image.Resampling.BICUBIC))
            for worn in (2, 5):
                gap = worn / (50 - worn)
                yield f"{name}, {worn} px", Puzzle.from_image(square, "10", gap=gap, seed=seed)


def buddies(solver: Solver, puzzle: Puzzle) -> tuple[float, float]:
    """Shares of best buddies, by pixels and by learned sides."""
    pixels = [p.astype(np.float64) for p in classic.evidence(puzzle.pieces)]
    edges = solver.edges.scores(puzzle.pieces)
    for pair in (*pixels, *edges):
        np.fill_diagonal(pair, -np.inf)
    return best_buddies(*pixels), best_buddies(*edges)


def main(data: str) -> None:
    solver, asked, found = Solver.from_pretrained(), {}, []
    for kind, puzzle in boards(Path(data)):
        count = asked.setdefault(kind, {"boards": 0, "few_best_buddies": 0})
        count["boards"] += 1
        pixels, edges = buddies(solver, puzzle)
        count["few_best_buddies"] += pixels < TOUCHING
        if pixels >= TOUCHING or pixels - edges < AHEAD:
            continue
        line: dict[str, Any] = {
            "kind": kind,
            "board": count["boards"] - 1,
            "pixels": round(pixels, 3),
            "edges": round(edges, 3),
        }
        for name, weight in WEIGHTS.items():
            with patch.object(fusion, "large_board", lambda *_, w=weight: ({"pixels": w}, True)):
                got = solver.solve(puzzle).positions
            marks = absolute(got, puzzle.truth), neighbour(got, puzzle.truth, puzzle.grid[1])
            line[name] = [round(100 * float(m), 1) for m in marks]
        found.append(line)
        print(json.dumps(line), flush=True)
    for kind, count in asked.items():
        ahead = [x for x in found if x["kind"] == kind]
        count |= {"pixels_ahead": len(ahead)} | {
            name: np.mean([x[name] for x in ahead], 0).round(1).tolist()
            for name in WEIGHTS
            if ahead
        }
    record = {
        "commit": current_commit(),
        "ahead": AHEAD,
        "weights": WEIGHTS,
        "marks": "absolute, neighbours",
        "summary": asked,
        "boards": found,
    }
    write(str(Path(__file__).parent / "runs" / "touching-val.json"), record)


if __name__ == "__main__":
    main(sys.argv[1])
