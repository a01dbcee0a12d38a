"""Fit how sure the joints of pages are: python -m tools.fit_pages PAGES [--limit N].

PAGES is a folder of whole pages that nothing was trained on. Each is cut by program into strips and
into a grid. The numbers go to sure.json beside the weights of the strokes, and the errors before
and after are printed. The half of the pages that is not fitted is the one that is measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from puzlm import manifest
from puzlm.harness.page_sets import PAGE_SETS, read_cut
from puzlm.metrics import reliability
from puzlm.models.strokes import WEIGHTS
from puzlm.pieces.equal_pieces import exchanged
from puzlm.pieces.strips import Strip, blank, inks_of
from puzlm.solving import cross_cut
from puzlm.solving.pages import joint_odds, likely

Samples = list[tuple[Any, Any]]  # of each page: features (n, k), right or wrong (n,)


def gather(pages: Path, limit: int | None) -> dict[str, Samples]:
    """Solve pages cut by program; features of all joints in a row, and of all cells."""
    found: dict[str, Samples] = {"joint": [], "cell": []}
    for name in ("page-strips-40", "page-strips-80", "page-cross-10x8", "page-cross-20x12"):
        for _, puzzle in read_cut(pages, PAGE_SETS[name], limit):
            whole = np.ones(puzzle.pieces.shape[1:3], bool)
            inks = inks_of([Strip(piece, whole) for piece in puzzle.pieces])
            empty = np.array([blank(ink) for ink in inks])
            right, below = cross_cut.evidence(puzzle, inks)
            if puzzle.grid[0] == 1:
                at = cross_cut._in_a_row(right, empty, inks)
            else:
                at = cross_cut._in_a_grid(puzzle, right, below, {})
            kinds = np.where(empty, -1, np.arange(len(empty)))
            kinds = np.where(kinds < 0, np.flatnonzero(empty).min(initial=len(empty)), kinds)
            truth = exchanged(puzzle.truth, at, kinds)
            features = cross_cut.cell_features(at, right, below, puzzle.grid, empty)
            found["cell"].append((features, at == truth))
            if puzzle.grid[0] == 1:
                order = np.argsort(at)
                i, j = order[:-1], order[1:]
                some = ~empty[i] & ~empty[j]
                follows = puzzle.truth[j] == puzzle.truth[i] + 1
                found["joint"].append((joint_odds(right, i, j)[some], follows[some]))
            print(name, len(found["cell"]), flush=True)
    return found


def fit(samples: Samples) -> list[float]:
    """Logistic regression: a bias and weights that are not negative but for the last of cells."""
    x = np.concatenate([a for a, _ in samples])
    y = np.concatenate([b for _, b in samples]).astype(float)
    x = np.concatenate([np.ones((len(x), 1)), x], 1)

    def loss(w: Any) -> float:
        odds = x @ w
        return float((np.logaddexp(0, odds) - y * odds).mean() + 1e-4 * (w[1:] ** 2).sum())

    return [round(float(v), 4) for v in minimize(loss, np.zeros(x.shape[1])).x]


def error(samples: Samples, numbers: list[float]) -> float:
    """Expected calibration error of some samples."""
    x = np.concatenate([a for a, _ in samples])
    sure = likely(numbers[0] + x @ np.array(numbers[1:]))
    return float(reliability(sure, np.concatenate([b for _, b in samples]), 10)["ece"])


def main() -> None:
    """Fit, say how well, and write."""
    ask = argparse.ArgumentParser(description="Fit how sure the joints of pages are.")
    ask.add_argument("pages", type=Path)
    ask.add_argument("--limit", type=int)
    told = ask.parse_args()
    record = {}
    for what, samples in gather(told.pages, told.limit).items():
        halves = samples[::2], samples[1::2]
        crossed = [error(halves[1 - k], fit(halves[k])) for k in (0, 1)]
        record[what] = fit(samples)
        print(what, record[what], f"error on the other half {np.mean(crossed):.3f}")
    (WEIGHTS / "sure.json").write_text(json.dumps(record) + "\n")
    manifest.write(WEIGHTS)


if __name__ == "__main__":
    main()
