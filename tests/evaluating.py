"""What the tests of results files share: small photos, and a solver that knows the answers."""

from __future__ import annotations

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

from puzlm.harness.evaluate import Answer
from puzlm.harness.protocols import PROTOCOLS, read_data

PLAIN = PROTOCOLS["imagenet-3x3"]
PHOTOS = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]


def crop(number):
    top, left = 7 * number % 300, 13 * number % 500
    return PHOTOS[number % 2][top : top + 96, left : left + 96]


def write_photos(path, count):
    """Write small photos, each another crop."""
    for number in range(count):
        Image.fromarray(crop(number)).save(path / f"{number:03d}.png")
    return path


def truths_of(folder):
    """Tell each puzzle's truth by its pixels: solvers themselves are never told."""
    return {p.pieces.tobytes(): p.truth for _, p in read_data(folder, PLAIN)}


def oracle(truths, wrong=()):
    """Answer rightly, but swap two pieces in the puzzles counted in `wrong`."""
    seen = []

    def solve(puzzles):
        answers = []
        for puzzle in puzzles:
            positions = truths[puzzle.pieces.tobytes()].copy()
            if len(seen) in wrong:
                positions[[0, 1]] = positions[[1, 0]]
            seen.append(1)
            answers.append(Answer(positions, np.full(len(positions), 0.95), "oracle"))
        return answers

    return solve
