"""Measure a training step variant by variant: `python -m bench.training --variants all`.

Every variant is the one before it and one change more. First all are compiled at once, each in a
process of its own that only fills the compiler's cache; then each is measured by a fresh process,
one after the other. The next one reads the cache meanwhile and waits for its turn on the device.
Those too large to share the device compile when it is their turn.
What is measured is written after every variant; one that fails is a line with its message.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from puzlm.errors import PuzlmError, SettingsError, nearest
from puzlm.files import write_bytes
from puzlm.training.recipes import Recipe
from puzlm.training.tricks import Tricks

TARGET = ["tokenizer.max_cells=9", "tokenizer.pca_dim=64"]  # 3x3, B = 4, BART 6+6, d_model 512
SMALL = ["model.size=tiny", "train.batch=16", "tokenizer.vocab_size=256", "tokenizer.piece_size=48"]
TOGETHER = 6  # processes that compile at once: each takes its memory of the device
AT_ONCE = 10_240  # puzzles a step of all that are on the device at once, 12 MB each
AHEAD = 1  # measuring processes that get ready while one measures


@dataclass(frozen=True)
class Variant:
    """What a variant changes, all its tricks, puzzles a step, and whether fast.bart does it."""

    change: str
    tricks: Tricks = Tricks()
    batch: int = 1024
    fast: bool = True

    @property
    def alone(self) -> bool:
        """Whether two of its kind would not fit on the device."""
        return 2 * self.batch > AT_ONCE


def _variants() -> dict[str, Variant]:
    t, batch = Tricks(), 1024
    found = {
        "plain": Variant("transformers' BART under autocast, kernel by kernel", fast=False),
        "fast": Variant("fast.bart compiled as a whole, and what makes its batches"),
    }
    for name, change, more in (
        (
            "blocks",
            "layers compiled one by one, the step as one CUDA graph",
            {"blocks": True, "graph": True},
        ),
        ("tokens", "distances from split bfloat16 products, arg-max fused", {"tokens": "split"}),
        (
            "layout",
            "rows on 16 bytes in cross-attention and logits, heads in bfloat16",
            {"aligned": True, "heads16": True},
        ),
        ("gelu", "exact GELU from one exponential, in a kernel of its own", {"gelu": "kernel"}),
        ("attention", "own attention kernel, nothing permuted", {"attention": "kernel"}),
        ("cut", "the cut in a kernel of its own, of the pixels that are read", {"cut": True}),
        (
            "padded",
            "cross-attention's backward pass on rows of 16 bytes, gradients of states in one sum",
            {"padded": True, "gathered": True},
        ),
        ("batch", "2,048 puzzles a step", {}),
        (
            "half",
            "symbols from float16 products, patches written by the cut",
            {"tokens": "half", "patches": True},
        ),
        ("fp8", "the encoder's products in 8 bits, kernels between them", {"fp8": True}),
        ("cross", "cross-attention in kernels of its own", {"cross": True}),
        ("wide", "8,192 puzzles a step", {}),
        ("ahead", "the next batch cut, tokenised and sorted beside the step", {"ahead": True}),
        ("start", "embeddings gathered, normed and learned in two kernels", {"start": True}),
        ("pooled", "means of pieces in a kernel of their own", {"pooled": True}),
    ):
        batch = {"batch": 2048, "wide": 8192}.get(name, batch)
        t = replace(t, **more)
        found[name] = Variant(change, t, batch)
    return found


VARIANTS = _variants()
# Asked for by name only: a combination that is no step of the ladder.
EXTRA = {
    "batch-4096": Variant("4,096 puzzles a step", VARIANTS["batch"].tricks, 4096),
    "library-gelu": Variant(
        "as batch, the library's GELU fused by the compiler",
        replace(VARIANTS["batch"].tricks, gelu="library"),
        2048,
    ),
}


def chosen(text: str) -> dict[str, Variant]:
    """Variants by name, 'all' for the ladder; a trailing '...' of a list is not needed."""
    known, found = {**VARIANTS, **EXTRA}, {}
    for name in text.split(","):
        if name == "all":
            found.update(VARIANTS)
        elif name in known:
            found[name] = known[name]
        else:
            raise SettingsError(f"--variants {name}: unknown; {nearest(name, [*known, 'all'])}")
    return found


def device_of() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def recipe_of(changes: list[str], batch: int = 0) -> Recipe:
    """The target of the measurement with changes; a tiny one where there is no GPU."""
    cuda = device_of() == "cuda"
    recipe = Recipe.from_overrides([*TARGET, *([] if cuda else SMALL), *changes])
    return recipe.with_train(batch=batch) if batch and cuda else recipe


# ---- in a process of its own ----------------------------------------------------------------


def compile_one(variant: Variant, changes: list[str]) -> None:
    """Fill the compiler's cache: one step, whose time nobody takes."""
    from bench.kernel_checks import usable
    from bench.training import Rig, noise, noise_tokenizer
    from puzlm.training.corpus import Album

    device, recipe = device_of(), recipe_of(changes, variant.batch)
    album = Album.of(noise(64), device)
    tokenizer = noise_tokenizer(recipe, device)
    tricks, _ = usable(replace(variant.tricks, graph=False), device)
    Rig(recipe, device, variant.fast, tricks, album=album, tokenizer=tokenizer).step(0)


