"""Results files: scores, failures, resuming, fairness."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from evaluating import PLAIN, crop, oracle, truths_of, write_photos
from PIL import Image

from puzlm.errors import PuzzleError, SettingsError
from puzlm.harness import evaluate as evaluate_module
from puzlm.harness.evaluate import Answer, evaluate, load_solver_function, random_solver
from puzlm.harness.protocols import PROTOCOLS, make_puzzle, read_data
from puzlm.harness.results_files import read_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Hold 120 small photos: three chunks, so that two are saved before the last."""
    return write_photos(tmp_path_factory.mktemp("photos"), 120)


@pytest.fixture(scope="module")
def truths(folder):
    return truths_of(folder)


def test_results_file(tmp_path, folder, truths):
    output = tmp_path / "deep" / "results.json"
    ticks = []
    solver = oracle(truths, wrong={3, 4})
    more = {"solver_name": "oracle", "settings": {"beam": 4}, "progress": ticks.append}
    result = evaluate(solver, PLAIN, folder, limit=20, output=output, **more)
    assert json.loads(output.read_text()) == result == read_results(output)
    assert [p.name for p in output.parent.iterdir()] == ["results.json"]
    assert result["perfect"]["value"] == 90.0
    assert result["absolute"]["value"] == pytest.approx(100 * (18 + 2 * 7 / 9) / 20, abs=0.01)
    assert result["absolute"]["low"] < result["absolute"]["value"] < result["absolute"]["high"]
    assert result["puzzles"] == ticks[-1] == 20 and result["failed"] == 0
    assert result["protocol"]["piece"] == 96 and result["settings"] == {"beam": 4}
    assert result["data"]["scale"] == [round(96 / 288, 4)] * 2  # the crops are small
    assert len(result["outcomes"]) == 20
    record = result["outcomes"][1]
    assert record["index"] == 6 and record["name"] == "006.png" and record["seed"] == [0, 6]
    assert record["truth"] == record["positions"] and record["perfect"] == 1.0
    # 180 pieces at 0.95 sure, 4 of them wrong.
    assert result["ece"] == pytest.approx(176 / 180 - 0.95)
    assert [b["count"] for b in result["reliability"]] == [0] * 9 + [180]
    assert result["reliability"][9]["accuracy"] == pytest.approx(176 / 180)


def test_turned_pieces(folder):
    protocol = replace(PLAIN, name="turned", turned=True)
    (_, puzzle), *_ = read_data(folder, protocol, 1)
    (_, plain), *_ = read_data(folder, PLAIN, 1)
    needed = np.array(puzzle.settings["turns"])
    assert len(set(needed.tolist())) > 1 and "turned" not in PLAIN.settings()
    for piece, upright, turn in zip(puzzle.pieces, plain.pieces, needed, strict=True):
        np.testing.assert_array_equal(np.rot90(piece, turn), upright)

    def score(positions, turns):
        def solve(puzzles):
            assert all(p.settings == {"rotations": True} for p in puzzles)
            return [Turned(positions, None, "turned", tuple(turns)) for _ in puzzles]

        return evaluate(solve, protocol, folder, limit=1)["outcomes"][0]

    # Pieces cannot tell which way up the whole picture is, so each of the four ways is right.
    quarter = np.rot90(np.arange(9).reshape(3, 3)).ravel().argsort()
    positions, turns = puzzle.truth, needed
    for _ in range(4):
        assert score(positions, turns)["perfect"] == score(positions, turns)["neighbour"] == 1
        positions, turns = quarter[positions], (turns + 1) % 4
    wrong = needed.copy()
    wrong[puzzle.truth == 4] += 1
    assert score(puzzle.truth, wrong % 4)["absolute"] == pytest.approx(8 / 9)
    assert score(puzzle.truth, wrong % 4)["neighbour"] == pytest.approx(8 / 12)
    untouched = max(np.mean(needed == turn) for turn in range(4))
    assert score(puzzle.truth, ())["absolute"] <= untouched
    assert "turns of shape" in score(puzzle.truth, (0, 1))["error"]


@dataclass(frozen=True)
class Turned(Answer):
    turns: tuple[int, ...] = ()


def test_solvers_are_not_told_the_truth(folder):
    seen = []

    def spy(puzzles):
        seen.extend(puzzles)
        return random_solver()(puzzles)

    evaluate(spy, PROTOCOLS["jpwleg-3-fixed-centre"], folder, limit=3)
    assert len(seen) == 3
    for puzzle in seen:
        assert puzzle.truth is None and puzzle.names == ()
        assert set(puzzle.settings) == {"given"}


def test_random_is_the_floor_and_repeats(folder):
    first = evaluate(random_solver(1), PLAIN, folder)
    again = evaluate(random_solver(1), PLAIN, folder, limit=60)
    other = evaluate(random_solver(2), PLAIN, folder, limit=60)
    assert 8 < first["absolute"]["value"] < 15  # 1 / 9
    assert first["ece"] < 0.05
    half = [r["positions"] for r in again["outcomes"]]
    assert half == [r["positions"] for r in first["outcomes"][::2]]
    assert half != [r["positions"] for r in other["outcomes"]]
    assert first["data"]["fingerprint"] != again["data"]["fingerprint"]
    assert again["data"]["fingerprint"] == other["data"]["fingerprint"]


