"""The same model by torch and by ONNX, side by side; a part of `puzlm bench`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from bench import timing as bench
from bench.timing import Record, Report
from puzlm.errors import PuzlmError
from puzlm.images import read_image, write_image
from puzlm.models import pretrained as checkpoints
from puzlm.solver import Solver


def backends(report: Report, cold: int, repeats: int) -> Record:
    """The same answers from torch and from ONNX: cold start to answer, and warm."""
    code = (
        "import sys; from puzlm.solver import Solver; "
        "Solver.from_pretrained(sys.argv[1], backend=sys.argv[2]).solve(sys.argv[3], 3)"
    )
    record: Record = {}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            from puzlm.models.onnx_reader import export

            folder = _with_graphs(Path(scratch, "model"))
            engines = {
                (solver, name): Solver.from_pretrained(folder, solver=solver, backend=name)
                for solver in ("auto", "seq2seq")
                for name in ("torch", "onnx")
            }
            small = export(folder, Path(scratch, "int8"), "int8")  # its encoder multiplies integers
            for solver in ("auto", "seq2seq"):
                engines[solver, "int8"] = Solver.from_pretrained(
                    small, solver=solver, backend="onnx"
                )
        except (ImportError, PuzlmError, TypeError) as error:
            return bench.skip(report, "backends", str(error))
        picture = Path(scratch, "shuffled.png")
        write_image(picture, bench.shuffled(read_image(bench.SAMPLES / "china.jpg")))
        starts: dict[str, list[tuple[float, float | None]]] = {"torch": [], "onnx": []}
        for _ in range(cold):
            for name in starts:
                command = [sys.executable, "-c", code, str(folder), name, str(picture)]
                starts[name].append(bench.launch(command))
        times = {
            name: bench.spread([seconds for seconds, _ in runs]) for name, runs in starts.items()
        }
        record["cold_seconds"] = times
        record["cold_peak_mb"] = {
            name: max((peak for _, peak in runs if peak is not None), default=None)
            for name, runs in starts.items()
        }
        record["cold"] = bench.ratio(times, "torch", "onnx", 4.0)
        report(
            f"backends   cold: torch {times['torch']['median']:.2f} s, "
            f"onnx {times['onnx']['median']:.2f} s, {bench.said(record['cold'])} torch"
        )
        puzzle = bench.puzzles(1)[0]
        for solver in ("auto", "seq2seq"):
            works = {
                name: partial(engines[solver, name].solve, puzzle) for name in (*starts, "int8")
            }
            times, answers = bench.race(works, repeats)
            record[f"warm_{solver}_seconds"] = times
            record[f"warm_{solver}"] = bench.ratio(times, "torch", "onnx", 2.0)
            record[f"warm_{solver}_int8"] = bench.ratio(times, "torch", "int8", None)
            found = [answers[name].positions for name in starts]
            record[f"same_{solver}"] = bool(np.array_equal(*found))
            report(
                f"           warm {solver}: torch {1e3 * times['torch']['median']:.0f} ms, "
                f"onnx {1e3 * times['onnx']['median']:.0f} ms, "
                f"{bench.said(record[f'warm_{solver}'])} torch, "
                f"answers {'equal' if record[f'same_{solver}'] else 'DIFFER'}"
            )
            report(
                f"           with an int8 encoder {1e3 * times['int8']['median']:.0f} ms, "
                f"{record[f'warm_{solver}_int8']['median']}x the speed of torch"
            )
    return record


def _with_graphs(scratch: Path) -> Path:
    """The model in the box with its ONNX graphs, written to a scratch folder if it has none."""
    from puzlm.models.onnx_reader import export

    folder = checkpoints.find()
    if (folder / "encoder.onnx").is_file():
        return folder
    scratch.mkdir()
    export(folder, scratch)
    for path in folder.iterdir():  # the torch side reads files that the graphs do not need
        if not (scratch / path.name).exists():
            shutil.copyfile(path, scratch / path.name)
    return scratch
