"""`puzlm solve` and the folders and options that people give it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from puzlm.cli import solve as solving
from puzlm.images import read_image, write_image
from puzlm.puzzle import Puzzle, shuffled
from puzlm.solution import Solution, Used
from puzlm.solver import Solver

QUICK = ("--solver", "random")


@pytest.fixture
def pieces(here, photo):
    """A folder of nine piece files and nothing else."""
    made = Puzzle.from_image(photo[:90, :90], 3, seed=1)
    made.save(here / "p")
    (here / "p" / "puzzle.json").unlink()
    (here / "p" / "shuffled.png").unlink()
    return here / "p"


# ---- what counts as a piece ---------------------------------------------------------------------


def test_hidden_files_and_our_own_pictures_are_no_pieces(run, pieces, monkeypatch):
    (pieces / "._piece_0.png").write_bytes(b"what a Mac leaves behind")
    write_image(pieces / "shuffled.png", np.zeros((90, 90, 3), np.uint8))
    monkeypatch.chdir(pieces)
    for _ in range(2):  # the second time solved.png lies there
        code, out, err = run("solve", ".", "--json", *QUICK)
        assert (code, err) == (0, "") and len(json.loads(out)["positions"]) == 9
    assert (pieces / "solved.png").exists()


def test_a_piece_may_have_one_of_our_names(run, pieces):
    (pieces / "piece_8.png").rename(pieces / "solved.png")
    code, out, _ = run("solve", "p", "--json", *QUICK, "-o", "s.png")
    assert code == 0 and json.loads(out)["names"][-1] == "solved.png"


def test_pieces_that_fill_no_square_are_laid_in_the_best_grid(run, pieces):
    for number in (6, 7, 8):  # a picture of 3x3 pieces without its last three pieces
        (pieces / f"piece_{number}.png").unlink()
    code, out, _ = run("solve", "p", "--solver", "classic", "--json", "-o", "s.png")
    found = json.loads(out)
    assert code == 0 and found["grid"][0] * found["grid"][1] >= 6
    assert any("--grid sets another" in note for note in found["notes"])


def test_pictures_of_types_that_are_not_read_are_named(run, refused, pieces):
    for name in ("a.heic", "b.avif"):
        (pieces / name).write_bytes(b"x")
    code, _, err = run("solve", "p", *QUICK)
    assert code == 0 and err.count("\n") == 1
    assert err.startswith("puzlm: p: left out a.heic, b.avif: pictures of a type that cannot be")
    for piece in pieces.glob("*.png"):
        piece.unlink()
    assert "holds no piece files that can be read, only a.heic" in refused("solve", "p")


# ---- what is written ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "s.png", "--gif", "folder"], "--gif folder: is a folder"),
        (["-o", "s.png", "--gif", "m.txt"], "--gif m.txt: the name of an animation must end"),
        (["-o", "s.png", "--gif", "/proc/none/m.gif"], "/proc/none/m.gif: cannot be written"),
        (["-o", "folder"], "folder: is a folder, a file name is needed here"),
    ],
)
def test_both_files_are_written_or_none(refused, pieces, here, options, message):
    (here / "folder").mkdir()
    before = sorted(here.rglob("*"))
    assert message in refused("solve", "p", *QUICK, *options)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("name", ["m.gif", "taken"])
def test_animations_of_many_need_a_folder(refused, pieces, here, name):
    (here / "taken").write_text("a file")
    shutil.copytree(pieces, here / "q")
    line = refused("solve", "p", "q", *QUICK, "--gif", name)
    assert f"--gif {name}: a folder is needed" in line and not (here / "solved").exists()


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--decode", "beam", "--solver", "vision"], "--decode beam: is for the seq2seq solver"),
        (
            ["--decode", "beam", "--rotations"],
            "not for classic (which --rotations and --mirrored take)",
        ),
        (["--model", "none", "--solver", "classic"], "--model none: solver classic uses no model"),
        (["--given", "0=1", "--given", "0=2"], "--given 0=2: piece 0 is given another cell, too"),
        (["--reference", "x.png"], "x.png: no such file"),
        (["--reference", "p/0.png", "--solver", "bigram"], "solver 'bigram' heeds none"),
        (["--reference", "p/0.png", "--decode", "beam"], "solver 'seq2seq' heeds none"),
        (["p", "--reference", "p/0.png"], "--reference: is a picture of one puzzle, not of many"),
        (["--reference", "p/0.png", "--puzzles", "2"], "--reference: is a picture of one puzzle"),
        (["--mirrored", "--puzzles", "2"], "turned pieces must be square, unflipped"),
    ],
)
def test_options_that_would_not_be_heeded_are_refused(refused, pieces, options, message):
    assert message in refused("solve", "p", *options)


def test_evaluate_refuses_them_too(refused, pieces):
    rules = ["evaluate", "--images", "p"]
    assert "--decode beam" in refused(*rules, "--decode", "beam", "--solver", "classic")
    assert "--model none" in refused(*rules, "--model", "none", "--solver", "random")
    by_sides = [*rules, "--solver", "vision-pairs"]
    assert "pieces, more than the 5,000" in refused(*by_sides, "--grid", "200")


def test_more_pieces_than_memory_holds(refused, run, here, monkeypatch):
    write_image(here / "sheet.png", np.zeros((200, 200, 3), np.uint8))
    monkeypatch.setattr("puzlm.cli.solve.most_pieces", lambda: 12345)
    line = refused("solve", "sheet.png", "--grid", "200")
    assert "sheet.png: 40,000 pieces, more than the 12,345 that fit" in line
    sides = ("--solver", "bigram")
    code, _, err = run("solve", "sheet.png", "sheet.png", "*.png", "--grid", "71", *sides)
    assert code == 2 and "5,041 pieces" in err and err.count("\n") == 1


def test_memory_that_onnxruntime_does_not_get(refused, pieces, monkeypatch):
    class Fail(Exception):
        """As onnxruntime's own, which is no MemoryError."""

    def solve(*_, **__):
        raise Fail("[ONNXRuntimeError] : 1 : FAIL : Failed to allocate memory for requested buffer")

    monkeypatch.setattr("puzlm.solver.Solver.solve", solve)
    assert "not enough memory" in refused("solve", "p", *QUICK)


