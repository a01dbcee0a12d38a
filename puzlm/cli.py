"""The command. Each function reads its options, calls the library and prints; imports inside."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from puzlm.errors import PuzlmError, PuzzleError, SettingsError

app = typer.Typer(
    help="Solve square jigsaw puzzles by reading them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
GridOption = Annotated[str, typer.Option("--grid", help="Rows x columns: 3 or 3x4.")]
Images = Annotated[list[Path], typer.Argument(help="Folders, image files or tar files.")]
Limit = Annotated[int | None, typer.Option(help="Use only the first so many images.")]
Erode = Annotated[
    float,
    typer.Option("--erode", help="Gap between pieces: below 1 a fraction of the piece, else px."),
]
Model = Annotated[str | None, typer.Option("--model", help="A model in the box or a folder.")]
SolverName = Annotated[
    str,
    typer.Option(
        "--solver",
        help="auto, seq2seq, vision, vision-pairs, bigram, classic, random, or module:function.",
    ),
]
Engine = Annotated[
    str, typer.Option("--engine", help="single, or ray: spread over cores and machines.")
]
Address = Annotated[
    str | None, typer.Option("--address", help="HOST:PORT of a running Ray cluster.")
]


@app.command()
def make(
    image: Annotated[Path, typer.Argument(help="The picture to cut.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    grid: GridOption = "3",
    erode: Erode = 0.0,
    jitter: Annotated[
        bool, typer.Option(help="Eroded pieces lie off centre in their cells.")
    ] = False,
    missing: Annotated[int, typer.Option(help="Pieces to leave out.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the shuffle.")] = 0,
    as_json: Json = False,
) -> None:
    """Cut a picture into shuffled piece files, with the truth in puzzle.json."""
    from puzlm.images import read_image
    from puzlm.puzzle import Puzzle

    puzzle = Puzzle.from_image(
        read_image(image), grid, gap=erode, jitter=jitter, missing=missing, seed=seed
    )
    puzzle.save(output)
    height, width = puzzle.pieces.shape[1:3]
    if as_json:
        truth = puzzle.truth.tolist() if puzzle.truth is not None else None
        _print({"folder": str(output), "grid": list(puzzle.grid), "pieces": len(puzzle.pieces),
                "piece_size": [height, width], "truth": truth})  # fmt: skip
    else:
        print(f"{len(puzzle.pieces)} pieces of {width} x {height} pixels in {output}")


@app.command()
def solve(
    puzzles: Annotated[
        list[Path],
        typer.Argument(help="A folder of pieces or a shuffled picture; many of them; a folder of "
                       "such folders; a pattern in quotes."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Picture to write (solved.png); of many puzzles, "
                     "the folder for their pictures (solved)."),
    ] = None,
    grid: Annotated[str | None, typer.Option(help="Rows x columns: 3 or 3x4.")] = None,
    model: Model = None,
    solver: SolverName = "auto",
    decode: Annotated[
        str | None, typer.Option(help="Use the seq2seq alone: valid, greedy, beam or assign.")
    ] = None,
    given: Annotated[list[str] | None, typer.Option(help="Fix a piece: PIECE=CELL.")] = None,
    incomplete: Annotated[bool, typer.Option(help="Pieces may be missing or extra.")] = False,
    rotations: Annotated[
        bool, typer.Option(help="Pieces may be turned by quarter turns (pixels decide).")
    ] = False,
    gif: Annotated[
        Path | None, typer.Option(help="Also write an animation; of many, a folder of them.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the picture.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Put the pieces together and write the picture."""
    from puzlm import solving
    from puzlm.images import write_image
    from puzlm.puzzle import Puzzle
    from puzlm.solver import Solver

    path = solving.find(puzzles)
    chosen = "classic" if rotations else "seq2seq" if decode else "auto"
    chosen = chosen if solver == "auto" else solver

    def engine() -> Solver:
        if rotations:
            return Solver(solver=chosen, rotations=True)
        return Solver.from_pretrained(model, solver=chosen, decoding=decode or "valid")

    if isinstance(path, list):
        if given:
            raise SettingsError("--given: fixes pieces of one puzzle, not of many")
        folder, found = output or Path("solved"), []
        with _progress("solving", len(path), quiet=as_json) as tick:
            for one in solving.solve_many(engine(), path, folder, grid=grid, incomplete=incomplete,
                                          gifs=gif, tick=tick):  # fmt: skip
                found.append(one.as_dict())
                if one.error:
                    solving.complain(one)
        if show:
            typer.launch(str(folder))
        if as_json:
            _print(found)
        else:
            solving.show_many(found, folder)
        raise typer.Exit(2 if any("error" in record for record in found) else 0)
    loaded = Puzzle.load(path, grid, incomplete=incomplete)
    solution = engine().solve(loaded, given=_given(given or []))
    output = output or Path("solved.png")
    write_image(output, solution.drawn(loaded.truth))
    if gif is not None:
        solving.write_gif(gif, loaded, solution)
    if show:
        typer.launch(str(output))
    if as_json:
        _print({**solution.as_dict(), "image": str(output), **solving.score(solution, loaded)})
    else:
        solving.show(solution, loaded, output)