def test_fixed_centre_is_not_scored():
    protocol = PROTOCOLS["jpwleg-3-fixed-centre"]
    puzzle = make_puzzle(protocol, crop(0), 0)
    ((centre, _),) = puzzle.settings["given"].items()

    def with_positions(positions):
        def solve(puzzles):
            return [Answer(positions, np.full(9, 0.5), "x") for _ in puzzles]

        (record,) = evaluate(solve, protocol, [(0, puzzle)])["outcomes"]
        return record

    unplaced = puzzle.truth.copy()
    unplaced[centre] = -1  # a solver need not place what is given
    record = with_positions(unplaced)
    assert (record["absolute"], record["perfect"], record["neighbour"]) == (1.0, 1.0, 1.0)
    swapped = puzzle.truth.copy()
    one, two = [i for i in range(9) if i != centre][:2]
    swapped[[one, two]] = swapped[[two, one]]
    assert with_positions(swapped)["absolute"] == 6 / 8  # of 8, not 7 / 9


def test_missing_pieces_score_the_present(folder):
    result = evaluate(random_solver(), PROTOCOLS["imagenet-3x3-missing-3"], folder, limit=4)
    for record in result["outcomes"]:
        assert len(record["truth"]) == len(record["positions"]) == 6
        hits = np.mean(np.array(record["truth"]) == np.array(record["positions"]))
        assert record["absolute"] == hits


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ([0, 1, 2], "9 whole numbers are needed"),
        (None, "9 whole numbers are needed"),
        (np.arange(9.0), "9 whole numbers are needed"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 9], "outside 0 to 8"),
        ([0, 1, 2, 3, 4, 5, 6, 7, -2], "outside 0 to 8"),
    ],
)
def test_nonsense_scores_nothing(folder, positions, words):
    def solve(puzzles):
        return [Answer(positions, None, "nonsense") for _ in puzzles]

    result = evaluate(solve, PLAIN, folder, limit=2)
    assert result["failed"] == 2 and result["absolute"]["value"] == 0.0
    assert all(words in record["error"] for record in result["outcomes"])
    assert result["ece"] is None


def test_a_cell_taken_twice_is_scored_piece_by_piece(folder, truths):
    def solve(puzzles):
        found = [truths[p.pieces.tobytes()].copy() for p in puzzles]
        for positions in found:
            positions[0] = positions[1]
        return [Answer(positions, None, "greedy") for positions in found]

    result = evaluate(solve, PLAIN, folder, limit=2)
    assert (result["failed"], result["repeated"]) == (0, 2)
    assert all(record["absolute"] == 8 / 9 for record in result["outcomes"])
    assert result["perfect"]["value"] == 0.0
    whole = evaluate(oracle(truths), PLAIN, folder, limit=2)
    assert whole["repeated"] == 0


@pytest.mark.parametrize("sure", [[0.5] * 3, [1.5] * 9, [float("nan")] * 9])
def test_confidences_must_be_probabilities(folder, truths, sure):
    def solve(puzzles):
        return [Answer(truths[p.pieces.tobytes()], np.array(sure), "x") for p in puzzles]

    result = evaluate(solve, PLAIN, folder, limit=1)
    assert "confidences must be 9 numbers" in result["outcomes"][0]["error"]


def test_one_crash_spares_the_others(folder, truths):
    right = oracle(truths)
    bad = next(p.pieces.tobytes() for i, p in read_data(folder, PLAIN) if i == 7)

    def fragile(puzzles):
        if any(p.pieces.tobytes() == bad for p in puzzles):
            raise RuntimeError("cannot look at this")
        return right(puzzles)

    result = evaluate(fragile, PLAIN, folder)
    failed = [r for r in result["outcomes"] if r["error"]]
    assert [(r["index"], r["error"]) for r in failed] == [(7, "RuntimeError: cannot look at this")]
    assert sum(r["perfect"] for r in result["outcomes"]) == 119

    def too_few(puzzles):
        return right(puzzles)[:-1]

    result = evaluate(too_few, PLAIN, folder, limit=2)
    assert result["failed"] == 2 and "0 answers to 1" in result["outcomes"][0]["error"]


def interrupted(truths, after):
    right, calls = oracle(truths), []

    def solve(puzzles):
        calls.append(len(puzzles))
        if len(calls) > after:
            raise KeyboardInterrupt
        return right(puzzles)

    return solve


