"""Piles whose grid nobody named, and pieces of another picture among the own."""

import numpy as np
import pytest

from puzlm import Solver
from puzlm.cli.solve import remarks
from puzlm.images import Pixels, read_image
from puzlm.metrics import absolute
from puzlm.puzzle import Puzzle, assemble
from puzlm.solving.grids import candidates, tried
from puzlm.solving.piles import split
from puzlm.solving.strangers import strange
from tests.conftest import SAMPLES


@pytest.fixture(scope="module")
def auto() -> Solver:
    return Solver.from_pretrained()


@pytest.fixture(scope="module")
def flower() -> Pixels:
    return read_image(SAMPLES / "flower.jpg")


def with_stranger(puzzle: Puzzle, other: Pixels, piece: int = 0) -> Puzzle:
    """The puzzle with a piece of another picture in place of one of its own."""
    assert puzzle.truth is not None
    pieces, truth = puzzle.pieces.copy(), puzzle.truth.copy()
    height, width = pieces.shape[1:3]
    pieces[piece], truth[piece] = other[150 : 150 + height, 200 : 200 + width], -1
    return Puzzle(pieces, puzzle.grid, truth)


def test_candidates_hold_every_factorisation_and_grids_that_do_not_come_out_even():
    assert {(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)} <= set(candidates(12))
    assert (3, 3) in candidates(8) and (3, 3) in candidates(10)
    assert all(abs(r * c - 12) <= 3 for r, c in candidates(12))
    assert candidates(2) == [(1, 2), (2, 1)]


@pytest.mark.parametrize("grid", ["3x4", "5x6", "9x7"])
def test_the_grid_of_a_folder_is_found(auto, photo, grid, tmp_path):
    puzzle = Puzzle.from_image(photo, grid, seed=2)
    puzzle.save(tmp_path / "p")
    (tmp_path / "p" / "puzzle.json").unlink()
    found = auto.solve(tmp_path / "p")
    assert found.grid == puzzle.grid and found.tried[0][0] == puzzle.grid
    assert found.tried[0][1] > found.tried[1][1]
    assert absolute(found.positions, puzzle.truth) == 1


def test_the_grid_is_found_without_a_model_and_with_a_piece_missing(photo):
    pieces = Puzzle.from_image(photo, "3x4", missing=1, seed=2).pieces
    assert tried(pieces)[0][0] == (3, 4)


def test_a_list_of_pieces_needs_no_grid(auto, photo):
    puzzle = Puzzle.from_image(photo, "2x5", seed=1)
    assert auto.solve(list(puzzle.pieces)).grid == (2, 5)


@pytest.mark.parametrize("gap", [0.0, 0.1])
def test_a_stranger_is_left_out_and_its_hole_shown(auto, photo, flower, gap):
    puzzle = with_stranger(Puzzle.from_image(photo, "3x4", gap=gap, seed=4), flower, piece=5)
    found = auto.solve(puzzle)
    assert found.strangers == (5,) and found.positions[5] == -1
    assert absolute(found.positions, puzzle.truth) == 1
    assert sorted(found.order) == list(range(12)) and len(found.confidences) == 12


def test_no_own_piece_is_left_out(auto, photo, flower):
    puzzles = [
        Puzzle.from_image(image, grid, gap=gap, seed=1)
        for image in (photo, flower)
        for grid in ("2x3", "4x4")
        for gap in (0.0, 0.2)
    ]
    assert all(not found.strangers for found in auto.solve_many(puzzles))


def piled(puzzles: list[Puzzle], seed: int = 0) -> tuple[Pixels, np.ndarray]:
    """The pieces of several puzzles in one pile, and the puzzle of each."""
    order = np.random.default_rng(seed).permutation(sum(len(p.pieces) for p in puzzles))
    own = np.repeat(np.arange(len(puzzles)), [len(p.pieces) for p in puzzles])
    return np.concatenate([p.pieces for p in puzzles])[order], own[order]


@pytest.fixture(scope="module")
def two(photo, flower) -> list[Puzzle]:
    """Two puzzles of 12 and 20 pieces of 100 px."""
    return [
        Puzzle.from_image(photo[:300, 100:500], "3x4", seed=1),
        Puzzle.from_image(flower[:400, :500], "4x5", seed=1),
    ]


