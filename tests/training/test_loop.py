"""The loop: killed, resumed, stopped, shared by processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from tiny_training import losses, recipe_of

from puzlm.training.loop import learning_rate
from puzlm.training.recipes import Recipe
from puzlm.training.run_files import TrainingError
from puzlm.training.train_reader import train


def test_killed_run_goes_on_as_if_nothing_happened(folder, tmp_path):
    """Kill a real process at some moment, run it again: the same losses as without the kill."""
    recipe = recipe_of(folder, steps=40, save_every=3, average=0.9, log_every=1)
    text = (
        "[data]\n"
        + f"train = ['{folder}']\nval = ['{folder}']\n"
        + "".join(
            f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in section.items())
            for name, section in (
                ("cut", {"grid": 2, "min_crop": 1.0, "stretch": 0.0, "flip": False}),
                (
                    "tokenizer",
                    {
                        "vocab_size": 64,
                        "pca_dim": 16,
                        "piece_size": 32,
                        "max_cells": 4,
                        "patch": "strip:4",
                    },
                ),
                ("model", {"size": "tiny", "d_model": 64, "dropout": 0.1}),
                (
                    "train",
                    {k: v for k, v in vars(recipe.train).items() if not isinstance(v, tuple)},
                ),
            )
        )
    )
    (tmp_path / "r.toml").write_text(text)
    whole = Recipe.load(tmp_path / "r.toml")
    train(whole, tmp_path / "whole")
    command = [
        sys.executable,
        "-m",
        "puzlm",
        "train",
        str(tmp_path / "r.toml"),
        "-o",
        str(tmp_path / "cut"),
    ]
    # Sums depend on the number of threads; this process has one.
    process = subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    log = tmp_path / "cut" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.read_text().count("\n") > 7):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert 7 < log.read_text().count("\n") < 40
    train(whole, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert a == b


def torchrun(tmp_path, recipe, lines):
    """Run a script in two processes with gloo on the CPU; it has recipe, out, rank and train."""
    script = tmp_path / "run.py"
    script.write_text(
        "import json, os, sys, time\nfrom pathlib import Path\nfrom types import SimpleNamespace\n"
        "from puzlm.training import loop\nfrom puzlm.training.recipes import Recipe\n"
        "from puzlm.training.train_reader import train\n"
        "recipe, out = Recipe.from_dict(json.load(open(sys.argv[1]))), Path(sys.argv[2])\n"
        "rank = int(os.environ['RANK'])\n" + lines
    )
    (tmp_path / "r.json").write_text(json.dumps(recipe.as_dict()))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = [*launch, str(script), str(tmp_path / "r.json"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def test_two_processes_are_one_with_the_doubled_batch(folder, tmp_path):
    """torchrun with gloo on the CPU: the same recipe gives the same losses."""
    recipe = recipe_of(folder, steps=6, log_every=1)
    train(recipe, tmp_path / "one")
    torchrun(tmp_path, recipe, "train(recipe, out / 'two')\n")
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert [step for step, _ in one] == [step for step, _ in two]
    assert np.allclose([x for _, x in one], [x for _, x in two], rtol=1e-4)


def test_two_processes_stop_by_the_clock_of_the_first(folder, tmp_path):
    """A clock that is late or early must not part them: one alone would wait for ever."""
    lines = (
        "for fast in (0, 1):\n"  # the process whose hour is over when its clock is read again
        "    calls = iter(range(10**6))\n"
        "    now = lambda: time.monotonic() + (rank == fast and next(calls) > 5) * 1e6\n"
        "    loop.time = SimpleNamespace(monotonic=now)\n"
        "    done = train(recipe, out / str(fast), stop_after=3600)\n"
        "    (out / f'{fast}-{rank}.json').write_text(json.dumps(done))\n"
    )
    torchrun(tmp_path, recipe_of(folder, steps=8, log_every=2, eval_every=8), lines)
    steps = {
        (fast, rank): json.loads((tmp_path / f"{fast}-{rank}.json").read_text())["step"]
        for fast in (0, 1)
        for rank in (0, 1)
    }
    assert steps[0, 0] == steps[0, 1] and 0 < steps[0, 0] < 8
    assert steps[1, 0] == steps[1, 1] == 8


def test_diverging_run_stops_with_a_clear_message(folder, tmp_path):
    with pytest.raises(TrainingError, match="training diverged; lower train.lr"):
        train(
            recipe_of(folder, lr=1e30, warmup=1, steps=30, eval_every=100, clip=1e30),
            tmp_path / "run",
        )


def test_learning_rate_rises_then_falls():
    rates = [learning_rate(s, 1.0, 10, 100) for s in range(100)]
    assert rates[0] == 0.1 and rates[9] == 1.0 and max(rates) <= 1.0
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert rates[-1] < 0.03
