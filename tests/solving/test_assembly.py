"""Assembly: exactness on tiny grids, invariants everywhere, planted layouts on large grids."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from puzlm.pieces.poses import QUARTERS, STRAIGHT, moved
from puzlm.solving.search.assembly import _beams, assemble, assemble_posed, beam_search, objective
from puzlm.solving.search.board import STEPS, _board, _rivals, beam, best_buddies
from puzlm.solving.search.consensus import _agreed, _floor, _grow, _join
from puzlm.solving.search.repair import _regions, _tree


def random_scores(n, seed):
    rng = np.random.default_rng(seed)
    right, below = rng.normal(size=(2, n, n))
    np.fill_diagonal(right, -np.inf)
    np.fill_diagonal(below, -np.inf)
    return right, below


def planted_scores(truth, grid, seed, noise=1.0, signal=6.0):
    """Score noise everywhere, and a signal where two pieces are neighbours in `truth`."""
    right, below = random_scores(len(truth), seed)
    row, column = np.divmod(truth, grid[1])
    down, along = row[None] - row[:, None], column[None] - column[:, None]
    right, below = noise * right, noise * below
    right[(down == 0) & (along == 1)] += signal
    below[(down == 1) & (along == 0)] += signal
    return right, below


def brute_force(right, below, grid, cells=None):
    scores = [
        (objective(np.array(p), right, below, grid, cells), p)
        for p in permutations(range(len(right)))
    ]
    return sorted(scores, reverse=True)


@pytest.mark.parametrize("grid", [(2, 2), (2, 3), (3, 2), (1, 5)])
@pytest.mark.parametrize("with_cells", [False, True])
def test_beam_equals_brute_force(grid, with_cells):
    for seed in range(3):
        n = grid[0] * grid[1]
        right, below = random_scores(n, seed)
        cells = np.random.default_rng(seed + 9).normal(size=(n, n)) if with_cells else None
        exact = brute_force(right, below, grid, cells)
        positions, scores = beam_search(right, below, grid, cells, width=1000, top=3)
        np.testing.assert_allclose(scores, [score for score, _ in exact[:3]], rtol=1e-5)
        assert tuple(positions[0]) == exact[0][1]
        assert tuple(assemble(right, below, grid, cells)) == exact[0][1]


def test_best_buddies_of_a_worked_example():
    # Right: 0 and 1 choose each other, 2 chooses 1 in vain. Below: 0 -> 2 -> 1 -> 0, all mutual.
    right = np.array([[-9.0, 3, 0], [1, -9, 0], [0, 2, -9]])
    below = np.array([[-9.0, 0, 3], [3, -9, 0], [0, 3, -9]])
    assert best_buddies(right, below) == pytest.approx((2 / 3 + 1) / 2)


def test_objective_of_a_worked_example():
    right = np.array([[0, 1, 2], [3, 0, 4], [5, 6, 0]], float)
    below = 10 * right
    # 0 1
    # 2 .
    assert objective(np.array([0, 1, 2]), right, below, (2, 2)) == 1 + 20
    assert objective(np.array([0, -1, 2]), right, below, (2, 2), np.ones((3, 4))) == 20 + 2


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 7),
    columns=st.integers(1, 7),
    extra=st.integers(-4, 4),
    pinned=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_result_is_an_injection_and_keeps_given(rows, columns, extra, pinned, seed):
    size = rows * columns
    n = max(1, size + extra)
    right, below = random_scores(n, seed)
    rng = np.random.default_rng(seed)
    pinned = min(pinned, n, size)
    pieces, cells = rng.permutation(n)[:pinned], rng.permutation(size)[:pinned]
    fixed = dict(zip(pieces.tolist(), cells.tolist(), strict=True))
    positions = assemble(right, below, (rows, columns), given=fixed, rounds=12)
    placed = positions[positions >= 0]
    assert positions.shape == (n,) and positions.dtype == np.int64
    assert len(placed) == min(n, size) == len(set(placed.tolist()))
    assert placed.max() < size
    assert all(positions[piece] == cell for piece, cell in fixed.items())


@settings(max_examples=15, deadline=None)
@given(side=st.integers(3, 7), missing=st.integers(0, 2), seed=st.integers(0, 999))
@example(side=6, missing=2, seed=6)  # beside holes many layouts are worth the same
@example(side=7, missing=2, seed=8)
def test_permuting_pieces_permutes_positions(side, missing, seed):
    # Fewer missing than a side: no row or column can be empty, so no two places tie.
    n = side * side - missing
    right, below = random_scores(n, seed)
    order = np.random.default_rng(seed).permutation(n)
    shuffled = assemble(right[order][:, order], below[order][:, order], (side, side), rounds=12)
    np.testing.assert_array_equal(shuffled, assemble(right, below, (side, side), rounds=12)[order])


def test_a_quarter_turn_takes_each_direction_to_the_next():
    # right, above, left, below: what np.rot90 does to the sides of a piece
    turned = np.stack(moved(STEPS[:, 0], STEPS[:, 1], 1), axis=1)
    np.testing.assert_array_equal(turned, np.roll(STEPS, -1, axis=0))


@pytest.mark.parametrize("poses", [STRAIGHT, QUARTERS, (0, 2), tuple(range(8))])
def test_trees_neither_overlap_nor_outgrow_the_frame(poses):
    for seed in range(5):
        board = _board(*random_scores(72 * len(poses), seed), (8, 9), None, None, poses)
        trees = _tree(board, _rivals(board))
        assert sum(map(len, trees.members.values())) == 72
        for pieces in trees.members.values():
            row, column = trees.row[pieces], trees.column[pieces]
            assert len(set(zip(row.tolist(), column.tolist(), strict=True))) == len(pieces)
            extent = sorted([int(np.ptp(row)) + 1, int(np.ptp(column)) + 1])
            assert extent[0] <= 8 and extent[1] <= 9


@pytest.mark.parametrize("grid", [(3, 3), (5, 5), (4, 9), (12, 15)])
def test_planted_layout_is_found(grid):
    truth = np.random.default_rng(1).permutation(grid[0] * grid[1])
    right, below = planted_scores(truth, grid, seed=2)
    np.testing.assert_array_equal(assemble(right, below, grid), truth)


@pytest.mark.parametrize("grid", [(3, 3), (10, 12)])
def test_missing_pieces_leave_their_holes(grid):
    size = grid[0] * grid[1]
    inner = grid[1] + 1  # a hole inside and none at the border: the frame then fixes the place
    truth = np.random.default_rng(3).permutation(size)
    truth = truth[truth != inner]
    right, below = planted_scores(truth, grid, seed=4)
    # Log scores are all negative; spreading the pieces apart must not pay.
    positions = assemble(right - 20, below - 20, grid)
    np.testing.assert_array_equal(positions, truth)


@pytest.mark.parametrize("grid", [(3, 3), (8, 9)])
def test_extra_pieces_are_left_over(grid):
    size = grid[0] * grid[1]
    truth = np.concatenate([np.random.default_rng(5).permutation(size), [-9000, -9500]])
    right, below = planted_scores(truth, grid, seed=6)
    np.testing.assert_array_equal(assemble(right, below, grid)[:size], truth[:size])
    assert (assemble(right, below, grid)[size:] == -1).all()


def test_cells_decide_where_pairs_are_silent():
    grid = (6, 7)
    truth = np.random.default_rng(7).permutation(42)
    silent = np.zeros((42, 42))
    cells = np.full((42, 42), -5.0)
    cells[np.arange(42), truth] = 0
    np.testing.assert_array_equal(assemble(silent, silent, grid, cells), truth)


@pytest.mark.parametrize("grid", [(5, 5), (10, 10)])
def test_cells_decide_where_a_region_lies(grid):
    # A 3x3 region holds together and fits anywhere; only weak hints on its pieces say where.
    rows, columns = grid
    truth = np.random.default_rng(13).permutation(rows * columns)
    right, below = planted_scores(truth, grid, seed=14)
    row, column = np.divmod(truth, columns)
    inside = (abs(row - 2) < 2) & (abs(column - 3) < 2)
    for scores in (right, below):
        scores[~(inside[:, None] & inside)] = 0
    cells = np.random.default_rng(15).normal(size=(rows * columns,) * 2)
    cells[np.arange(len(truth)), truth] += 1.5
    cells[~inside] = 0
    assert (cells.argmax(axis=1) == truth)[inside].mean() < 0.5
    positions = assemble(right, below, grid, cells)
    np.testing.assert_array_equal(positions[inside], truth[inside])


def test_beams_find_a_picture_that_is_silent_in_one_corner():
    # Sky above, a town below: whoever begins in the sky has lost the town's pieces on the way.
    truth = np.random.default_rng(16).permutation(36)
    right, below = planted_scores(truth, (6, 6), seed=19, noise=0.4, signal=1.0)
    town = truth >= 12
    for scores in (right, below):
        scores[np.ix_(town, town)] *= 8
    board = _board(right, below, (6, 6), None, None)
    best = [board.value(_beams(board, 16, 1, starts)[0]) for starts in (1, 8)]
    true = board.value(np.append(np.argsort(truth), board.void))
    assert best[0] < true <= best[1] + 1e-3


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), extra=st.integers(-2, 2), fixed=st.integers(0, 3))
def test_a_wide_beam_is_exact_also_in_a_window(seed, extra, fixed):
    n = 6 + extra
    right, below = random_scores(n, seed)
    cells = np.random.default_rng(seed + 1).normal(size=(n, 6))
    board = _board(right, below, (2, 3), cells, None)
    layout = np.full(7, board.void)
    layout[:fixed] = np.arange(n)[:fixed]  # laid already
    empty = np.flatnonzero(layout[:-1] == board.void)
    found = beam(board, layout, np.random.default_rng(seed).permutation(empty), 10**5)[0]
    pool = [*range(fixed, n), *[board.void] * max(0, 6 - n)]
    best = -np.inf
    for order in set(permutations(pool, len(empty))):
        layout[empty] = order
        best = max(best, board.value(layout))
    assert board.value(found) == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("given", [{}, {9: 0, 13: 15}])
def test_a_beam_never_holds_exchanges_of_equal_pieces(given):
    """Four pieces that know each other among twelve equal ones: a narrow beam finds them."""
    kinds = np.array([0, 1, 2, 3, *[4] * 12])
    right, below = np.zeros((16, 16)), np.zeros((16, 16))
    right[0, 1] = right[2, 3] = below[0, 2] = below[1, 3] = 5.0
    cells = np.zeros((16, 16))
    cells[4:, [5, 6, 9, 10]] = -1
    found, scores = beam_search(right, below, (4, 4), cells, given, width=16, top=16, kinds=kinds)
    assert found[0, :4].tolist() == [5, 6, 9, 10] and scores[0] == 20
    there = np.empty_like(found)
    np.put_along_axis(there, found, kinds[None].repeat(len(found), 0), 1)
    assert len(np.unique(there, axis=0)) == len(found) == 16
    assert all((found[:, piece] == cell).all() for piece, cell in given.items())
    assert (np.sort(found, axis=1) == np.arange(16)).all()
    # Exchanges count as one board also where pieces are left over.
    few, _ = beam_search(right, below, (2, 2), top=64, width=64, kinds=kinds)
    there = [
        tuple(sorted(zip(f[f >= 0].tolist(), kinds[f >= 0].tolist(), strict=True))) for f in few
    ]
    assert len(set(there)) == len(few) == 64


def test_a_given_piece_moves_the_whole_picture():
    # One row too many: pairs alone cannot tell where the 5x6 picture lies in the 6x6 frame.
    truth = np.random.default_rng(8).permutation(30) + 6
    right, below = planted_scores(truth, (6, 6), seed=9)
    np.testing.assert_array_equal(assemble(right, below, (6, 6), given={4: truth[4]}), truth)


def test_layouts_agree_on_pairs_wherever_they_lie():
    # The second is the first, its last column moved to the front: only those pairs are lost.
    board = _board(*random_scores(6, 0), (2, 3), None, None)
    one, other = (np.append(p, board.void) for p in ([0, 1, 2, 3, 4, 5], [2, 0, 1, 5, 3, 4]))
    agreed = _agreed(board, one, other)
    assert (agreed[0] > 0).tolist() == [True, False, False] * 2
    assert (agreed[3] > 0).tolist() == [True] * 3 + [False] * 3
    other[other == 4] = board.void  # a hole agrees with nothing
    assert (_agreed(board, one, other)[0] > 0).tolist() == [True, False, False] + [False] * 3


@pytest.mark.parametrize("grid", [(6, 7), (4, 9)])
def test_a_picture_grows_from_any_piece_and_finds_its_frame(grid):
    n = grid[0] * grid[1]
    truth = np.random.default_rng(20).permutation(n)
    board = _board(*planted_scores(truth, grid, seed=21), grid, None, None)
    picture = np.append(np.argsort(truth), board.void)
    apart = _regions(board, picture, {}, 0.0, np.ones(n + 1, bool))
    rng, floor = np.random.default_rng(22), _floor(board)
    for group in list(apart.members)[::5]:
        np.testing.assert_array_equal(_grow(board, floor, apart, group, rng), picture)
    silent = _board(*random_scores(n, 23), grid, None, None)  # whatever grows stays in the frame
    for group in list(apart.members)[::5]:
        found = _grow(silent, _floor(silent), apart, group, rng)
        assert sorted(found[:-1].tolist()) == list(range(n))


def test_joined_halves_make_the_picture():
    # Each layout knows one half of the picture, in the wrong place; the other half is scattered.
    grid, n = (8, 8), 64
    truth = np.random.default_rng(24).permutation(n)
    board = _board(*planted_scores(truth, grid, seed=25, signal=2.5), grid, None, None)
    picture = np.append(np.argsort(truth), board.void)
    rng, cells = np.random.default_rng(26), np.arange(n)
    layouts = []
    for half in (cells < 32, cells >= 32, cells % 8 < 4, cells % 8 >= 4):
        layout = picture.copy()
        layout[:-1][~half] = rng.permutation(layout[:-1][~half])
        layouts.append(np.append(np.roll(layout[:-1], 19), board.void))
    best = max(board.value(layout) for layout in layouts)
    joined = _join(board, layouts, _rivals(board), rng)
    assert best < board.value(picture) <= board.value(joined) + 1e-3


@pytest.mark.parametrize("n", [31, 36, 38])
def test_small_boards_keep_what_is_given_and_every_piece_once(n):
    rng = np.random.default_rng(n)
    cells = rng.normal(size=(n, 36))
    for hints, fixed in ((None, {}), (cells, {}), (None, {3: 7, 9: 20}), (cells, {3: 7, 9: 20})):
        positions = assemble(*random_scores(n, n), (6, 6), hints, fixed)
        placed = positions[positions >= 0]
        assert len(placed) == len(set(placed.tolist())) == min(n, 36)
        assert all(positions[piece] == cell for piece, cell in fixed.items())


def test_turned_pieces_are_turned_back():
    grid, n = (4, 6), 24
    truth, lies = np.random.default_rng(10).permutation(n), np.random.default_rng(11)
    needed = lies.integers(0, 4, n)  # turns that set each piece upright
    right, below = (np.random.default_rng(12).normal(size=(4 * n, 4 * n)) for _ in range(2))
    row, column = np.divmod(truth, grid[1])
    steps = [(0, 1), (-1, 0), (0, -1), (1, 0)]
    for i in range(n):
        for j in range(n):
            for whole in range(4):  # the picture as a whole turned: neighbours turn with it
                a, b = ((needed[k] + whole) % 4 * n + k for k in (i, j))
                for scores, direction in ((right, 0), (below, 3)):
                    down, along = steps[(direction - whole) % 4]
                    if row[j] - row[i] == down and column[j] - column[i] == along:
                        scores[a, b] += 8
    positions, turns = assemble_posed(right, below, grid, QUARTERS)
    upright = np.array_equal(positions, truth) and np.array_equal(turns, needed)
    turned = np.array_equal(positions, n - 1 - truth) and np.array_equal(turns, (needed + 2) % 4)
    assert upright or turned


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (0, 3)}, "grid is 0x3"),
        ({"below": np.zeros((3, 4))}, "square matrices"),
        ({"cells": np.zeros((2, 4))}, "pieces by cells"),
        ({"given": {7: 0}}, "given is"),
        ({"given": {0: 1, 1: 1}}, "a cell of its own"),
    ],
)
def test_wrong_input_is_named(change, message):
    call = {"right": np.zeros((4, 4)), "below": np.zeros((4, 4)), "grid": (2, 2)} | change
    with pytest.raises(ValueError, match=message):
        assemble(**call)
