"""What `puzlm solve` does: find the puzzles that paths mean, solve them, write and tell."""

from __future__ import annotations

import glob
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from puzlm.cli.options import Progress
from puzlm.errors import PuzlmError, PuzzleError, SettingsError
from puzlm.files import write_all
from puzlm.images import IMAGE_SUFFIXES, check_picture, encode_image
from puzlm.metrics import absolute, perfect
from puzlm.pieces.folder import unread, visible
from puzlm.puzzle import Puzzle
from puzlm.solution import grid_name
from puzlm.solver import Solution, Solver
from puzlm.solving.plain_answers import is_large
from puzlm.solving.search.deadline import deadline

TOGETHER = 16  # puzzles in memory, and read by the model, at once
TOGETHER_PIXELS = 50_000_000
MOST_PIECES = 5000  # where all sides are compared with all in memory
MOST_ANYWHERE = 1_000_000
BYTES = 40_000  # a piece of 28 px: 0.43 GB for 10,375, measured once, with the interpreter
LEAST_SURE = 3  # pieces named where a grid is too large for a table
TABLE_CELLS = 64  # of the largest grid whose confidences are shown cell by cell


@dataclass(frozen=True)
class Solved:
    """One puzzle of many: its solution, or why there is none."""

    path: Path
    picture: Path
    puzzle: Puzzle | None = None
    solution: Solution | None = None
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """One entry of `puzlm solve --json` for many puzzles."""
        if self.solution is None or self.puzzle is None:
            return {"puzzle": str(self.path), "error": self.error}
        return {
            "puzzle": str(self.path),
            **record(self.solution, self.puzzle, self.picture),
        }


# ---- which puzzles ----------------------------------------------------------------------------


def find(paths: Sequence[Path]) -> list[Path] | Path:
    """The puzzles that paths mean: one path for one puzzle, a list for many.

    Many are several paths, a pattern with * that the shell has not expanded, or a folder that
    holds no pictures of its own but folders that do.
    """
    found: list[Path] = []
    many = len(paths) > 1
    for path in paths:
        if not path.exists() and glob.has_magic(str(path)):
            matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
            if not matches:
                raise PuzzleError(f"{path}: no file or folder fits this pattern")
            found, many = found + matches, True
        elif path.is_dir() and not is_puzzle(path):
            inside = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
            if not inside:
                what = f" that can be read, only {left[0]}" if (left := unread(path)) else ""
                raise PuzzleError(f"{path}: holds no piece files{what}")
            found, many = found + inside, True
        else:
            found.append(path)
    return list(dict.fromkeys(found)) if many else found[0]


def is_puzzle(folder: Path) -> bool:
    """Whether a folder itself holds pieces."""
    return (folder / "puzzle.json").is_file() or any(
        p.suffix.lower() in IMAGE_SUFFIXES for p in visible(folder)
    )


def load(path: Path, grid: str | None, solver: str = "auto") -> Puzzle:
    """Read a puzzle; one that would take all memory is refused, pictures left out are named."""
    if path.is_dir() and (left := unread(path)):
        print(
            f"puzlm: {path}: left out {', '.join(left[:3])}{' ...' * (len(left) > 3)}: pictures of "
            "a type that cannot be read; turn them into .png",
            file=sys.stderr,
        )
    puzzle = Puzzle.load(path, grid)
    check_pieces(max(len(puzzle.pieces), puzzle.cells), str(path), solver)
    return puzzle


def check_pieces(count: int, name: str, solver: str = "auto") -> None:
    """Refuse a puzzle of more pieces than fit into memory."""
    if solver not in ("auto", "classic", "random") and count > MOST_PIECES:
        raise PuzzleError(
            f"{name}: {count:,} pieces, more than the {MOST_PIECES:,} that {solver} takes: its "
            "memory grows with the square of the pieces; use --solver auto"
        )
    most = most_pieces()
    if count > most:
        raise PuzzleError(
            f"{name}: {count:,} pieces, more than the {most:,} that fit into the memory that is "
            "free here"
        )