def test_two_puzzles_in_one_pile_are_parted_and_solved(auto, two):
    pieces, own = piled(two)
    found = auto.solve_pile(list(pieces))
    assert [solution.grid for _, solution in found] == [(4, 5), (3, 4)]
    for (numbers, solution), number in zip(found, (1, 0), strict=True):
        assert sorted(numbers) == np.flatnonzero(own == number).tolist()
        height, width = two[number].pieces.shape[1:3]
        assert solution.array.shape[:2] == (solution.grid[0] * height, solution.grid[1] * width)
        whole = two[number]
        assert np.array_equal(solution.array, assemble(whole.pieces, whole.truth, whole.grid))


def test_turned_pieces_of_two_puzzles_are_parted(two):
    pieces, own = piled(two)
    turns = np.random.default_rng(1).integers(0, 4, len(pieces))
    turned = np.stack([np.rot90(p, t) for p, t in zip(pieces, turns, strict=True)])
    heaps = split(turned, turned=True)
    assert [set(own[heap.pieces]) for heap in heaps] == [{1}, {0}]
    assert [sorted(heap.grid) for heap in heaps] == [[4, 5], [3, 4]]


def test_one_puzzle_is_one_heap_and_a_number_is_heeded(two):
    assert len(split(two[0].pieces)) == 1
    pieces, _ = piled(two)
    assert len(split(pieces, number=1)) == 1


def test_a_piece_is_strange_if_no_neighbour_is_like_it():
    n = 9
    cosines = np.full((n, n), 0.9), np.full((n, n), 0.9)
    for scores in cosines:
        scores[4] = scores[:, 4] = 0.0
    found = strange(cosines, np.arange(n), (3, 3))
    assert found[4] > 0.9 and np.delete(found, 4).max() < 0.1
    assert strange(cosines, np.full(n, -1), (3, 3)).max() == 0  # nothing lies anywhere


def wrapping(picture: Pixels, width: int, blend: int = 60) -> Pixels:
    """A picture of so many columns whose right side goes on at its left side."""
    share = np.linspace(0, 1, blend)[None, :, None]
    whole = picture[:, :width].copy()
    begin = share * picture[:, :blend] + (1 - share) * picture[:, width : width + blend]
    whole[:, :blend] = np.rint(begin)
    return whole


@pytest.mark.parametrize("solver", ["auto", "classic"])
def test_a_picture_that_wraps_around_may_begin_anywhere(solver, photo, tmp_path, capsys):
    picture = wrapping(photo[:400], 560)
    puzzle = Puzzle.from_image(picture, "5x7", seed=1)
    found = Solver.from_pretrained(solver=solver).solve(puzzle)
    assert found.starts == (1, 7) and found.confidences.max() <= 1 / 7
    begins = [np.array_equal(np.roll(found.array, 80 * k, axis=1), picture) for k in range(7)]
    assert sum(begins) == 1 and found.joined.mean() > 0.8
    told = " ".join(remarks(found, puzzle))
    assert "may begin at any of its 7 columns" in told and "probably wrong" not in told
    assert found.as_dict()["starts"] == [1, 7]


def test_other_pictures_begin_where_they_begin(auto, photo, flower):
    puzzles = [Puzzle.from_image(x, g, seed=1) for x in (photo, flower) for g in (3, "5x7")]
    assert all(found.starts == (1, 1) for found in auto.solve_many(puzzles))


@pytest.mark.parametrize("overlap", [(0, 0), (1, 1), (2, 5)])
def test_tiles_that_overlap_are_drawn_once(auto, photo, tmp_path, overlap):
    down, along = overlap
    whole = photo[: 5 * 60 + down, : 6 * 80 + along]
    tiles = [
        whole[60 * r : 60 * r + 60 + down, 80 * c : 80 * c + 80 + along]
        for r, c in np.ndindex(5, 6)
    ]
    order = np.random.default_rng(0).permutation(30)
    found = auto.solve([tiles[i] for i in order])
    assert found.overlap == overlap and np.array_equal(found.array, whole)
    assert ("tiles overlap" in " ".join(remarks(found, Puzzle(found.pieces, (5, 6))))) == bool(
        along
    )
