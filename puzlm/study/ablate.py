"""Ablations: rows of a plan (plan.py), each trained for the same time, each a line of rows.jsonl.

Rows that are done are skipped, so a plan can be run in parts; a row that fails is written down as
failed and the others go on.

    python -m puzlm.study.ablate plans/study.toml -o runs/study --data DATA
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from puzlm.devices import pick_device
from puzlm.errors import PuzlmError, SettingsError, nearest
from puzlm.files import read_lines
from puzlm.study.plan import Plan, Row, tokenizer_settings
from puzlm.training.recipes import Recipe

Line = dict[str, Any]


def read_rows(path: str | Path) -> list[Line]:
    """Lines of a rows file, the newest of each (name, seed), in order of first appearance."""
    path, found = Path(path), {}
    if path.is_file():
        for row in read_lines(path):
            if {"name", "seed"} <= set(row):
                found[row["name"], row["seed"]] = row
    return list(found.values())


def found_in(path: Path) -> dict[tuple[str, int], Line]:
    """The newest line of each run of a rows file."""
    return {(line["name"], line["seed"]): line for line in read_rows(path)}


def chosen(plan: Plan, only: Sequence[str]) -> list[Row]:
    """Rows whose name or group matches one of the patterns, pattern by pattern; all without any."""
    found: dict[str, Row] = {} if only else {row.name: row for row in plan.rows}
    for pattern in only:
        here = [row for row in plan.rows if any(fnmatch(n, pattern) for n in (row.name, row.group))]
        if not here:
            known = [*(row.name for row in plan.rows), *{row.group for row in plan.rows}]
            raise SettingsError(f"--only {pattern}: no such row; {nearest(pattern, known)}")
        found |= {row.name: row for row in here if row.name not in found}
    return list(found.values())


def run_plan(
    path: str | Path,
    out: str | Path,
    *,
    data: str | Path = ".",
    only: Sequence[str] = (),
    seconds: float | None = None,
    stop_after: float = float("inf"),
    device: str = "auto",
    report: Callable[[str], None] = print,
) -> list[Line]:
    """Run the rows of a plan that are not done yet; returns the newest line of each run.

    `stop_after` seconds after the start no further row is begun that might not end in time.
    """
    began, out = time.monotonic(), Path(out)
    plan = Plan.load(path)
    if seconds is not None:
        if seconds <= 0:
            raise SettingsError(f"--seconds {seconds}: must be above 0")
        plan = replace(plan, plan=replace(plan.plan, seconds=seconds))
    rows, file = chosen(plan, only), out / "rows.jsonl"
    done = found_in(file)
    # The first seed of every row comes before the second of any: a plan cut short is still whole.
    most = max(len(plan.seeds(row)) for row in rows)
    wanted = [
        (row, plan.seeds(row)[turn])
        for turn in range(most)
        for row in rows
        if turn < len(plan.seeds(row))
    ]
    where = pick_device(device, "--device")
    todo = [run for run in wanted if not _is_done(done, plan, *run)]
    report(f"{len(wanted)} runs, {len(wanted) - len(todo)} done already")
    if todo:
        from puzlm.study.trial import Gallery

        gallery = Gallery(plan.kinds, data, where)
        out.mkdir(parents=True, exist_ok=True)
        report(f"images read after {time.monotonic() - began:.0f} s; training on {where}")
        libraries: dict[str, Any] = {}
        around = 0.0  # the most that a row took beside its training
        for row, seed in todo:
            clock, own = time.monotonic(), row.seconds or plan.plan.seconds
            if clock - began + own + around > stop_after:
                report(f"stopping after {clock - began:.0f} s: the other rows are left for later")
                break
            line = _line(plan, row, seed, gallery, libraries, out)
            line["row_seconds"] = round(time.monotonic() - clock, 1)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")
            around = max(around, line["row_seconds"] - own)
            report(_summary(line))
        done = found_in(file)
    return [done[row.name, seed] for row, seed in wanted if (row.name, seed) in done]


def _is_done(done: dict[Any, Line], plan: Plan, row: Row, seed: int) -> bool:
    line = done.get((row.name, seed))
    return (
        line is not None
        and line["status"] == "done"
        and line["settings"] == plan.settings(row, seed)
    )


def _line(
    plan: Plan, row: Row, seed: int, gallery: Any, libraries: dict[str, Any], out: Path
) -> Line:
    """Run one row, whatever happens."""
    import torch

    from puzlm.study.trial import run_row

    cuda = "cuda" in gallery.device
    line: Line = {
        "name": row.name,
        "group": row.group,
        "x": row.x,
        "seed": seed,
        "status": "done",
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "note": row.note,
        "settings": plan.settings(row, seed),
    }
    try:
        recipe = plan.recipe(row, seed)
        library, tokenizer = _library(plan, row, recipe, gallery, libraries)
        keep = out / "models" / f"{row.name}-{seed}" if row.keep else None
        return line | run_row(
            recipe,
            library,
            tokenizer,
            gallery,
            seconds=row.seconds or plan.plan.seconds,
            steps=plan.plan.steps,
            start=row.start,
            side_steps=plan.plan.side_steps,
            one_order=row.one_order,
            decodings=row.decode or plan.plan.decode,
            few=plan.plan.few,
            keep=keep,
        )
    except Exception as error:  # a row may fail in any way; the others must go on
        if cuda:
            torch.cuda.empty_cache()
        text = str(error).strip().splitlines() or [""]
        return line | {"status": "failed", "error": f"{type(error).__name__}: {text[0][:300]}"}


def _library(
    plan: Plan, row: Row, recipe: Recipe, gallery: Any, libraries: dict[str, Any]
) -> tuple[Any, Any]:
    """The row's tokens, made once for all rows that read alike, and its tokenizer."""
    from puzlm.study.trial import make_library
    from puzlm.tokenizer.piece_tokenizer import PieceTokenizer

    settings = tokenizer_settings(row, recipe)
    reading = replace(settings, lexicographic=True, separator=True)  # what decides the symbols
    puzzles = row.puzzles or plan.plan.puzzles
    key = json.dumps(
        [
            asdict(reading),
            recipe.as_dict()["cut"],
            recipe.train.fit_puzzles,
            puzzles,
            gallery.contents(),
        ]
    )
    if key not in libraries:
        if row.learned:
            from puzlm.study.learned_tokenizers import LearnedTokenizer

            fresh: PieceTokenizer = LearnedTokenizer(reading)
        else:
            fresh = PieceTokenizer(reading)
        libraries[key] = make_library(fresh, gallery, recipe, puzzles)
    library = libraries[key]
    if settings == reading:
        return library, library.tokenizer
    twin = library.tokenizer.on("cpu")
    twin.codebooks_, twin.settings = library.tokenizer.codebooks_, settings
    return library, twin