def test_interruption_resumes(tmp_path, folder, truths):
    output = tmp_path / "results.json"
    partial = tmp_path / "results.json.partial.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate(interrupted(truths, 1), PLAIN, folder, output=output, solver_name="oracle")
    assert not output.exists()
    assert len(partial.read_text().splitlines()) == 51
    with partial.open("a") as file:
        file.write('{"index": 50, "tru')  # killed while writing
    right, asked = oracle(truths), []

    def counting(puzzles):
        asked.append(len(puzzles))
        return right(puzzles)

    result = evaluate(counting, PLAIN, folder, output=output, solver_name="oracle")
    assert sum(asked) == 70 and not partial.exists()
    whole = evaluate(oracle(truths), PLAIN, folder, solver_name="oracle")
    for a, b in zip(result["outcomes"], whole["outcomes"], strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}
    assert result["data"] == whole["data"] and result["perfect"]["value"] == 100.0


def test_resuming_something_else_is_refused(tmp_path, folder, truths):
    output = tmp_path / "results.json"
    partial = tmp_path / "results.json.partial.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate(interrupted(truths, 1), PLAIN, folder, output=output, solver_name="oracle")
    kept = partial.read_text()
    right = oracle(truths)
    for words, changes in [
        ("another solver;", {"solver_name": "other"}),
        ("another beam;", {"settings": {"beam": 8}}),
        ("another protocol;", {"protocol": replace(PLAIN, seed=1)}),
    ]:
        call = {"protocol": PLAIN, "solver_name": "oracle", **changes}
        with pytest.raises(SettingsError, match=words):
            evaluate(right, call.pop("protocol"), folder, output=output, **call)
    other = tmp_path / "other"
    other.mkdir()
    Image.fromarray(crop(99)).save(other / "000.png")
    with pytest.raises(SettingsError, match="other images"):
        evaluate(right, PLAIN, other, output=output, solver_name="oracle")
    assert partial.read_text() == kept  # nothing was lost by trying
    partial.write_text("no json\n")
    with pytest.raises(SettingsError, match="damaged; delete it"):
        evaluate(right, PLAIN, folder, output=output, solver_name="oracle")


def test_bad_calls(tmp_path, folder):
    with pytest.raises(SettingsError, match="is a folder"):
        evaluate(random_solver(), PLAIN, folder, output=tmp_path)
    with pytest.raises(PuzzleError, match="no puzzles"):
        evaluate(random_solver(), PLAIN, [])
    puzzle = replace(make_puzzle(PLAIN, crop(0), 0), truth=None)
    with pytest.raises(PuzzleError, match="no truth"):
        evaluate(random_solver(), PLAIN, [(0, puzzle)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in an empty folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_documented_example_runs(here, folder):
    page = (Path(__file__).parents[2] / "docs" / "protocols.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (here / "my_solver.py").write_text(code)
    solver = load_solver_function("my_solver:solve")
    result = evaluate(solver, PLAIN, folder, limit=60, solver_name="my_solver:solve")
    assert result["failed"] == 0 and result["ece"] is None
    floor = evaluate(random_solver(), PLAIN, folder, limit=60)
    assert result["neighbour"]["low"] > floor["neighbour"]["high"]


def test_functions_of_users(here, folder):
    (here / "theirs.py").write_text(
        "seen = []\n"
        "def fails_once(pieces, grid):\n"
        "    seen.append(1)\n"
        "    if len(seen) == 2: raise OSError('lost the plot')\n"
        "    pieces[0][:] = 0\n"
        "    return list(range(grid[0] * grid[1]))\n"
        "def asks(pieces, grid, given):\n"
        "    ((piece, cell),) = given.items()\n"
        "    rest = [c for c in range(9) if c != cell]\n"
        "    return [cell if i == piece else rest.pop() for i in range(9)]\n"
        "number = 3\n"
    )
    (here / "broken.py").write_text("import nothing_of_that_name\n")
    result = evaluate(load_solver_function("theirs:fails_once"), PLAIN, folder, limit=4)
    assert [bool(r["error"]) for r in result["outcomes"]] == [False, True, False, False]
    assert result["outcomes"][1]["error"] == "OSError: lost the plot"
    centre = PROTOCOLS["jpwleg-3-fixed-centre"]
    result = evaluate(load_solver_function("theirs:asks"), centre, folder, limit=2)
    assert result["failed"] == 0
    for text, words in [
        ("theirs", "module:function"),
        ("theirs:none", "has no function 'none'"),
        ("theirs:number", "has no function 'number'"),
        ("nowhere:solve", "cannot be imported"),
        ("broken:solve", "nothing_of_that_name"),
    ]:
        with pytest.raises(SettingsError, match=words):
            load_solver_function(text)


def test_the_commit_says_when_the_code_was_changed(tmp_path, monkeypatch):
    """Only files of puzlm/ count: results and documents change with every run."""

    def git(*arguments):
        mine = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *mine, *arguments]
        return subprocess.check_output(command, text=True).strip()

    code, notes = tmp_path / "puzlm" / "harness" / "evaluate.py", tmp_path / "docs" / "results.json"
    for file in (code, notes):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    monkeypatch.setattr(evaluate_module, "__file__", str(code))
    head = git("rev-parse", "HEAD")
    notes.write_text("2")
    assert evaluate_module.current_commit() == head
    code.write_text("2")
    assert evaluate_module.current_commit() == head + "+dirty"
