"""The command `puzlm`: its commands in the order of its help, and how errors are told."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from puzlm.cli.measuring import (
    analyze,
    bench,
    compare,
    evaluate,
    export_benchmark,
    generalise,
    score,
)
from puzlm.cli.puzzles import export, make, models, pieces, solve, web
from puzlm.cli.training import ablate, fit_sides, fit_tokenizer, tokenize, train
from puzlm.errors import PuzlmError, missing

NO_MEMORY = "puzlm: not enough memory for a puzzle, picture or batch of this size"
OUT_OF_MEMORY = ("allocate memory", "out of memory", "bad_alloc")  # onnxruntime and torch say so
STOPPED = 130  # exit code of a program that Ctrl-C ended

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from puzlm import __version__

        print(f"puzlm {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell the version."),
    ] = False,
) -> None:
    """Solve square jigsaw puzzles by reading them."""


for command in (
    make,
    pieces,
    solve,
    fit_tokenizer,
    tokenize,
    fit_sides,
    train,
    evaluate,
    compare,
    export_benchmark,
    score,
    generalise,
    analyze,
    ablate,
    export,
    web,
    models,
    bench,
):
    app.command()(command)


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


def _drop_stdout() -> None:
    """Let what is still to be printed go nowhere: Python would try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command: a user's error is one line on stderr and exit code 2."""
    # Pillow warns of what images.py refuses a moment later, and of damaged facts beside a picture.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # or a full disk would be met where nobody can tell of it
        if code == STOPPED:  # what newer Typers make of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code)
    except KeyboardInterrupt:
        print("puzlm: stopped", file=sys.stderr)
        sys.exit(STOPPED)
    except PuzlmError as error:
        print(f"puzlm: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:  # of an extra
        print(f"puzlm: {missing(error)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(1)
    except OSError as error:
        if error.errno is None:
            raise
        if error.filename is None:  # met while writing, to stdout perhaps
            _drop_stdout()
        print(f"puzlm: {error.filename or 'cannot go on'}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print(NO_MEMORY, file=sys.stderr)
        sys.exit(2)
    # Typer brings click's errors along, under a module name that changes with its versions.
    except Exception as error:
        if type(error).__name__ == "Abort":  # what older Typers make of Ctrl-C
            print("puzlm: stopped", file=sys.stderr)
            sys.exit(STOPPED)
        if any(words in str(error) for words in OUT_OF_MEMORY):
            print(NO_MEMORY, file=sys.stderr)
            sys.exit(2)
        if not hasattr(error, "format_message"):
            raise
        _refuse(error)


if __name__ == "__main__":  # as `python -m puzlm`: scripts call both
    main()