# ---- what is told -------------------------------------------------------------------------------


def test_numbers_are_matched_to_files(run, pieces):
    for name in ("piece_5.png", "piece_6.png"):
        (pieces / name).unlink()
    more = ["--grid", "3", "--incomplete", *QUICK]
    code, out, _ = run("solve", "p", *more, "--json")
    names = [f"piece_{i}.png" for i in (0, 1, 2, 3, 4, 7, 8)]
    assert code == 0 and json.loads(out)["names"] == names
    _, out, _ = run("solve", "p", *more)
    assert "in the order of their files: 5 is piece_7.png\n" in out
    shutil.copytree(pieces, pieces.parent / "q")
    _, out, _ = run("solve", "p", "q", *more, "--json")
    assert [one["names"] for one in json.loads(out)] == [names, names]


def test_numbers_that_the_names_tell_are_not_explained(run, pieces):
    _, out, _ = run("solve", "p", *QUICK)
    assert "numbered" not in out


def solution(puzzle, positions, sure):
    return Solution(positions, sure, puzzle.grid, Used("test"), 0.0, puzzle.pieces)


def test_two_wrong_pieces_of_many_are_not_100_percent(capsys, photo, tmp_path):
    puzzle = Puzzle.from_image(photo[:240, :240], 24, seed=1)
    wrong, sure = puzzle.truth.copy(), np.full(576, 0.9993)
    wrong[[3, 7]] = wrong[[7, 3]]
    sure[[3, 7, 11]] = 0.2, 0.1, 0.3
    solving.show(solution(puzzle, wrong, sure), puzzle, tmp_path / "s.png")
    out = capsys.readouterr().out
    assert "574 of 576 pieces lie right" in out and "100%" not in out
    line = "24x24 grid: 99% sure on average; least sure are pieces 7 (10%), 3 (20%), 11 (30%)"
    assert line in out.splitlines()
    found = solving.record(solution(puzzle, wrong, sure), puzzle, tmp_path / "s.png")
    solving.show_many([found], tmp_path)
    assert "100%" not in capsys.readouterr().out


def test_nearly_sure_is_not_sure(capsys, photo, tmp_path):
    puzzle = Puzzle.from_image(photo[:90, :90], 3, seed=1)
    sure = np.array([1.0] + [0.9993] * 8)
    solving.show(solution(puzzle, puzzle.truth, sure), puzzle, tmp_path / "s.png")
    out = capsys.readouterr().out
    assert out.count("(100%)") == 1 and out.count("( 99%)") == 8
    assert "9 of 9 pieces lie right" in out


def test_a_picture_without_red_frames(run, here, photo):
    """As the guide says: the shuffled picture knows no truth, so that nothing is framed."""
    Puzzle.from_image(photo[:90, :90], 3, seed=1).save(here / "p")
    run("solve", "p", *QUICK, "-o", "framed.png")
    run("solve", "p/shuffled.png", "--grid", "3", *QUICK, "-o", "plain.png")
    red = (read_image("framed.png") == (220, 30, 30)).all(-1).sum()
    assert red > 100 > (read_image("plain.png") == (220, 30, 30)).all(-1).sum()
    assert shuffled(Puzzle.load("p")).shape == (90, 90, 3)


def test_large_puzzles_of_tiny_pieces_are_refused(refused, here, photo):
    write_image(here / "sheet.png", photo[:100, :100])
    assert "2x2 pixels" in refused("solve", "sheet.png", "--grid", "50", "--solver", "classic")


def test_a_large_puzzle_ends_when_time_is_up(photo):
    puzzle = Puzzle.from_image(photo, (26, 40), seed=0)
    engine = Solver(solver="classic")
    with solving.followed(engine, puzzle, 0.0, quiet=True):
        early = engine.solve(puzzle)
    placed = early.positions[early.positions >= 0]
    assert early.used.early and "ended early" in early.solver
    assert len(placed) < 800 and len(set(placed.tolist())) == len(placed)
    whole = engine.solve(puzzle)
    assert not whole.used.early and (whole.positions >= 0).all()


def test_strict_tells_a_doubtful_answer_by_its_exit_code(run, pieces):
    """By chance nothing lies right, and the answer says so."""
    chance = ["solve", "p", "--grid", "3", "--solver", "random", "-o", "s.png"]
    code, out, _ = run(*chance, "--strict")
    assert code == 1 and "about 8 of 9 pieces are probably wrong; least sure: " in out
    code, out, _ = run(*chance, "--json")
    assert code == 0 and json.loads(out)["expected_wrong"] == 8