@app.command("fit-tokenizer")
def fit_tokenizer(
    images: Images,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    grid: GridOption = "3",
    erode: Erode = 0.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, e.g. vocab_size=512")
    ] = None,
    limit: Limit = None,
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Learn the symbols (PCA + k-means) from images."""
    from puzlm.images import iter_images
    from puzlm.settings import Recipe
    from puzlm.tokenizer import PieceTokenizer

    wanted = Recipe.from_overrides([f"tokenizer.{s}" for s in settings or []]).tokenizer
    tokenizer = PieceTokenizer(wanted).fit(
        iter_images(images, limit), grid=grid, gap=erode, seed=seed, device=device
    )
    tokenizer.save_pretrained(output)
    if as_json:
        _print(
            {"folder": str(output), "symbols": tokenizer.vocab_size, "vocabulary": len(tokenizer)}
        )
    else:
        print(f"{tokenizer.vocab_size} symbols in {output}")


@app.command()
def tokenize(
    images: Images,
    tokenizer: Annotated[str, typer.Option(help="Folder of a tokenizer, or a model's name.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="TOKENS.npy to write.")],
    grid: GridOption = "3",
    erode: Erode = 0.0,
    limit: Limit = None,
    engine: Engine = "single",
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Turn images into a token file for training and analysis."""
    from puzlm import checkpoints
    from puzlm.puzzle import parse_grid
    from puzlm.tokenizer import PieceTokenizer
    from puzlm.tokens import write_tokens

    reader = PieceTokenizer.from_pretrained(checkpoints.find(tokenizer))
    cells, parts = parse_grid(grid), None
    with _progress("tokenising") as tick, _engine(engine, address) as ray:
        if ray is not None:
            parts = ray.tokenize(images, reader, cells, erode, limit, address)
        count = write_tokens(images, reader, output, grid=cells, gap=erode, limit=limit,
                             parts=parts, report=tick)  # fmt: skip
    if as_json:
        _print({"file": str(output), "puzzles": count})
    else:
        print(f"{count} puzzles in {output}")


