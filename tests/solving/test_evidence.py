from __future__ import annotations

import numpy as np

from puzlm import Puzzle
from puzlm.models.decoding import Decoded
from puzlm.solver import Solver
from puzlm.solving import classic, fusion
from puzlm.solving.evidence import (
    AHEAD,
    ALIKE,
    LARGE_MENDED,
    MENDED,
    SEAMS,
    TOUCHING,
    WORN,
    Evidence,
    agreement,
    border_weights,
    by_piece,
    large_board,
    most_likely,
    region_share,
)
from puzlm.solving.search.board import best_buddies


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
        assert large_board(puzzle, pairs, False) == want
        # Which piece is called the first changes nothing.
        order = np.random.default_rng(0).permutation(len(right))
        again = (right[np.ix_(order, order)], below[np.ix_(order, order)])
        assert large_board(puzzle, pairs | {"pixels": again}, False) == want
        if want is not None:
            assert large_board(puzzle, pairs, True) == (LARGE_MENDED, want[1])


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
        found = large_board(puzzle, {"pixels": pixels, "edges": edges}, False)
        assert found == ({"pixels": want}, True)


def test_weights_follow_what_the_borders_are(photo):
    touching, worn = (Puzzle.from_image(photo, 3, gap=gap, seed=1) for gap in (0, 0.5))
    for puzzle, bled, seen, want in (
        (touching, False, True, {"pixels": SEAMS}),
        (touching, True, True, {**MENDED, "pixels": ALIKE}),
        (touching, True, False, {"pixels": ALIKE}),  # without a ViT the language model counts 1
        (worn, False, True, {}),
        (worn, True, True, MENDED),
        (worn, True, False, {}),
    ):
        pairs = {"pixels": classic.evidence(puzzle.pieces)}
        assert border_weights(pairs, puzzle.grid, bled, seen) == want


def test_impossible_boards_of_a_beam_are_no_alternatives():
    boards = np.array([[[2, 0, 1], [0, 2, 1], [0, 0, 1]]])
    scores = np.array([[-0.1, -2.0, -np.inf]])
    found = Decoded(boards[:, 0], np.ones((1, 3)), alternatives=boards, scores=scores)
    read = by_piece(found, np.array([1, 2, 0]), 0)
    assert read.boards.tolist() == [[1, 2, 0], [1, 0, 2]] and read.likely.tolist() == [-0.1, -2.0]
    assert by_piece(Decoded(boards[:, 0], np.ones((1, 3))), np.arange(3), 0).boards.shape == (0, 3)


def test_a_region_laid_elsewhere_hangs_together_with_itself_alone(photo):
    """Two quarters of a picture that changed places fit in themselves, not with the half beside."""
    puzzle = Puzzle.from_image(photo, 6, seed=1)
    right, below = classic.evidence(puzzle.pieces)
    for scores in (right, below):
        np.fill_diagonal(scores, -np.inf)
    assert (region_share(puzzle.truth, right, below, puzzle.grid) == 1).all()
    row, column = np.divmod(puzzle.truth, 6)
    moved = column >= 3
    place = np.where(moved, (row + 3) % 6 * 6 + column, puzzle.truth)
    shares = region_share(place, right, below, puzzle.grid)
    assert (shares[~moved] == 0.5).all() and shares[moved].max() <= 0.5
    assert shares[moved].min() >= 0.2  # nine of 36, but for a piece of each
    # A piece that is left out belongs to nothing.
    lacking = np.where(puzzle.truth == 0, -1, puzzle.truth)
    assert region_share(lacking, right, below, puzzle.grid)[puzzle.truth == 0] == 0


def test_equal_pieces_do_not_choose_each_other(photo):
    plain = photo.copy()
    plain[: len(plain) // 2] = 128
    puzzle = Puzzle.from_image(plain, 6, seed=1)
    right, below = classic.evidence(puzzle.pieces)
    for scores in (right, below):
        np.fill_diagonal(scores, -np.inf)
    shares = region_share(puzzle.truth, right, below, puzzle.grid)
    upper, lower = shares[puzzle.truth < 12], shares[puzzle.truth >= 24]
    assert upper.max() < 0.1 < np.median(lower)


def test_auto_counts_regions_on_large_boards_that_touch(photo, monkeypatch):
    """A piece joined with a quarter of the board is half as sure; on worn boards nobody asks."""
    solver = Solver.from_pretrained()
    solver.raw = True
    monkeypatch.setattr(Solver, "neighbours", lambda *_: None)  # no windows: they take long
    puzzles = [Puzzle.from_image(photo, "10x11", gap=gap, seed=1) for gap in (0, 0.3)]
    touching, worn = solver.solve_many(puzzles)
    monkeypatch.setattr(fusion, "region_share", lambda at, *_: np.full(len(at), 0.25))
    less, same = solver.solve_many(puzzles)
    assert np.array_equal(less.positions, touching.positions)
    assert touching.confidences.mean() > 0.9 and less.confidences.max() == 0.5
    assert np.array_equal(same.confidences, worn.confidences)


def test_what_is_said_of_a_whole_board_decides_between_boards_that_are_alike_piece_by_piece():
    """Pieces 0 and 1 may change places, and so may 2 and 3, but only both pairs or none."""
    alike = np.array([[0, 1, 3, 2], [1, 0, 2, 3], [0, 1, 2, 3], [1, 0, 3, 2]])
    both = np.array([[0, 1, 2, 3], [1, 0, 3, 2]])
    likely = np.log([0.6, 0.4])
    found = Decoded(both[:1], np.ones((1, 4)), None, both[None], likely[None])
    read = by_piece(found, np.arange(4), 0)
    assert np.array_equal(read.boards, both) and np.array_equal(read.likely, likely)
    kinds, scores = np.arange(4), np.array([0.0, -0.1, -0.2, -0.3])
    assert most_likely(alike, scores, read, kinds, 0.0) == 0
    assert most_likely(alike, scores, read, kinds, 8.0) == 2
    # Pieces 2 and 3 are equal: then the first board is one that was thought of.
    assert most_likely(alike, scores, read, np.array([0, 1, 2, 2]), 8.0) == 0


def test_symbols_answer_with_the_board_that_is_likely_as_a_whole(photo):
    """Piece by piece nothing changes places; as a whole both pairs do. `auto` sums up pieces."""
    puzzle = Puzzle.from_image(photo, 2, seed=1)
    boards = np.array([[1, 0, 3, 2], [0, 1, 2, 3]])
    marginals = np.kron(np.eye(2), [[0.6, 0.4], [0.4, 0.6]])[None]
    found = Decoded(boards[1:], np.ones((1, 4)), marginals, boards[None], np.log([[0.7, 0.1]]))
    said = Evidence(seq2seq=by_piece(found, np.arange(4), 0))
    answer = fusion.fused(Solver(solver="symbols"), puzzle, {}, said)
    assert answer.positions.tolist() == [1, 0, 3, 2]
    assert answer.alternatives[0].tolist() == [0, 1, 2, 3]
    assert answer.confidences.max() < 0.5  # of the pieces, which were said to lie elsewhere