def _summary(line: Line) -> str:
    start = f"{line['name']} (seed {line['seed']})"
    if line["status"] != "done":
        return f"{start}: failed, {line['error']}"
    found = ", ".join(
        f"{kind} {next(iter(ways.values()))['absolute']['value']:.1f}/"
        f"{next(iter(ways.values()))['perfect']['value']:.1f}"
        for kind, ways in line["results"].items()
    )
    return (
        f"{start}: {found}; {line['steps']} steps in {line['seconds']:.0f} s, "
        f"{line['row_seconds']:.0f} s in all"
    )


def tell_failed(lines: Sequence[Line]) -> int:
    """Say on stderr how many runs failed; returns the command's exit code, 1 if any did."""
    failed = [f"{line['name']} (seed {line['seed']})" for line in lines if line["status"] != "done"]
    if failed:
        text = f"{len(failed)} of {len(lines)} runs failed: {', '.join(failed)}"
        print(f"puzlm: {text}", file=sys.stderr)
    return int(bool(failed))


def options() -> argparse.ArgumentParser:
    """Options of `python -m puzlm.study.ablate`, as `puzlm ablate` has them."""
    parser = argparse.ArgumentParser(
        prog="puzlm.study.ablate", description="Run the rows of a plan."
    )
    parser.add_argument("plan", help="a TOML plan, e.g. plans/study.toml")
    parser.add_argument("-o", "--output", default="runs/ablate", help="folder of rows.jsonl")
    parser.add_argument("--data", default=".", help="folder the plan's image files lie in")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        help="names or groups of rows; * matches; may be repeated",
    )
    parser.add_argument("--seconds", type=float, help="training time of a row")
    parser.add_argument(
        "--stop-after",
        type=float,
        default=float("inf"),
        help="begin no row that might not end within so many seconds",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m puzlm.study.ablate`: the command without the packages that commands need."""
    a = options().parse_args(arguments)
    try:
        lines = run_plan(
            a.plan,
            a.output,
            data=a.data,
            only=a.only,
            seconds=a.seconds,
            stop_after=a.stop_after,
            device=a.device,
            report=lambda text: print(text, flush=True),
        )
    except PuzlmError as error:
        print(f"puzlm: {error}", file=sys.stderr)
        return 2
    return tell_failed(lines)


if __name__ == "__main__":
    sys.exit(main())