@app.command("fit-sides")
def fit_sides(
    sources: Annotated[
        list[Path], typer.Argument(help="A TOML recipe, or token files of `puzlm tokenize`.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="Its folder, or a model's name; default as in the recipe.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, e.g. sides.steps=500")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn which side follows which: the side model, for any grid."""
    from dataclasses import replace

    from puzlm.bigram import fit_sides as run
    from puzlm.settings import Recipe

    is_recipe = sources[0].suffix == ".toml"
    if is_recipe and len(sources) > 1:
        raise SettingsError("fit-sides: give one recipe, or token files")
    plan = Recipe.load(sources[0], settings) if is_recipe else Recipe.from_overrides(settings or [])
    plan = replace(plan, tokenizer_path=tokenizer or plan.tokenizer_path)
    with _progress("fitting", plan.sides.steps, quiet=as_json) as tick:
        done = run(plan, output, () if is_recipe else sources, report=tick)
    if as_json:
        _print(done)
    else:
        print(f"side model in {output}")


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML recipe.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run.")] = Path(
        "runs/model"
    ),
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.key=value")] = None,
    stop_after: Annotated[
        float | None, typer.Option(help="Save and stop after so many seconds.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model; an interrupted run in the same folder goes on where it was."""
    from puzlm import settings as recipes

    kind = recipes.kind_of(recipe)
    if kind == "language":
        from puzlm.train import train as run

        plan: Any = recipes.Recipe.load(recipe, settings)
    else:
        from puzlm.vision_train import VisionRecipe
        from puzlm.vision_train import train as run  # type: ignore[assignment]

        plan = VisionRecipe.load(recipe, settings)
    with _progress("training", plan.train.steps, quiet=as_json) as tick:
        done = run(plan, output, stop_after=stop_after or float("inf"), report=tick)
    if as_json:
        _print(done)
    else:
        print(
            f"model in {output}" if done["done"] else f"stopped at step {done['step']}; run again"
        )


@app.command()
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
    limit: Limit = None,
    seed: Annotated[int, typer.Option()] = 0,
    engine: Engine = "single",
    address: Address = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="results.json to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a solver: absolute, perfect and neighbour accuracy with 95 % intervals."""
    from puzlm.evaluate import evaluate as run
    from puzlm.protocols import from_images, get_protocol
    from puzlm.solver import load_solver

    chosen = "seq2seq" if decode and solver == "auto" else solver
    if (protocol is None) == (not images):
        raise SettingsError("give either --protocol NAME --data PATH, or --images PATH")
    if protocol is not None:
        if data is None:
            raise SettingsError(f"--protocol {protocol}: needs --data, the benchmark's images")
        rules = get_protocol(protocol)
        source: Any = data
    else:
        made = partial(from_images, images or [], grid, erode, missing, seed, limit)
        rules, source = made()[0], lambda: made()[1]
    load = partial(load_solver, chosen, model, decode or "valid")
    with _progress("solving", limit, quiet=as_json) as tick, _engine(engine, address) as ray:
        asked = load() if ray is None else ray.solving(load, address)
        found = run(asked, rules, source, limit=limit, output=output, solver_name=chosen,
                    settings={"model": model, "decode": decode}, progress=tick,
                    spread=ray is not None)  # fmt: skip
    if as_json:
        _print({k: v for k, v in found.items() if k not in ("outcomes",)})
    else:
        for name in ("absolute", "perfect", "neighbour"):
            value = found[name]
            print(f"{name:10s} {value['value']:.1f} % [{value['low']:.1f}, {value['high']:.1f}]")
        print(f"{found['puzzles']} puzzles, {found['seconds_per_puzzle']:.3f} s each")


@app.command()
def compare(
    results: Annotated[list[Path], typer.Argument(help="Results files of `puzlm evaluate -o`.")],
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
    csv: Annotated[bool, typer.Option(help="Print CSV.")] = False,
) -> None:
    """Put results side by side, with paired tests and the published numbers."""
    from puzlm.compare import compare as table

    made = table(results)
    print(made.as_markdown() if markdown else made.as_csv() if csv else made.as_text())


@app.command()
def generalise(
    kind: Annotated[list[str], typer.Option(help="Kind of images: NAME=PATH; may be repeated.")],
    solver: Annotated[list[str], typer.Option(help="NAME or NAME@MODEL; may be repeated.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")],
    grid: Annotated[list[str] | None, typer.Option(help="3 or 3x4; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(help="Puzzles a cell.")] = 100,
    figure: Annotated[Path | None, typer.Option(help="Also draw the heat map.")] = None,
    as_json: Json = False,
) -> None:
    """Measure solvers on kinds of images, gap by gap from none to half a piece."""
    from puzlm.generalise import generalise as run
    from puzlm.generalise import parse_kinds

    report = (lambda line: None) if as_json else print
    found = run(solver, parse_kinds(kind), output, grids=grid or ["3"], limit=limit, report=report)
    if figure is not None:
        from puzlm.figures import generalisation

        generalisation(json.loads(output.read_text()), figure)
    if as_json:
        _print(found)


@app.command()
def costs(
    solver: Annotated[list[str], typer.Option(help="NAME or NAME@MODEL; may be repeated.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")],
    seconds: Annotated[float, typer.Option(help="Time for the rounds of each size.")] = 20.0,
    as_json: Json = False,
) -> None:
    """Measure time, memory and weights of solvers as puzzles grow, beside `classic`."""
    from puzlm.costs import measure

    report = (lambda line: None) if as_json else print
    found = measure(solver, output, seconds=seconds, report=report)
    if as_json:
        _print(found)


@app.command()
def analyze(
    tokens: Annotated[list[Path], typer.Argument(help="Token files of `puzlm tokenize`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    model: Model = None,
    seed: Annotated[int, typer.Option()] = 0,
    as_json: Json = False,
) -> None:
    """Entropy, Zipf, Heaps and more of token files, as JSON and figures."""
    from puzlm import checkpoints
    from puzlm.analyze import analyze as run

    found = run(tokens, output, model=checkpoints.find(model) if model else None, seed=seed)
    if as_json:
        _print(found)
    else:
        print(f"figures and numbers in {output}")


@app.command()
def ablate(
    plan: Annotated[Path, typer.Argument(help="A TOML plan, e.g. plans/study.toml.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of rows.jsonl and kept models.")
    ] = Path("runs/ablate"),
    data: Annotated[Path, typer.Option(help="Folder the plan's image files lie in.")] = Path("."),
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Names or groups of rows; * matches.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Training time of a row.")] = None,
    stop_after: Annotated[
        float | None, typer.Option(help="Begin no row that might not end within so many seconds.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train and examine the rows of a plan, each for the same time; done rows are skipped."""
    from puzlm.ablate import run_plan

    def quiet(text: str) -> None: ...

    rows = run_plan(plan, output, data=data, only=only or [], seconds=seconds,
                    stop_after=stop_after or float("inf"), 
                    report=quiet if as_json else print)  # fmt: skip
    if as_json:
        _print(rows)


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A model in the box or a folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    dtype: Annotated[
        str | None, typer.Option(help="float16, float32 or int8; default as stored.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model as ONNX: it then solves without torch."""
    from puzlm import checkpoints
    from puzlm.export import export as run

    folder = run(checkpoints.find(model), output, dtype)
    if as_json:
        _print({"folder": str(folder)})
    else:
        print(f"ONNX graphs in {folder}")


@app.command()
def web(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    model: Model = None,
) -> None:
    """Open the page to cut, solve and mend puzzles in a browser."""
    # Before numpy is loaded: small matrices on several busy threads take ten times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from puzlm.web.app import serve
    except ImportError as error:
        raise SettingsError(f"{error.name} is missing: pip install 'puzlm[web]'") from error
    print(f"http://{host}:{port}  (Ctrl-C ends it)")
    serve(host, port, model)


@app.command()
def models(as_json: Json = False) -> None:
    """List the models in the box."""
    from puzlm import checkpoints

    cards = [
        {"name": name, **checkpoints.card(checkpoints.BOX / name)} for name in checkpoints.names()
    ]
    if as_json:
        _print(cards)
        return
    for card in cards:
        grids = ", ".join(card.get("grids", ["?"]))
        print(f"{card['name']}  grids {grids}  {card.get('summary', '')}")
        for row in card.get("results", []):
            scores = f"{row['absolute']['value']:5.1f} / {row['perfect']['value']:5.1f}"
            print(f"    {row['protocol']:24s} {scores}  {row['solver']}, {row['puzzles']} puzzles")


@app.command()
def bench(
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")] = Path(
        "bench.json"
    ),
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
    say = (lambda line: None) if as_json else print
    if service:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `puzlm web` does
        from puzlm.bench_service import run as run_service

        results = run_service(quick=quick, report=say)
    else:
        from puzlm.bench_library import run

        results = run(quick=quick, training=training, report=say)
    from puzlm.images import write_bytes

    write_bytes(output, (json.dumps(results, indent=1) + "\n").encode())
    if as_json:
        _print(results)
    else:
        print(f"written to {output}")
    if failed := [name for name, passed in results.get("checks", {}).items() if not passed]:
        raise PuzlmError(f"bench: failed: {'; '.join(failed)}")


def _print(record: Any) -> None:
    print(json.dumps(record))


def _given(pairs: list[str]) -> dict[int, int]:
    """Read --given piece=cell options."""
    fixed: dict[int, int] = {}
    for pair in pairs:
        piece, equals, cell = pair.partition("=")
        if not (equals and piece.strip().isdigit() and cell.strip().isdigit()):
            raise PuzzleError(f"--given {pair}: write PIECE=CELL, for example 0=4")
        fixed[int(piece)] = int(cell)
    return fixed


@contextmanager
def _engine(name: str, address: str | None) -> Iterator[Any]:
    """None for one process, or ray_engine; what Ray has to say goes to stderr."""
    if name not in ("single", "ray"):
        raise SettingsError(f"--engine {name}: must be single or ray")
    if name == "single":
        if address is not None:
            raise SettingsError("--address: only --engine ray has one")
        yield None
        return
    from puzlm import ray_engine

    with redirect_stdout(sys.stderr):
        yield ray_engine


class _progress:
    """A progress bar on a terminal, plain lines elsewhere; called with a count or a log line."""

    def __init__(self, what: str, total: int | None = None, quiet: bool = False) -> None:
        self.what, self.total, self.quiet = what, total, quiet
        self.bar: Any = None

    def __enter__(self) -> Any:
        if sys.stderr.isatty() and not self.quiet:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(transient=True, console=Console(stderr=True))
            self.bar.start()
            self.task = self.bar.add_task(self.what, total=self.total)
        return self

    def __call__(self, line: Any) -> None:
        if self.quiet:
            return
        count = line["step"] if isinstance(line, dict) else line
        if self.bar is not None:
            self.bar.update(self.task, completed=count)
        if isinstance(line, dict):
            facts = "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()
            )
            print(facts, file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()


def _refuse(error: Any) -> NoReturn:
    """Tell of a wrong option or argument in the shape of every other error."""
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        sys.exit(2)
    context = getattr(error, "ctx", None)
    where = f"; see {context.command_path} --help" if context is not None else ""
    line = " ".join(message.split()).rstrip(".")
    print(f"puzlm: {line[:1].lower()}{line[1:]}{where}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Run the command: a user's error is one line on stderr and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False))
    except PuzlmError as error:
        print(f"puzlm: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        print("puzlm: not enough memory for a picture or batch of this size", file=sys.stderr)
        sys.exit(2)
    # Typer brings click's errors along, under a module name that changes with its versions.
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C
            print("puzlm: stopped", file=sys.stderr)
            sys.exit(1)
        if not hasattr(error, "format_message"):
            raise
        _refuse(error)


if __name__ == "__main__":
    main()
