"""How far a solver carries: kinds of images x gaps -> one JSON file. Figure: `figures.py`.

Every solver sees the same puzzles: image number i of a kind is shuffled by seed i in every gap, so
cells of one row differ by the gap alone. Photos and paintings are cut from whole images. Ready-made
puzzles (a CSV of labels, see `protocols.py`) come as pieces: a gap is made by cutting the pieces'
borders away, half of it from each side, which leaves the pieces that a cut with gaps would leave.
For another grid they are first put together by their labels and then cut like the other kinds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from puzlm import manifest
from puzlm.errors import PuzlmError, PuzzleError, SettingsError
from puzlm.files import read_json, write_bytes
from puzlm.harness.evaluate import current_commit, evaluate
from puzlm.harness.protocols import PROTOCOLS, Protocol, read_data
from puzlm.images import Pixels, iter_blobs, read_image
from puzlm.metrics import MEASURES
from puzlm.models import pretrained as checkpoints
from puzlm.puzzle import Grid, Puzzle, assemble, geometry, parse_grid
from puzlm.solver import load_solver

VERSION = 1  # of the file
GAPS = (0.0, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2)  # of a piece's side
READY = PROTOCOLS["kaggle-3x3"]
Record = dict[str, Any]


def split_name(text: str) -> tuple[str, str | None]:
    """Read a solver with its model: "seq2seq@puzlm-3x3", or "classic", which needs none."""
    name, _, model = text.partition("@")
    if not name or ("@" in text and not model):
        raise SettingsError(
            f"solver '{text}': write NAME or NAME@MODEL, for example auto@puzlm-3x3"
        )
    return name, model or None


def parse_kinds(texts: Sequence[str]) -> dict[str, Path]:
    """Read kinds of images: ["photos=val.tar", ...]."""
    kinds: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise SettingsError(f"kind '{text}': write NAME=PATH, for example photos=val.tar")
        if name in kinds:
            raise SettingsError(f"kind '{name}': given twice")
        kinds[name] = Path(path)
    if not kinds:
        raise SettingsError("no images: give at least one --kind NAME=PATH")
    return kinds


def erode(pieces: Pixels, gap: float) -> Pixels:
    """Cut the borders of pieces (n, height, width, 3) as if they had been cut with a gap."""
    where = geometry(pieces.shape[1], pieces.shape[2], (1, 1), gap)
    top, left = where.slack[0] // 2, where.slack[1] // 2
    return pieces[:, top : top + where.piece[0], left : left + where.piece[1]]


class Source:
    """The first images of a kind, kept in memory, as puzzles of any grid and gap."""

    def __init__(self, path: Path, limit: int) -> None:
        self.ready = path.suffix == ".csv" or (path / "test.csv").is_file()
        self.puzzles: list[tuple[int, Puzzle]] = []
        self.images: list[tuple[int, Pixels]] = []
        if self.ready:
            self.puzzles = list(read_data(path, READY, limit))
        else:
            blobs = list(islice(iter_blobs([path]), limit))
            self.images = [(i, _square(read_image(b, name=n))) for i, (n, b) in enumerate(blobs)]
        if not (self.puzzles or self.images):
            raise SettingsError(f"{path}: holds no images")

    def cut(self, grid: Grid, gap: float) -> Iterator[tuple[int, Puzzle]]:
        """Yield (index, puzzle)."""
        if self.ready and grid == READY.grid:
            for index, puzzle in self.puzzles:
                # Without the file's digest: the pieces themselves, eroded, identify the puzzle.
                yield index, replace(puzzle, pieces=erode(puzzle.pieces, gap), settings={})
            return
        for index, image in self.images or self._whole():
            yield index, Puzzle.from_image(image, grid, gap=gap, seed=index)

    def _whole(self) -> Iterator[tuple[int, Pixels]]:
        for index, puzzle in self.puzzles:
            assert puzzle.truth is not None
            yield index, assemble(puzzle.pieces, puzzle.truth, puzzle.grid)


def generalise(
    solvers: Sequence[str],
    kinds: Mapping[str, Path],
    output: str | Path,
    *,
    grids: Sequence[Grid | int | str] = (3,),
    gaps: Sequence[float] = GAPS,
    limit: int = 100,
    report: Callable[[str], None] = print,
) -> Record:
    """Measure every solver ("name" or "name@model") on every kind, grid and gap; write `output`.

    The file is written after every cell. Cells already in it that were measured with the same
    puzzles and weights are kept, so an interrupted call goes on and a later one may add solvers;
    delete the file after a change of the code.
    """
    if limit < 1:
        raise SettingsError(f"limit {limit}: give 1 or more")
    if bad := [gap for gap in gaps if not 0 <= gap < 1]:
        raise SettingsError(f"gap {bad[0]}: give a share of a piece, from 0 to below 1")
    if not solvers:
        raise SettingsError("no solver: give at least one, for example classic")
    names = [split_name(solver) for solver in solvers]
    shapes = [parse_grid(grid) for grid in grids]
    weights = {solver: _weights(*name) for solver, name in zip(solvers, names, strict=True)}
    record: Record = {
        "version": VERSION,
        "commit": current_commit(),
        "limit": limit,
        "gaps": list(gaps),
        "grids": [f"{r}x{c}" for r, c in shapes],
        "solvers": list(solvers),
        "kinds": {kind: path.name for kind, path in kinds.items()},
        "cells": [],
        "refused": {},
    }
    before = {_key(cell): cell for cell in _read(output)}
    engines: dict[str, Any] = {}
    for kind, path in kinds.items():
        source = Source(path, limit)
        for grid in shapes:
            for gap in gaps:
                puzzles = list(source.cut(grid, gap))
                finger = _fingerprint(puzzles)
                for solver, (name, model) in zip(solvers, names, strict=True):
                    place = f"{solver}, {grid[0]}x{grid[1]}"
                    if place in record["refused"]:
                        continue
                    head: Record = {"solver": solver, "kind": kind, "grid": f"{grid[0]}x{grid[1]}"}
                    head |= {"gap": gap, "weights": weights[solver], "fingerprint": finger}
                    cell = before.get(_key(head))
                    if cell is None:
                        if solver not in engines:
                            engines[solver] = load_solver(name, model)
                        try:
                            cell = {**head, **_measure(engines[solver], puzzles, head)}
                        except PuzzleError as error:
                            record["refused"][place] = str(error)
                            report(f"{place}: left out ({error})")
                            continue
                    record["cells"].append(cell)
                    _write(output, record, before.values())
                    report(
                        f"{kind}, gap {gap:g}, {place}: {cell['absolute']['value']:.1f} / "
                        f"{cell['perfect']['value']:.1f}"
                    )
    if not record["cells"]:
        raise PuzlmError("generalise: no solver takes any of the grids")
    return record


def _measure(engine: Any, puzzles: list[tuple[int, Puzzle]], head: Record) -> Record:
    # Asked outside evaluate, which would count a refusal as a wrong answer.
    engine([replace(puzzles[0][1], truth=None, settings={})])
    rules = Protocol(f"{head['kind']}, gap {head['gap']:g}", puzzles[0][1].grid, 0, 0, 0, 0, 0, 0)
    found = evaluate(engine, rules, puzzles, solver_name=head["solver"])
    cells = rules.grid[0] * rules.grid[1]
    return {
        "puzzles": found["puzzles"],
        "failed": found["failed"],
        "commit": found["commit"],
        "piece": list(puzzles[0][1].pieces.shape[1:3]),
        **{measure: found[measure] for measure in MEASURES},
        "ece": found["ece"],
        "seconds_per_puzzle": found["seconds_per_puzzle"],
        "right": [round(cells * outcome["absolute"]) for outcome in found["outcomes"]],
    }


def _write(output: str | Path, record: Record, before: Iterable[Record]) -> None:
    """Write the cells so far and those of earlier calls that this one has not measured anew."""
    new = {_place(cell) for cell in record["cells"]}
    cells = record["cells"] + [cell for cell in before if _place(cell) not in new]
    lines = ",\n".join(json.dumps(cell) for cell in cells)  # a line a cell
    head = json.dumps({k: v for k, v in record.items() if k != "cells"}, indent=1)
    write_bytes(output, f'{head[:-2]},\n "cells": [\n{lines}\n]}}\n'.encode())


def _place(cell: Record) -> tuple[Any, ...]:
    return tuple(cell[k] for k in ("solver", "kind", "grid", "gap"))


def _square(image: Pixels) -> Pixels:
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    return image[top : top + side, left : left + side]


def _fingerprint(puzzles: list[tuple[int, Puzzle]]) -> str:
    digest = hashlib.sha256()
    for index, puzzle in puzzles:
        digest.update(f"{index}:{puzzle.truth}".encode())
        digest.update(np.ascontiguousarray(puzzle.pieces).tobytes())
    return digest.hexdigest()[:16]


def _weights(name: str, model: str | None) -> str:
    """What the answers of a solver depend on beside the code."""
    if name in ("classic", "random") or ":" in name:
        return ""
    digest = hashlib.sha256()
    # Without a model the solver may choose among those in the box.
    folders = [checkpoints.find(model)] if model else map(checkpoints.find, checkpoints.names())
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        if path.suffix in (".safetensors", ".json") and path.name != manifest.NAME:
            text = path.read_bytes()
            if path.name == "card.json":  # its measured results change nothing
                text = json.dumps({**read_json(path), "results": None}, sort_keys=True).encode()
            digest.update(path.name.encode() + text)
    return digest.hexdigest()[:16]


def _key(cell: Record) -> tuple[Any, ...]:
    return (*_place(cell), cell["weights"], cell["fingerprint"])


def _read(path: str | Path) -> list[Record]:
    """Cells measured before, if the file is there."""
    if not Path(path).exists():
        return []
    try:
        record = read_json(path)
        cells: list[Record] = list(record["cells"])
        for cell in cells:
            _key(cell)
        if record["version"] != VERSION:
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path}: not a file of `puzlm generalise`; delete it or choose another output"
        ) from error
    return cells
