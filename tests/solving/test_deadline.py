"""A search with a time limit gives the best so far, and without one it is never cut."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from bench.timing import SAMPLES
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver
from puzlm.solving import grids
from puzlm.solving.search.deadline import deadline, ended_early, over

PAGE = SAMPLES.parent / "web" / "static" / "samples"


@pytest.fixture(scope="module")
def worn() -> Puzzle:
    """A photo in 8 x 8 worn pieces."""
    photo = Image.open(SAMPLES / "flower.jpg").convert("RGB").resize((320, 320))
    return Puzzle.from_image(photo, 8, gap=0.2, seed=3)


@pytest.mark.parametrize("name", ["classic", "auto"])
def test_the_best_so_far(worn, name):
    solver = Solver.from_pretrained(solver=name)
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    with deadline(3600, stopped) as limit:
        early = solver.solve(worn)
    assert limit.reached and not ended_early() and not over()
    assert early.used.early and "ended early" in early.solver
    assert sorted(early.positions.tolist()) == list(range(64))
    assert (early.confidences >= 0).all() and (early.confidences <= 1).all()
    with deadline(3600) as limit:
        late = solver.solve(worn)
    assert not limit.reached and not late.used.early
    whole = solver.solve(worn)  # and with time enough nothing changes
    assert np.array_equal(late.positions, whole.positions)
    assert np.array_equal(late.confidences, whole.confidences)
    right = [float((found.positions == worn.truth).mean()) for found in (early, late)]
    sure = [float(found.confidences.mean()) for found in (early, late)]
    assert right[1] >= right[0]
    assert sure[0] <= sure[1] + 0.02  # less work never makes it surer


def test_an_answer_cut_short_is_not_surer_than_right():
    """Worn boards of which most pieces fit, and which may lie a row too low as a whole."""
    solver = Solver.from_pretrained()
    right = []
    sure = []
    for photo in (SAMPLES / "china.jpg", PAGE / "mandala.webp", PAGE / "shore.webp"):
        picture = Image.open(photo).convert("RGB")
        side = min(picture.size)
        board = picture.crop((0, 0, side, side)).resize((392, 392), Image.Resampling.BOX)
        puzzle = Puzzle.from_image(board, 14, gap=0.15, seed=1)
        with deadline(3600, iter([False] * 3 + [True] * 10_000).__next__) as limit:
            answer = solver.solve(puzzle)
        assert limit.reached and answer.used.early
        right.append(float((answer.positions == puzzle.truth).mean()))
        sure.append(float(answer.confidences.mean()))
    assert min(right) < 0.1 and max(right) > 0.5
    assert abs(np.mean(sure) - np.mean(right)) < 0.2


def test_grids_are_tried_while_there_is_time(worn):
    """Those nearest to a square first: a thousand pieces have hundreds of grids."""
    whole = grids.tried(worn.pieces[:24])
    with deadline(3600, iter([False] * 2 + [True] * 1000).__next__):
        some = grids.tried(worn.pieces[:24])
    assert {grid for grid, _ in some} == {(3, 8), (4, 6), (6, 4)}
    assert {grid for grid, _ in some} < {grid for grid, _ in whole}


def test_limits_may_be_nested():
    with deadline(3600) as outer:
        with deadline(0) as inner:
            assert over() and ended_early() and inner.reached
        assert not over() and not outer.reached
