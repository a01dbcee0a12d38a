"""A benchmark others can take away: the puzzles of a protocol as files that need no PuzLM.

FOLDER/README.md        what it is, and the scoring rules
FOLDER/puzzles.json     grids, given pieces, a SHA-256 of every file
FOLDER/pieces/NNNNN/    a PNG a piece; or pieces.npz, an array (n, height, width, 3) a puzzle
FOLDER/truth.json       the cell of each piece
FOLDER/score.py         the scorer; it needs numpy alone
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from puzlm import metrics
from puzlm.errors import PuzlmError, PuzzleError
from puzlm.files import read_json
from puzlm.harness.protocols import Protocol
from puzlm.puzzle import Puzzle

RULES = """\
# {name}

{count} puzzles of the protocol `{name}`. Each folder below `pieces/` holds the pieces of one
puzzle, shuffled.
{stored}

An answer gives each piece a cell. Cells are numbered row by row, from 0 at the top left.
ANSWERS.json:

    {{"0": [3, 0, 2, ...], "1": [...]}}

Piece i of puzzle 0 lies in cell answer[i]; -1 means that it is not placed. No cell holds two.
Where pieces may be turned (`turns` in truth.json), answer {{"positions": [...], "turns": [...]}}:
quarter turns counter-clockwise that set each piece upright. The picture as a whole is then turned
to where most pieces are right.

- absolute: share of the pieces in their true cell, mean over puzzles.
- perfect: share of the puzzles wholly right.
- neighbour: share of the truly touching pairs of pieces that touch the same way in the answer.

Given pieces (`given` in puzzles.json: piece, cell) are not scored. Missing pieces are not scored.
Intervals are 95 %, by 2,000 bootstrap samples of puzzles.

    python score.py ANSWERS.json
"""


def export(
    protocol: Protocol,
    puzzles: Iterable[tuple[int, Puzzle]],
    folder: str | Path,
    arrays: bool = False,
) -> int:
    """Write the puzzles of a protocol into a new folder, whole or not at all; returns how many."""
    folder = Path(folder)
    if folder.exists():
        raise PuzzleError(f"{folder}: exists already; choose a new folder")
    if not folder.absolute().parent.is_dir():
        raise PuzzleError(f"{folder.parent}: no such folder")
    part = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}."))
    try:
        count = _write(protocol, puzzles, part, arrays)
        part.chmod(0o755)
        part.rename(folder)
        return count
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(
    protocol: Protocol, puzzles: Iterable[tuple[int, Puzzle]], folder: Path, arrays: bool
) -> int:
    files: dict[str, str] = {}
    listed: list[dict[str, Any]] = []
    truths: dict[str, dict[str, Any]] = {}
    kept: dict[str, Any] = {}

    def put(name: str, data: bytes) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        files[name] = hashlib.sha256(data).hexdigest()

    for index, puzzle in puzzles:
        assert puzzle.truth is not None
        given = puzzle.settings.get("given") or {}
        record: dict[str, Any] = {"index": index, "grid": [*puzzle.grid]}
        record["pieces"] = len(puzzle.pieces)
        record["given"] = {str(piece): int(cell) for piece, cell in given.items()}
        listed.append(record)
        truth: dict[str, Any] = {"truth": puzzle.truth.tolist()}
        if "turns" in puzzle.settings:
            truth["turns"] = list(map(int, puzzle.settings["turns"]))
        truths[str(index)] = truth
        if arrays:
            kept[f"{index:05d}"] = puzzle.pieces
            continue
        digits = len(str(len(puzzle.pieces) - 1))
        for number, piece in enumerate(puzzle.pieces):
            png = io.BytesIO()
            Image.fromarray(piece).save(png, "PNG")
            put(f"pieces/{index:05d}/{number:0{digits}d}.png", png.getvalue())
    if not listed:
        raise PuzzleError("there are no puzzles to export")
    if arrays:
        packed = io.BytesIO()
        np.savez_compressed(packed, **kept)
        put("pieces.npz", packed.getvalue())
    put("truth.json", (json.dumps(truths) + "\n").encode())
    put("score.py", Path(metrics.__file__).read_bytes())
    stored = "They are arrays in `pieces.npz`, by the puzzle's number." if arrays else ""
    rules = RULES.format(name=protocol.name, count=len(listed), stored=stored)
    (folder / "README.md").write_text(rules)
    whole = {"version": 1, "protocol": protocol.settings(), "puzzles": listed, "files": files}
    (folder / "puzzles.json").write_text(json.dumps(whole) + "\n")
    return len(listed)


def score(answers: str | Path, folder: str | Path) -> dict[str, metrics.Interval]:
    """Score an answers file against a benchmark's folder."""
    said = read_json(answers)
    try:
        return metrics.score(said, metrics.read_benchmark(Path(folder)))
    except OSError as error:
        raise PuzlmError(f"{error.filename}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PuzlmError(f"score: {error}") from error
