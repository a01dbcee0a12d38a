from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sheets import compressed
from sklearn.datasets import load_sample_image

from puzlm import Puzzle, Solver
from puzlm.pieces.colour_bleed import DEPTH, LEANS, LUMA, leaning, mended


def sheet(name: str, grid: int, side: int, gap: float = 0.0, quality: int = 75) -> Puzzle:
    """Cut and shuffle a photo, and save the sheet of its pieces as JPEG; quality 0 does not."""
    size = round(side * (1 + gap)) * grid
    image = np.asarray(Image.fromarray(load_sample_image(name)).resize((size, size)))
    puzzle = Puzzle.from_image(image, grid, gap=gap, seed=3)
    return compressed(puzzle, quality) if quality else puzzle


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
@pytest.mark.parametrize(("grid", "side", "gap"), [(3, 67, 0), (3, 64, 0.5), (5, 40, 0.25)])
def test_colours_that_ran_are_seen(name, grid, side, gap):
    """Also over the edges of JPEG's blocks, as with 64 px: colour is smoothed when it is read."""
    assert leaning(sheet(name, grid, side, gap, quality=0).pieces, (grid, grid)) < LEANS - 0.15
    for quality in (50, 95):
        assert leaning(sheet(name, grid, side, gap, quality).pieces, (grid, grid)) > LEANS + 0.15


def test_only_the_colour_of_border_pixels_is_mended():
    puzzle = sheet("china.jpg", 3, 67)
    found = mended(puzzle)
    inner = slice(DEPTH, -DEPTH)
    np.testing.assert_array_equal(found.pieces[:, inner, inner], puzzle.pieces[:, inner, inner])
    assert (found.pieces != puzzle.pieces).any()
    # Brightness stays, where no colour is cut off at black or white.
    free = ((found.pieces > 0) & (found.pieces < 255)).all(3)
    light = (found.pieces.astype(float) - puzzle.pieces) @ LUMA
    assert np.abs(light[free]).max() < 1
    assert leaning(found.pieces, (3, 3)) < 0.1
    assert mended(found) is found  # once is enough
    np.testing.assert_array_equal(found.truth, puzzle.truth)


def test_what_is_clean_or_cannot_be_told_is_left_alone():
    clean, ran = (sheet("flower.jpg", 3, 67, quality=q) for q in (0, 75))
    assert mended(clean) is clean
    grey = replace(ran, pieces=np.repeat(ran.pieces[..., 1:2], 3, axis=3))
    assert leaning(grey.pieces, (3, 3)) == 0 and mended(grey) is grey
    holes = replace(ran, pieces=ran.pieces[:8], truth=None)
    assert mended(holes) is holes
    tiny = sheet("flower.jpg", 3, 4 * DEPTH - 1, quality=95)
    assert leaning(tiny.pieces, (3, 3)) > LEANS and mended(tiny) is tiny
    few = sheet("flower.jpg", 2, 67)
    assert leaning(few.pieces, (2, 2)) > LEANS and mended(few) is few
    one = Puzzle(ran.pieces[:1], (1, 2))
    assert leaning(one.pieces, (1, 1)) == 0 and mended(one) is one
    row = Puzzle(ran.pieces, (1, 9))  # not how they lay
    assert leaning(row.pieces, (1, 9)) < leaning(ran.pieces, (3, 3))
    # Laid in another order the sheet is lost, and with it the neighbours that colour came from.
    order = np.random.default_rng(1).permutation(9)
    assert leaning(ran.pieces[order], (3, 3)) < LEANS


def test_auto_mends_colours_and_says_so():
    """With half of each piece gone, what is left of the borders decides."""
    solver = Solver.from_pretrained()
    clean, ran = (sheet("china.jpg", 3, 67, 0.5, quality=q) for q in (0, 50))
    assert "mended" not in solver.solve(clean).solver
    found = solver.solve(ran)
    assert "sides + mended colours" in found.solver
    np.testing.assert_array_equal(found.pieces, ran.pieces)  # the picture is drawn as it came
    np.testing.assert_array_equal(found.positions, ran.truth)


@pytest.mark.parametrize("name", ["seq2seq", "symbols", "bigram", "classic"])
def test_other_solvers_take_pieces_as_they_are(name, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("pieces were repaired")

    ran = sheet("china.jpg", 3, 67)
    solver = Solver.from_pretrained(solver=name)
    monkeypatch.setattr("puzlm.solver.repair", never)
    assert sorted(solver.solve(ran).positions) == list(range(9))


def test_auto_solves_large_boards_that_ran():
    """Unmended, one piece in ten to six lies wrong."""
    solver = Solver.from_pretrained()
    for name in ("china.jpg", "flower.jpg"):
        puzzle = sheet(name, 7, 44)
        found = solver.solve(puzzle)
        assert "mended colours" in found.solver
        np.testing.assert_array_equal(found.positions, puzzle.truth)
