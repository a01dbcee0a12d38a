from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from puzlm import Puzzle, Solver, calibration
from puzlm.calibration import FITTED, calibrated, features, kind

DOCS = Path(__file__).parents[1] / "docs"
AUTO = "auto (seq2seq puzlm-3x3 + vision + edges + pixels)"
ANSWERS = {
    "auto": (AUTO, (3, 3)), "auto sides": ("auto (edges + pixels)", (4, 4)),
    "seq2seq": ("seq2seq (valid, puzlm-3x3)", (3, 3)), "vision": ("vision", (5, 5)),
    "bigram": ("bigram", (3, 3)), "classic": ("classic", (3, 3)),
    "pairs large": ("auto (edges + pixels)", (10, 10)), "classic large": ("classic", (10, 10)),
}  # fmt: skip


def test_every_fitted_kind_is_reached_by_an_answer():
    assert set(FITTED) == set(ANSWERS)
    for name, (solver, grid) in ANSWERS.items():
        assert kind(solver, grid[0] * grid[1]) == name


@pytest.mark.parametrize("name", ANSWERS)
def test_a_surer_piece_is_never_said_to_be_less_sure(name):
    """Whatever the rest of the puzzle says, and with holes and given pieces too."""
    solver, grid = ANSWERS[name]
    cells = grid[0] * grid[1]
    rng = np.random.default_rng(0)
    rose = 0
    for trial in range(30):
        n = cells - trial % 3
        positions = rng.permutation(cells)[:n]
        raw = rng.uniform(0, 1, n) ** (0.2 if trial % 2 else 1)
        given = {1: int(positions[1])} if trial % 5 == 0 else {}
        told = []
        for own in (0.0, 1e-6, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.99999, 1.0):
            raw[0] = own
            sure = calibrated(solver, raw, positions, grid, given)
            assert ((sure >= 0) & (sure <= 1)).all()
            assert all(sure[piece] == 1.0 for piece in given)
            told.append(sure[0])
        assert (np.diff(told) >= 0).all()
        rose += told[-1] > told[0]
    assert rose == 30


def test_a_puzzle_unlike_all_known_ones_is_treated_as_the_nearest_known():
    raw, far = np.full(25, 0.8), FITTED["auto"]["missing"][2]
    least = 25 - int(25 * far)  # more is missing than ever was when the numbers were fitted
    few = calibrated(AUTO, raw[: least - 1], np.arange(least - 1), (5, 5))
    fewer = calibrated(AUTO, raw[: least - 9], np.arange(least - 9), (5, 5))
    np.testing.assert_allclose(few[0], fewer[0], atol=1e-9)
    assert len(np.unique([calibrated("classic", [0.5] * n * n, range(n * n), (n, n))[0]
                          for n in (100, 110)])) == 1  # fmt: skip


def test_features_say_what_their_names_say():
    told = features(np.array([0.5, 0.9, 0.2, 0.4]), (2, 3), {3: 5})
    odds = np.log(np.array([1, 9, 0.25]))
    np.testing.assert_allclose(told["own"][:3], odds, atol=1e-9)
    np.testing.assert_allclose(told["others"], [odds[[1, 2]].mean(), odds[[0, 2]].mean(),
                                                odds[[0, 1]].mean(), odds.mean()])  # fmt: skip
    np.testing.assert_allclose(told["least"], odds[[2, 2, 0, 2]])
    assert told["missing"][0] == pytest.approx(2 / 6) and told["given"][0] == pytest.approx(1 / 6)
    alone = features(np.array([0.9, 0.4]), (1, 2), {1: 1})  # no other piece is in doubt
    assert alone["others"][0] == alone["least"][0] == pytest.approx(np.log(9))


def test_unknown_kinds_and_pieces_not_placed_stay_as_they_are():
    raw = np.array([0.3, 0.123456789, 0.9])
    for solver in ("random", "my:solver", "seq2seq (beam, puzlm-3x3)", "auto (seq2seq + pixels)"):
        assert np.array_equal(calibrated(solver, raw, [0, 1, 2], (2, 2)), raw)
    told = calibrated("classic", raw, [0, -1, 2], (2, 2))
    assert told[1] == raw[1] and told[0] != raw[0]


def test_a_results_file_gives_the_confidences_of_a_fresh_run():
    """Files hold five decimals; from those the same confidences come, to the last bit."""
    rng = np.random.default_rng(1)
    for scale in (1.0, 1e-4):
        raw = 1 - scale * rng.uniform(0, 1, 9)
        stored = [round(float(value), 5) for value in raw]
        fresh = calibrated(AUTO, raw, range(9), (3, 3))
        assert np.array_equal(fresh, calibrated(AUTO, stored, range(9), (3, 3)))


