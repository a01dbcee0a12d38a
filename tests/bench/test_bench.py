"""The benchmark compares like with like. Nothing here depends on how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bench import growth as bench_growth
from bench import library as bench_library
from bench import service as bench_service
from bench import timing as bench
from bench.requests import bad_requests
from puzlm.errors import PuzlmError


def check_ratio(ratio):
    assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"] and ratio["min"] > 0
    assert ratio["verdict"] in ("met", "missed", "within noise")


def test_tokenise_agrees_with_scikit_learn():
    pytest.importorskip("sklearn")
    lines: list[str] = []
    # 48 px: patches of 432 numbers, d > 128 so that the pruned search is the one that runs
    found = bench_library.tokenise(lines.append, 5, 1, vocab_size=64, pca_dim=160, piece_size=48)
    assert found["same_symbols"] > 0.999 and found["same_or_nearer"] > 0.999
    assert found["puzzles_per_second"] > 0
    check_ratio(found["against_puzzle_by_puzzle"])
    check_ratio(found["against_whole_batch"])
    assert json.loads(json.dumps(found)) == found
    assert len(lines) == 3 and max(map(len, lines)) <= 120


def test_tokenise_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.decomposition", None)
    lines: list[str] = []
    assert "skipped" in bench_library.tokenise(lines.append, 5, 1)
    assert len(lines) == 1 and "pip install scikit-learn" in lines[0]


def test_greedy_agrees_with_generate():
    lines: list[str] = []
    found = bench_library.decode_greedy(lines.append, (1, 2), 1)
    for batch in ("batch_1", "batch_2"):
        assert found[batch]["same_answers"] == 1.0
        check_ratio(found[batch]["against_generate"])
    assert json.loads(json.dumps(found)) == found
    assert len(lines) == 2


def test_race_takes_turns():
    seen: list[str] = []
    times, answers = bench.race(
        {"a": lambda: seen.append("a") or 1, "b": lambda: seen.append("b") or 2}, 2
    )
    assert seen == ["a", "b"] * 3  # the first round warms up
    assert answers == {"a": 1, "b": 2}
    assert all(t["min"] <= t["median"] for t in times.values())


@pytest.mark.parametrize(
    ("slow", "verdict"),
    [((3.0, 3.1, 3.2), "met"), ((0.5, 0.6, 0.7), "missed"), ((0.8, 1.0, 1.2), "within noise")],
)
def test_a_bar_is_judged_outside_the_noise_only(slow, verdict):
    times = {"slow": bench.spread(slow), "fast": bench.spread((1.0, 1.0, 1.0))}
    ratio = bench.ratio(times, "slow", "fast", 1.0)
    assert ratio["verdict"] == verdict and ratio["median"] == slow[1]
    assert bench.ratio(times, "slow", "fast", None)["verdict"] == "not judged"


def test_exponent():
    assert bench.exponent([(n, 0.01 * n**1.5) for n in (4, 9, 25, 64)]) == 1.5


def test_growth_times_every_stage_on_every_grid():
    lines: list[str] = []
    found = bench_growth.growth(lines.append, 1, (2, 3, 4))  # 4x4: more than the box's model reads
    assert list(found["seconds"]) == ["2x2", "3x3", "4x4"]
    assert all(tuple(times) == bench_growth.STAGES for times in found["seconds"].values())
    assert found["tokens"]["2x2"] < found["tokens"]["3x3"] < found["tokens"]["4x4"]
    assert set(found["exponents"]) == {"tokenise", "read", "sides", "pixels"}
    assert json.loads(json.dumps(found)) == found
    assert len(lines) == 1 + len(bench_growth.STAGES)


def test_launch_measures_the_child_alone():
    """A large parent must not show in the child's peak, and a failure names its reason."""
    ballast = np.ones(40_000_000)  # 320 MB here
    seconds, peak = bench.launch([sys.executable, "-S", "-c", "pass"])
    assert seconds > 0 and ballast[-1] == 1
    assert peak is None or 1 < peak < 200
    with pytest.raises(PuzlmError, match="no such thing"):
        bench.launch([sys.executable, "-S", "-c", "raise SystemExit('no such thing')"])


def test_importing_bench_is_light():
    """`puzlm bench` decides what to import; torch and scikit-learn come with the parts."""
    code = "import sys, bench.library; print(sorted({'torch', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


TINY = [
    "train.batch=4",
    "tokenizer.piece_size=16",
    "tokenizer.vocab_size=32",
    "model.d_model=32",
    "tokenizer.pca_dim=8",
]


