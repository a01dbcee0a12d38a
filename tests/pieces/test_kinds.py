from __future__ import annotations

import numpy as np

from puzlm import Puzzle, Solver
from puzlm.cli.solve import score
from puzlm.pieces.equal_pieces import (
    all_differ,
    exchanged,
    kinds_of,
    same_cells,
    same_kind,
    same_pairs,
)

WHITE = 255


def on_white(photo, high, wide, top, left):
    """The photo on a white ground."""
    ground = np.full((high, wide, 3), WHITE, np.uint8)
    ground[top : top + photo.shape[0], left : left + photo.shape[1]] = photo
    return ground


def test_pieces_with_the_same_pixels_are_of_one_kind(photo):
    assert all_differ(kinds_of(Puzzle.from_image(photo, 3).pieces))
    pieces = np.zeros((4, 2, 2, 3), np.uint8)
    pieces[1, 0, 0, 0] = 1
    assert kinds_of(pieces).tolist() == [0, 1, 0, 0]


def test_what_is_said_of_one_counts_for_all_equal_ones():
    kinds = np.array([0, 1, 0, 3])
    cells = np.arange(8.0).reshape(4, 2)
    assert same_cells(cells, kinds).tolist() == [[2, 3], [2, 3], [2, 3], [6, 7]]
    pairs = np.arange(16.0).reshape(4, 4)
    np.fill_diagonal(pairs, -np.inf)
    found = same_pairs(pairs, kinds)
    assert found[0, 1] == found[2, 1] == (1 + 9) / 2 and found[0, 2] == found[2, 0] == (2 + 8) / 2
    assert found[1, 3] == pairs[1, 3] and np.isneginf(found.diagonal()).all()
    # Exchanging the equal pieces changes nothing.
    order = [2, 1, 0, 3]
    assert np.array_equal(found[np.ix_(order, order)], found)
    assert same_pairs(pairs, np.arange(4)) is pairs and same_cells(cells, np.arange(4)) is cells


def test_boards_agree_in_a_cell_where_both_have_equal_pieces():
    boards = np.array([[0, 1, 2, -1], [2, 1, 0, -1], [1, 0, 2, -1], [0, 1, -1, 2]])
    same = same_kind(boards, boards[0], np.array([0, 1, 0, 3]))
    assert same.tolist() == [
        [True] * 4,
        [True] * 4,
        [False, False, True, True],
        [True, True, False, False],
    ]
    strict = same_kind(boards, boards[0], np.arange(4))
    assert np.array_equal(strict, boards == boards[0])


def test_an_exchange_of_equal_pieces_is_right():
    truth, kinds = np.array([0, 1, 2, 3]), np.array([0, 0, 0, 3])
    assert exchanged(truth, np.array([1, 2, 0, 3]), kinds).tolist() == [1, 2, 0, 3]
    assert exchanged(truth, np.array([3, 0, 1, 2]), kinds).tolist() == [2, 0, 1, 3]
    # A cell that is taken twice is right once.
    assert exchanged(truth, np.array([1, 1, 1, 3]), kinds).tolist() == [1, 0, 2, 3]


def test_a_photo_on_a_white_ground_is_not_torn(photo):
    """The beam was full of exchanges of white pieces, and had lost the photo."""
    small = photo[:200, :200]
    for grid, side in ((4, 460), (4, 400), (5, 400)):
        room = (side - 200) // 2
        puzzle = Puzzle.from_image(on_white(small, side, side, room, room), grid, seed=1)
        found = Solver.from_pretrained().solve(puzzle)
        assert (found.positions == found.fair(puzzle.truth)).all()
        assert (found.positions != puzzle.truth).any()  # which white piece is which, none can say
        white = (puzzle.pieces == WHITE).all((1, 2, 3))
        assert score(found, puzzle) == {"absolute": 1, "perfect": 1}
        assert not np.array_equal(found.alternatives[0], found.positions)
        assert np.array_equal(found.drawn(puzzle.truth), found.array)  # no red frames
        if grid == 5:
            assert found.confidences[white].min() > 0.5
        else:  # the pieces tell nothing of where on the ground the photo lies
            lies = found.confidences[~white]
            assert 0.1 < lies.min() <= lies.max() < 0.9


def test_nine_pieces_of_one_colour_lie_right_anyhow():
    puzzle = Puzzle.from_image(np.full((90, 90, 3), WHITE, np.uint8), 3, seed=1)
    found = Solver.from_pretrained().solve(puzzle)
    assert found.confidences.min() > 0.95
    assert sorted(found.positions.tolist()) == list(range(9)) and not found.alternatives
