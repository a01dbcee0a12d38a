"""Token files: a corpus of images, tokenised once. (puzzles, cells, b, F) uint16 in raster order.

TOKENS.npy can be memory-mapped; TOKENS.json beside it says how it was made.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import ImageError, SettingsError
from puzlm.files import write_bytes
from puzlm.images import iter_blobs, read_image
from puzlm.puzzle import Grid, cut
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, read_json

Tokens = NDArray[np.uint16]
CHUNK = 64  # images held in memory at a time


def tokenize_blobs(
    blobs: Sequence[tuple[str, bytes]], tokenizer: PieceTokenizer, grid: Grid, gap: float
) -> Tokens:
    """Tokens (images, cells, b, F) of a few image files; the unit of work of every engine."""
    pieces = [cut(read_image(blob, name=name), grid, gap) for name, blob in blobs]
    codes = tokenizer.encode_all(pieces)
    return np.stack(codes).astype(np.uint16)


def chunks(
    sources: Sequence[str | Path], limit: int | None = None
) -> Iterator[list[tuple[str, bytes]]]:
    """Image files of the sources, CHUNK at a time."""
    blobs: Iterable[tuple[str, bytes]] = islice(iter_blobs(sources), limit)
    iterator = iter(blobs)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def write_tokens(
    sources: Sequence[str | Path],
    tokenizer: PieceTokenizer,
    out: str | Path,
    *,
    grid: Grid,
    gap: float = 0.0,
    limit: int | None = None,
    parts: Iterable[Tokens] | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> int:
    """Tokenise images into OUT.npy and OUT.json; memory does not grow with their number."""
    out = Path(out)
    if out.suffix != ".npy":
        raise SettingsError(f"{out}: the token file's name must end in .npy")
    if parts is None:
        parts = (tokenize_blobs(c, tokenizer, grid, gap) for c in chunks(sources, limit))
    raw, whole = out.with_suffix(".raw.part"), out.with_suffix(".npy.part")
    count, shape = 0, ()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with raw.open("wb") as file:
            for part in parts:
                file.write(np.ascontiguousarray(part).tobytes())
                count, shape = count + len(part), part.shape[1:]
                report(count)
        if count == 0:
            raise ImageError(f"{', '.join(map(str, sources))}: no images found")
        with whole.open("wb") as file, raw.open("rb") as body:
            header = {"descr": "<u2", "fortran_order": False, "shape": (count, *shape)}
            np.lib.format.write_array_header_1_0(file, header)
            shutil.copyfileobj(body, file)
        record: dict[str, Any] = {
            "version": 1,
            "grid": list(grid),
            "gap": gap,
            "puzzles": count,
            "vocab_size": max(tokenizer.settings.sizes),
            "tokenizer": asdict(tokenizer.settings),
        }
        write_bytes(out.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode())
        os.replace(whole, out)
    except OSError as error:
        raise ImageError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        for path in (raw, whole):
            path.unlink(missing_ok=True)
    return count


class TokenFiles:
    """Token files of one tokenizer and grid as one long array, (puzzles, cells, b, F), on disk."""

    def __init__(self, paths: Sequence[str | Path], tokenizer: PieceTokenizer) -> None:
        self.arrays: list[NDArray[Any]] = []
        self.grid: Grid = (0, 0)
        for path in map(Path, paths):
            tokens, grid = _open(path, tokenizer)
            if self.arrays and grid != self.grid:
                raise SettingsError(
                    f"{path}: grid {grid[0]}x{grid[1]}, but {paths[0]} has "
                    f"{self.grid[0]}x{self.grid[1]}"
                )
            self.grid = grid
            self.arrays.append(tokens)
        self.ends = np.cumsum([len(a) for a in self.arrays])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Puzzles of some row numbers, which must ascend."""
        cuts = np.searchsorted(rows, self.ends)
        starts = [0, *self.ends[:-1]]
        parts = np.split(rows, cuts[:-1])
        return np.concatenate(
            [a[r - s] for a, r, s in zip(self.arrays, parts, starts, strict=True)]
        )


# Settings that must be those of the tokenizer that made a token file; others are about sentences.
_SYMBOLS = ("granularity", "vocab_size", "patch", "border", "clockwise", "piece_size", "pca_dim")


def _open(path: Path, tokenizer: PieceTokenizer) -> tuple[NDArray[Any], Grid]:
    """Map a token file into memory, or say why it is not one of this tokenizer."""
    if not path.is_file():
        raise SettingsError(f"{path}: no such token file; make one with: puzlm tokenize")
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise SettingsError(f"{path}: not a .npy file of tokens ({error})") from error
    beside = path.with_suffix(".json")
    record, s = read_json(beside), tokenizer.settings
    try:
        grid = int(record["grid"][0]), int(record["grid"][1])
        made = {name: record["tokenizer"][name] for name in _SYMBOLS}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SettingsError(f"{beside}: damaged ({error!r})") from error
    for name, value in made.items():
        if value != getattr(s, name):
            raise SettingsError(
                f"{path}: was made by another tokenizer ({name} {value}, not {getattr(s, name)})"
            )
    shape = (grid[0] * grid[1], s.border_length, len(s.terms))
    if tokens.dtype != np.uint16 or tokens.shape[1:] != shape or not len(tokens):
        raise SettingsError(
            f"{path}: its {tokens.dtype} of shape {tokens.shape} do not fit {beside.name}"
        )
    for largest, size in zip(tokens.max((0, 1, 2)), s.sizes, strict=True):
        if largest >= size:
            raise SettingsError(f"{path}: symbol {largest}, but there are {size}")
    return tokens, grid
