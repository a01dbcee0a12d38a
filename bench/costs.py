"""What each solver costs: time against the number of pieces, memory, weights -> one JSON file.

As in `bench.py` a time alone says little about a solver and much about the machine: all solvers of
a size take turns in one process, and each is also given as a ratio to `classic` of the same round.
Memory is the peak of a fresh process that loads the solver and solves one puzzle.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench import timing as bench
from puzlm.errors import PuzzleError
from puzlm.files import write_bytes
from puzlm.harness.generalise import split_name
from puzlm.images import read_image
from puzlm.models import pretrained as checkpoints
from puzlm.puzzle import Grid, Puzzle
from puzlm.solver import load_solver

Record = dict[str, Any]
GRIDS: tuple[Grid, ...] = ((3, 3), (5, 5), (8, 8), (10, 10), (20, 27))
PIECE = 28  # px, as in the classic sets: only the number of pieces changes
ROUNDS = 9  # at most, of each size
SECONDS = 20.0  # a size may take for its rounds; one round is always run
WEIGHTS = {  # files that a solver reads; of other solvers all that the model's folder holds
    "seq2seq": ("model", "tokenizer"),
    "bigram": ("sides", "tokenizer"),
    "auto": ("model", "sides", "tokenizer"),
    "vision-pairs": ("edges",),
}
ONCE = """
import sys
from bench.costs import puzzles
from puzlm.harness.generalise import split_name
from puzlm.solver import load_solver
name, model = split_name(sys.argv[1])
load_solver(name, model)(puzzles((int(sys.argv[2]), int(sys.argv[3])))[:1])
"""


def puzzles(grid: Grid) -> list[Puzzle]:
    """The photos in the box as puzzles of a grid, scaled so that pieces have PIECE pixels.

    Both, because the search takes much longer where pieces look alike than where they do not.
    """
    made = []
    for path in sorted(bench.SAMPLES.glob("*.jpg")):
        size = (grid[1] * PIECE, grid[0] * PIECE)
        image = Image.fromarray(read_image(path)).resize(size, Image.Resampling.LANCZOS)
        made.append(Puzzle(Puzzle.from_image(np.asarray(image), grid, seed=1).pieces, grid))
    return made


def parameters(path: Path) -> int:
    """Numbers in a safetensors file, from its header alone."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return sum(int(np.prod(v["shape"])) for k, v in header.items() if k != "__metadata__")


def weights(name: str, model: str | None) -> Record:
    """Number of parameters and size on disk of what a solver reads."""
    if name in ("classic", "random") or ":" in name:
        return {"parameters": 0, "megabytes": 0.0}
    folder = checkpoints.find(model)
    wanted = WEIGHTS.get(name)
    files = [p for p in sorted(folder.glob("*.safetensors")) if not wanted or p.stem in wanted]
    return {
        "parameters": sum(map(parameters, files)),
        "megabytes": round(sum(p.stat().st_size for p in files) / 1e6, 1),
    }


def measure(
    solvers: Sequence[str],
    output: str | Path,
    *,
    grids: Sequence[Grid] = GRIDS,
    seconds: float = SECONDS,
    report: Callable[[str], None] = print,
) -> Record:
    """Measure solvers ("name" or "name@model") and write `output`; `classic` always takes part."""
    solvers = list(dict.fromkeys(["classic", *solvers]))
    record: Record = {"version": 1, "machine": bench.machine(), "piece": PIECE, "solvers": {}}
    engines = {}
    for solver in solvers:
        name, model = split_name(solver)
        engines[solver] = load_solver(name, model)
        record["solvers"][solver] = {**weights(name, model), "sizes": {}, "refused": {}}
    for grid in grids:
        for solver, found in _race(engines, grid, seconds, record).items():
            record["solvers"][solver]["sizes"][f"{grid[0]}x{grid[1]}"] = found
            report(
                f"{grid[0]}x{grid[1]}  {solver}: {found['seconds']['median']:.4f} s, "
                f"{found['against_classic']['median']} x classic"
            )
    for solver in solvers:
        for size, found in record["solvers"][solver]["sizes"].items():
            command = [sys.executable, "-c", ONCE, solver, *size.split("x")]
            cold, peak = bench.launch(command)
            found |= {"cold_seconds": round(cold, 2), "peak_mb": peak}
            report(f"{size}  {solver}: cold {cold:.1f} s, peak {peak} MB")
        write_bytes(output, (json.dumps(record, indent=1) + "\n").encode())
    return record


def _race(engines: dict[str, Any], grid: Grid, limit: float, record: Record) -> dict[str, Record]:
    """Let the solvers that take a grid solve it in turn; an untimed round comes first."""
    task, taking, first = puzzles(grid), {}, 0.0
    for solver, engine in engines.items():
        start = time.perf_counter()
        try:
            answer = engine(task)[0]
        except PuzzleError as error:
            record["solvers"][solver]["refused"][f"{grid[0]}x{grid[1]}"] = str(error)
            continue
        first += time.perf_counter() - start
        taking[solver] = str(answer.solver)
    rounds = int(np.clip(limit / first, 1, ROUNDS))
    times: dict[str, list[float]] = {solver: [] for solver in taking}
    for _ in range(rounds):
        for solver in taking:
            start = time.perf_counter()
            engines[solver](task)
            times[solver].append((time.perf_counter() - start) / len(task))
    spread = {solver: bench.spread(values) for solver, values in times.items()}
    found = {}
    for solver, said in taking.items():
        ratio = bench.ratio(spread, solver, "classic", None)
        found[solver] = {
            "pieces": grid[0] * grid[1],
            "solved_by": said,
            "seconds": spread[solver],
            "against_classic": {k: ratio[k] for k in ("median", "low", "high", "min")},
        }
    return found
