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
from puzlm.puzzle import assemble, cut
from puzlm.solution import Used
from puzlm.solving import upright


def turned(picture, grid, seed=3):
    """Shuffled pieces, each turned at random, and the quarter turns that set them upright."""
    pieces = cut(picture, grid)
    rng = np.random.default_rng(seed)
    order, turns = rng.permutation(len(pieces)), rng.integers(0, 4, len(pieces))
    shown = np.stack([np.rot90(pieces[i], -t) for i, t in zip(order, turns, strict=True)])
    return Puzzle(shown, grid, order), turns


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
        assert found.solver == "classic (set upright by vision)"
        assert 0.6 < found.upright < 1 and found.confidences.max() <= found.upright


def test_a_flower_has_no_way_up_and_nobody_says_so(seeing):
    flower = read_image(SAMPLES / "flower.jpg")[:396, :396]
    found = seeing.solve(turned(flower, (3, 3))[0])
    assert found.upright < 0.6 and found.confidences.max() <= found.upright


@pytest.mark.parametrize(("grid", "ways"), [((3, 3), 4), ((2, 4), 2)])
def test_pixels_alone_do_not_know_which_way_up(photo, grid, ways):
    puzzle, _ = turned(photo[: 396 * grid[0] // grid[1], 100:496], grid)
    found = Solver.from_pretrained(solver="classic", rotations=True).solve(puzzle)
    assert found.solver == "classic (which way up is not known)"
    assert found.upright == 1 / ways and found.confidences.max() <= 1 / ways
    assert found.confidences.min() > 0.8 / ways  # the borders themselves fit well


def test_a_given_piece_fixes_the_turn(seeing, photo):
    puzzle, turns = turned(photo[:396, 100:496], (3, 3))
    piece = int(np.flatnonzero(turns == 0)[0])
    for solver in (seeing, Solver(solver="classic", rotations=True)):
        found = solver.solve(puzzle, given={piece: int(puzzle.truth[piece])})
        assert found.positions.tolist() == puzzle.truth.tolist()
        assert found.solver == "classic" and found.upright == 1
        assert found.confidences.min() > 0.8


def test_turning_keeps_pieces_left_over_and_where_each_lies(photo):
    """Whatever the ViT says, the picture is the same one, turned."""
    puzzle, _ = turned(photo[:396, 100:496], (3, 3))
    lies = Solver(solver="classic", rotations=True).solve(puzzle)
    positions = lies.positions.copy()
    positions[4] = -1
    lies = replace(lies, positions=positions, used=Used("classic"), upright=1.0)
    for turn in range(4):
        told = -np.ones((8, 9, 9))  # (two looks of four turns, ninths, cells)
        told[2 * turn : 2 * turn + 2, range(9), range(9)] = 0
        blind = SimpleNamespace(read=lambda *_, told=told: (told, None, None))
        found = upright.settled(lies, (), blind)
        assert found.positions[4] == -1
        assert np.array_equal(found.array, np.rot90(lies.array, turn))


def test_a_solver_without_eyes(photo, monkeypatch):
    def no_torch(self):
        raise ModuleNotFoundError("torch")

    solver = Solver.from_pretrained(rotations=True)
    monkeypatch.setattr("puzlm.models.box.Box.vision", property(no_torch))
    found = solver.solve(turned(photo[:396, 100:496], (3, 3))[0])
    assert found.solver == "classic (which way up is not known)"
    small = turned(photo[::50, ::50][:8, :8], (2, 2))[0]
    assert "not known" in Solver(solver="auto", rotations=True).solve(small).solver
    with pytest.raises(SettingsError, match="only the classic solver turns pieces, not 'vision'"):
        Solver.from_pretrained(solver="vision", rotations=True)


def test_what_is_told(seeing, photo, tmp_path, capsys):
    puzzle, _ = turned(photo[:396, 100:496], (3, 3))
    found = seeing.solve(puzzle)
    solving.show(found, puzzle, tmp_path / "solved.png")
    told = capsys.readouterr().out
    assert "solved by classic (set upright by vision)" in told
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
