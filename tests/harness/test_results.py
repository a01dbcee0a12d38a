"""The page of results: what the tables say follows from the files, in our favour or not."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from bench.variants import VARIANTS
from puzlm.errors import PuzlmError
from puzlm.harness.compare import pair
from puzlm.harness.results_files import pack, read_results

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made():
    return load("make_results")


def load(name):
    """A program of tools/, which is not installed."""
    return importlib.import_module(f"tools.{name}")


def result(perfect, absolute=None, name="imagenet-3x3-eroded", first=0, **more):
    """A results file in which puzzle i was solved if perfect[i], else scored absolute."""
    outcomes = [
        {
            "index": first + i,
            "digest": f"d{first + i}",
            "perfect": float(p),
            "absolute": 1.0 if p else (absolute or 0.0),
        }
        for i, p in enumerate(perfect)
    ]
    record = {"protocol": {"name": name, "grid": [3, 3]}, "outcomes": outcomes, "ece": 0.1}
    for measure in ("absolute", "perfect", "neighbour"):
        value = 100 * float(np.mean([o.get(measure, o["perfect"]) for o in outcomes]))
        record[measure] = {"value": value, "low": value - 1, "high": value + 1}
    data = {"name": "imagenet-val-dev.tar", "scale": [1.0, 1.0], "fingerprint": "f"}
    return {**record, "data": data, "puzzles": len(perfect), "seconds_per_puzzle": 0.5, **more}


def test_pairs_are_made_of_the_puzzles_both_hold():
    first, second = result([1, 1, 0, 0]), result([1, 0, 1], first=1)
    found = pair(first, second)  # puzzles 1, 2, 3: 1 -> 1, 0 -> 0, 0 -> 1
    assert (found.puzzles, found.won, found.lost) == (3, 1, 0)
    assert found.absolute.value == pytest.approx(100 / 3)
    assert pair(first, result([1], first=9)) is None
    assert pair(first, result([1], name="jpwleg-3")) is None


@pytest.mark.parametrize(
    ("classic", "auto", "verdict"),
    [
        ([0] * 20 + [1] * 20, [1] * 40, "better"),
        ([1] * 40, [0] * 20 + [1] * 20, "**worse**"),
        ([1] * 39 + [0], [1] * 40, "no clear difference"),  # one puzzle proves nothing
    ],
)
def test_auto_is_judged_puzzle_by_puzzle(made, classic, auto, verdict):
    rows = [("random", result([1] * 40)), ("classic", result(classic)), ("auto", result(auto))]
    text = made.auto_against_best(rows)
    assert text.startswith(f"`auto` against `classic`, the best single solver here: {verdict}, ")


def test_what_is_better_in_one_measure_is_named(made):
    none, half = result([0] * 40), result([0] * 40, 0.5)
    text = made.auto_against_best([("classic", none), ("auto", half)])
    assert "here: better in absolute, no clear difference in perfect, " in text
    near, more = result([0] * 20 + [1] * 20, 0.95), result([1] * 12 + [0] * 8 + [1] * 20, 0.9)
    text = made.auto_against_best([("classic", near), ("auto", more)])
    assert "here: better in perfect, no clear difference in absolute, " in text


def test_being_behind_is_said(made):
    best = result([1] * 7 + [0] * 3)  # 70 / 70, JPDVT published 83.3 / 68.7
    text = made.behind([("auto", best)], "imagenet-3x3-eroded")
    assert "JPDVT (CVPR 2024): absolute 83.3 to our 70.0" in text and "perfect" not in text
    assert made.behind([("auto", result([1] * 10))], "imagenet-3x3-eroded") == ""


def test_tables_hold_every_solver_and_mark_what_is_published(made):
    results = {
        ("imagenet-3x3-eroded", s): result([1, 0] * 4, 0.5, settings={"model": "m/mine"})
        for s in ("auto", "vision-pairs", "mine", "random")
    }
    lines = made.full_tables(results).splitlines()
    rows = [line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ")][1:]
    assert rows == ["random", "vision-pairs", "mine", "auto", "*JPDVT* †", "*JPDVT* †"]
    auto = next(line for line in lines if line.startswith("| auto"))
    assert "| 75.0 [74.0, 76.0] | 50.0 [49.0, 51.0] |" in auto and "0.100 | 0.500 | mine |" in auto
    for r in results.values():
        r["data"]["name"] = "test_img_48gap_33.npy"
    assert "†" not in made.full_tables(results)  # the paper's own images


def test_other_decodings_stand_below_the_usual_one_and_say_so(made):
    failed = {"auto": 0, "seq2seq-greedy": 1, "seq2seq": 0, "mine": 0}
    results = {("jpwleg-3", s): result([1, 0], failed=f) for s, f in failed.items()}
    lines = [x for x in made.full_tables(results).splitlines() if x.startswith("| ")][1:5]
    assert [x.split(" | ")[0].strip("| ") for x in lines] == [
        "mine",
        "seq2seq",
        "seq2seq-greedy",
        "auto",
    ]
    assert "decoded: greedy" in lines[2] and "1 failed" in lines[2]
    assert not any("decoded" in x for x in (lines[0], lines[1], lines[3]))


def test_training_minutes_add_up_over_a_resumed_run(tmp_path):
    made = load("results_costs")
    lines = [{"step": i, "seconds": s} for i, s in enumerate((30, 60, 90, 20, 30))]
    log = tmp_path / "run.metrics.jsonl"
    log.write_text("".join(json.dumps(x) + "\n" for x in [*lines, {"step": 9, "exam": 1}]))
    assert made.minutes(log) == pytest.approx((90 + 30) / 60)
    assert made.minutes(tmp_path / "none.jsonl") is None


def test_levers_are_rows_of_the_study(made, tmp_path):
    """Gains are over the same puzzles of the base; failed rows and other groups stay out."""

    def line(name, group, right, **more):
        share = 100 * sum(right) / 9 / len(right)
        way = {
            "absolute": {"value": share, "low": share - 1, "high": share + 1},
            "right": right,
            "ms": 1.5,
        }
        ways = {"photos": {"valid": way}, "art": {"valid": way}}
        return {
            "name": name,
            "group": group,
            "x": f"with {name}",
            "seed": 0,
            "status": "done",
            "results": ways,
            "puzzles_seen": 9000,
            "seconds": 3.0,
            "device": "CPU",
            "settings": {"seconds": 3, "recipe": {"cut": {"grid": "3"}}},
            **more,
        }

    path = tmp_path / "rows.jsonl"
    assert "No levers" in made.levers_table(path)
    rows = [
        line("base", "base", [0, 0, 9, 9], x=None),
        line("strips", "levers", [0, 9, 9, 9]),
        line("order", "switches", [0, 0, 0, 0]),
        line("broken", "levers", [0] * 4, status="failed"),
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = made.levers_table(path)
    assert "| base | 50.0 [49.0, 51.0] | 50.0 [49.0, 51.0] |  |  | 1 | 3.0 |" in text
    assert "| with strips | 75.0 [74.0, 76.0] | 75.0 [74.0, 76.0] | +25.0 [" in text
    assert "order" not in text and "broken" not in text
    rows += [
        line("long-base", "long-base", [0, 9, 9, 9], x="base"),
        line("deep", "levers", [0, 0, 9, 9]),
        line("long-strips", "long-levers", [9] * 4, x="with strips"),
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = made.levers_table(path)
    assert "| base | 75.0 [74.0, 76.0] |" in text.split("| with strips |")[0]
    assert "| with strips | 100.0 [99.0, 101.0] | 100.0 [99.0, 101.0] | +25.0 [" in text
    assert "| with deep | not run |" in text and "| with deep | 50.0 [" in text


def test_calibration_intervals_are_over_puzzles():
    # 40 puzzles of 9 pieces, all right or all wrong together: 360 pieces are worth 40.
    outcomes = [
        {
            "confidences": [0.55] * 9,
            "truth": list(range(9)),
            "positions": list(range(9)) if i % 2 else [8, 0, 1, 2, 3, 4, 5, 6, 7],
        }
        for i in range(40)
    ]
    bins = [
        {"confidence": 0.55, "accuracy": 0.5, "count": 360}
        if b == 5
        else {"confidence": None, "accuracy": None, "count": 0}
        for b in range(10)
    ]
    result = {"outcomes": outcomes, "reliability": bins, "ece": 0.05}
    found = load("make_pictures").calibration(result)["bins"][5]
    assert 0.30 < found["low"] < 0.40 and 0.60 < found["high"] < 0.70


def test_the_page_of_speed_says_what_the_files_say():
    made = load("make_speed")
    text = made.PAGE.read_text()
    assert made.filled(text) == text
    found = json.loads((made.RUNS / "speed-2026-11-18-c.json").read_text())["variants"]["pooled"]
    assert f"| {found['puzzles_per_second']:,.0f} | 67 % |" in text
    assert [*made.ladder()["variants"]] == [*VARIANTS]  # every change has its row
    assert made.PICTURE.exists()


def test_packed_answers_are_read_as_they_were(tmp_path):
    """Two solvers of one protocol share an archive; a later one leaves the others in it."""
    folder = ROOT / "results"
    pair_of = ["worn-2x2.auto", "worn-2x2.random"]
    whole = {stem: read_results(folder / f"{stem}.json") for stem in pair_of}
    for stem, result in whole.items():
        pack(tmp_path, {stem: {k: v for k, v in result.items() if k != "answers"}})
    assert len(list((tmp_path / "answers").iterdir())) == 1
    for stem, result in whole.items():
        assert read_results(tmp_path / f"{stem}.json")["outcomes"] == result["outcomes"]
        assert (tmp_path / f"{stem}.json").stat().st_size < 20_000


def test_answers_that_are_cut_short_are_refused(tmp_path):
    (tmp_path / "answers").mkdir()
    for part in ("worn-2x2.auto.json", "answers/worn-2x2.json.xz"):
        (tmp_path / part).write_bytes((ROOT / "results" / part).read_bytes())
    archive = tmp_path / "answers" / "worn-2x2.json.xz"
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(PuzlmError, match="answers cannot be read"):
        read_results(tmp_path / "worn-2x2.auto.json")
