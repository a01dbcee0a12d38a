"""Pieces as people crop and scan them: sizes that differ, lines of the scanner's ground."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from puzlm.errors import PuzzleError
from puzlm.harness.damage import DAMAGES, GROUND, NOISE, damaged, scan
from puzlm.images import write_image
from puzlm.pieces.noise import noise_level, smoothed
from puzlm.pieces.repair import SOUND, Repaired, equal_sizes, lines_of_ground, repair
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver
from puzlm.solving import classic


def lined(puzzle: Puzzle, share: float, seed: int = 0) -> Puzzle:
    """Lay one or two lines of scanner ground over a share of the sides."""
    rng = np.random.default_rng(seed)
    pieces = puzzle.pieces.copy()
    for piece in pieces:
        for turn in range(4):
            if rng.random() < share:
                side = np.rot90(piece, turn)
                side[: rng.integers(1, 3)] = GROUND
    return Puzzle(pieces, puzzle.grid, puzzle.truth)


def borders_of_ground(pieces: np.ndarray) -> int:
    turned = [np.rot90(pieces, turn, axes=(1, 2)) for turn in range(4)]
    return sum(int((np.abs(p[:, 0] - np.float64(GROUND)) < 5).all((1, 2)).sum()) for p in turned)


def cropped(pieces: np.ndarray, seed: int) -> list[np.ndarray]:
    """Up to two pixels off any side, as by hand."""
    rng = np.random.default_rng(seed)
    off = rng.integers(0, 2, (len(pieces), 4))
    return [
        p[a : p.shape[0] - b, c : p.shape[1] - d]
        for p, (a, b, c, d) in zip(pieces, off, strict=True)
    ]


@pytest.fixture(scope="module")
def solver() -> Solver:
    return Solver.from_pretrained()


def test_pieces_cropped_by_hand_are_solved_from_a_folder_and_from_a_list(photo, solver, tmp_path):
    puzzle = Puzzle.from_image(photo, (3, 4), seed=1)
    pieces = cropped(puzzle.pieces, 1)
    assert len({p.shape for p in pieces}) > 3
    for i, piece in enumerate(pieces):
        write_image(tmp_path / f"{i:02d}.png", piece)
    for given_as in (tmp_path, pieces, [Image.fromarray(p) for p in pieces]):
        np.testing.assert_array_equal(solver.solve(given_as, (3, 4)).positions, puzzle.truth)


def test_pieces_that_differ_by_much_are_refused(photo):
    with pytest.raises(PuzzleError, match=r"piece 1 with 20 x 24 and piece 2 with 20 x 30 pixels"):
        Solver(solver="classic").solve([photo[:25, :20], photo[:24, :20], photo[:30, :20]], (1, 3))


@settings(max_examples=30, deadline=None)
@given(st.integers(20, 60), st.integers(20, 60), st.integers(0, 2**31))
def test_equal_sizes_keep_colours_and_equal_pieces(height, width, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 2, (6, 2)) + (height, width)
    colours = rng.integers(0, 256, (6, 3))
    flat = [np.full((h, w, 3), c, np.uint8) for (h, w), c in zip(sizes, colours, strict=True)]
    found = equal_sizes(flat)
    assert found is not None and len({p.shape for p in found}) == 1
    assert (found == colours[:, None, None]).all()
    np.testing.assert_array_equal(equal_sizes(list(found)), found)


@pytest.mark.parametrize("grid", [(4, 4), (6, 8)])
def test_lines_of_ground_are_trimmed_and_the_puzzle_solved(photo, solver, grid):
    puzzle = lined(Puzzle.from_image(photo[:, :400], grid, seed=3), 0.3)
    repaired = repair(puzzle, classic)
    assert repaired.done == ("trimmed lines",) and repaired.wear == SOUND
    found = repaired.puzzle
    before, after = (borders_of_ground(p.pieces) for p in (puzzle, found))
    assert before > 15 and after < before / 10
    answer = solver.solve(puzzle)
    assert "trimmed lines" in answer.solver and "clear" not in answer.solver
    np.testing.assert_array_equal(answer.positions, puzzle.truth)
    np.testing.assert_array_equal(answer.pieces, puzzle.pieces)  # drawn as they came


def test_nothing_is_done_where_nothing_was_done(photo):
    """A picture's own frame is no scanner's."""
    framed = photo[:240, :240].copy()
    framed[:2] = framed[-2:] = GROUND
    framed[:, :2] = framed[:, -2:] = GROUND
    for image in (photo, framed):
        for grid in ((2, 2), (4, 4), (8, 8)):
            puzzle = Puzzle.from_image(image, grid, seed=2)
            assert repair(puzzle, classic) == Repaired(puzzle)
    lines = lines_of_ground(framed[None])
    assert lines.shape == (1, 4)


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_drawn_by_its_seed_and_does_something(photo, name):
    pieces = Puzzle.from_image(photo[:240, :240], 4).pieces
    once, again = (DAMAGES[name](pieces, np.random.default_rng(5)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert all(a.shape != b.shape or (a != b).any() for a, b in zip(once, pieces, strict=True))
    assert (len({p.shape for p in once}) > 1) == (name == "scan")


def test_scanned_pieces_are_solved(photo, solver):
    puzzle = Puzzle.from_image(photo[:400, :400], 4, seed=4)
    pieces = scan(puzzle.pieces, np.random.default_rng(0))
    np.testing.assert_array_equal(solver.solve(pieces, 4).positions, puzzle.truth)


def steps(puzzle: Puzzle, pieces: np.ndarray) -> float:
    """Mean step of brightness across the borders of true neighbours."""
    board = pieces[np.argsort(puzzle.truth)].reshape(*puzzle.grid, *pieces.shape[1:]).astype(float)
    right = board[:, :-1, :, -1].mean((2, 3)) - board[:, 1:, :, 0].mean((2, 3))
    below = board[:-1, :, -1].mean((2, 3)) - board[1:, :, 0].mean((2, 3))
    return float(np.abs(right).mean() + np.abs(below).mean())


@pytest.mark.parametrize("name", ["light", "light-jpeg"])
def test_lights_of_pieces_are_evened_out(photo, solver, name):
    sound = Puzzle.from_image(photo[:288, :288], 6, seed=1)
    pieces = damaged(name, list(sound.pieces), np.random.default_rng(2))
    puzzle = Puzzle(pieces, sound.grid, sound.truth)
    repaired = repair(puzzle, classic)
    assert repaired.done == ("evened light",)
    assert steps(sound, repaired.puzzle.pieces) < steps(sound, pieces) / 3
    answer = solver.solve(puzzle)
    assert "clear" not in answer.solver
    if name == "light":  # with compression the answer is often wrong in parts
        assert (answer.positions == sound.truth).mean() > 0.8


def test_noise_is_measured_and_smoothed(photo, solver):
    sound = Puzzle.from_image(photo[:288, :288], 4, seed=1)
    assert noise_level(sound.pieces) < 5
    pieces = damaged("noise", list(sound.pieces), np.random.default_rng(2))
    assert noise_level(pieces) == pytest.approx(NOISE, abs=2)
    clean = sound.pieces.astype(float)
    before, after = (np.abs(p - clean).mean() for p in (pieces, smoothed(pieces, NOISE)))
    assert after < 0.7 * before
    answer = solver.solve(Puzzle(pieces, sound.grid))
    assert "smoothed noise" in answer.solver and "clear" not in answer.solver
    np.testing.assert_array_equal(answer.positions, sound.truth)


@pytest.mark.parametrize("gap", [0.0, 0.1, 0.3])
def test_sound_and_worn_pieces_stay_as_they_are(photo, gap):
    for grid in ((3, 3), (4, 4), (7, 7)):
        puzzle = Puzzle.from_image(photo, grid, gap=gap, seed=3)
        assert repair(puzzle, classic) == Repaired(puzzle)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.8, 1.2), st.floats(-12, 12), st.integers(0, 2**31))
def test_borders_that_bear_light_find_neighbours_in_any_light(gain, offset, seed):
    rng = np.random.default_rng(seed)
    image = rng.normal(0, 12, (24, 72, 3)).cumsum(1) / 2 + 128  # changes little from left to right
    pieces = np.stack(np.split(image, 3, axis=1))
    lit = pieces.copy()
    lit[1] = gain * lit[1] + offset
    right, _ = classic.lit(lit, 0.2, 14.0)
    assert right[0].argmin() == 1 and right[1].argmin() == 2