@pytest.mark.parametrize("name", ["auto", "seq2seq", "vision", "classic"])
def test_a_solver_calibrates_and_answers_as_before(name, photo):
    solver = Solver.from_pretrained(solver=name)
    puzzle = Puzzle.from_image(photo, 3, gap=0.4, missing=1, seed=3)
    given = {0: int(puzzle.truth[0])}
    told = solver.solve(puzzle, given=given)
    solver.raw = True
    raw = solver.solve(puzzle, given=given)
    assert np.array_equal(told.positions, raw.positions) and told.order == raw.order
    want = calibrated(raw.solver, raw.confidences, raw.positions, raw.grid, given)
    assert np.array_equal(told.confidences, want) and told.confidences[0] == 1.0
    assert not np.allclose(told.confidences[1:], raw.confidences[1:], atol=1e-3)


def test_a_model_of_your_own_keeps_the_confidences_it_states(photo):
    puzzle = Puzzle.from_image(photo, 3, gap=0.4, seed=3)
    shipped = Solver.from_pretrained(solver="seq2seq")
    own = Solver(shipped.tokenizer, shipped.reader, card={**shipped.card, "name": "mine"},
                 solver="seq2seq")  # fmt: skip
    shipped.raw = True
    assert np.array_equal(own.solve(puzzle).confidences, shipped.solve(puzzle).confidences)


def test_numbers_hold_only_known_features():
    known = features(np.full(4, 0.5), (2, 2))
    for numbers in FITTED.values():
        assert set(numbers) <= set(known) and numbers["own"][0] > 0
        assert all(low <= high for _, low, high in numbers.values())
    assert calibration.VERSION >= 1


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("fit_calibration", DOCS / "fit_calibration.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_calibration"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_fitting_finds_out_how_far_a_solver_can_be_trusted(script):
    """Answers that are right as often as half their log-odds say, and less often with holes."""
    rng = np.random.default_rng(0)

    def answers(count, n):
        made = []
        for _ in range(count):
            raw = rng.uniform(0.03, 0.99, n)
            odds = 0.5 * np.log(raw / (1 - raw)) - (0.7 if n < 9 else 0.0)
            wrong = rng.uniform(size=n) > 1 / (1 + np.exp(-odds))
            made.append({"confidences": raw, "positions": np.arange(n), "grid": [3, 3],
                         "truth": np.where(wrong, -1, np.arange(n))})  # fmt: skip
        return [script.pieces_of(record) for record in made]

    numbers = script.fit_one({"whole": answers(400, 9), "holes": answers(400, 6)}, script.SMALL)
    assert numbers["own"][0] == pytest.approx(0.5, abs=0.05)
    assert numbers["missing"][0] * 3 / 9 == pytest.approx(-0.7, abs=0.15)
    assert abs(numbers["others"][0]) < 0.1 and "given" not in numbers  # never varied
    told, right, raw = (np.concatenate(x) if isinstance(x[0], np.ndarray) else x
                        for x in zip(*answers(300, 6), strict=True))  # fmt: skip
    sure = np.concatenate([calibration.judged(one, numbers) for one in told])
    assert script.ece(sure, right) < 0.04 < 0.1 < script.ece(raw, right)


def test_results_files_are_written_anew_once(script, tmp_path, capsys):
    kept = json.loads((DOCS / "results" / "imagenet-lsej-10x10-5.classic.json").read_text())
    old = {**kept, "commit": "unknown", "settings": {}}
    for record in old["outcomes"]:
        record["confidences"] = [0.25] * 100  # as if raw
    path = tmp_path / "r.json"
    path.write_text(json.dumps(old))
    script.apply(str(path))
    new = json.loads(path.read_text())
    want = calibrated("classic", [0.25] * 100, range(100), (10, 10))[0]
    assert {c for r in new["outcomes"] for c in r["confidences"]} == {round(float(want), 5)}
    right = np.mean([np.equal(r["positions"], r["truth"]) for r in new["outcomes"]])
    assert new["ece"] == pytest.approx(abs(right - want), abs=1e-4)
    assert new["settings"] == {"calibration": calibration.VERSION}
    assert all(new[key] == old[key] for key in ("absolute", "perfect", "puzzles"))
    script.apply(str(path))
    assert "left as it is" in capsys.readouterr().out
    assert json.loads(path.read_text()) == new
