"""What leaves a solver is an arrangement of the pieces, or an error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from puzlm.errors import ModelError
from puzlm.puzzle import Puzzle
from puzlm.solution import checked
from puzlm.solver import Solver
from puzlm.solving.evidence import added


@pytest.fixture(scope="module")
def puzzle(photo):
    return Puzzle.from_image(photo[:60, :60], 2, seed=1)


@pytest.fixture(scope="module")
def answer(puzzle):
    return Solver.from_pretrained(solver="random").solve(puzzle)


@pytest.mark.parametrize(
    "change",
    [
        {"positions": np.zeros(4, np.int64)},
        {"positions": np.array([0, 1, 2, 4])},
        {"positions": np.array([0, 1, 2, -2])},
        {"positions": np.array([0, 1, 2, -1])},
        {"positions": np.array([0, 1, 2])},
        {"positions": np.array([0.0, 1.0, 2.0, 3.0])},
        {"confidences": np.array([0.5, 0.5, 0.5, np.nan])},
        {"confidences": np.array([0.5, 0.5, 0.5, 1.5])},
        {"confidences": np.ones(3)},
    ],
)
def test_anything_else_is_refused(puzzle, answer, change):
    assert checked(answer, puzzle, {}) is answer
    with pytest.raises(ModelError, match="its answer is no arrangement of the 4 pieces"):
        checked(replace(answer, **change), puzzle, {})


def test_a_given_piece_lies_where_it_was_given(puzzle, answer):
    cell = int(answer.positions[2])
    assert checked(answer, puzzle, {2: cell}) is answer
    with pytest.raises(ModelError, match="no arrangement"):
        checked(answer, puzzle, {2: (cell + 1) % 4})


def test_only_greedy_decoding_may_repeat_a_cell(puzzle, answer):
    twice = replace(answer, positions=np.array([0, 0, 1, 2]))
    assert checked(twice, puzzle, {}, repeats=True) is twice


def test_pieces_beyond_the_cells_stay_out(puzzle, answer):
    """Six pieces for four cells: four are placed, no more and no fewer."""
    more = replace(puzzle, pieces=np.concatenate([puzzle.pieces, puzzle.pieces[:2]]), truth=None)
    sure = np.ones(6)
    four = replace(answer, positions=np.array([0, 1, 2, 3, -1, -1]), confidences=sure)
    assert checked(four, more, {}) is four
    with pytest.raises(ModelError, match="no arrangement"):
        checked(replace(four, positions=np.array([0, 1, 2, -1, -1, -1])), more, {})


def test_scores_that_are_no_numbers_are_never_searched():
    pairs = {"sides": (np.full((3, 3), np.nan), np.zeros((3, 3)))}
    with pytest.raises(ModelError, match="scores are no numbers"):
        added(pairs, {}, {"sides": 1.0}, 3)
