"""Ready-made puzzles of others: JPwLEG's .npy files, and folders with a CSV. numpy + Pillow only.

The released JPwLEG files hold `(n, 288, 288, 3)` uint8 pictures whose pieces are already shuffled
(480 for 5x5), the centre piece in place, and labels `(n, 8, 8)` (24 for 5x5), one-hot:
label[i, j] says that the i-th non-centre piece belongs in the j-th non-centre cell.
"""

from __future__ import annotations

import csv
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import ImageError, PuzzleError
from puzlm.images import Pixels, iter_blobs, read_image
from puzlm.puzzle import Grid, Positions, Puzzle, cut


class Rules(typing.Protocol):
    """What a reader of ready-made puzzles asks of a protocol (protocols.py)."""

    @property
    def name(self) -> str: ...
    @property
    def grid(self) -> Grid: ...
    @property
    def piece(self) -> int: ...
    @property
    def released(self) -> str: ...
    @property
    def scored(self) -> str: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class Found:
    """One puzzle as it lies in a file, and what proves that it is this one."""

    pieces: Pixels
    truth: Positions
    settings: dict[str, Any]
    name: str
    data: tuple[bytes, ...]


def read_npy(path: Path, protocol: Rules, limit: int | None) -> Iterator[tuple[int, Found]]:
    """Read SPLIT_img_SUFFIX.npy with SPLIT_label_SUFFIX.npy beside it, or a folder of them."""
    suffix = protocol.released
    if not suffix:
        raise PuzzleError(f"{path}: JPwLEG files fit jpwleg-3 and jpwleg-5, not {protocol.name}")
    if path.is_dir():
        found = sorted(path.glob(f"test_img_{suffix}*.npy"))
        if len(found) != 1:
            raise PuzzleError(
                f"{path}: holds {len(found)} files test_img_{suffix}*.npy, one is "
                "needed; give the .npy file itself for another split"
            )
        path = found[0]
    match = re.fullmatch(rf"(.+)_img_{suffix}.*\.npy", path.name)
    if not match:
        raise PuzzleError(f"{path}: {protocol.name} needs a file named SPLIT_img_{suffix}.npy")
    beside = sorted(path.parent.glob(f"{match[1]}_label_{suffix}*.npy"))
    if not beside:
        raise PuzzleError(f"{path}: its labels, {match[1]}_label_{suffix}.npy, are not beside it")
    rows, columns = protocol.grid
    shape = (rows * protocol.piece, columns * protocol.piece, 3)
    images, labels = _load(path), _load(beside[0])
    if images.shape[1:] != shape or images.dtype != np.uint8:
        raise PuzzleError(
            f"{path}: holds {images.shape} of {images.dtype}, {protocol.name} needs "
            f"(n, {shape[0]}, {shape[1]}, 3) of uint8"
        )
    others = np.delete(np.arange(rows * columns), rows * columns // 2)
    if labels.shape != (len(images), len(others), len(others)):
        raise PuzzleError(
            f"{beside[0]}: holds {labels.shape}, {protocol.name} needs "
            f"({len(images)}, {len(others)}, {len(others)})"
        )
    if not len(images):
        raise ImageError(f"{path}: holds no images")
    for index in spread(len(images), limit):
        image, label = np.asarray(images[index]), np.asarray(labels[index])
        hot = label != 0
        if np.any(hot.sum(0) != 1) or np.any(hot.sum(1) != 1):
            raise PuzzleError(f"{beside[0]}: label {index} is not a permutation")
        truth = np.arange(rows * columns)
        truth[others] = others[hot.argmax(1)]
        pieces, order = cut(image, protocol.grid), np.arange(rows * columns)
        if protocol.scored != "non-centre":
            # The files leave the centre in place; a solver that is to find it must not see that.
            order = np.random.default_rng((protocol.seed, index)).permutation(rows * columns)
        settings = {"scale": 1.0, "piece": protocol.piece, "order": order.tolist()}
        yield (
            index,
            Found(
                pieces[order],
                truth[order],
                settings,
                f"{path.name}:{index}",
                (image.tobytes(), hot.tobytes()),
            ),
        )


def _load(path: Path) -> NDArray[Any]:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise PuzzleError(f"{path}: not an .npy file that can be read ({error})") from error
    if not isinstance(found, np.ndarray) or found.ndim < 2:
        raise PuzzleError(f"{path}: not an .npy file of pictures or labels")
    return found


def read_csv(path: Path, protocol: Rules, limit: int | None) -> Iterator[tuple[int, Found]]:
    """Read SPLIT.csv (columns image and label, "5 3 2 8 1 0 4 6 7 ") beside the folder SPLIT."""
    table = path / "test.csv" if path.is_dir() else path
    if not table.is_file() or table.suffix != ".csv":
        raise PuzzleError(f"{path}: {protocol.name} needs test.csv with the folder test beside it")
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = [(row["image"], row["label"]) for row in csv.DictReader(file)]
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise PuzzleError(f"{table}: has no readable columns 'image' and 'label'") from error
    if not rows:
        raise ImageError(f"{table}: holds no images")
    cells = list(range(protocol.grid[0] * protocol.grid[1]))
    for index in spread(len(rows), limit):
        name, label = rows[index]
        numbers = [int(part) if part.isdecimal() else -1 for part in (label or "").split()]
        if sorted(numbers) != cells:
            raise PuzzleError(
                f"{table}: label '{label}' of {name} is not a permutation of 0 to {cells[-1]}"
            )
        if not name or Path(name).name != name:
            raise PuzzleError(f"{table}: '{name}' is not a plain file name")
        ((_, blob),) = iter_blobs([table.with_suffix("") / name])
        shuffled = Puzzle.from_shuffled(read_image(blob, name=name), protocol.grid)
        truth, size = np.array(numbers, np.int64), shuffled.pieces.shape[1]
        settings = {"scale": round(size / protocol.piece, 4), "piece": size}
        data = blob, (label or "").encode()
        yield index, Found(shuffled.pieces, truth, settings, name, data)


def spread(count: int, limit: int | None) -> list[int]:
    """Choose evenly spaced items: the first ones would be a single class of ImageNet."""
    if limit is None or limit >= count:
        return list(range(count))
    return [i * count // limit for i in range(limit)]
