from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from puzlm import Puzzle, Solver
from puzlm.harness.evaluate import _calibration
from puzlm.harness.results_files import read_results
from puzlm.models import pretrained as checkpoints
from puzlm.solving import calibration
from puzlm.solving.calibration import FITTED, features
from tools.fit_calibration import used_of

DOCS = Path(__file__).parents[2] / "docs"
AUTO = "auto (reader + edges + pixels)"
ANSWERS = {
    "auto reader": (AUTO, (3, 3)),
    "auto looks": ("auto (reader + edges + pixels, 6 looks)", (4, 4)),
    "auto again": ("auto (seq2seq puzlm-3x3 + reader + edges + pixels, 6 looks)", (3, 3)),
    "auto reader large": ("auto (reader + edges + pixels, 6 looks)", (6, 6)),
    "auto windows large": ("auto (reader windows + edges + pixels + frame)", (12, 16)),
    "auto framed large": ("auto (edges + pixels + frame)", (10, 12)),
    "auto sides": ("auto (edges + pixels)", (4, 4)),
    "pairs large": ("auto (edges + pixels)", (10, 10)),
    "seq2seq": ("seq2seq (valid, puzlm-3x3)", (3, 3)),
    "seq2seq beam": ("seq2seq (beam, puzlm-3x3)", (3, 3)),
    "seq2seq greedy": ("seq2seq (greedy, puzlm-3x3)", (3, 3)),
    "symbols": ("symbols (seq2seq puzlm-3x3 + sides)", (3, 3)),
    "bigram": ("bigram", (3, 3)),
    "classic": ("classic", (3, 3)),
    "classic large": ("classic", (10, 10)),
    "vision-pairs": ("vision-pairs", (4, 4)),
}


def calibrated(sentence, *rest):
    return calibration.calibrated(used_of(sentence), *rest)


def kind(sentence, cells):
    assert str(used_of(sentence)) == sentence  # nothing of it is lost
    return calibration.kind(used_of(sentence), cells)


def test_every_fitted_kind_is_reached_by_an_answer():
    assert set(FITTED) == set(ANSWERS)
    for name, (solver, grid) in ANSWERS.items():
        assert kind(solver, grid[0] * grid[1]) == name
    assert kind("seq2seq (assign)", 9) == "seq2seq beam"
    assert kind("symbols (sides)", 16) == "bigram"
    assert kind("auto (edges + pixels, clear)", 9) == "auto clear"


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
    raw, far = np.full(25, 0.8), FITTED["auto reader"]["missing"][2]
    least = 25 - int(25 * far)  # more is missing than ever was when the numbers were fitted
    few = calibrated(AUTO, raw[: least - 1], np.arange(least - 1), (5, 5))
    fewer = calibrated(AUTO, raw[: least - 9], np.arange(least - 9), (5, 5))
    np.testing.assert_allclose(few[0], fewer[0], atol=1e-9)
    assert (
        len(
            np.unique(
                [calibrated("classic", [0.5] * n * n, range(n * n), (n, n))[0] for n in (100, 110)]
            )
        )
        == 1
    )


def test_features_say_what_their_names_say():
    told = features(np.array([0.5, 0.9, 0.2, 0.4]), (2, 3), {3: 5})
    odds = np.log(np.array([1, 9, 0.25]))
    np.testing.assert_allclose(told["own"][:3], odds, atol=1e-9)
    np.testing.assert_allclose(
        told["others"], [odds[[1, 2]].mean(), odds[[0, 2]].mean(), odds[[0, 1]].mean(), odds.mean()]
    )
    np.testing.assert_allclose(told["least"], odds[[2, 2, 0, 2]])
    spread = np.log(
        0.02 + np.array([odds[[1, 2]].std(), odds[[0, 2]].std(), odds[:2].std(), odds.std()])
    )
    np.testing.assert_allclose(told["spread"], spread)
    assert told["missing"][0] == pytest.approx(2 / 6) and told["given"][0] == pytest.approx(1 / 6)
    alone = features(np.array([0.9, 0.4]), (1, 2), {1: 1})  # no other piece is in doubt
    assert alone["others"][0] == alone["least"][0] == pytest.approx(np.log(9))


@pytest.mark.parametrize("name", ["bigram", "vision-pairs"])
def test_where_only_the_whole_may_be_shifted_sides_are_surer(name):
    """Pieces that touch are all equally sure, worn ones differ; as a whole both sound the same."""
    odds = np.array([1.0] * 9), np.array([1.0, 0.0, 2.0, 0.5, 1.5, 0.0, 2.0, 0.2, 1.8])
    alike, differ = (calibrated(name, 1 / (1 + np.exp(-x)), range(9), (3, 3))[0] for x in odds)
    assert alike > differ + 0.05


