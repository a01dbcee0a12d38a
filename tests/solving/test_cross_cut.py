"""Pages cut into equal pieces: auto reads their strokes, and blank pieces equal each other."""

import numpy as np
import pytest
from drawn_pages import draw_page

from puzlm.metrics import joints
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver
from puzlm.solving.cross_cut import by_strokes, is_page


def cut(grid, seed=0, **more):
    page = np.repeat(draw_page(seed, **more)[:, :, None], 3, 2)
    return Puzzle.from_image(page, grid, seed=seed)


def test_a_page_in_equal_strips_is_read_by_auto():
    puzzle = cut((1, 12))
    assert is_page(puzzle)
    found = Solver.from_pretrained().solve(puzzle)
    assert found.used.solver == "strokes"
    printed = puzzle.truth[np.argsort(found.positions)][1:-1]
    assert (np.diff(printed) == 1).mean() > 0.8
    assert ((found.confidences >= 0) & (found.confidences <= 1)).all()


def test_a_page_cut_both_ways_keeps_most_neighbours():
    puzzle = cut((4, 3), 1)
    found = by_strokes(puzzle, {})
    right = joints(found.positions, puzzle.truth, 3, np.arange(12))[:, 2]
    assert sorted(found.positions) == list(range(12))
    assert right.mean() > 0.7


def test_a_given_piece_lies_where_it_was_put_and_is_sure():
    puzzle = cut((3, 3), 2)
    found = by_strokes(puzzle, {4: int(puzzle.truth[4])})
    assert found.positions[4] == puzzle.truth[4] and found.confidences[4] == 1


def test_photographs_are_no_pages(photo):
    assert not is_page(Puzzle.from_image(photo, 4))
    settings = Puzzle.from_image(photo, 4, seed=1)
    settings.settings["kind"] = "page"
    assert is_page(settings)


@pytest.mark.parametrize(("positions", "right"), [([0, 1, 2, 3], 3), ([2, 1, 0, 3], 3)])
def test_blank_pieces_may_change_places(positions, right):
    found = joints(positions, [0, 1, 2, 3], 2, [0, 1, 0, 3])
    assert found[:, 2].sum() == right == len(found)


def test_joints_that_wrap_around_a_row_are_wrong():
    assert joints([1, 2, 3, 0], [0, 1, 2, 3], 2, range(4))[:, 2].tolist() == [0, 1, 0, 0]
