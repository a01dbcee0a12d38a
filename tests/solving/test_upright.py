"""Pictures of turned pieces: set upright where a ViT is there, in doubt where none is."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SAMPLES

from puzlm import Puzzle, Solver
from puzlm.cli import solve as solving
from puzlm.errors import SettingsError
from puzlm.harness.evaluate import evaluate
from puzlm.harness.protocols import PROTOCOLS
from puzlm.images import read_image, write_image
from puzlm.pieces.poses import AFTER, QUARTERS, allowed, facing, inverse, laid, moved
from puzlm.puzzle import assemble, cut
from puzlm.solution import Used
from puzlm.solving import upright


def turned(picture, grid, seed=3, poses=QUARTERS):
    """Shuffled pieces, each in one of some poses, and the poses that set them upright."""
    pieces = cut(picture, grid)
    rng = np.random.default_rng(seed)
    order, upright = rng.permutation(len(pieces)), rng.choice(poses, len(pieces))
    shown = [laid(pieces[i], inverse(p)) for i, p in zip(order, upright, strict=True)]
    return Puzzle(np.stack(shown), grid, order), upright


def is_whole(found, picture, grid):
    """Whether an answer is the picture, in whatever pose as a whole."""
    whole = assemble(cut(picture, grid), np.arange(grid[0] * grid[1]), grid)
    return any(np.array_equal(found.array, laid(whole, pose)) for pose in range(8))


def test_poses_are_what_happens_to_pixels():
    pixels = np.arange(6).reshape(2, 3)
    places = np.argwhere(pixels >= 0) * 2 - [1, 2]  # from the middle, doubled
    for one in range(8):
        assert np.array_equal(laid(laid(pixels, one), inverse(one)), pixels)
        for other in range(8):
            both = laid(laid(pixels, other), one)
            assert np.array_equal(both, laid(pixels, AFTER[one, other]))
        row, column = moved(*places.T, one)
        picture = laid(pixels, one)
        at = (row + picture.shape[0] - 1) // 2, (column + picture.shape[1] - 1) // 2
        assert np.array_equal(picture[at], pixels.ravel())
        step = np.array([[0, 1], [-1, 0], [0, -1], [1, 0]])
        went = np.stack(moved(step[:, 0], step[:, 1], one), axis=1)
        assert np.array_equal(went, step[[facing(one, d) for d in range(4)]])


@pytest.fixture(scope="module")
def seeing():
    return Solver.from_pretrained(rotations=True)


@pytest.mark.parametrize("grid", [(3, 3), (4, 4), (2, 4)])
def test_a_photo_comes_out_upright_and_is_said_to_be(seeing, photo, grid):
    picture = photo[-396 * grid[0] // grid[1] :, 100:496]
    for seed in range(3):
        puzzle, turns = turned(picture, grid, seed)
        found = seeing.solve(puzzle)
        assert np.array_equal(
            found.array, assemble(cut(picture, grid), np.arange(len(turns)), grid)
        )
        assert found.positions.tolist() == puzzle.truth.tolist()
        assert found.turns == tuple(turns.tolist())
        assert found.solver == "classic (set upright by reader)"
        assert 0.6 < found.upright < 1 and found.confidences.max() <= found.upright


def test_a_flower_has_no_way_up_and_nobody_says_so(seeing):
    flower = read_image(SAMPLES / "flower.jpg")[:396, :396]
    found = seeing.solve(turned(flower, (3, 3))[0])
    assert found.upright < 0.8 and found.confidences.max() <= found.upright


@pytest.mark.parametrize(("grid", "ways"), [((3, 3), 4), ((2, 4), 2)])
def test_pixels_alone_do_not_know_which_way_up(photo, grid, ways):
    puzzle, _ = turned(photo[: 396 * grid[0] // grid[1], 100:496], grid)
    found = Solver.from_pretrained(solver="classic", rotations=True).solve(puzzle)
    assert found.solver == "classic (which way up is not known)"
    assert found.upright == 1 / ways and found.confidences.max() <= 1 / ways
    assert found.confidences.min() > 0.8 / ways  # the borders themselves fit well


@pytest.mark.parametrize("grid", [(4, 4), (3, 5)])
def test_rectangles_are_turned_by_halves(photo, grid):
    picture = photo[:300, :640]
    puzzle, poses = turned(picture, grid, poses=(0, 2))
    found = Solver(solver="classic", rotations=True).solve(puzzle)
    assert puzzle.pieces.shape[1] != puzzle.pieces.shape[2]
    assert is_whole(found, picture, grid) and set(found.turns) == {0, 2} and not found.mirrored
    assert found.upright == 0.5


@pytest.mark.parametrize("turns", [False, True])
def test_mirrored_pieces_are_flipped_back(photo, turns):
    picture = photo[:400, :500]
    puzzle, poses = turned(picture, (4, 5), poses=allowed(turns, True, square=True))
    found = Solver(solver="classic", rotations=turns, mirrored=True).solve(puzzle)
    assert is_whole(found, picture, (4, 5))
    flipped = set(np.flatnonzero(poses >= 4).tolist())
    assert set(found.mirrored) in (flipped, set(range(20)) - flipped)
    assert "perhaps mirrored as a whole" in found.solver and found.confidences.max() <= 0.25
    assert found.as_dict()["mirrored"] == list(found.mirrored)


@pytest.mark.parametrize(("grid", "poses"), [((3, 4), QUARTERS), ((4, 5), range(8))])
def test_that_pieces_are_turned_is_found_and_so_is_their_grid(photo, grid, poses):
    side = min(400 // grid[0], 640 // grid[1])
    picture = photo[: side * grid[0], : side * grid[1]]
    found = Solver.from_pretrained().solve(list(turned(picture, grid, poses=poses)[0].pieces))
    assert is_whole(found, picture, grid) and "found to be turned" in found.solver
    assert found.tried[0][0] in (grid, grid[::-1])


def test_pieces_that_lie_straight_are_not_found_to_be_turned(photo):
    solver = Solver.from_pretrained()
    for seed in range(4):  # worn pieces, solved with doubt
        puzzle = Puzzle.from_image(photo[40 * seed :, 60 * seed :], 4, gap=0.3, seed=seed)
        assert not solver.solve(puzzle).poses


def test_a_given_piece_fixes_the_turn(seeing, photo):
    puzzle, turns = turned(photo[:396, 100:496], (3, 3))
    piece = int(np.flatnonzero(turns == 0)[0])
    for solver in (seeing, Solver(solver="classic", rotations=True)):
        found = solver.solve(puzzle, given={piece: int(puzzle.truth[piece])})
        assert found.positions.tolist() == puzzle.truth.tolist()
        assert found.solver == "classic" and found.upright == 1
        assert found.confidences.min() > 0.8


def test_turning_keeps_pieces_left_over_and_where_each_lies(photo):
    """Whatever is read, the picture is the same one, turned."""
    puzzle, _ = turned(photo[:396, 100:496], (3, 3))
    lies = Solver(solver="classic", rotations=True).solve(puzzle)
    positions = lies.positions.copy()
    positions[4] = -1
    lies = replace(lies, positions=positions, used=Used("classic"), upright=1.0)
    for turn in range(4):
        told = -np.ones((8, 9, 9))  # (two looks of four turns, ninths, cells)
        told[2 * turn : 2 * turn + 2, range(9), range(9)] = 0
        blind = SimpleNamespace(read=lambda *_, told=told: (told, None, None), name="model")
        found = upright.settled(lies, (), blind, QUARTERS)
        assert found.positions[4] == -1
        assert np.array_equal(found.array, np.rot90(lies.array, turn))


def test_a_solver_without_eyes(photo, monkeypatch):
    def no_torch(self):
        raise ModuleNotFoundError("torch")

    solver = Solver.from_pretrained(rotations=True)
    monkeypatch.setattr("puzlm.models.box.Box.reader", property(no_torch))
    found = solver.solve(turned(photo[:396, 100:496], (3, 3))[0])
    assert found.solver == "classic (which way up is not known)"
    small = turned(photo[::50, ::50][:8, :8], (2, 2))[0]
    assert "not known" in Solver(solver="auto", rotations=True).solve(small).solver
    with pytest.raises(SettingsError, match="only the classic solver turns pieces, not 'vision'"):
        Solver.from_pretrained(solver="vision", rotations=True)
    with pytest.raises(SettingsError, match="mirrored: only the classic"):
        Solver.from_pretrained(solver="vision", mirrored=True)


def test_what_is_told(seeing, photo, tmp_path, capsys):
    puzzle, _ = turned(photo[:396, 100:496], (3, 3))
    found = seeing.solve(puzzle)
    solving.show(found, puzzle, tmp_path / "solved.png")
    told = capsys.readouterr().out
    assert "solved by classic (set upright by reader)" in told
    assert f"which way up: {found.upright:.0%} sure" in told
    record = json.loads(json.dumps(found.as_dict()))
    assert record["upright"] == round(found.upright, 4) and record["turns"] == list(found.turns)


def test_a_benchmark_that_turns_answers_itself_counts_no_doubt_of_it(photo, tmp_path):
    """Its confidences are those of pieces that lie right up to a turn of the whole."""
    write_image(tmp_path / "photo.png", photo[:196, 100:296])
    rules = replace(PROTOCOLS["classic-mcgill-540-type2"], name="turned", grid=(7, 7))
    solver = Solver(solver="classic")
    (record,) = evaluate(solver.solve_many, rules, tmp_path)["outcomes"]
    assert record["perfect"] == 1 and min(record["confidences"]) > 0.5
