from __future__ import annotations

import numpy as np

from puzlm import Puzzle, classic
from puzlm.evidence import BLED, SEAMS, TOUCHING, agreement, by_agreement, large_touches


def test_pixels_agree_with_themselves_where_borders_touch(photo):
    shares = []
    for gap in (0, 0.5):
        puzzle = Puzzle.from_image(photo, 3, gap=gap, seed=1)
        shares.append(agreement(*classic.evidence(puzzle.pieces), puzzle.grid))
    assert shares[0] >= TOUCHING > shares[1]


def test_large_whole_puzzles_that_touch_are_known(photo):
    for grid, gap, missing, want in (
        (7, 0, 0, True), (7, 0.3, 0, False), (7, 0, 1, None), (7, 0.3, 1, None), (5, 0, 0, None)
    ):  # fmt: skip
        puzzle = Puzzle.from_image(photo, grid, gap=gap, missing=missing, seed=1)
        right, below = classic.evidence(puzzle.pieces)
        pairs = {"pixels": (right, below), "edges": (right, below)}
        assert large_touches(puzzle, pairs) is want
        # Which piece is called the first changes nothing.
        order = np.random.default_rng(0).permutation(len(right))
        again = (right[np.ix_(order, order)], below[np.ix_(order, order)])
        assert large_touches(puzzle, pairs | {"pixels": again}) is want


def test_weights_follow_what_agrees_with_itself():
    seams = {"pixels": SEAMS}
    for pixels, edges, sides, bled, want in (
        (0.9, 0.9, 0.8, False, seams), (0.9, 0.9, 0.8, True, seams),
        (0.9, 0.7, 0.8, False, BLED), (0.7, 0.7, 0.9, True, BLED),
        (0.7, 0.7, 0.9, False, {}), (0.7, 0.6, 0.7, True, {}),
    ):  # fmt: skip
        agree = {"pixels": pixels, "edges": edges, "sides": sides}
        assert by_agreement(agree, bled) == want
    assert by_agreement({"pixels": 0.9}, True) == seams  # no symbols to listen to