def most_pieces() -> int:
    """How many pieces fit into the memory that is free."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with open("/proc/meminfo", encoding="ascii") as file:  # what caches hold can be had, too
            free = max(free, *(1024 * int(x.split()[1]) for x in file if "MemAvailable" in x))
    except (ValueError, OSError, AttributeError):
        return MOST_ANYWHERE
    return min(MOST_ANYWHERE, free // BYTES)


@contextmanager
def followed(
    engine: Solver, puzzle: Puzzle, seconds: float | None, quiet: bool
) -> Iterator[Solver]:
    """End a search after `seconds`; show how a long one goes on, and end it by Ctrl-C, too.

    A second Ctrl-C stops at once.
    """
    until = math.inf if seconds is None else seconds
    if not is_large(puzzle):
        with deadline(until):
            yield engine
        return
    ended = False
    before = signal.getsignal(signal.SIGINT)

    def end(*_: object) -> None:
        nonlocal ended
        ended = True
        signal.signal(signal.SIGINT, before)
        print("puzlm: ends with what lies so far; Ctrl-C once more stops it", file=sys.stderr)

    here = threading.current_thread() is threading.main_thread()
    if here:
        signal.signal(signal.SIGINT, end)
    with Progress("comparing", 100, quiet) as tick:

        def report(what: str, share: float) -> None:
            if tick.bar is not None:
                tick.bar.update(tick.task, description=what, completed=100 * share)

        try:
            with deadline(until, lambda: ended, report):
                yield engine
        finally:
            if here:
                signal.signal(signal.SIGINT, before)


def pictures(paths: Sequence[Path], folder: Path) -> list[Path]:
    """A file for the picture of each puzzle: its own name, told apart where names are equal."""
    if folder.is_file() or folder.suffix.lower() in IMAGE_SUFFIXES:
        raise SettingsError(f"-o {folder}: a folder is needed for the pictures of many puzzles")
    names = [path.name if path.is_dir() else path.stem for path in paths]
    if len(set(names)) < len(names):  # */shuffled.png: the folders have the names
        names = [f"{path.absolute().parent.name}-{n}" for path, n in zip(paths, names, strict=True)]
    taken, free = set(names), set(names)  # a numbered name may be some other puzzle's own
    for i, name in enumerate(names):
        if name in free:
            free.remove(name)
            continue
        number = next(k for k in count(2) if f"{name}-{k}" not in taken)
        names[i] = f"{name}-{number}"
        taken.add(names[i])
    return [folder / f"{name}.png" for name in names]


# ---- solving ----------------------------------------------------------------------------------


def solve_many(
    engine: Solver,
    paths: Sequence[Path],
    folder: Path,
    *,
    grid: str | None = None,
    gifs: Path | None = None,
    tick: Callable[[int], None] | None = None,
) -> Iterator[Solved]:
    """Solve puzzles and write their pictures; one that cannot be is told, and the next follow."""
    done = 0
    if gifs is not None and (gifs.is_file() or gifs.suffix.lower() == ".gif"):
        raise SettingsError(f"--gif {gifs}: a folder is needed for the animations of many puzzles")
    for batch in _batches(zip(paths, pictures(paths, folder), strict=True), grid, engine.solver):
        for solved in _solve(engine, batch):
            if solved.solution is not None and solved.puzzle is not None:
                try:
                    _keep(solved, gifs)
                except PuzlmError as error:
                    solved = Solved(solved.path, solved.picture, error=str(error))
            yield solved
        done += len(batch)
        if tick is not None:
            tick(done)


def _batches(
    pairs: Iterable[tuple[Path, Path]], grid: str | None, solver: str
) -> Iterator[list[Solved]]:
    """Read puzzles, a few at a time."""
    batch: list[Solved] = []
    pixels = 0
    for path, picture in pairs:
        try:
            puzzle = load(path, grid, solver)
            batch.append(Solved(path, picture, puzzle))
            pixels += puzzle.pieces.size // 3
        except (PuzlmError, OSError) as error:
            batch.append(Solved(path, picture, error=str(error)))
        if len(batch) == TOGETHER or pixels > TOGETHER_PIXELS:
            yield batch
            batch, pixels = [], 0
    if batch:
        yield batch


def _solve(engine: Solver, batch: list[Solved]) -> Iterator[Solved]:
    """Solve those of a batch that could be read, together; alone if one of them is bad."""
    puzzles = [one.puzzle for one in batch if one.puzzle is not None]
    try:
        found: Iterator[Solution] | None = iter(engine.solve_many(puzzles))
    except PuzlmError:
        found = None
    for one in batch:
        if one.puzzle is None:
            yield one
            continue
        try:
            solution = next(found) if found is not None else engine.solve(one.puzzle)
            yield Solved(one.path, one.picture, laid_out(one.puzzle, solution), solution)
        except PuzlmError as error:
            yield Solved(one.path, one.picture, error=str(error))


def laid_out(puzzle: Puzzle, solution: Solution) -> Puzzle:
    """The puzzle with the grid that was found for it."""
    return replace(puzzle, grid=solution.grid)


def _keep(solved: Solved, gifs: Path | None) -> None:
    """Write what a solved puzzle leaves behind."""
    assert solved.solution is not None and solved.puzzle is not None
    movie = None if gifs is None else gifs / f"{solved.picture.stem}.gif"
    check_output(solved.path, solved.puzzle, solved.picture, movie)
    write(solved.puzzle, solved.solution, solved.picture, movie)


def check_output(path: Path, puzzle: Puzzle, picture: Path, movie: Path | None) -> None:
    """Refuse, before solving, names that cannot be written or are the puzzle's own files."""
    own = {file.resolve() for file in (path, *(path / name for name in puzzle.names))}
    for file, option in ((picture, "-o"), (movie, "--gif")):
        if file is not None and file.resolve() in own:
            raise PuzzleError(
                f"{path}: the answer would overwrite the puzzle; choose another {option}"
            )
    check_picture(picture)
    if movie is not None and movie.is_dir():
        raise SettingsError(f"--gif {movie}: is a folder, a file name is needed here")
    if movie is not None and movie.suffix.lower() != ".gif":
        raise SettingsError(f"--gif {movie}: the name of an animation must end in .gif")


