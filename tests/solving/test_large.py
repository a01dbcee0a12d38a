"""Large puzzles: sparse candidates, groups that grow, and answers that make sense."""

import numpy as np
import pytest

from puzlm.images import read_image
from puzlm.metrics import absolute, neighbour
from puzlm.puzzle import Puzzle
from puzlm.solving import classic
from puzlm.solving.search.candidates import Measure
from puzlm.solving.search.deadline import deadline
from puzlm.solving.search.large import Search


@pytest.fixture(scope="module")
def puzzle():
    return Puzzle.from_image(read_image("puzlm/samples/china.jpg"), (14, 20), seed=3)


def test_candidates_are_the_cheapest_of_all(puzzle):
    found = Measure(puzzle.pieces).best(8)
    right, below = classic.mgc(puzzle.pieces)
    for direction, costs in enumerate((right, below.T, right.T, below)):
        best = np.sort(costs, axis=1)[:, :8]
        np.testing.assert_allclose(found.cost[direction::4], best, rtol=1e-3, atol=0.1)
        partner = found.partner[direction::4]
        assert (partner % 4 == (direction + 2) % 4).all()
        own = np.take_along_axis(costs, partner // 4, axis=1)
        np.testing.assert_allclose(found.cost[direction::4], own, rtol=1e-3, atol=0.1)


def test_turned_sides_may_meet_any_other(puzzle):
    square = np.ascontiguousarray(puzzle.pieces[:40, :20, :20])
    found = Measure(square, turned=True).best(200)
    every = np.sort(found.partner, axis=1)
    assert (every[:, 4:-40] >= 0).any() and len(set(found.partner[0])) > 150
    a, b = 5, int(found.partner[5, 3])
    back = found.partner[b].tolist().index(a)
    assert found.cost[b, back] == pytest.approx(found.cost[a, 3], rel=1e-3)


def test_a_photo_is_solved(puzzle):
    found = Search(puzzle.pieces, puzzle.grid).solve()
    assert absolute(found.positions, puzzle.truth) > 0.95
    assert found.sure.mean() > 0.8


def test_missing_surplus_and_given_pieces(puzzle):
    fewer = Search(puzzle.pieces[:-9], puzzle.grid).solve()
    assert absolute(fewer.positions, puzzle.truth[:-9]) > 0.9
    strangers = np.random.default_rng(0).integers(0, 256, (5, *puzzle.pieces.shape[1:]), np.uint8)
    more = Search(np.concatenate([strangers, puzzle.pieces]), puzzle.grid).solve()
    assert (more.positions[:5] < 0).all() and absolute(more.positions[5:], puzzle.truth) > 0.9
    one = int(np.flatnonzero(puzzle.truth == 3)[0])
    found = Search(puzzle.pieces, puzzle.grid).solve({one: 3})
    assert absolute(found.positions, puzzle.truth) > 0.95
    found = Search(puzzle.pieces, puzzle.grid).solve({one: 250, one + 1: 3})
    assert found.positions[[one, one + 1]].tolist() == [250, 3]


def test_turned_pieces(puzzle):
    photo = read_image("puzlm/samples/china.jpg")[: 12 * 34, : 18 * 34]
    upright = Puzzle.from_image(photo, (12, 18), seed=1)
    turns = np.random.default_rng(2).integers(0, 4, len(upright.pieces))
    pieces = np.stack([np.rot90(p, -t) for p, t in zip(upright.pieces, turns, strict=True)])
    found = Search(pieces, (12, 18), turned=True).solve()
    over = len(pieces) - 1 - found.positions  # the picture as a whole may stand on its head
    assert max(absolute(found.positions, upright.truth), absolute(over, upright.truth)) > 0.9


def test_an_early_end_leaves_holes_not_guesses(puzzle):
    steps = []

    def report(what, share):
        steps.append((what, share))

    with deadline(3600, lambda: len(steps) > 6, report):
        found = Search(puzzle.pieces, puzzle.grid).solve()
    placed = found.positions >= 0
    assert 0 < placed.sum() < len(placed)
    assert {"comparing", "joining"} <= {what for what, _ in steps}
    assert (found.sure[~placed] == 0).all()
    assert len(set(found.positions[placed])) == placed.sum()


def test_blank_pieces_do_not_matter(puzzle):
    pieces = puzzle.pieces.copy()
    pieces[np.isin(puzzle.truth, np.arange(60))] = 255  # three blank rows
    found = Search(pieces, puzzle.grid).solve()
    filled = puzzle.truth >= 80
    # Where the picture lies on the blank ground nobody can tell.
    assert neighbour(found.positions[filled], puzzle.truth[filled], 20) > 0.9
