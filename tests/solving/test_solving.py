"""Many puzzles with one command: found, solved together, and a bad one spoils no other."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from puzlm.cli.solve import find, pictures, remarks
from puzlm.errors import PuzzleError, SettingsError
from puzlm.images import read_image, write_image
from puzlm.puzzle import Puzzle, shuffled
from puzlm.solver import Solver

COMMAND = [sys.executable, "-m", "puzlm"]


def puzlm(*arguments, code=0, **options):
    command = [*COMMAND, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def box(tmp_path_factory, photo):
    """Three good puzzles of two grids, one damaged, one empty folder."""
    folder = tmp_path_factory.mktemp("box")
    for name, grid, seed in (("a", 3, 1), ("b", "2x3", 2), ("c", 3, 3)):
        Puzzle.from_image(photo, grid, seed=seed).save(folder / name)
    (folder / "damaged").mkdir()
    for number in range(4):
        (folder / "damaged" / f"{number}.png").write_text("no picture")
    (folder / "empty").mkdir()
    return folder


def truth(folder):
    return json.loads((folder / "puzzle.json").read_text())["truth"]


def test_a_folder_of_folders(box, tmp_path):
    done = puzlm("solve", box, "-o", tmp_path / "out", "--gif", tmp_path / "gifs", "--json", code=2)
    answers = {Path(record["puzzle"]).name: record for record in json.loads(done.stdout)}
    assert list(answers) == ["a", "b", "c", "damaged", "empty"]
    for name in "abc":
        assert answers[name]["positions"] == truth(box / name) and answers[name]["perfect"] == 1
        height, width = read_image(box / name / "piece_0.png").shape[:2]
        rows, columns = answers[name]["grid"]
        assert answers[name]["image"] == str(tmp_path / "out" / f"{name}.png")
        assert read_image(answers[name]["image"]).shape == (rows * height, columns * width, 3)
        with Image.open(tmp_path / "gifs" / f"{name}.gif") as movie:
            assert movie.n_frames > 3
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.png", "b.png", "c.png"]
    lines = done.stderr.splitlines()  # a line each, naming the puzzle
    assert len(lines) == 2 and all(line.startswith("puzlm: ") for line in lines)
    assert "damaged" in lines[0] and "not an image" in lines[0] and "empty" in lines[1]
    assert answers["damaged"]["error"] in lines[0] and "positions" not in answers["damaged"]


def test_a_table_for_people_and_a_bar_on_a_terminal(box, tmp_path):
    """stderr is a terminal, stdout a file: the bar must not get into the table."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "solve", box / "a", box / "b", "-o", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=300,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            part = b""
        if not part:
            break
        seen += part
    os.close(ours)
    assert done.returncode == 0 and b"solving" in seen
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "puzzle",
        "grid",
        "pieces",
        "sure",
        "least",
        "right",
        "solved",
        "by",
    ]
    assert lines[1].split()[:3] == ["a", "3x3", "9"] and "100%" in lines[1]
    assert lines[2].split()[:3] == ["b", "2x3", "6"]
    assert lines[3].startswith("2 of 2 puzzles solved") and lines[4] == f"pictures: {tmp_path}/out"


def test_a_pattern_of_pictures(tmp_path, photo):
    """Pictures have no truth; equal names are told apart; the puzzle is not overwritten."""
    puzzles = [Puzzle.from_image(photo, 3, seed=seed) for seed in (1, 2)]
    for folder, puzzle in zip("xy", puzzles, strict=True):
        write_image(tmp_path / folder / "sheet.png", shuffled(puzzle))
    done = puzlm("solve", f"{tmp_path}/*/sheet.png", "--grid", 3, "-o", tmp_path / "o", "--json")
    records = json.loads(done.stdout)
    assert [record["positions"] for record in records] == [p.truth.tolist() for p in puzzles]
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == ["x-sheet.png", "y-sheet.png"]
    before = (tmp_path / "x" / "sheet.png").read_bytes()
    done = puzlm("solve", f"{tmp_path}/x/*", "--grid", 3, "-o", tmp_path / "x", code=2)
    assert "would overwrite" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "x" / "sheet.png").read_bytes() == before


@pytest.mark.parametrize("output", ["s.png", "p/piece_0.png"])
@pytest.mark.parametrize("option", ["-o", "--gif"])
def test_one_puzzle_is_not_overwritten_either(output, option, tmp_path, photo):
    puzzle = Puzzle.from_image(photo, 2, seed=1)
    puzzle.save(tmp_path / "p")
    write_image(tmp_path / "s.png", shuffled(puzzle))
    before = (tmp_path / output).read_bytes()
    path = tmp_path / output if output == "s.png" else tmp_path / "p"
    more = ["--grid", 2, "--solver", "classic", option, tmp_path / "p" / ".." / output]
    done = puzlm("solve", path, *more, code=2, cwd=tmp_path)
    assert f"would overwrite the puzzle; choose another {option}" in done.stderr
    assert (tmp_path / output).read_bytes() == before and not (tmp_path / "solved.png").exists()