def write(puzzle: Puzzle, solution: Solution, picture: Path, movie: Path | None) -> None:
    """Write the picture, and the animation if there is to be one; both or none."""
    drawn = solution.drawn(puzzle.truth)
    if puzzle.sheet is not None:
        drawn = puzzle.sheet.around(drawn)
    files = {picture: encode_image(picture, drawn)}
    if movie is not None:
        files[movie] = animation(puzzle, solution)
    write_all(files)


def animation(puzzle: Puzzle, solution: Solution) -> bytes:
    """A GIF of pieces moving to their places."""
    from puzlm.web.gif import draw

    return draw(puzzle, solution.positions.tolist(), list(solution.order), solution.poses)


def record(found: Solution, puzzle: Puzzle, picture: Path) -> dict[str, Any]:
    """What `puzlm solve --json` prints of one puzzle."""
    names = {"names": list(puzzle.names)} if puzzle.names else {}
    notes = {"notes": said} if (said := remarks(found, puzzle)) else {}
    return {**found.as_dict(), **names, "image": str(picture), **score(found, puzzle), **notes}


def doubtful(told: Mapping[str, Any]) -> bool:
    """Whether an answer, as JSON, is more likely than not to have a wrong piece."""
    return float(told["expected_wrong"]) >= 0.5


def score(found: Solution, puzzle: Puzzle) -> dict[str, Any]:
    """Accuracy of an answer whose truth is known; equal pieces may be exchanged."""
    if puzzle.truth is None:
        return {}
    truth = found.fair(puzzle.truth)
    return {
        "absolute": absolute(found.positions, truth),
        "perfect": perfect(found.positions, truth),
    }


# ---- telling ----------------------------------------------------------------------------------


def complain(solved: Solved) -> None:
    """One line that names the puzzle and what is wrong with it."""
    named = str(solved.path) in solved.error
    print(f"puzlm: {solved.error if named else f'{solved.path}: {solved.error}'}", file=sys.stderr)


def percent(share: float) -> str:
    """A share for people: 100% only if nothing is left.

    >>> percent(0.9993)
    '99%'
    """
    return "100%" if share >= 1 else f"{min(99, round(100 * share))}%"


def numbering(names: Sequence[str]) -> str:
    """Say which file is which number, where the names do not; else nothing.

    >>> numbering(["piece_0.png", "piece_2.png"])
    'pieces are numbered from 0 in the order of their files: 1 is piece_2.png'
    """
    for number, name in enumerate(names):
        found = re.findall(r"\d+", Path(name).stem)
        if not found or int(found[-1]) != number:
            return f"pieces are numbered from 0 in the order of their files: {number} is {name}"
    return ""


