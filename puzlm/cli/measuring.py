"""Commands that measure. Imports inside: help must be quick."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from puzlm.cli.options import (
    Address,
    Engine,
    Erode,
    GridOption,
    Json,
    Limit,
    Model,
    OutputFile,
    OutputFolder,
    Progress,
    Seed,
    SolverName,
    Solvers,
    answer,
    check_solver,
    chosen_engine,
    teller,
    warn,
)
from puzlm.errors import PuzlmError, SettingsError


def evaluate(
    protocol: Annotated[str | None, typer.Option(help="A named benchmark; needs --data.")] = None,
    data: Annotated[Path | None, typer.Option(help="The benchmark's images.")] = None,
    images: Annotated[list[Path] | None, typer.Option(help="Or any images, with --grid.")] = None,
    model: Model = None,
    grid: GridOption = "3",
    erode: Erode = 0.0,
    missing: Annotated[int, typer.Option(help="Pieces missing from each puzzle.")] = 0,
    solver: SolverName = "auto",
    decode: Annotated[
        str | None, typer.Option(help="The seq2seq alone: valid, greedy, beam or assign.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Use only so many: the first of --images or a tar, evenly spaced ones of "
            "--data that is a folder.",
        ),
    ] = None,
    seed: Seed = 0,
    engine: Engine = "single",
    address: Address = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="results.json to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a solver: absolute, perfect and neighbour accuracy with 95 % intervals."""
    from puzlm.cli.solve import check_pieces
    from puzlm.harness.compare import remarks
    from puzlm.harness.evaluate import evaluate as run
    from puzlm.harness.evaluate import load_function, source_digest
    from puzlm.harness.page_sets import PAGE_SETS
    from puzlm.harness.protocols import from_images, get_protocol
    from puzlm.solver import load_solver
    from puzlm.solving.calibration import VERSION

    check_solver(solver, model, decode)
    chosen = "seq2seq" if decode and solver == "auto" else solver
    if (protocol is None) == (not images):
        raise SettingsError("give either --protocol NAME --data PATH, or --images PATH")
    if protocol is not None:
        if data is None:
            raise SettingsError(f"--protocol {protocol}: needs --data, the benchmark's images")
        if protocol in PAGE_SETS:
            engines: dict[str, Any] = {}
            if ":" in solver and PAGE_SETS[protocol].grid is None:
                engines = {"order": (solver, load_function(solver))}
            elif solver not in ("auto", "strokes"):
                engines = {"solver": (solver, load_solver(solver, model, decode or "valid"))}
            _evaluate_pages(PAGE_SETS[protocol], data, limit, output, engines, as_json)
            return
        rules = get_protocol(protocol)
        source: Any = data
    else:
        made = partial(from_images, images or [], grid, erode, missing, seed, limit)
        rules, source = made()[0], lambda: made()[1]
        if ":" not in chosen:
            check_pieces(rules.grid[0] * rules.grid[1], f"--grid {grid}", chosen)
    how = decode or "valid"
    load = partial(load_solver, chosen, model, how)
    with Progress("solving", limit, quiet=as_json) as tick, chosen_engine(engine, address) as ray:
        asked = load() if ray is None else ray.Solving(chosen, model, how, address)
        settings: dict[str, Any] = {"model": model, "decode": decode}
        settings["calibration"] = None if ":" in chosen else VERSION  # others say what they like
        if ":" in chosen:
            settings["source"] = source_digest(chosen)
            settings["about"] = getattr(asked, "about", None)
        try:
            found = run(
                asked,
                rules,
                source,
                limit=limit,
                output=output,
                solver_name=chosen,
                settings=settings,
                progress=tick,
                report=warn,
                spread=ray is not None,
            )
        except KeyboardInterrupt:
            if output is not None:
                warn(f"{output}: the same command goes on where it stopped")
            raise
    lines = [
        f"{name:10s} {found[name]['value']:.1f} % "
        f"[{found[name]['low']:.1f}, {found[name]['high']:.1f}]"
        for name in ("absolute", "perfect", "neighbour")
    ]
    about = [f"{found['puzzles']} puzzles, {found['seconds_per_puzzle']:.3f} s each"]
    lines += ["; ".join(about + remarks(found))]
    if found["failed"]:
        first = next(record["error"] for record in found["outcomes"] if record["error"])
        warn(f"{found['failed']} of {found['puzzles']} puzzles failed; the first: {first}")
    del found["outcomes"]
    answer(found, as_json, "\n".join(lines))


