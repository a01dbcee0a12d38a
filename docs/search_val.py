"""Measure how often the search misses the truth, on validation puzzles: docs/runs/search-val.json.

python docs/search_val.py DATA [PUZZLES_5x5 PUZZLES_10x10]

DATA holds photos-val.tar and art-val.tar; so many puzzles of each. Pairs are scored by the side
model and by pixels. Cell evidence is simulated: each piece says where it is with a normal error of
1 cell (5x5) or 2 cells (10x10), and claims no more than that. A search failure is an arrangement
that scores below the true one: no better evidence would have helped.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from puzlm import assembly, classic
from puzlm.board import _board, _positions
from puzlm.evaluate import current_commit
from puzlm.images import iter_images
from puzlm.protocols import get_protocol, make_puzzle
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver
from puzlm.tokenizer import side_symbols

OUTPUT = Path(__file__).parent / "runs" / "search-val.json"
SIDES, PIXELS = 0.5, 1.0
# Failures in % of the search before: one raster beam that promised each open side its best score;
# up to 5x5 also repaired, above a spanning tree, repaired. 60 (5x5) and 8 puzzles of each set.
BEFORE = {
    "commit": "419393e",
    "5x5 gap 1/8, pairs": {"beam": 45.8, "beam + repair": 13.3},
    "5x5 gap 1/8, pairs + cells": {"beam": 11.7, "beam + repair": 5.8},
    "10x10, 2 px of 50, pairs": {"tree + repair": 18.8},
    "10x10, 2 px of 50, pairs + cells": {"tree + repair": 37.5},
    "10x10, 5 px of 50, pairs": {"tree + repair": 62.5},
    "10x10, 5 px of 50, pairs + cells": {"tree + repair": 50.0},
}


def hints(truth, grid, spread, rng):
    """Log probabilities (pieces, cells) of a reader that errs by `spread` cells and knows it."""
    at = np.stack(np.divmod(truth, grid[1]), axis=1)
    guess = at + spread * rng.standard_normal((2, len(at))).T
    cells = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]), axis=1)
    log = -((guess[:, None] - cells) ** 2).sum(axis=2) / (2 * spread**2)
    chance = np.exp(log - log.max(axis=1, keepdims=True))
    return np.log(chance / chance.sum(axis=1, keepdims=True) + 1e-4)


def beams(count):
    def search(right, below, grid, cells):
        board = _board(right, below, grid, cells, None)
        return _positions(board, assembly._beams(board, 256, 1, count)[0])[0]

    return search


def measure(puzzles, searches):
    rows = {name: [] for name in searches}
    for evidence, truth in puzzles:
        true = assembly.objective(truth, *evidence)
        for name, search in searches.items():
            start = time.process_time()
            found = search(*evidence)
            seconds = time.process_time() - start
            lost = true - assembly.objective(found, *evidence)
            right = found == truth
            rows[name].append([lost > 1e-3, max(lost, 0), right.mean(), right.all(), seconds])
    keys = ("failures %", "objective lost", "absolute %", "perfect %", "cpu seconds")
    scale = np.array([100, 1, 100, 100, 1])
    return {
        name: dict(zip(keys, (np.mean(r, axis=0) * scale).round(3).tolist(), strict=True))
        for name, r in rows.items()
    }


def puzzles_of(data, kind, count, solver):
    """Yield pair scores, grid, hints and truth of validation puzzles of one kind."""
    for name in ("photos-val", "art-val"):
        for i, image in enumerate(iter_images([data / f"{name}.tar"], count)):
            if kind.startswith("5x5"):
                puzzle = Puzzle.from_image(image, (5, 5), gap=0.125, seed=i)
            else:
                worn = get_protocol(f"imagenet-lsej-10x10-{kind[7]}")
                puzzle = make_puzzle(worn, image, i)
            symbols = side_symbols(solver.tokenizer.encode(puzzle.pieces), solver.tokenizer)
            both = zip(solver.sides.scores(symbols), classic.evidence(puzzle.pieces), strict=True)
            pair = [SIDES * s + PIXELS * p for s, p in both]
            for scores in pair:
                np.fill_diagonal(scores, -np.inf)
            spread = 1.0 if kind.startswith("5x5") else 2.0
            cells = hints(puzzle.truth, puzzle.grid, spread, np.random.default_rng(i))
            yield pair, puzzle.grid, cells, puzzle.truth


def main() -> None:
    data = Path(sys.argv[1])
    small, large = (int(a) for a in sys.argv[2:4]) if len(sys.argv) > 3 else (60, 8)
    solver = Solver.from_pretrained(None, solver="bigram")
    found = {"commit": current_commit(), "before": BEFORE, "now": {}}
    for kind in ("5x5 gap 1/8", "10x10, 2 px of 50", "10x10, 5 px of 50"):
        made = list(puzzles_of(data, kind, small if kind.startswith("5") else large, solver))
        searches = {
            "one beam": beams(1),
            "beams": beams(8 if kind.startswith("5") else 4),
            "beams + repair": assembly.assemble,
        }
        for what in ("pairs", "pairs + cells"):
            puzzles = [((*p, g, c if "cells" in what else None), t) for p, g, c, t in made]
            result = {"puzzles": len(puzzles), **measure(puzzles, searches)}
            found["now"][f"{kind}, {what}"] = result
            print(kind, what, json.dumps(result), flush=True)
            OUTPUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