def remarks(found: Solution, puzzle: Puzzle) -> list[str]:
    """What a person should know: which grid it is, what is missing, what was left out."""
    rows, columns = found.grid
    said = []
    if len(found.tried) > 1:
        second = grid_name(found.tried[1][0])
        said.append(
            f"grid {rows}x{columns}, the best of {len(found.tried)} tried; the next is {second}; "
            "--grid sets another"
        )
    more = len(puzzle.pieces) - len(found.strangers) - rows * columns
    if more:
        pieces = "1 piece" if abs(more) == 1 else f"{abs(more)} pieces"
        said.append(f"{pieces} {'fewer' if more < 0 else 'more'} than the grid has cells")
    if any(found.overlap):
        down, along = found.overlap
        said.append(f"tiles overlap by {along} x {down} pixels, which are drawn once")
    if found.starts != (1, 1):
        ways = [
            f"{n} {what}"
            for n, what in zip(found.starts, ("rows", "columns"), strict=True)
            if n > 1
        ]
        said.append(
            f"the picture wraps around: it may begin at any of its {' and '.join(ways)}, which is "
            "counted in every confidence"
        )
    if found.strangers:
        names = ", ".join(puzzle.names[i] if puzzle.names else str(i) for i in found.strangers)
        said.append(f"left out, of another picture as it seems: {names}")
    if puzzle.settings.get("found"):
        said.append(f"grid {rows}x{columns}, found from the seams; --grid sets another")
    placed = np.flatnonzero(found.positions >= 0)
    # Which way up the whole lies, and where it begins, is told elsewhere: all are right, or none.
    wrong = round(float((1 - found.joined[placed]).sum()))
    if wrong:
        least = placed[np.argsort(found.confidences[placed], kind="stable")][:LEAST_SURE]
        named = ", ".join(puzzle.names[i] if puzzle.names else str(i) for i in least)
        said.append(
            f"about {wrong} of {len(placed)} pieces are probably wrong; least sure: {named}"
        )
    if puzzle.sheet is not None:
        height, width = puzzle.pieces.shape[1:3]
        said.append(
            f"tiles of {width} x {height} pixels from {puzzle.sheet.left}, {puzzle.sheet.top} on; "
            "what lies around them stays where it was"
        )
    if puzzle.settings.get("cropped"):
        said.append(
            f"the picture does not divide into {rows}x{columns} equal pieces: is --grid right?"
        )
    whole = "cropped" in puzzle.settings and len(puzzle.pieces) == puzzle.cells > 1  # a sheet's
    if whole and np.array_equal(found.positions, np.arange(puzzle.cells)):
        said.append("every piece lies where it lay: if the picture is not right, see --grid")
    return said


def show(found: Solution, puzzle: Puzzle, picture: Path) -> None:
    """Print where the picture is, what solved it and how sure each cell is."""
    rows, columns = found.grid
    sure = {
        int(cell): (piece, found.confidences[piece])
        for piece, cell in enumerate(found.positions)
        if cell >= 0
    }
    if rows * columns <= TABLE_CELLS:
        print("cell by cell: piece (confidence)")
        for row in range(rows):
            here = [sure.get(row * columns + column) for column in range(columns)]
            cells = [
                "   -      " if c is None else f"{c[0]:3d} ({percent(c[1]):>4s})" for c in here
            ]
            print("  " + "  ".join(cells).rstrip())
    elif sure:
        least = sorted(sure.values(), key=lambda one: one[1])[:LEAST_SURE]
        mean = percent(float(np.mean([value for _, value in sure.values()])))
        named = ", ".join(f"{piece} ({percent(value)})" for piece, value in least)
        print(f"{rows}x{columns} grid: {mean} sure on average; least sure are pieces {named}")
    if puzzle.names and (line := numbering(puzzle.names)):
        print(line)
    left = [
        puzzle.names[i] if puzzle.names else str(i)
        for i in range(len(found.positions))
        if found.positions[i] < 0
    ]
    if left:
        print(f"could not place: {', '.join(left)}")
    if puzzle.truth is not None:
        right = int((found.positions == found.fair(puzzle.truth)).sum())
        print(f"{right} of {len(puzzle.truth)} pieces lie right")
    for line in remarks(found, puzzle):
        print(line)
    print(f"solved by {found.solver} in {found.seconds:.2f} s")
    if found.upright < 1:
        print(f"which way up: {found.upright:.0%} sure, counted in every confidence")
    print(f"picture: {picture}")


def show_many(all_: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Print a table with a line for each solved puzzle, from what --json would print."""
    solved = [record for record in all_ if "error" not in record]
    lines = [("puzzle", "grid", "pieces", "sure", "least", "right", "solved by")]
    for record in solved:
        sure = record["confidences"]
        right = percent(record["absolute"]) if "absolute" in record else "-"
        lines.append(
            (
                Path(record["image"]).stem,
                "{}x{}".format(*record["grid"]),
                str(len(sure)),
                percent(float(np.mean(sure))),
                percent(min(sure)),
                right,
                record["solver"],
            )
        )
    if solved:
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = [
                cell.rjust(w) if 1 < k < 6 else cell.ljust(w)
                for k, (cell, w) in enumerate(zip(line, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())
    seconds = sum(record["seconds"] for record in solved) / max(1, len(solved))
    known = [record["perfect"] for record in solved if "perfect" in record]
    right = f", {sum(known):.0f} of {len(known)} with a known truth all right" if known else ""
    print(f"{len(solved)} of {len(all_)} puzzles solved, {seconds:.2f} s each{right}")
    if solved:
        print(f"pictures: {folder}")