def _evaluate_pages(
    rules: Any,
    data: Path,
    limit: int | None,
    output: Path | None,
    engines: dict[str, Any],
    as_json: bool,
) -> None:
    """Measure on shredded pages: the share of strips whose right neighbour is right."""
    from puzlm.harness.page_sets import evaluate_pages

    with Progress("solving", limit, quiet=as_json) as tick:
        found = evaluate_pages(rules, data, limit=limit, output=output, tick=tick, **engines)
    lines = [
        f"{name:10s} {found[name]['value']:.1f} % "
        f"[{found[name]['low']:.1f}, {found[name]['high']:.1f}]"
        for name in ("absolute", "perfect", "neighbour")
    ]
    about = f"{found['puzzles']} heaps, {found['seconds_per_puzzle']:.1f} s each"
    known = found["ece"] is not None
    lines.append(f"{about}, calibration error {found['ece']:.3f}" if known else about)
    lines += [f"published: {name} {value:.1f}" for name, value in rules.published]
    del found["outcomes"]
    answer(found, as_json, "\n".join(lines))


def compare(
    results: Annotated[list[Path], typer.Argument(help="Results files of `puzlm evaluate -o`.")],
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
    csv: Annotated[bool, typer.Option(help="Print CSV.")] = False,
) -> None:
    """Put results side by side, with paired tests and the published numbers."""
    from puzlm.harness.compare import compare as table

    made = table(results)
    print(made.as_markdown() if markdown else made.as_csv() if csv else made.as_text())


def export_benchmark(
    protocol: Annotated[str, typer.Argument(help="A named benchmark.")],
    data: Annotated[Path, typer.Option(help="The benchmark's images.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="New folder to write.")],
    limit: Limit = None,
    npz: Annotated[bool, typer.Option("--npz", help="One file of arrays, not PNG files.")] = False,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="A folder for the library datasets.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a benchmark's puzzles as files that need no PuzLM, with a scorer."""
    from puzlm.harness.benchmark import export
    from puzlm.harness.protocols import get_protocol, read_data

    if npz and parquet:
        raise SettingsError("give --npz or --parquet, not both")
    form = "npz" if npz else "parquet" if parquet else "png"
    rules = get_protocol(protocol)
    count = export(rules, read_data(data, rules, limit), output, form, data.name)
    answer({"folder": str(output), "puzzles": count}, as_json, f"{count} puzzles in {output}")


def score(
    answers: Annotated[Path, typer.Argument(help="ANSWERS.json: positions by puzzle number.")],
    benchmark: Annotated[Path, typer.Argument(help="Folder of `puzlm export-benchmark`.")],
    as_json: Json = False,
) -> None:
    """Score answers to a benchmark that was taken away."""
    from puzlm.harness.benchmark import score as run

    found = run(answers, benchmark)
    told = "\n".join(f"{name:10} {interval}" for name, interval in found.items())
    answer({name: interval.as_dict() for name, interval in found.items()}, as_json, told)


def generalise(
    kind: Annotated[list[str], typer.Option(help="Kind of images: NAME=PATH; may be repeated.")],
    solver: Solvers,
    output: OutputFile,
    grid: Annotated[list[str] | None, typer.Option(help="3 or 3x4; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Puzzles a cell.")] = 100,
    figure: Annotated[Path | None, typer.Option(help="Also draw the heat map.")] = None,
    as_json: Json = False,
) -> None:
    """Measure solvers on kinds of images, gap by gap from none to half a piece."""
    from puzlm.harness.generalise import generalise as run
    from puzlm.harness.generalise import parse_kinds

    found = run(
        solver, parse_kinds(kind), output, grids=grid or ["3"], limit=limit, report=teller(as_json)
    )
    if figure is not None:
        from puzlm.files import read_json
        from puzlm.harness.figures import generalisation

        generalisation(read_json(output), figure)
    answer(found, as_json)


def analyze(
    tokens: Annotated[list[Path], typer.Argument(help="Token files of `puzlm tokenize`.")],
    output: OutputFolder,
    model: Model = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Entropy, Zipf, Heaps and more of token files, as JSON and figures."""
    from puzlm.models import pretrained as checkpoints
    from puzlm.study.analyze import analyze as run

    found = run(tokens, output, model=checkpoints.find(model) if model else None, seed=seed)
    answer(found, as_json, f"figures and numbers in {output}")


def bench(
    output: OutputFile = Path("bench.json"),
    quick: Annotated[bool, typer.Option(help="Small sizes, to see that it runs.")] = False,
    training: Annotated[
        bool, typer.Option(help="Time the stages of a training step instead.")
    ] = False,
    service: Annotated[
        bool, typer.Option(help="Start the service and put it under load instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure speed and memory, as ratios of two things run side by side."""
    say = teller(as_json)
    if service:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `puzlm web` does
        from bench.service import run as run_service

        results = run_service(quick=quick, report=say)
    else:
        from bench.library import run

        results = run(quick=quick, training=training, report=say)
    from puzlm.files import write_bytes

    write_bytes(output, (json.dumps(results, indent=1) + "\n").encode())
    answer(results, as_json, f"written to {output}")
    if failed := [name for name, passed in results.get("checks", {}).items() if not passed]:
        raise PuzlmError(f"bench: failed: {'; '.join(failed)}")