def measure_one(variant: Variant, changes: list[str], repeats: int, turn: Path) -> dict[str, Any]:
    """Stages and whole steps of one variant, while holding the turn."""
    from bench.kernel_checks import usable
    from bench.training import stages

    device, held = device_of(), turn.open("w")

    def ready() -> None:
        fcntl.flock(held, fcntl.LOCK_EX)  # until this process ends

    began = time.monotonic()
    tricks, dropped = usable(variant.tricks, device)
    recipe = recipe_of(changes, variant.batch)
    found = stages(recipe, device, variant.fast, repeats, tricks, ready)
    return {
        **found,
        "dropped": dropped,
        "seconds_with_compiling": round(time.monotonic() - began, 1),
    }


# ---- the driver -----------------------------------------------------------------------------


class Jobs:
    """Processes of this module, with their output in files."""

    def __init__(self, folder: Path, changes: list[str], threads: int) -> None:
        self.folder = folder
        self.base = [sys.executable, "-m", "bench.training"]
        self.more = [word for change in changes for word in ("--set", change)]
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(folder / "cache"))
        self.environment = {
            "OMP_NUM_THREADS": str(threads),
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        }
        self.cache = Path(cache)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        log: IO[bytes] = (self.folder / ("-".join(words[:2]).strip("-") + ".log")).open("wb")
        with log:
            return subprocess.Popen(
                [*self.base, *words, *self.more],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self, process: subprocess.Popen[bytes], until: float) -> bool:
        """Whether it ended well before `until`; one that did not is ended."""
        try:
            return process.wait(max(0.1, until - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False

    def why(self, *words: str) -> str:
        log = self.folder / ("-".join(words[:2]).strip("-") + ".log")
        lines = log.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return " | ".join(errors[-2:] or lines[-3:] or ["no time left"])[-1500:]


def run(
    variants: dict[str, Variant],
    output: Path,
    *,
    budget: float,
    changes: list[str],
    repeats: int = 25,
    parts: bool = True,
    data: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Compile all, measure each, write what is known after every one."""
    import torch

    began, device = time.monotonic(), device_of()
    end = began + budget
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "recipe": [*TARGET, *changes],
        "variants": {},
    }
    names = list(variants)

    def write() -> None:
        record["seconds"] = round(time.monotonic() - began, 1)
        write_bytes(output, (json.dumps(record, indent=1) + "\n").encode())

    with tempfile.TemporaryDirectory() as place_of_work:
        folder = Path(place_of_work)
        together = [name for name in names if not variants[name].alone]
        share = (os.cpu_count() or 2) // max(1, min(TOGETHER, len(together)))
        jobs = Jobs(folder, changes, max(1, min(4, share)))
        warm: list[tuple[subprocess.Popen[bytes], int]] = []
        compiled = began + 0.55 * budget
        for name in together:
            while time.monotonic() < compiled:
                there = [size for process, size in warm if process.poll() is None]
                if not there or (
                    len(there) < TOGETHER and sum(there) + variants[name].batch <= AT_ONCE
                ):
                    break
                time.sleep(0.2)
            warm.append((jobs.start("--warm", name), variants[name].batch))
        for process, _ in warm:
            jobs.wait(process, compiled)
        record["seconds_compiling"] = round(time.monotonic() - began, 1)
        # Kernels were tuned while the device was shared: what was found then is worth nothing.
        for file in jobs.cache.rglob("*.best_config"):
            file.unlink(missing_ok=True)
        turn = str(folder / "turn")
        todo = [("--parts", "")] * parts + [("--measure", name) for name in names]
        running: dict[str, subprocess.Popen[bytes]] = {}
        for place, (kind, name) in enumerate(todo):
            for next_kind, next_name in todo[place : place + 1 + AHEAD]:
                # One that has the device for itself compiles then, not beside what is measured.
                if next_name != name and any(variants[n].alone for n in (name, next_name) if n):
                    break
                if next_name not in running and time.monotonic() < end:
                    result = str(folder / f"{next_name or 'parts'}.json")
                    words = [next_kind, next_name] if next_name else [next_kind]
                    words += ["--turn", turn, "-o", result, "--repeats", str(repeats)]
                    for path in data:
                        words += ["--data", path]
                    running[next_name] = jobs.start(*words)
            if name not in running:
                record["variants"][name] = {"failed": "no time left"}
                continue
            good = jobs.wait(running[name], end)
            words = [kind, name] if name else [kind, "--turn"]
            file = folder / f"{name or 'parts'}.json"
            found = json.loads(file.read_text()) if good and file.exists() else None
            found = found or {"failed": jobs.why(*words)}
            if name:
                record["variants"][name] = {"change": variants[name].change, **found}
            else:
                record |= found if "failed" not in found else {"parts": found}
            write()
            say(line_of(name or "parts", found))
    rate = record.get("matrix_tflops")
    for found in record["variants"].values():
        if rate and "tflops" in found:
            found["share_of_matrix_rate"] = round(found["tflops"] / rate, 3)
    write()
    return record


def line_of(name: str, found: dict[str, Any]) -> str:
    """One line for people."""
    if "failed" in found:
        return f"{name:12} failed: {found['failed'][-300:]}"
    if "milliseconds" not in found:
        return f"{name:12} {json.dumps(found)[:600]}"
    rows = " ".join(f"{k.split()[0]} {v:.2f}" for k, v in found["milliseconds"].items())
    first, said = found["first_step"], ""
    if first:
        said = f" | loss {first['loss']:.4f} ({first['plain_loss']:.4f}) cos "
        said += f"{first['gradient_cosine']:.4f}"
    return (
        f"{name:12} {found['puzzles_per_second']:9.0f}/s step {found['step_milliseconds']:.2f} "
        f"ms | {rows}{said} | {found['peak_memory_gb']} GB "
        + " ".join(f"without {k}: {v}" for k, v in found["dropped"].items())[:300]
    )


def main(words: list[str] | None = None) -> None:
    """Read the command line; bad input is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m bench.training")
    parser.add_argument("--variants", default="", help="all, or names with commas")
    parser.add_argument("-o", "--output", type=Path, default=Path("speed.json"))
    parser.add_argument("--budget", type=float, default=150, help="seconds")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="section.key=v")
    parser.add_argument("--repeats", type=int, default=25, help="steps of a measurement")
    parser.add_argument("--curve", type=int, default=0, help="train plain and fast for so many")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        help="images of the curve; with --variants: to compare symbols",
    )
    parser.add_argument("--limit", type=int, default=4096, help="images of the curve at most")
    parser.add_argument("--batch", type=int, default=512, help="puzzles a step of the curve")
    parser.add_argument("--ways", default="", help="time kernels in several settings: all or names")
    for name in ("--warm", "--measure", "--turn", "--line"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--parts", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-parts", action="store_true", help="measure whole steps only")
    a = parser.parse_args(words)
    try:
        _do(a)
    except PuzlmError as error:
        print(f"puzlm: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _do(a: Any) -> None:
    from bench import loss_curves as bench_curve

    if a.warm:
        compile_one(chosen(a.warm)[a.warm], a.changes)
    elif a.parts:
        from bench.step_parts import parts

        write_bytes(
            a.output, json.dumps(parts(recipe_of(a.changes), Path(a.turn), a.data)).encode()
        )
    elif a.measure:
        variant = chosen(a.measure)[a.measure]
        found = measure_one(variant, a.changes, a.repeats, Path(a.turn))
        write_bytes(a.output, json.dumps(found).encode())
    elif a.ways:
        from bench.step_parts import ways

        times = ways(a.ways, device_of())
        write_bytes(a.output, (json.dumps(times, indent=1) + "\n").encode())
        print(json.dumps(times, indent=1))
    elif a.line:
        bench_curve.line(a)
    elif a.curve:
        bench_curve.run(a)
    elif a.variants:
        run(
            chosen(a.variants),
            a.output,
            budget=a.budget,
            changes=a.changes,
            repeats=a.repeats,
            parts=not a.no_parts,
            data=a.data,
        )
        print(f"written to {a.output}")
    else:
        raise SettingsError("give --variants all, or --curve STEPS with --data")
