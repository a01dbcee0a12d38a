"""What the commands share: their options, how they answer, the progress they show."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from puzlm.errors import SettingsError

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
GridOption = Annotated[str, typer.Option("--grid", help="Rows x columns: 3 or 3x4.")]
Images = Annotated[list[Path], typer.Argument(help="Folders, image files or tar files.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first so many images.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all that is drawn at random.")]
Erode = Annotated[
    float,
    typer.Option("--erode", help="Gap between pieces: below 1 a fraction of the piece, else px."),
]
Model = Annotated[str | None, typer.Option("--model", help="A model in the box or a folder.")]
_SOLVERS = "auto, seq2seq, symbols, vision, vision-pairs, bigram, classic, random"
OwnSolver = Annotated[str, typer.Option("--solver", help=f"{_SOLVERS}.")]
SolverName = Annotated[str, typer.Option("--solver", help=f"{_SOLVERS}, or module:function.")]
Engine = Annotated[
    str, typer.Option("--engine", help="single, or ray: spread over cores and machines.")
]
Address = Annotated[
    str | None, typer.Option("--address", help="HOST:PORT of a running Ray cluster.")
]
OutputFolder = Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")]
OutputFile = Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")]
Solvers = Annotated[list[str], typer.Option(help="NAME or NAME@MODEL; may be repeated.")]


def answer(record: Any, as_json: bool, text: str = "") -> None:
    """Print a result: the record as JSON, or what there is to say of it to people."""
    if as_json:
        print(json.dumps(record))
    elif text:
        print(text)


def check_solver(solver: str, model: str | None, decode: str | None, turned: bool = False) -> None:
    """Refuse options that the chosen solver would not heed."""
    name = "classic" if turned and solver == "auto" else solver
    if decode and name not in ("auto", "seq2seq"):
        why = " (which --rotations and --mirrored take)" if turned else ""
        raise SettingsError(f"--decode {decode}: is for the seq2seq solver, not for {name}{why}")
    if model and (solver in ("classic", "random") or ":" in solver):
        raise SettingsError(f"--model {model}: solver {solver} uses no model")


def warn(line: str) -> None:
    """Say something on stderr, in one line."""
    print(f"puzlm: {' '.join(line.split())}", file=sys.stderr)


def teller(as_json: bool) -> Callable[[str], None]:
    """Where the lines of a long command go: nowhere when JSON is wanted."""
    return (lambda line: None) if as_json else print


@contextmanager
def chosen_engine(name: str, address: str | None) -> Iterator[Any]:
    """None for one process, or ray_engine; what Ray has to say goes to stderr."""
    if name not in ("single", "ray"):
        raise SettingsError(f"--engine {name}: must be single or ray")
    if name == "single":
        if address is not None:
            raise SettingsError("--address: only --engine ray has one")
        yield None
        return
    from puzlm.harness import ray_engine

    with redirect_stdout(sys.stderr):
        yield ray_engine


class Progress:
    """A progress bar on a terminal, plain lines elsewhere; called with a count or a log line."""

    def __init__(self, what: str, total: int | None = None, quiet: bool = False) -> None:
        self.what, self.total, self.quiet = what, total, quiet
        self.bar: Any = None

    def __enter__(self) -> Any:
        if sys.stderr.isatty() and not self.quiet:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(transient=True, console=Console(stderr=True))
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
