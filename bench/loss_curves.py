"""Loss curves of the plain and the fast loops from the same weights on the same batches.

`python -m bench.training --curve 300 --data photos.tar -o curve.json`. The tokenizer is
fitted once; every loop then trains in a process of its own, all at once: no speed is measured here.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.kernel_checks import usable
from bench.variants import VARIANTS, Jobs, device_of, recipe_of
from puzlm.errors import SettingsError
from puzlm.files import write_bytes
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training.corpus import Album
from puzlm.training.loop import learning_rate, set_rate
from puzlm.training.recipes import Recipe
from puzlm.training.train_reader import fit_tokenizer
from puzlm.training.tricks import PLAIN, Tricks

LINES: dict[str, tuple[bool, Tricks]] = {
    "plain": (False, PLAIN),
    "fast": (True, VARIANTS["batch"].tricks),
    "fp8": (True, VARIANTS["pooled"].tricks),
}


def run(a: Any) -> dict[str, Any]:
    """Fit, train every line, and write the losses of all steps."""
    if not a.data:
        raise SettingsError("--curve: give images with --data")
    began, device, recipe = time.monotonic(), device_of(), _recipe(a)
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "steps": a.curve,
        "batch": recipe.train.batch,
        "data": [Path(path).name for path in a.data],
        "images": a.limit,
        "lr": recipe.train.lr,
        "warmup": recipe.train.warmup,
        "heads": recipe.train.heads,
        "curves": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        album = _album(a, device)
        record["images"] = len(album)
        fit_tokenizer(recipe, album, device).save_pretrained(folder / "tokenizer")
        del album
        if device == "cuda":
            torch.cuda.empty_cache()
        jobs = Jobs(folder, a.changes, max(1, (os.cpu_count() or 2) // len(LINES)))
        same = [
            "--curve",
            str(a.curve),
            "--limit",
            str(a.limit),
            "--batch",
            str(a.batch),
            "--turn",
            str(folder / "tokenizer"),
        ]
        for path in a.data:
            same += ["--data", path]
        running = {}
        for line_name in LINES:
            result = folder / f"{line_name}.json"
            running[line_name] = jobs.start("--line", line_name, *same, "-o", str(result))
        for line_name, process in running.items():
            good = jobs.wait(process, began + a.budget)
            file = folder / f"{line_name}.json"
            record["curves"][line_name] = (
                json.loads(file.read_text())
                if good and file.exists()
                else {"failed": jobs.why("--line", line_name)}
            )
            record["seconds"] = round(time.monotonic() - began, 1)
            write_bytes(a.output, (json.dumps(record) + "\n").encode())
            print(_said(line_name, record["curves"][line_name]))
    print(f"written to {a.output}")
    return record


def line(a: Any) -> None:
    """Train one line and write its losses: all, cross-entropy, accuracy, heads, step by step."""
    from bench.training import Rig

    fast, tricks = LINES[a.line]
    device, recipe = device_of(), _recipe(a)
    tricks, dropped = usable(tricks, device)
    tokenizer = PieceTokenizer.from_pretrained(a.turn)
    rig = Rig(recipe, device, fast, tricks, album=_album(a, device), tokenizer=tokenizer)
    t, facts = recipe.train, []
    for step in range(a.curve):
        set_rate(rig.optimiser, learning_rate(step, t.lr, t.warmup, t.steps))
        facts.append(rig.step(step))
    loss, cross, right, heads = torch.stack(facts).t().tolist()
    found = {
        "tricks": vars(tricks),
        "dropped": dropped,
        "fast": fast,
        "loss": loss,
        "cross_entropy": cross,
        "accuracy": right,
        "heads": heads,
    }
    write_bytes(a.output, json.dumps(found).encode())


def _recipe(a: Any) -> Recipe:
    recipe = recipe_of(a.changes, a.batch)
    return recipe.with_train(fit_puzzles=min(recipe.train.fit_puzzles, 1024))


def _album(a: Any, device: str) -> Album:
    return Album.read(a.data, device, a.limit or None, os.cpu_count() or 2)


def _said(name: str, found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"{name:6} failed: {found['failed'][-300:]}"
    loss, some = found["loss"], max(1, len(found["loss"]) // 6)
    return (
        f"{name:6} loss "
        + " ".join(f"{value:.4f}" for value in loss[::some])
        + (f" ... {loss[-1]:.4f}")
    )