def test_sides_alone_are_told_apart_close_to_certainty():
    near, nearer = (np.full(9, x) for x in (0.995, 0.9999))
    for solver, differ in (("bigram", True), (AUTO, False)):
        said = [calibrated(solver, x, range(9), (3, 3))[0] for x in (near, nearer)]
        assert (said[1] > said[0]) == differ


def test_a_piece_is_judged_by_those_around_it():
    rng = np.random.default_rng(0)
    grid, at, sure = (6, 9), rng.permutation(54)[:50], rng.uniform(0.1, 0.9, 50)
    at[3] = -1  # not placed
    told = features(sure, grid, positions=at)
    row, column = np.divmod(at, 9)
    for i in range(50):
        near = (abs(row - row[i]) <= 2) & (abs(column - column[i]) <= 2) & (at >= 0)
        near[i] = False
        wanted = told["own"][near].mean() if at[i] >= 0 else np.inf
        assert told["near"][i] == pytest.approx(min(wanted, told["others"][i]))
    assert np.array_equal(features(sure, grid)["near"], told["others"])  # places not known


def test_a_large_board_is_surest_where_all_fits():
    """One wrong region on a 10x10 board: pieces there are less sure, even those that fit."""
    at, raw = np.arange(100), np.ones(100)
    wrong = (at // 10 < 4) & (at % 10 < 4)
    raw[wrong & (at % 2 == 0)] = 0.25
    sure = calibrated("auto (edges + pixels)", raw, at, (10, 10))
    assert sure[wrong & (at % 2 == 1)].max() < sure[77:].min()
    assert (1 - sure[0]) > 10 * (1 - sure[99])


def test_unknown_kinds_and_pieces_not_placed_stay_as_they_are():
    raw = np.array([0.3, 0.123456789, 0.9])
    for solver in ("random", "my:solver", "auto (seq2seq + pixels)"):
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


@pytest.mark.parametrize("name", ["auto", "seq2seq", "classic"])
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
    own = Solver(
        shipped.tokenizer, shipped.reader, card={**shipped.card, "name": "mine"}, solver="seq2seq"
    )
    shipped.raw = True
    assert np.array_equal(own.solve(puzzle).confidences, shipped.solve(puzzle).confidences)


def test_a_run_that_is_called_like_a_shipped_model_is_not_one(photo, tmp_path):
    folder = tmp_path / "puzlm-3x3"
    shutil.copytree(checkpoints.BOX / "puzlm-3x3", folder, ignore=lambda *_: ["card.json"])
    puzzle = Puzzle.from_image(photo, 3, gap=0.4, seed=3)
    own = Solver.from_pretrained(folder, solver="seq2seq", decoding="beam")
    shipped = Solver.from_pretrained("puzlm-3x3", solver="seq2seq", decoding="beam")
    told = shipped.variant(solver="seq2seq", decoding="beam").solve(puzzle).confidences
    assert np.array_equal(told, shipped.solve(puzzle).confidences)
    shipped.raw, shipped.card["temperature"] = True, 1.0
    raw = own.solve(puzzle).confidences
    assert np.array_equal(raw, shipped.solve(puzzle).confidences) and not np.allclose(raw, told)


def test_numbers_hold_only_known_features():
    known = features(np.full(4, 0.5), (2, 2))
    for numbers in FITTED.values():
        assert set(numbers) <= set(known) and numbers["own"][0] > 0
        assert all(low <= high for _, low, high in numbers.values())


def test_numbers_are_those_of_the_fits_on_record():
    files = [
        DOCS / "runs" / f"calibration-{name}.json"
        for name in [
            "val",
            "framed",
            "neighbours",
            "worn",
            "looks",
            "windows",
            "split",
            "whole",
            "reader",
        ]
    ]
    fits = [json.loads(file.read_text()) for file in files]
    kinds = {name: found["numbers"] for fit in fits for name, found in fit["kinds"].items()}
    assert json.loads(json.dumps(FITTED)) == {kind: kinds[kind] for kind in FITTED}
    assert max(fit["version"] for fit in fits) == calibration.VERSION


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("tools.fit_calibration")


def test_fitting_finds_out_how_far_a_solver_can_be_trusted(script):
    """Answers that are right as often as half their log-odds say, and less often with holes."""
    rng = np.random.default_rng(0)

    def answers(count, n):
        made = []
        for _ in range(count):
            raw = rng.uniform(0.03, 0.99, n)
            odds = 0.5 * np.log(raw / (1 - raw)) - (0.7 if n < 9 else 0.0)
            wrong = rng.uniform(size=n) > 1 / (1 + np.exp(-odds))
            made.append(
                {
                    "confidences": raw,
                    "positions": np.arange(n),
                    "grid": [3, 3],
                    "solver": AUTO,
                    "truth": np.where(wrong, -1, np.arange(n)),
                }
            )
        return [script.pieces_of(record) for record in made]

    numbers = script.fit_one({"whole": answers(400, 9), "holes": answers(400, 6)}, script.SMALL)
    assert numbers["own"][0] == pytest.approx(0.5, abs=0.05)
    assert numbers["missing"][0] * 3 / 9 == pytest.approx(-0.7, abs=0.15)
    assert abs(numbers["others"][0]) < 0.1 and "given" not in numbers  # never varied
    told, right, raw = (
        np.concatenate(x) if isinstance(x[0], np.ndarray) else x
        for x in zip(*answers(300, 6), strict=True)
    )
    sure = np.concatenate([calibration.judged(one, numbers) for one in told])
    assert script.ece(sure, right) < 0.04 < 0.1 < script.ece(raw, right)


def test_the_error_is_that_of_results_files(script):
    rng = np.random.default_rng(3)
    sure = rng.uniform(0, 1, 500).round(2)
    right = (rng.uniform(0, 1, 500) < sure**2).astype(float)
    record = {"confidences": sure.tolist(), "positions": right.tolist(), "truth": [1.0] * 500}
    assert script.ece(sure, right) == pytest.approx(_calibration([record])["ece"])


def test_chance_is_the_error_of_true_confidences(script):
    """Of few puzzles, and of such that are right or wrong as a whole, it is larger."""
    rng = np.random.default_rng(4)

    def answers(count, whole):
        sure = [np.full(9, rng.uniform(0.3, 1)) for _ in range(count)]
        return [(x, (rng.uniform(size=1 if whole else 9) < x).astype(float)) for x in sure]

    for whole in (True, False):
        got = [
            script.ece(*map(np.concatenate, zip(*answers(60, whole), strict=True)))
            for _ in range(40)
        ]
        told = np.mean([script.chance(answers(60, whole)) for _ in range(5)])
        assert told == pytest.approx(np.mean(got), rel=0.25)
    single, whole = (script.chance(answers(60, x)) for x in (False, True))
    assert whole > 1.5 * single
    assert script.chance(answers(600, True)) < 0.6 * whole
    modest = [(x - 0.2, y) for x, y in answers(300, False)]  # off by 0.2: that is no chance
    assert (
        script.ece(*map(np.concatenate, zip(*modest, strict=True)))
        > 0.15
        > 3 * script.chance(modest)
    )


def test_what_calibrating_does_to_raw_files_is_told_and_changes_none(script, tmp_path):
    raw, now, name = tmp_path / "raw", tmp_path / "now", "imagenet-3x3.auto.json"
    outcomes = [
        {
            "solver": AUTO,
            "grid": [3, 3],
            "given": {"0": 0},
            "truth": [*range(9)],
            "positions": [*range(9)] if i % 2 else [0, 2, 1, *range(3, 9)],
            "confidences": [1.0] + [0.6] * 8,
        }
        for i in range(10)
    ]
    file = {"solver": "auto", "puzzles": 10, "settings": {}, "ece": 0.275, "outcomes": outcomes}
    for folder, ece in ((raw, 0.275), (now, 0.123)):
        folder.mkdir()
        (folder / name).write_text(json.dumps({**file, "ece": ece}))
    before = (raw / name).read_bytes()
    script.test(str(raw), str(now), str(tmp_path / "out.json"))
    row = json.loads((tmp_path / "out.json").read_text())["files"][0]
    said = calibrated(AUTO, [1.0] + [0.6] * 8, range(9), (3, 3), {0: 0})[1]
    assert (row["file"], row["puzzles"], row["before"]) == (name, 10, 0.123)
    assert row["raw"] == pytest.approx(0.275)  # 70 of 80 pieces are right
    assert row["after"] == pytest.approx(abs(said - 0.875), abs=1e-4)
    assert row["chance"] > 0.01 and (raw / name).read_bytes() == before


def test_results_files_are_written_anew_once(script, tmp_path, capsys):
    name = "imagenet-lsej-10x10-5.imagenet-val-500.classic.json"
    kept = read_results(DOCS.parent / "results" / "clean" / name)
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
