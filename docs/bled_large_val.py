"""Large boards compressed after they were shuffled: what is to count? runs/bled-large-val.json.

python docs/bled_large_val.py DATA [FIRST [LAST]]

Images FIRST to LAST of DATA/photos-val.tar and of art-val.tar are cut 7x7 to 10x10, touching and
with a gap of 4 to 15 % of a piece, and solved as they are and after their shuffled sheet was saved
as JPEG: by `auto` as it is, with the weights of clean boards, and with others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from bled_val import BLOCK, QUALITIES, compressed
from fit_calibration import write
from PIL import Image

from puzlm import classic, evidence, fusion
from puzlm.evaluate import current_commit
from puzlm.images import Pixels, cores, iter_images
from puzlm.metrics import absolute, neighbour, perfect
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

SIDES, GRIDS, GAPS = (28, 36, 44, 50), (7, 8, 10), (0.04, 0.08, 0.15)
WEIGHTS = {
    f"pixels {pixels:g}, sides {sides:g}, edges {edges:g}": {
        "pixels": pixels,
        "sides": sides,
        "edges": edges,
    }
    for pixels, sides, edges in ((1, 0, 0), (1, 1, 0), (1, 1, 0.25), (1, 1, 0.5), (1, 1, 1))
}


def boards(image: Pixels, seed: int) -> Iterator[tuple[str, Puzzle]]:
    """One image, touching and worn, clean and bled."""
    rng = np.random.default_rng(seed)
    side, grid = int(rng.choice(SIDES)), int(rng.choice(GRIDS))
    for name, gap in (("touching", 0.0), ("worn", float(rng.choice(GAPS)))):
        size = round(side * (1 + gap)) * grid
        picture = np.asarray(Image.fromarray(image).resize((size, size)))
        puzzle = Puzzle.from_image(picture, grid, gap=gap, seed=seed)
        yield f"{name}, clean", puzzle
        if puzzle.pieces.shape[1] % BLOCK:
            yield f"{name}, bled", compressed(puzzle, int(rng.choice(QUALITIES)))


def measure(image: Pixels, seed: int) -> list[dict[str, Any]]:
    """Solve the boards of one image in every way; absolute, perfect, neighbours in percent."""
    solver, lines = Solver.from_pretrained(), []
    for kind, puzzle in boards(image, seed):
        excess = classic.chroma_excess(puzzle.pieces)
        line: dict[str, Any] = {"kind": kind, "excess": round(excess, 3)}

        def solved(large: Any, puzzle: Puzzle = puzzle) -> list[float]:
            with patch.object(fusion, "large_board", large):
                found = solver.solve(puzzle)
            truth, columns = puzzle.truth, puzzle.grid[1]
            marks = absolute(found.positions, truth), perfect(found.positions, truth)
            sure = float(np.mean(found.confidences))
            return [
                round(100 * float(m), 1)
                for m in (*marks, neighbour(found.positions, truth, columns), sure)
            ]

        def clean(puzzle: Puzzle, pairs: Any, _: Any) -> Any:
            return evidence.large_board(puzzle, pairs, lambda _: {})

        line["clean weights"] = solved(clean)
        if excess > evidence.MAYBE:
            line["auto"] = solved(evidence.large_board)
        else:
            line["auto"] = line["clean weights"]
        for name, weights in WEIGHTS.items() if "bled" in kind else ():

            def fixed(puzzle: Puzzle, pairs: Any, symbols: Any, w: Any = weights) -> Any:
                _, rolls = clean(puzzle, pairs, symbols)
                pairs |= symbols(puzzle)
                return dict(w), rolls

            line[name] = solved(fixed)
        lines.append(line)
    return lines


def main(data: str, first: str = "0", last: str = "40") -> None:
    span, rows = (int(first), int(last)), []
    images = [
        image
        for name in ("photos-val", "art-val")
        for image in islice(iter_images([Path(data) / f"{name}.tar"], span[1]), *span)
    ]
    with ProcessPoolExecutor(cores()) as pool:
        for number, lines in enumerate(pool.map(measure, images, range(len(images)))):
            rows += lines
            print(number, lines, flush=True)
    summary: dict[str, Any] = {}
    for kind in sorted({line["kind"] for line in rows}):
        some = [line for line in rows if line["kind"] == kind]
        suspected = [line["excess"] > evidence.MAYBE for line in some]
        summary[kind] = {"boards": len(some), "chroma_excess above maybe": sum(suspected)} | {
            name: np.mean([line[name] for line in some], 0).round(1).tolist()
            for name in ("auto", "clean weights", *WEIGHTS)
            if name in some[0]
        }
    record = {
        "commit": current_commit(),
        "images": list(span),
        "maybe": evidence.MAYBE,
        "weights": evidence.LARGE_BLED,
        "marks": "absolute, perfect, neighbours, said confidence",
        "summary": summary,
        "boards": rows,
    }
    write(str(Path(__file__).parent / "runs" / "bled-large-val.json"), record)


if __name__ == "__main__":
    main(*sys.argv[1:])
