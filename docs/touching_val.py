"""Large boards with few best buddies: do their borders touch? docs/runs/touching-val.json.

python docs/touching_val.py DATA [PHOTOS]

DATA/large holds photos of 756 x 560 pixels or more, cut into touching pieces of 28 px; PHOTOS of
DATA/photos-val.tar are cut 10x10 with 2 and 5 of 50 px worn. Boards with fewer best buddies than
evidence.TOUCHING are solved with the weight of pixels in touching boards and in worn ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from puzlm import classic, fusion
from puzlm.board import best_buddies
from puzlm.evaluate import current_commit
from puzlm.evidence import AHEAD, SEAMS, TOUCHING, WORN
from puzlm.images import iter_images
from puzlm.metrics import absolute, neighbour
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

SIDE, MOST = 28, (20, 27)  # pixels of a piece, rows and columns at most
DOCS = Path(__file__).parent


def boards(data: Path, photos: int) -> Iterator[tuple[str, Puzzle]]:
    for seed, image in enumerate(iter_images([data / "large"])):
        rows, columns = (min(m, n // SIDE) for m, n in zip(MOST, image.shape[:2], strict=True))
        part = image[: rows * SIDE, : columns * SIDE]
        yield "touching", Puzzle.from_image(part, f"{rows}x{columns}", seed=seed)
    for seed, image in enumerate(iter_images([data / "photos-val.tar"], photos)):
        square = np.asarray(Image.fromarray(image).resize((500, 500), Image.Resampling.BICUBIC))
        for worn in (2, 5):
            gap = worn / (50 - worn)
            yield f"{worn} px worn", Puzzle.from_image(square, "10", gap=gap, seed=seed)


def buddies(solver: Solver, puzzle: Puzzle) -> tuple[float, float]:
    """Shares of best buddies, by pixels and by learned sides."""
    pixels = [p.astype(np.float64) for p in classic.evidence(puzzle.pieces)]
    edges = solver.edges.scores(puzzle.pieces)
    for pair in (*pixels, *edges):
        np.fill_diagonal(pair, -np.inf)
    return best_buddies(*pixels), best_buddies(*edges)


def main(data: str, photos: int = 400) -> None:
    solver, asked, found = Solver.from_pretrained(), {}, []
    for kind, puzzle in boards(Path(data), photos):
        asked[kind] = asked.get(kind, 0) + 1
        pixels, edges = buddies(solver, puzzle)
        if pixels >= TOUCHING:
            continue
        line: dict[str, Any] = {"kind": kind, "seed": asked[kind] - 1,
                                "pixels": round(pixels, 3), "edges": round(edges, 3)}  # fmt: skip
        if pixels - edges >= AHEAD / 2:
            for name, weight in (("touching", SEAMS), ("worn", WORN)):
                fusion.large_board = lambda *_, w=weight: (w, True)  # type: ignore[assignment]
                got = solver.solve(puzzle).positions
                marks = absolute(got, puzzle.truth), neighbour(got, puzzle.truth, puzzle.grid[1])
                line[name] = [round(100 * float(m), 1) for m in marks]
        found.append(line)
        print(json.dumps(line), flush=True)
    summary = {}
    for kind in asked:
        changed = [x for x in found if x["kind"] == kind and x["pixels"] - x["edges"] >= AHEAD]
        summary[kind] = {"boards": asked[kind], "changed": len(changed)} | {
            name: np.mean([x[name] for x in changed], 0).round(1).tolist()
            for name in ("touching", "worn") if changed
        }  # fmt: skip
    record = {"commit": current_commit(), "ahead": AHEAD, "marks": "absolute, neighbours",
              "summary": summary, "few_best_buddies": found}  # fmt: skip
    (DOCS / "runs" / "touching-val.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