def test_solvers_are_offered_where_they_can_be_used():
    wide = {**os.environ, "COLUMNS": "200"}
    assert "module:function" not in puzlm("solve", "--help", env=wide).stdout
    assert "module:function" in puzlm("evaluate", "--help", env=wide).stdout


def test_a_puzzle_too_small_to_solve_spoils_no_other(tmp_path, photo):
    for name, picture in (("a", photo), ("b", photo[:3, :3]), ("c", photo)):
        write_image(tmp_path / f"{name}.png", picture)
    paths = [tmp_path / f"{name}.png" for name in "abc"]
    done = puzlm("solve", *paths, "--grid", 3, "-o", tmp_path / "o", code=2)
    assert "b.png: pieces are 1x1 pixels" in done.stderr and done.stderr.count("\n") == 1
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == ["a.png", "c.png"]


def test_pieces_that_puzzle_json_gives_stay(tmp_path, photo):
    made = Puzzle.from_image(photo, 2, seed=1)
    wrong = {0: int(made.truth[1])}
    Puzzle(made.pieces, made.grid, made.truth, settings={"given": wrong}).save(tmp_path / "p")
    for options, cell in (([], wrong[0]), (["--given", f"0={made.truth[0]}"], made.truth[0])):
        done = puzlm("solve", tmp_path / "p", "-o", tmp_path / "s.png", "--json", *options)
        assert json.loads(done.stdout)["positions"][0] == cell


def test_what_paths_mean(box, tmp_path):
    assert find([box / "a"]) == box / "a"  # one puzzle
    assert find([box / "a" / "shuffled.png"]) == box / "a" / "shuffled.png"
    assert find([box / "a", box / "a"]) == [box / "a"]
    assert find([box]) == [box / name for name in ("a", "b", "c", "damaged", "empty")]
    assert find([Path(f"{box}/[ac]")]) == [box / "a", box / "c"]
    with pytest.raises(PuzzleError, match="pattern"):
        find([Path(f"{box}/z*")])
    with pytest.raises(PuzzleError, match="no piece files"):
        find([box / "empty"])
    assert [p.name for p in pictures([Path("a.png"), Path("b.jpg")], tmp_path)] == [
        "a.png",
        "b.png",
    ]
    same = pictures([Path("p/s.png"), Path("q/s.png"), Path("q/s.jpg")], tmp_path)
    assert [p.name for p in same] == ["p-s.png", "q-s.png", "q-s-2.png"]
    same = pictures([Path("p/a.png"), Path("p/a.jpg"), Path("p/a-2.png")], tmp_path)
    assert [p.name for p in same] == ["p-a.png", "p-a-3.png", "p-a-2.png"]
    with pytest.raises(SettingsError, match="folder"):
        pictures([Path("a.png")], Path("x.png"))


def test_open_hands_the_picture_to_the_system(box, tmp_path):
    """What opens files is a program of the desktop; a script stands for it here."""
    for name in ("xdg-open", "open"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/opened\n')
        (tmp_path / name).chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    puzlm("solve", box / "b", "--solver", "classic", "-o", tmp_path / "s.png", "--open", env=path)
    for _ in range(200):
        if (tmp_path / "opened").exists() and (tmp_path / "opened").read_text():
            break
        subprocess.run(["sleep", "0.05"], check=True)
    assert (tmp_path / "opened").read_text().strip() == str(tmp_path / "s.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve"], "missing argument"),
        (["slove", "x"], "no such command 'slove'"),
        (["solve", "x", "--gird", "3"], "--gird"),
        (["make", "x.png", "-o", "y", "--seed", "one"], "--seed"),
        (["solve", "{box}", "--given", "0=1"], "--given"),
        (["solve", "{box}", "-o", "x.png"], "a folder is needed"),
    ],
)
def test_errors_of_usage_have_the_shape_of_all_others(box, arguments, message):
    done = puzlm(*[a.format(box=box) for a in arguments], code=2)
    assert done.stderr.startswith("puzlm: ") and done.stderr.count("\n") == 1
    assert message in done.stderr and done.stdout == ""


def test_the_shell_completes(tmp_path):
    def completed(words):
        env = {
            **os.environ,
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            "_PUZLM_COMPLETE": "complete_bash",
        }
        code = "import sys; sys.argv[0] = 'puzlm'; from puzlm.cli.main import main; main()"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        return done.stdout.split()

    assert completed("puzlm so") == ["solve"]
    assert completed("puzlm solve --rot") == ["--rotations"]


def test_a_sheet_says_what_grid_it_was_read_with(photo, tmp_path):
    """A wrong grid was solved as it lay, with a high confidence and without a word."""
    sheet = shuffled(Puzzle.from_image(photo, 3, seed=2))
    write_image(tmp_path / "s.png", sheet)

    def said(grid=None):
        puzzle = Puzzle.load(tmp_path / "s.png", grid)
        return remarks(Solver(solver="classic").solve(puzzle), puzzle)

    assert said() == ["grid 3x3, found from the seams; --grid sets another"]
    assert said("3") == []
    divides, lies = said("4")
    assert "does not divide into 4x4" in divides and "where it lay" in lies