def bench_training(*words):
    """Without a compiler: what is measured here is not the speed."""
    command = [sys.executable, "-m", "bench.training", *words]
    environment = {**os.environ, "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_variants_of_a_training_step(tmp_path):
    out = tmp_path / "speed.json"
    words = [word for change in TINY for word in ("--set", change)]
    done = bench_training(
        "--variants", "fast,fp8", "-o", str(out), "--repeats", "2", "--budget", "200", *words
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found["variants"]) == ["fast", "fp8"]
    for name, variant in found["variants"].items():
        assert list(variant["milliseconds"]) == [
            "draw (host)",
            "cut",
            "tokenise",
            "sort",
            "forward",
            "backward",
            "optimiser",
        ]
        runs = variant["step_milliseconds_of_all_runs"]
        assert len(runs) == 3 and min(runs) == variant["step_milliseconds"]
        first = variant["first_step"]
        assert first["loss"] == pytest.approx(first["plain_loss"], rel=0.02)
        assert first["gradient_cosine"] > (0.99 if name == "fp8" else 0.9999)
        assert variant["dropped"] == {} and variant["puzzles_per_second"] > 0
    assert found["variants"]["fp8"]["tricks"]["fp8"] is True
    shares = found["parts"]["same_symbols"]
    assert shares["blurred"]["split"] > 0.999 and shares["noise"]["float32"] > 0.999
    assert (
        "failed" in found["parts"]["attention_milliseconds"]["cudnn"]
    )  # on a CPU; the rest goes on


def test_a_variant_that_fails_is_a_line(tmp_path):
    out = tmp_path / "speed.json"
    words = [word for change in (*TINY, "model.backbone=gru") for word in ("--set", change)]
    done = bench_training(
        "--measure", "fast", "--turn", str(tmp_path / "turn"), "-o", str(out), *words
    )
    assert done.returncode and not out.exists()
    from bench.variants import Jobs, chosen, line_of

    jobs = Jobs(tmp_path, ["model.backbone=gru"], 1)
    (tmp_path / "measure-fast.log").write_text(done.stderr)
    assert "Error" in jobs.why("--measure", "fast")
    assert line_of("fast", {"failed": "no"}).endswith("failed: no")
    with pytest.raises(PuzlmError, match="did you mean 'blocks'"):
        chosen("fast,blokcs")
    assert bench_training().returncode == 2


def test_machine():
    about = bench.machine()
    assert about["cores"] >= 1 and about["versions"]["numpy"] == np.__version__


@pytest.fixture(scope="module")
def service():
    """The service measured with few requests; enough that every malformed kind comes once."""
    lines: list[str] = []
    count = 10 * len(bad_requests())
    few = bench_service.Settings((1, 3), 3, 1, 1, 2, 5, 20, count, 6)
    found = bench_service.run(quick=True, report=lines.append, settings=few)
    assert found["storm"]["memory"] is None or found["storm"]["memory"]["growth"] > 0
    found["storm"]["memory"] = None  # after so few requests some processes have only begun
    found["checks"] = bench_service.checks(found)
    return found, lines


def test_the_service_under_load(service):
    found, lines = service
    assert all(found["checks"].values()), found["checks"]
    for clients in ("1", "3"):
        here = found["load"]["clients"][clients]
        assert here["puzzles_per_second"] > 0 and 0 < here["p50_ms"] <= here["p99_ms"]
        assert here["ratio"]["median"] > 0 and here["wrong"] == 0
    storm = found["storm"]
    assert found["mixed"]["small"] > 0 and found["mixed"]["large_statuses"] == [200]
    assert storm["hostile"] == storm["requests"] // 10 == len(bad_requests())
    assert {asked.name for asked in bad_requests()} <= set(storm["kinds"])
    assert storm["statuses"]["200"] == storm["requests"] - storm["hostile"]
    assert {"400", "413", "415", "422"} <= set(storm["statuses"])
    assert found["settings"]["requests"] == storm["requests"]
    json.dumps(found)
    assert max(map(len, lines)) <= 200


@pytest.mark.parametrize(
    ("part", "key", "value", "failed"),
    [
        ("storm", "statuses", {"200": 9, "500": 1}, "5xx"),
        ("storm", "wrong", {"auto 3x3": 1}, "plain solver"),
        ("storm", "not_refused", {"pixel bomb: 200": 1}, "hostile"),
        ("storm", "memory", {"growth": 1.11}, "memory"),
        ("storm", "failed", 1, "without an answer"),
    ],
)
def test_the_checks_can_fail(service, part, key, value, failed):
    found = {**service[0], part: {**service[0][part], key: value}}
    (name,) = [name for name, passed in bench_service.checks(found).items() if not passed]
    assert failed in name
    found["storm"] = {**service[0]["storm"], "statuses": {"200": 9, "503": 1}}  # the deliberate one
    assert bench_service.checks(found)["no 5xx but 503"]
