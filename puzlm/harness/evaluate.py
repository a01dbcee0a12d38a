"""Solver x protocol -> results.json. Knows no tables; `compare.py` makes those.

A solver is a callable `(list[Puzzle]) -> list of answers`, an answer has `positions` (n,),
`confidences` (n,) in [0, 1] or None, and `solver`, the name of what gave it. Solvers see pieces,
grid and given pieces only: the truth is taken out before they are asked. An answer that is an
exception, or none at all, counts as failed: no piece of that puzzle is right. One that puts two
pieces into a cell is scored piece by piece, as the paper's greedy answers are.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import time
import typing
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm import __version__, metrics
from puzlm.errors import PuzlmError, PuzzleError, SettingsError
from puzlm.files import write_bytes
from puzlm.harness.protocols import Protocol, read_data
from puzlm.harness.resuming import resume
from puzlm.metrics import MEASURES
from puzlm.puzzle import Puzzle

VERSION = 1  # of the results file
BINS = 10  # equal-width bins of confidence
CHUNK = 50  # puzzles asked and saved at a time ...
CHUNK_PIECES = 2000  # ... fewer if they are large: an interruption costs a minute at most


class AnswerLike(typing.Protocol):
    """What evaluate reads of an answer; `Solution` has it."""

    @property
    def positions(self) -> NDArray[Any]: ...
    @property
    def confidences(self) -> Any: ...
    @property
    def solver(self) -> str: ...


@dataclass(frozen=True)
class Answer:
    """Positions (n,) of one puzzle, and how sure they are if the solver says so."""

    positions: NDArray[Any]
    confidences: NDArray[np.float64] | None
    solver: str


Solve = Callable[[list[Puzzle]], Sequence[AnswerLike | Exception]]
Pairs = Iterable[tuple[int, Puzzle]]  # puzzles with the numbers of their images
# A chunk: the numbers of its images, and the puzzles among them that were not asked before ...
Question = tuple[list[int], list[tuple[int, Puzzle]]]
Reply = tuple[list[int], list[dict[str, Any]]]  # ... or what came of them
Spread = Callable[[Callable[[], Iterator[Question]]], Iterable[Reply]]


def random_solver(seed: int = 0) -> Solve:
    """Place pieces at random, given ones where they belong: the floor."""

    def solve(puzzles: list[Puzzle]) -> list[Answer]:
        answers = []
        for puzzle in puzzles:
            # Seeded by the pieces, so the answer is the same in any order and after a resume.
            rng = np.random.default_rng((seed, zlib.crc32(puzzle.pieces.tobytes())))
            given = puzzle.settings.get("given", {})
            free = rng.permutation([c for c in range(puzzle.cells) if c not in given.values()])
            rest = iter(free.tolist())
            positions = [given[i] if i in given else next(rest) for i in range(len(puzzle.pieces))]
            sure = [1.0 if i in given else 1 / len(free) for i in range(len(puzzle.pieces))]
            answers.append(Answer(np.array(positions), np.array(sure), "random"))
        return answers

    return solve


def load_function(text: str) -> Callable[..., Any]:
    """Import "module:function", from the working folder too."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise SettingsError(f"solver '{text}': give a known name or module:function")
    _look_here()
    try:
        function = getattr(importlib.import_module(module_name), name, None)
    except PuzlmError:
        raise
    except Exception as error:  # a module of the user's may raise anything
        raise SettingsError(
            f"solver '{text}': {module_name} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    if not callable(function):
        raise SettingsError(f"solver '{text}': {module_name} has no function '{name}'")
    return typing.cast(Callable[..., Any], function)


def load_solver_function(text: str) -> Solve:
    """Make a solver of "module:function", function(list of piece arrays, grid) -> positions.

    A function with a parameter `given` also gets {piece: cell} of the pieces that are given.
    What it says in an attribute `about`, results say too.
    """
    function = load_function(text)
    try:
        wants_given = "given" in inspect.signature(function).parameters
    except ValueError:  # built-in functions may have no signature
        wants_given = False

    def solve(puzzles: list[Puzzle]) -> list[Answer | Exception]:
        answers: list[Answer | Exception] = []
        for puzzle in puzzles:
            more = {"given": puzzle.settings.get("given", {})} if wants_given else {}
            try:
                positions = function(list(puzzle.pieces.copy()), puzzle.grid, **more)
                answers.append(Answer(np.asarray(positions), None, text))
            except Exception as error:
                answers.append(error)
        return answers

    if hasattr(function, "about"):
        solve.about = function.about  # type: ignore[attr-defined]
    return solve


def _look_here() -> None:
    """Find modules in the working folder, as `python -m` does; an installed command does not."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def source_digest(text: str) -> str | None:
    """Digest of the file that a solver "module:function" stands in; None if there is none."""
    _look_here()
    try:
        spec = importlib.util.find_spec(text.partition(":")[0])
        return hashlib.sha256(Path(str(spec and spec.origin)).read_bytes()).hexdigest()[:16]
    except Exception:  # loading it, which comes next, says what is wrong
        return None


def evaluate(
    solver: Solve | Spread,
    protocol: Protocol,
    data: str | Path | Pairs | Callable[[], Pairs],
    *,
    limit: int | None = None,
    output: str | Path | None = None,
    solver_name: str = "solver",
    settings: dict[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    report: Callable[[str], None] = lambda line: None,
    spread: bool = False,
) -> dict[str, Any]:
    """Ask a solver every puzzle of a protocol and write what came, with intervals, to `output`.

    OUTPUT.partial.jsonl holds the puzzles done so far; the same call goes on from there.
    `progress` is called with the number of puzzles done, `report` with a line of text if some were
    done before. With `spread`, `solver` takes a function
    that reads all chunks and gives the replies to them in order (see ray_engine.py).
    """
    head = {"version": VERSION, "protocol": protocol.settings(), "solver": solver_name}
    head["settings"] = json.loads(json.dumps(settings or {}, default=str))
    head["puzlm"] = __version__
    head["files"] = before_files = _files_of(solver)
    commit = current_commit()
    if output is not None and Path(output).is_dir():
        raise SettingsError(f"output {output}: is a folder, a file name is needed")
    partial = Path(f"{output}.partial.jsonl") if output is not None else None
    done: dict[int, dict[str, Any]] = {}
    if partial is not None:
        commit, done = resume(partial, head, commit)
    if done:
        report(f"going on from {len(done)} puzzles done before")
    source = Path(data).name if isinstance(data, str | Path) else "puzzles given"
    outcomes: list[dict[str, Any]] = []
    before = {index: str(record["digest"]) for index, record in done.items()}
    read = functools.partial(_questions, data, protocol, limit, before, partial)
    replies: Any = solver(read) if spread else map(replying(solver), read())  # type: ignore
    for indices, new in replies:
        done.update((record["index"], record) for record in new)
        if partial is not None and new:
            with partial.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in new)
        outcomes += [done[index] for index in indices]
        if progress is not None:
            progress(len(outcomes))
    if not outcomes:
        raise PuzzleError("there are no puzzles to evaluate on")
    if changed := set(_files_of(solver).items()) - set(before_files.items()):
        if partial is not None:
            partial.unlink(missing_ok=True)  # nobody knows which answers are whose
        name = min(changed)[0]
        raise SettingsError(f"{name}: was changed while it was evaluated; evaluate again")
    # With the index, which picks the permutation: equal fingerprints are equal puzzles.
    digests = "".join(f"{record['index']}:{record['digest']}\n" for record in outcomes)
    fingerprint = hashlib.sha256(digests.encode()).hexdigest()
    scales = [float(record["scale"]) for record in outcomes]
    result = {
        **head,
        "commit": commit,
        "data": {
            "name": source,
            "fingerprint": fingerprint,
            "scale": [min(scales), max(scales)],
            **_storage(outcomes),
        },
        "puzzles": len(outcomes),
        "failed": sum(record["error"] is not None for record in outcomes),
        "repeated": sum(_repeats(record["positions"] or []) for record in outcomes),
        **{m: metrics.bootstrap([r[m] for r in outcomes]).as_dict() for m in MEASURES},
        "seconds_per_puzzle": round(sum(r["seconds"] for r in outcomes) / len(outcomes), 6),
        **_calibration(outcomes),
        "outcomes": outcomes,
    }
    if output is not None and partial is not None:
        write_bytes(output, (json.dumps(result) + "\n").encode())
        partial.unlink(missing_ok=True)
    return result


def _files_of(solver: Any) -> dict[str, str]:
    """SHA-256 of every file that a solver's answers depend on; empty if it has none.

    `Solver.solve_many` says it by the solver it belongs to, other solvers by an attribute `files`.
    """
    asked = getattr(getattr(solver, "__self__", solver), "files", None)
    return dict(asked()) if callable(asked) else {}


def _questions(
    data: str | Path | Pairs | Callable[[], Pairs],
    protocol: Protocol,
    limit: int | None,
    before: dict[int, str],
    partial: Path | None,
) -> Iterator[Question]:
    """Read the puzzles chunk by chunk; `before` has the digests of those done before."""
    if isinstance(data, str | Path):
        pairs = read_data(data, protocol, limit)
    else:
        pairs = islice(iter(data() if callable(data) else data), limit)
    size = max(1, min(CHUNK, CHUNK_PIECES // (protocol.grid[0] * protocol.grid[1])))
    while chunk := list(islice(pairs, size)):
        for index, puzzle in chunk:
            if index in before and before[index] != _digest(puzzle):
                raise SettingsError(
                    f"{partial}: was begun with other images (number {index} "
                    "differs); delete it or choose another output"
                )
        yield [i for i, _ in chunk], [(i, puzzle) for i, puzzle in chunk if i not in before]


def _storage(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Say how the images were stored, and how many pixels of a puzzle one of a file's makes."""
    shrunk = [float(record["shrunk"]) for record in outcomes if "shrunk" in record]
    types = Counter(record["stored"] for record in outcomes if "stored" in record)
    return ({"stored": dict(types)} if types else {}) | (
        {"shrunk": [min(shrunk), max(shrunk)]} if shrunk else {}
    )


def replying(solver: Solve) -> Callable[[Question], Reply]:
    """Make a function that asks a solver one chunk; the unit of work of every engine."""
    return lambda question: (question[0], _ask(solver, question[1]))


def _ask(solver: Solve, pairs: list[tuple[int, Puzzle]]) -> list[dict[str, Any]]:
    """Ask for all at once; if that fails, one by one, so that one puzzle spoils no other."""
    if not pairs:
        return []
    asked = []
    for _, puzzle in pairs:
        given = {k: v for k, v in puzzle.settings.items() if k in ("given", "rotations")}
        asked.append(replace(puzzle, truth=None, names=(), settings=given))
    began = time.perf_counter()
    try:
        answers = list(solver(list(asked)))
        if len(answers) != len(asked):
            raise ValueError(f"{len(answers)} answers to {len(asked)} puzzles")
    except Exception as error:
        if len(pairs) > 1:
            return [record for pair in pairs for record in _ask(solver, [pair])]
        answers = [error]
    seconds = (time.perf_counter() - began) / len(pairs)
    return [
        {**_outcome(index, puzzle, answer), "seconds": round(seconds, 6)}
        for (index, puzzle), answer in zip(pairs, answers, strict=True)
    ]


def _outcome(index: int, puzzle: Puzzle, answer: AnswerLike | Exception) -> dict[str, Any]:
    """Score one answer; one that makes no sense scores nothing and says why."""
    if puzzle.truth is None:
        raise PuzzleError(f"puzzle {index} has no truth to score against")
    record: dict[str, Any] = {"index": index, "digest": _digest(puzzle), "grid": [*puzzle.grid]}
    kept = ("name", "stored", "shrunk", "seed", "scale", "cell", "piece", "offsets", "order",
            "turns", "given", "off")  # fmt: skip
    record |= {key: puzzle.settings[key] for key in kept if key in puzzle.settings}
    record.setdefault("scale", 1.0)
    if "given" in record:  # JSON's keys are text, also before it was written
        record["given"] = {str(piece): cell for piece, cell in record["given"].items()}
    record |= {"truth": puzzle.truth.tolist(), "positions": None, "confidences": None}
    record |= {"solver": None, "error": None, **dict.fromkeys(MEASURES, 0.0)}
    try:
        if isinstance(answer, Exception):
            raise answer
        positions, confidences = _checked(puzzle, answer)
        if "turns" in puzzle.settings:
            positions = _upright(puzzle, positions, getattr(answer, "turns", ()))
            if confidences is not None:  # the whole was turned for it: that doubt does not count
                confidences = np.minimum(confidences / getattr(answer, "upright", 1.0), 1.0)
    except Exception as error:  # an answer of any kind; reading it may raise anything
        return record | {"error": f"{type(error).__name__}: {error}"[:300]}
    given = puzzle.settings.get("given", {})
    record["positions"] = positions.tolist()
    record["solver"] = str(getattr(answer, "solver", ""))
    if confidences is not None:
        record["confidences"] = [round(float(value), 5) for value in confidences]
    record |= metrics.measures(positions, puzzle.truth, puzzle.grid[1], given)
    return record


def _upright(puzzle: Puzzle, positions: NDArray[np.int64], turns: Any) -> NDArray[np.int64]:
    """Positions in the picture set upright; an answer without turns leaves all pieces as are."""
    assert puzzle.truth is not None
    answered = np.asarray(turns if len(turns) else [0] * len(positions))
    if answered.shape != (len(positions),) or answered.dtype.kind not in "iu":
        raise PuzzleError(
            f"turns of shape {answered.shape}; {len(positions)} whole numbers are needed"
        )
    return metrics.upright(positions, answered, puzzle.truth, puzzle.settings["turns"], puzzle.grid)


def _checked(
    puzzle: Puzzle, answer: AnswerLike
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    n = len(puzzle.pieces)
    found = np.asarray(answer.positions)
    if found.shape != (n,) or found.dtype.kind not in "iu":
        raise PuzzleError(
            f"positions of shape {found.shape} and type {found.dtype}; {n} whole numbers are needed"
        )
    positions = found.astype(np.int64)
    placed = positions[positions != -1]
    if np.any((placed < 0) | (placed >= puzzle.cells)):
        raise PuzzleError(f"positions outside 0 to {puzzle.cells - 1} (-1: not placed)")
    if (given := getattr(answer, "confidences", None)) is None:
        return positions, None
    confidences = np.asarray(given, np.float64)
    if confidences.shape != (n,) or not np.all((confidences >= 0) & (confidences <= 1)):
        raise PuzzleError(f"confidences must be {n} numbers from 0 to 1")
    return positions, confidences


def _repeats(positions: Sequence[int]) -> bool:
    """Whether two pieces are put into one cell."""
    placed = [cell for cell in positions if cell >= 0]
    return len(set(placed)) < len(placed)


def _calibration(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Expected calibration error of the scored pieces and its bins; None without confidences."""
    sure: list[float] = []
    right: list[bool] = []
    for record in outcomes:
        given = {int(piece) for piece in record.get("given", {})}
        for piece, value in enumerate(record["confidences"] or []):
            if piece not in given:
                sure.append(value)
                right.append(record["positions"][piece] == record["truth"][piece])
    if not sure:
        return {"ece": None, "reliability": []}
    return metrics.reliability(sure, right, BINS)


def _digest(puzzle: Puzzle) -> str:
    """The source image's digest, or that of the pieces when nobody noted one."""
    noted = puzzle.settings.get("digest")
    return str(noted) if noted else hashlib.sha256(puzzle.pieces.tobytes()).hexdigest()


def current_commit() -> str:
    """Git commit of the running code, +dirty if files in puzlm/ differ; or the version."""
    package = Path(__file__).resolve().parents[1]
    git = ["git", "-C", str(package)]
    try:
        where = [*git, "rev-parse", "--show-toplevel", "HEAD"]
        found = subprocess.check_output(where, stderr=subprocess.DEVNULL, text=True)
        top, head = found.splitlines()
        changed = subprocess.check_output([*git, "status", "--porcelain", "."], text=True)
        if Path(top).resolve() == package.parent:  # else: installed inside somebody's repository
            return head + ("+dirty" if changed.strip() else "")
    except (OSError, ValueError, subprocess.CalledProcessError):
        pass
    try:
        return importlib.metadata.version("puzlm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
