"""What `puzlm solve --puzzles` does: solve all puzzles of one pile, write each, tell of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from puzlm.cli.solve import Solved, write
from puzlm.errors import PuzzleError, SettingsError
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

NAMED = 5  # pieces named of each puzzle


def parse_number(text: str) -> int | None:
    """How many puzzles a pile holds: a number, or None for auto.

    >>> parse_number("auto"), parse_number("3")
    (None, 3)
    """
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise SettingsError(f"--puzzles {text}: must be auto, or how many puzzles are in the pile")
    return int(text)


def solve_pile(
    engine: Solver, path: Path, pile: Puzzle, puzzles: str, folder: Path
) -> list[Solved]:
    """Solve each puzzle of a pile and write its picture into a folder."""
    number = parse_number(puzzles)
    if number is not None and number > len(pile.pieces) // 2:
        raise PuzzleError(f"{path}: {len(pile.pieces)} pieces are too few for {number} puzzles")
    found = []
    for k, (pieces, solution) in enumerate(engine.solve_pile(pile, number), 1):
        names = tuple(pile.names[i] if pile.names else str(i) for i in pieces)
        puzzle = Puzzle(pile.pieces[pieces], solution.grid, names=names)
        picture = folder / f"puzzle-{k}.png"
        write(puzzle, solution, picture, None)
        found.append(Solved(folder / f"puzzle-{k}", picture, puzzle, solution))
    return found


def told(found: list[Solved], records: list[dict[str, Any]]) -> str:
    """How many puzzles there are, and some pieces of each."""
    count = "1 puzzle" if len(found) == 1 else f"{len(found)} puzzles"
    lines = [f"{count} in the pile; --json names all pieces of each"]
    for one, record in zip(found, records, strict=True):
        names = record["names"][:NAMED]
        rest = " ..." if len(record["names"]) > NAMED else ""
        lines.append(f"{one.path.name}: {', '.join(names)}{rest}")
    return "\n".join(lines)
