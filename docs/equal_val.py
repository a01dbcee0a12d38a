"""Photos on a plain white ground, so that many pieces are equal: how `auto` does, and says it does.

python docs/equal_val.py DATA

PUZZLES images of DATA/photos-val.tar are laid on a ground `times` as high and wide, in its middle
or anywhere, and cut. Right is a piece whose cell should hold such a piece. Prints a line a kind.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import numpy as np

from puzlm import Puzzle, Solver
from puzlm.images import Pixels, iter_images

KINDS = [(4, 2.0), (4, 2.3), (5, 2.0), (6, 2.0)]  # grid, times; at 2.0 cuts of 4x4 follow the photo
PUZZLES = 30


def on_white(photo: Pixels, times: float, anywhere: bool, rng: np.random.Generator) -> Pixels:
    """Lay a photo on a white ground."""
    high, wide = photo.shape[:2]
    ground = np.full((round(times * high), round(times * wide), 3), 255, np.uint8)
    room = np.array([ground.shape[0] - high, ground.shape[1] - wide])
    top, left = rng.integers(0, room + 1) if anywhere else room // 2
    ground[top : top + high, left : left + wide] = photo
    return ground


def main(data: Path) -> None:
    """Print shares of pieces and of puzzles that are right, and what was said of them."""
    solver, rng = Solver.from_pretrained(), np.random.default_rng(0)
    photos = list(islice(iter_images([data / "photos-val.tar"]), PUZZLES))
    for anywhere in (False, True):
        for grid, times in KINDS:
            pieces, whole, said, off = [], [], [], []
            for seed, photo in enumerate(photos):
                puzzle = Puzzle.from_image(on_white(photo, times, anywhere, rng), grid, seed=seed)
                found, truth = solver.solve(puzzle), np.argsort(puzzle.truth)
                there = puzzle.pieces[truth[found.positions]]
                right = (there == puzzle.pieces).all((1, 2, 3))
                pieces.append(right.mean())
                whole.append(right.all())
                said.append(found.confidences.mean())
                off.append(np.mean((found.confidences - right) ** 2))
            lies = "anywhere" if anywhere else "middle"
            print(
                f"{grid}x{grid}, {times} times, {lies:8s}  {np.mean(pieces):6.1%} of the pieces, "
                f"{np.mean(whole):4.0%} of the puzzles right; said {np.mean(said):6.1%}, "
                f"Brier {np.mean(off):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
