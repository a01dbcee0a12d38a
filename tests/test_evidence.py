from __future__ import annotations

import io

import numpy as np
from PIL import Image

from puzlm import Puzzle, classic
from puzlm.board import best_buddies
from puzlm.evidence import (
    AHEAD,
    ALIKE,
    BLED,
    LARGE_BLED,
    MAYBE,
    SEAMS,
    SURELY,
    TOUCHING,
    WORN,
    agreement,
    by_agreement,
    large_board,
)
from puzlm.puzzle import shuffled


def unasked(_: Puzzle) -> dict:
    raise AssertionError("clean borders need no symbols")


def test_pixels_agree_with_themselves_where_borders_touch(photo):
    shares = []
    for gap in (0, 0.5):
        puzzle = Puzzle.from_image(photo, 3, gap=gap, seed=1)
        shares.append(agreement(*classic.evidence(puzzle.pieces), puzzle.grid))
    assert shares[0] >= TOUCHING > shares[1]


def test_large_whole_puzzles_that_touch_are_known(photo):
    touching, worn = ({"pixels": SEAMS}, False), ({"pixels": WORN}, True)
    for grid, gap, missing, want in (
        (7, 0, 0, touching),
        (7, 0.3, 0, worn),
        (7, 0, 1, None),
        (7, 0.3, 1, None),
        (5, 0, 0, None),
    ):
        puzzle = Puzzle.from_image(photo, grid, gap=gap, missing=missing, seed=1)
        right, below = classic.evidence(puzzle.pieces)
        pairs = {"pixels": (right, below), "edges": (right, below)}
        assert large_board(puzzle, pairs, unasked) == want
        # Which piece is called the first changes nothing.
        order = np.random.default_rng(0).permutation(len(right))
        again = (right[np.ix_(order, order)], below[np.ix_(order, order)])
        assert large_board(puzzle, pairs | {"pixels": again}, unasked) == want


def test_pixels_count_more_where_they_are_ahead_of_learned_sides(photo):
    """Few best buddies can mean plain pieces or worn ones; who has more of them tells which."""
    plain = photo.copy()
    plain[: len(plain) // 2] = 128  # one grey for the upper half: these pieces all fit each other
    puzzle = Puzzle.from_image(plain, 7, seed=1)
    sharp = classic.evidence(puzzle.pieces)
    dull = classic.evidence(Puzzle.from_image(plain, 7, gap=0.3, seed=1).pieces)
    assert best_buddies(*dull) + AHEAD < best_buddies(*sharp) < TOUCHING
    for pixels, edges, want in (
        (sharp, dull, ALIKE),
        (dull, sharp, WORN),
        (sharp, sharp, WORN),
    ):
        found = large_board(puzzle, {"pixels": pixels, "edges": edges}, unasked)
        assert found == ({"pixels": want}, True)


def test_large_boards_that_bled_listen_to_symbols(photo):
    """Compressed in one sheet after shuffling: chroma then runs even over the edges of blocks."""
    for side, quality, bled in ((36, 75, True), (32, 75, True), (36, 0, False)):
        image = np.asarray(Image.fromarray(photo).resize((7 * side, 7 * side)))
        puzzle = Puzzle.from_image(image, 7, seed=1)
        sheet = shuffled(puzzle)
        if quality:
            Image.fromarray(sheet).save(file := io.BytesIO(), "JPEG", quality=quality)
            sheet = np.asarray(Image.open(file))
        puzzle = Puzzle.from_shuffled(sheet, 7)
        pairs = dict.fromkeys(("pixels", "edges"), classic.evidence(puzzle.pieces))
        sides = {"sides": pairs["pixels"]}
        weights, _ = large_board(puzzle, pairs, lambda _, sides=sides: sides)
        assert (weights == LARGE_BLED, "sides" in pairs) == (bled, bled)
        # A model without symbolic sides has nothing else to listen to.
        assert large_board(puzzle, pairs, lambda _: {})[0] != LARGE_BLED


def test_weights_follow_what_agrees_with_itself():
    seams = {"pixels": SEAMS}
    clean, maybe, surely = MAYBE - 0.1, (MAYBE + SURELY) / 2, SURELY + 0.1
    for pixels, edges, sides, excess, want in (
        (0.9, 0.9, 0.8, clean, seams),
        (0.9, 0.9, 0.8, maybe, seams),
        (0.9, 0.7, 0.8, clean, BLED[0]),
        (0.7, 0.7, 0.9, maybe, BLED[0]),
        (0.7, 0.7, 0.9, clean, {}),
        (0.7, 0.6, 0.7, maybe, {}),
        (0.5, 0.7, 0.6, surely, BLED[0]),
        (0.9, 0.9, 0.8, surely, BLED[0]),  # bled pixels agree on the shuffled picture
    ):
        agree = {"pixels": pixels, "edges": edges, "sides": sides}
        assert by_agreement(agree, excess, 9) == want
    assert by_agreement({"pixels": 0.9}, surely, 9) == seams  # no symbols to listen to
    assert by_agreement({"pixels": 0.5}, surely, 9) == {}
    # Of a larger grid the language model knows less.
    larger = by_agreement(agree, surely, 25)
    assert larger["seq2seq"] < BLED[0]["seq2seq"] and larger["sides"] == BLED[0]["sides"]
