"""What the ViT says of neighbours on grids that it has no output for, on validation puzzles.

    python docs/grids_val.py gather DATA OUT.pkl KIND FIRST COUNT GRIDS GAPS
    python docs/grids_val.py table docs/runs/grids-val.json IN.pkl...

DATA holds photos-val.tar and art-val.tar, KIND is photos or art; GRIDS and GAPS have commas. Pieces
are square: a picture is cut down to the shape of its grid. `table` solves by sums of the evidence;
"cells" are those of the ViT's nearest outputs, spread over the cells of the grid by their area.
"""

from __future__ import annotations

import json
import pickle
import sys
from itertools import islice
from pathlib import Path

import numpy as np

from puzlm import assembly, classic
from puzlm.evidence import added
from puzlm.images import iter_images, write_bytes
from puzlm.metrics import absolute, perfect
from puzlm.puzzle import Puzzle, parse_grid
from puzlm.solver import Solver
from puzlm.tokenizer import resized

SEED = 1000
SMALL = {
    "pixel sides + pixels (before)": {"edges": 1, "pixels": 1},
    "neighbours": {"context": 1},
    "neighbours + pixel sides 0.5 + pixels 0.25 (auto)": {
        "context": 1,
        "edges": 0.5,
        "pixels": 0.25,
    },
    "neighbours + pixel sides 1 + pixels 0.5": {"context": 1, "edges": 1, "pixels": 0.5},
    "neighbours 0.5 + pixel sides 1 + pixels 1": {"context": 0.5, "edges": 1, "pixels": 1},
    "... (auto) + cells of 3x3": {"context": 1, "edges": 0.5, "pixels": 0.25, "3x3": 1},
    "... (auto) + cells of 3x3, 0.3": {"context": 1, "edges": 0.5, "pixels": 0.25, "3x3": 0.3},
    "... (auto) + cells of 5x5": {"context": 1, "edges": 0.5, "pixels": 0.25, "5x5": 1},
    "... (auto) + cells of 5x5, 0.3": {"context": 1, "edges": 0.5, "pixels": 0.25, "5x5": 0.3},
}
LARGE = {  # of worn boards, without the frame
    "pixel sides + pixels 0.5 (before)": {"edges": 1, "pixels": 0.5},
    "neighbours + pixel sides 1 + pixels 0.5 (auto)": {"context": 1, "edges": 1, "pixels": 0.5},
}


def gather(data: str, out: str, kind: str, first: str, count: str, grids: str, gaps: str) -> None:
    """Ask pixels, pixel sides and ViT."""
    solver, found = Solver.from_pretrained(backend="torch"), {}
    images = iter_images([Path(f"{data}/{kind}-val.tar")])
    pictures = list(islice(images, int(first), int(first) + int(count)))
    for name in grids.split(","):
        for gap in map(float, gaps.split(",")):
            rows = found[kind, name, gap] = []
            for number, picture in enumerate(pictures):
                grid = parse_grid(name)
                cell = min(picture.shape[0] // grid[0], picture.shape[1] // grid[1])
                top, left = (
                    (n - k * cell) // 2 for n, k in zip(picture.shape[:2], grid, strict=True)
                )
                shape = picture[top : top + grid[0] * cell, left : left + grid[1] * cell]
                puzzle = Puzzle.from_image(shape, grid, gap=gap, seed=SEED + number)
                rows.append(asked(solver, puzzle))
            print(kind, name, gap, flush=True)
            Path(out).write_bytes(pickle.dumps(found))


def asked(solver: Solver, puzzle: Puzzle) -> dict:
    """What the models say of one puzzle."""
    import torch

    n, vision = len(puzzle.pieces), solver.vision
    small = torch.from_numpy(resized(puzzle.pieces, vision.settings.side)[None])
    row = {"truth": puzzle.truth, "grid": puzzle.grid, "pixels": classic.evidence(puzzle.pieces)}
    row["edges"] = solver.edges.scores(puzzle.pieces)
    row["context"] = solver.neighbours(puzzle)
    row["cells"] = {}
    if n <= assembly.SMALL_GRID:
        with torch.no_grad():
            for name in vision.settings.grids:
                cells = vision(small, torch.ones(1, n, dtype=torch.bool), name)[0]
                row["cells"][name] = cells[0].double().log_softmax(-1).numpy()
    return row


def spread(log_p: np.ndarray, of: str, grid: tuple[int, int]) -> np.ndarray:
    """Log-probabilities of the cells of a grid, from those of another, by common areas."""
    own = parse_grid(of)
    shares = []
    for few, many in zip(own, grid, strict=True):
        low = np.maximum(np.arange(many)[:, None] / many, np.arange(few) / few)
        high = np.minimum(np.arange(1, many + 1)[:, None] / many, np.arange(1, few + 1) / few)
        shares.append(np.maximum(0, high - low))
    p = np.einsum("nrc,Rr,Cc->nRC", np.exp(log_p).reshape(-1, *own), *shares)
    p = p.reshape(len(log_p), -1)
    return np.log(p / p.sum(1, keepdims=True) + 1e-4)


def arrange(row: dict, weights: dict[str, float]) -> np.ndarray:
    """The best arrangement by a weighted sum."""
    pairs = {}
    for name in ("context", "edges", "pixels"):
        if name in weights:
            pairs[name] = tuple(np.array(x, float) for x in row[name])
            for scores in pairs[name]:
                np.fill_diagonal(scores, -np.inf)
    cells = {k: spread(row["cells"][k], k, row["grid"]) for k in ("3x3", "5x5") if k in weights}
    n = len(row["truth"])
    right, below, where = added(pairs, cells, weights, n)
    if n <= assembly.SMALL_GRID:
        return assembly.beam_search(right, below, row["grid"], where, width=64, hole=0.0)[0][0]
    return assembly.assemble(right, below, row["grid"], where, hole=0.0)


def table(out: str, *files: str) -> None:
    """Write absolute and perfect accuracy of every sum, in percent."""
    record = {}
    for file in files:
        for (kind, grid, gap), rows in pickle.loads(Path(file).read_bytes()).items():
            sums = SMALL if len(rows[0]["truth"]) <= assembly.SMALL_GRID else LARGE
            lines = record[f"{kind} {grid}, gap {gap:g}"] = {"puzzles": len(rows)}
            for what, weights in sums.items():
                found = [(arrange(row, weights), row["truth"]) for row in rows]
                marks = [(absolute(*pair), perfect(*pair)) for pair in found]
                lines[what] = (100 * np.mean(marks, 0)).round(1).tolist()
            print(kind, grid, gap, lines, flush=True)
            write_bytes(Path(out), (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    {"gather": gather, "table": table}[sys.argv[1]](*sys.argv[2:])
