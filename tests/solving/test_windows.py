"""Windows of a board that is too large for a ViT to see at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_sample_image

from puzlm.metrics import neighbour
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver
from puzlm.solving import windows


def beside(board):
    """Scores by which every piece wants its neighbours on a board, and nothing else."""
    n = board.size
    right, below = np.full((n, n), -5.0), np.full((n, n), -5.0)
    right[board[:, :-1], board[:, 1:]] = 5.0
    below[board[:-1], board[1:]] = 5.0
    return right, below


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 30), st.integers(2, 30), st.integers(0, 99))
def test_windows_hold_every_pair_that_touches(rows, columns, seed):
    positions = np.random.default_rng(seed).permutation(rows * columns)
    board = np.argsort(positions).reshape(rows, columns)
    together = np.zeros((rows * columns,) * 2, bool)
    for group in windows.groups(positions, *beside(board), (rows, columns)):
        assert len(set(group)) == len(group) <= windows.WINDOW**2 + windows.GUESTS
        together[np.ix_(group, group)] = True
    assert together[board[:, :-1], board[:, 1:]].all()
    assert together[board[:-1], board[1:]].all()


def test_guests_are_the_pieces_that_would_fit():
    # Two halves of a board changed places: across the seam the true neighbours are guests.
    board = np.arange(16 * 16).reshape(16, 16)
    swapped = np.roll(board, 8, 1)
    first = next(windows.groups(np.argsort(swapped.ravel()), *beside(board), (16, 16)))
    assert set(board[:8, 8:].ravel()) <= set(first)  # what lies in the window
    assert set(board[:8, 7]) <= set(first)  # left of it in truth, at the far end of the board


def test_what_was_never_seen_together_shares_what_is_left():
    board = np.arange(10 * 20).reshape(10, 20)
    right, below = beside(board)
    pieces = np.zeros((200, 4, 4, 3), np.uint8)
    pieces[:, 0, 0, 0] = np.arange(200)  # so that a look knows which they are

    def look(puzzles):
        ids = [p.pieces[:, 0, 0, 0].astype(int) for p in puzzles]
        return [(None, right[np.ix_(i, i)], below[np.ix_(i, i)]) for i in ids]

    told, _ = windows.neighbours(look, Puzzle(pieces, (10, 20)), board.ravel(), right, below)
    assert told[0, 1] > -0.5  # said to lie beside it, in every window
    assert told[0, 1] > told[0, 2] + 5  # seen, and said not to
    # The last column has no right neighbour: likelihood is left for those it was not seen with.
    far = board[0, 19], board[9, 0]
    assert told[far] == pytest.approx(-np.log(windows.OTHERS), abs=0.7)
    assert told[0, far[0]] < told[far] - 3  # the first piece has found its neighbour


def test_windows_help_on_a_large_worn_photo(monkeypatch):
    puzzle = Puzzle.from_image(load_sample_image("china.jpg"), "12x13", gap=0.35, seed=1)
    solver = Solver.from_pretrained()
    found = solver.solve(puzzle)
    assert "reader windows" in found.solver
    monkeypatch.setattr(Solver, "neighbours", lambda *_: None)
    without = solver.solve(puzzle)
    score, plain = (neighbour(s.positions, puzzle.truth, 13) for s in (found, without))
    assert score > plain + 0.02, (score, plain)
