"""A benchmark others can take away: the puzzles of a protocol as files that need no PuzLM.

FOLDER/README.md        what it is, and the scoring rules
FOLDER/puzzles.json     grids, given pieces, a SHA-256 of every file
FOLDER/pieces/NNNNN/    a PNG a piece; or pieces.npz, an array (n, height, width, 3) a puzzle;
                        or data/test-....parquet, a row a puzzle, for the library `datasets`
FOLDER/truth.json       the cell of each piece
FOLDER/score.py         the scorer; it needs numpy alone
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from puzlm import metrics
from puzlm.errors import PuzlmError, PuzzleError, missing
from puzlm.files import read_json
from puzlm.harness.protocols import Protocol
from puzlm.images import Pixels
from puzlm.puzzle import Puzzle

RULES = """\
# {name}

{count} puzzles of the protocol `{name}`.
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

FORMS = ("png", "npz", "parquet")
STORED = {
    "png": "Each folder below `pieces/` holds the pieces of one puzzle, shuffled.",
    "npz": "`pieces.npz` holds an array of shuffled pieces for each puzzle, by its number.",
    "parquet": "Each row of `{table}` is one puzzle: its shuffled pieces, their cells.\n\n"
    '    datasets.load_dataset("FOLDER", split="test")',
}
TABLE = "data/test-00000-of-00001.parquet"  # the name tells `datasets` the split
TABLE_ROWS = 64  # puzzles a row group: a reader need not hold more at once
COLUMNS = {  # of the table, as the library `datasets` writes types
    "index": {"dtype": "int64", "_type": "Value"},
    "grid": [{"dtype": "int64", "_type": "Value"}],
    "pieces": [{"_type": "Image"}],
    "given": [{"dtype": "int64", "_type": "Value"}],
    "truth": [{"dtype": "int64", "_type": "Value"}],
    "turns": [{"dtype": "int64", "_type": "Value"}],
}
SIZES = ((1000, "n<1K"), (10_000, "1K<n<10K"), (1 << 60, "10K<n<100K"))
CARD = """\
---
pretty_name: {name}
tags: [jigsaw-puzzles]
size_categories: ["{size}"]
configs:
- config_name: default
  data_files:
  - split: test
    path: {table}
---

{rules}
Columns: `index`, the puzzle's number; `grid`, rows and columns; `pieces`, pictures; `given`, the
cell of each piece that is given and -1 for others; `truth`, the cell of each piece; `turns`,
quarter turns that set each piece upright, empty where no piece is turned.

The pictures come from {source} and keep the licence they have there.
"""


def export(
    protocol: Protocol,
    puzzles: Iterable[tuple[int, Puzzle]],
    folder: str | Path,
    form: str = "png",
    source: str = "the images that were given",
) -> int:
    """Write the puzzles of a protocol into a new folder, whole or not at all; returns how many."""
    folder = Path(folder)
    if folder.exists():
        raise PuzzleError(f"{folder}: exists already; choose a new folder")
    if not folder.absolute().parent.is_dir():
        raise PuzzleError(f"{folder.parent}: no such folder")
    part = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}."))
    try:
        count = _write(protocol, puzzles, part, form, source)
        part.chmod(0o755)
        part.rename(folder)
        return count
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(
    protocol: Protocol,
    puzzles: Iterable[tuple[int, Puzzle]],
    folder: Path,
    form: str,
    source: str,
) -> int:
    listed: list[dict[str, Any]] = []
    truths: dict[str, dict[str, Any]] = {}

    def noted() -> Iterator[tuple[int, Puzzle]]:
        """The puzzles, each noted as it passes."""
        for index, puzzle in puzzles:
            assert puzzle.truth is not None
            given = puzzle.settings.get("given") or {}
            record: dict[str, Any] = {"index": index, "grid": [*puzzle.grid]}
            record["pieces"] = len(puzzle.pieces)
            record["given"] = {str(piece): int(cell) for piece, cell in given.items()}
            listed.append(record)
            truths[str(index)] = {"truth": puzzle.truth.tolist()}
            if "turns" in puzzle.settings:
                truths[str(index)]["turns"] = list(map(int, puzzle.settings["turns"]))
            yield index, puzzle

    {"png": _write_pictures, "npz": _write_arrays, "parquet": _write_table}[form](noted(), folder)
    if not listed:
        raise PuzzleError("there are no puzzles to export")
    (folder / "truth.json").write_text(json.dumps(truths) + "\n")
    shutil.copyfile(metrics.__file__, folder / "score.py")
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    stored = STORED[form].format(table=TABLE)
    rules = RULES.format(name=protocol.name, count=len(listed), stored=stored)
    (folder / "README.md").write_text(rules)
    if form == "parquet":
        size = next(name for most, name in SIZES if len(listed) < most)
        card = CARD.format(name=protocol.name, size=size, table=TABLE, rules=rules, source=source)
        for name in ("README.md", "dataset_card.md"):  # `datasets` reads the head of the first
            (folder / name).write_text(card)
    whole = {"version": 1, "protocol": protocol.settings(), "puzzles": listed, "files": files}
    (folder / "puzzles.json").write_text(json.dumps(whole) + "\n")
    return len(listed)


def _png(piece: Pixels) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(piece).save(stream, "PNG")
    return stream.getvalue()


def _write_pictures(puzzles: Iterable[tuple[int, Puzzle]], folder: Path) -> None:
    for index, puzzle in puzzles:
        place = folder / "pieces" / f"{index:05d}"
        place.mkdir(parents=True)
        digits = len(str(len(puzzle.pieces) - 1))
        for number, piece in enumerate(puzzle.pieces):
            (place / f"{number:0{digits}d}.png").write_bytes(_png(piece))


def _write_arrays(puzzles: Iterable[tuple[int, Puzzle]], folder: Path) -> None:
    arrays: dict[str, Any] = {f"{index:05d}": puzzle.pieces for index, puzzle in puzzles}
    np.savez_compressed(folder / "pieces.npz", **arrays)


def _write_table(puzzles: Iterable[tuple[int, Puzzle]], folder: Path) -> None:
    """One Parquet file whose schema says, as `datasets` does, which column holds pictures."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing(error) from error

    def row(index: int, puzzle: Puzzle) -> dict[str, Any]:
        assert puzzle.truth is not None
        given = puzzle.settings.get("given") or {}
        return {
            "index": index,
            "grid": [*puzzle.grid],
            "pieces": [{"bytes": _png(piece), "path": None} for piece in puzzle.pieces],
            "given": [given.get(piece, -1) for piece in range(len(puzzle.pieces))],
            "truth": puzzle.truth.tolist(),
            "turns": list(map(int, puzzle.settings.get("turns", ()))),
        }

    whole = pa.list_(pa.int64())
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types = {"index": pa.int64(), "pieces": pa.list_(picture)}
    fields = [pa.field(name, types.get(name, whole)) for name in COLUMNS]
    head = json.dumps({"info": {"features": COLUMNS}})
    schema = pa.schema(fields, metadata={"huggingface": head})
    (folder / TABLE).parent.mkdir()
    puzzles = iter(puzzles)
    with pq.ParquetWriter(folder / TABLE, schema) as writer:
        while rows := [row(*pair) for pair in islice(puzzles, TABLE_ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def score(answers: str | Path, folder: str | Path) -> dict[str, metrics.Interval]:
    """Score an answers file against a benchmark's folder."""
    said = read_json(answers)
    try:
        return metrics.score(said, metrics.read_benchmark(Path(folder)))
    except OSError as error:
        raise PuzlmError(f"{error.filename}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PuzlmError(f"score: {error}") from error
