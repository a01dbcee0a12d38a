"""A puzzle as a folder: piece files, the shuffled picture and puzzle.json."""

from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from puzlm.errors import PuzlmError, PuzzleError
from puzlm.files import read_json, temporary
from puzlm.images import IMAGE_SUFFIXES, encode_image, read_image
from puzlm.pieces.repair import equal_sizes, unequal
from puzlm.puzzle import Grid, Puzzle, open_grid, parse_grid, shuffled

RECORD, SHEET, SOLVED = "puzzle.json", "shuffled.png", "solved.png"
FOREIGN = (
    ".avif",
    ".heic",
    ".heif",
    ".jxl",
    ".jp2",
    ".svg",
    ".psd",
    ".tga",
    ".dng",
    ".cr2",
    ".nef",
)
KEPT = ("gap", "jitter", "missing", "seed", "given", "rotations")  # settings that are read back


def natural(name: str) -> list[Any]:
    """Sort key that puts piece_2 before piece_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def write(puzzle: Puzzle, folder: Path) -> None:
    """Write all files of a puzzle, or nothing; a folder of an older one is replaced."""
    if folder.exists() and not folder.is_dir():
        raise PuzzleError(f"{folder}: is a file, a folder name is needed here")
    if folder.is_dir() and (other := _foreign(folder)) is not None:
        raise PuzzleError(f"{folder}: holds other files ({other}); choose a new folder")
    digits = len(str(len(puzzle.pieces)))
    names = [f"piece_{i:0{digits}d}.png" for i in range(len(puzzle.pieces))]
    record = {
        "version": 1,
        "grid": list(puzzle.grid),
        "pieces": names,
        "truth": None if puzzle.truth is None else puzzle.truth.tolist(),
        **puzzle.settings,
    }
    try:
        with temporary(folder, folder=True) as part:
            for name, piece in zip(names, puzzle.pieces, strict=True):
                (part / name).write_bytes(encode_image(name, piece))
            (part / SHEET).write_bytes(encode_image(SHEET, shuffled(puzzle)))
            (part / RECORD).write_text(json.dumps(record, indent=1) + "\n")
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(part, folder)
    except OSError as error:
        raise PuzzleError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _foreign(folder: Path) -> str | None:
    """A file of a folder that belongs to no puzzle saved there: replacing would delete it."""
    try:
        own = {RECORD, SHEET, SOLVED, *read_json(folder / RECORD)["pieces"]}
    except (PuzlmError, KeyError, TypeError):
        own = set()
    return next((p.name for p in sorted(folder.iterdir()) if p.is_dir() or p.name not in own), None)


def visible(folder: Path) -> list[Path]:
    """Files of a folder that are not hidden."""
    return [p for p in folder.iterdir() if not p.name.startswith(".") and p.is_file()]


def _pieces(folder: Path) -> list[str]:
    """Names of the piece files of a folder, 2 before 10.

    Our own commands write a shuffled.png and a solved.png. If one of another size lies with the
    pieces, it is none of them.
    """
    files = [p.name for p in visible(folder) if p.suffix.lower() in IMAGE_SUFFIXES]
    names = sorted(files, key=natural)
    ours = [name for name in (SHEET, SOLVED) if name in names]
    others = [name for name in names if name not in ours]
    if ours and others:
        size = read_image(folder / others[0]).shape
        names = [n for n in names if n not in ours or read_image(folder / n).shape == size]
    return names


def unread(folder: Path) -> list[str]:
    """Names of the pictures in a folder of pieces that are of types nobody here reads."""
    if (folder / RECORD).is_file():
        return []
    return sorted(p.name for p in visible(folder) if p.suffix.lower() in FOREIGN)


def read(folder: Path, grid: Grid | int | str | None) -> Puzzle:
    """Read the pieces that puzzle.json names, or all picture files; see Puzzle.load."""
    settings: dict[str, Any] = {}
    if (folder / RECORD).is_file():
        try:
            record = read_json(folder / RECORD, PuzzleError)
            names = [str(name) for name in record["pieces"]]
            truth = record.get("truth")
            known = parse_grid((int(record["grid"][0]), int(record["grid"][1])))
            settings = {k: record[k] for k in KEPT if k in record}
            if "given" in settings:  # JSON's keys are text
                settings["given"] = {int(p): int(c) for p, c in settings["given"].items()}
        except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
            if isinstance(error, PuzlmError):
                raise
            raise PuzzleError(f"{folder / RECORD}: damaged ({error!r})") from error
        if any(Path(name).name != name for name in names):
            raise PuzzleError(f"{folder / RECORD}: piece names must be plain file names")
        if grid is not None and parse_grid(grid) != known:
            raise PuzzleError(f"{folder}: was cut as {known[0]}x{known[1]}, not {grid}")
    else:
        names = _pieces(folder)
        if not names:
            raise PuzzleError(f"{folder}: holds no piece files")
        truth = None
        settings = {"open": True} if grid is None else {}
        known = parse_grid(grid) if grid is not None else open_grid(len(names))
    with ThreadPoolExecutor() as readers:  # decoding runs beside decoding
        pieces = list(readers.map(lambda name: read_image(folder / name), names))
    one_size = equal_sizes(pieces)
    if one_size is None:
        raise PuzzleError(f"{folder}: {unequal(pieces, names)}")
    try:
        positions = None if truth is None else np.array(truth, np.int64)
        return Puzzle(one_size, known, positions, tuple(names), settings)
    except (ValueError, TypeError, OverflowError) as error:
        raise PuzzleError(f"{folder / RECORD}: {error}") from error
