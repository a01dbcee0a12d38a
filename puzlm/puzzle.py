"""Puzzles: cut, erode, drop, shuffle, assemble, draw. numpy + Pillow only.

The one convention of the whole project: **positions[i] is the raster cell of input piece i**, so
in a grid of `columns` columns piece i belongs in row positions[i] // columns, column
positions[i] % columns. A piece that has no place has position -1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puzlm.errors import PuzzleError
from puzlm.images import Pixels, open_image, read_image, to_rgb
from puzlm.pieces import seams

Positions = NDArray[np.int64]
Grid = tuple[int, int]

HOLE = 235  # grey level of an empty cell in drawn pictures
WRONG = (220, 30, 30)  # the red frame of the paper's figure


def parse_grid(text: str | int | Sequence[int]) -> Grid:
    """Read a grid: 3, "3", "3x4" or (3, 4), rows x columns.

    >>> parse_grid("3x4")
    (3, 4)
    """
    if isinstance(text, tuple | list):
        if len(text) != 2 or not all(isinstance(n, int | np.integer) for n in text):
            raise PuzzleError(f"grid {text}: give two whole numbers, (rows, columns)")
        rows, columns = int(text[0]), int(text[1])
    else:
        match = re.fullmatch(r"\s*(\d{1,18})(?:\s*[xX×]\s*(\d{1,18}))?\s*", str(text))
        if not match:
            raise PuzzleError(f"grid '{text}': give one number (3) or rows x columns (3x4)")
        rows, columns = int(match[1]), int(match[2] or match[1])
    if rows < 1 or columns < 1 or rows * columns < 2:
        raise PuzzleError(f"grid {rows}x{columns}: a puzzle needs at least two cells")
    return rows, columns


def check_cut(grid: Grid, gap: float, missing: int, seed: int) -> None:
    """Refuse what no picture can be cut by."""
    cells = grid[0] * grid[1]
    if not 0 <= gap < math.inf:
        raise PuzzleError(f"gap {gap}: must be 0 or more (a fraction below 1, or pixels)")
    if not 0 <= missing < cells:
        raise PuzzleError(
            f"missing {missing}: a {grid[0]}x{grid[1]} puzzle can lose 0 to {cells - 1} pieces"
        )
    if seed < 0:
        raise PuzzleError(f"seed {seed}: must be 0 or more")


@dataclass(frozen=True)
class Geometry:
    """Where the pieces lie in an image: everything in pixels, (vertical, horizontal) pairs."""

    grid: Grid
    cell: tuple[int, int]
    piece: tuple[int, int]
    origin: tuple[int, int]  # top-left corner of the cell grid in the image

    @property
    def slack(self) -> tuple[int, int]:
        """How far a piece can move inside its cell; the gap between centred pieces."""
        return self.cell[0] - self.piece[0], self.cell[1] - self.piece[1]


def geometry(height: int, width: int, grid: Grid, gap: float = 0.0) -> Geometry:
    """Lay a grid over an image.

    A size that does not divide is centre-cropped: at most rows - 1 and columns - 1 pixels are
    lost, and no pixel is resampled. `gap` is the distance between neighbouring pieces: below 1 a
    fraction of the piece's side (0.5: half a piece is missing between two), from 1 on pixels.
    """
    rows, columns = grid
    if not 0 <= gap < math.inf:
        raise PuzzleError(f"gap {gap}: must be 0 or more (a fraction below 1, or pixels)")
    cell = height // rows, width // columns
    if min(cell) < 1:
        raise PuzzleError(
            f"an image of {width} x {height} pixels is too small for {rows} x {columns} pieces"
        )
    if gap < 1:
        piece = round(cell[0] / (1 + gap)), round(cell[1] / (1 + gap))
    else:
        piece = cell[0] - round(gap), cell[1] - round(gap)
    if min(piece) < 1:
        raise PuzzleError(
            f"a gap of {gap} leaves nothing of cells of {cell[1]} x {cell[0]} pixels; "
            "use a smaller gap or fewer pieces"
        )
    origin = (height - rows * cell[0]) // 2, (width - columns * cell[1]) // 2
    return Geometry(grid, cell, piece, origin)


def cut(
    image: Pixels,
    grid: Grid,
    gap: float = 0.0,
    jitter: bool = False,
    rng: np.random.Generator | None = None,
) -> Pixels:
    """Cut an image (height, width, 3) into pieces in raster order (cells, height, width, 3).

    Eroded pieces are the centres of their cells, or lie anywhere in them when `jitter` is set.
    """
    where = geometry(image.shape[0], image.shape[1], grid, gap)
    return cut_at(image, where, draw_offsets(where, rng or np.random.default_rng(0), jitter))


def draw_offsets(where: Geometry, rng: np.random.Generator, jitter: bool) -> Positions:
    """Offset (cells, 2) of each piece inside its cell: centred, or anywhere."""
    slack = np.array(where.slack)
    shape = (where.grid[0] * where.grid[1], 2)
    if jitter:
        return rng.integers(0, slack + 1, size=shape)
    return np.broadcast_to(slack // 2, shape)


def cut_at(image: Pixels, where: Geometry, offsets: Positions) -> Pixels:
    """Cut the pieces that a geometry and their offsets name, in raster order."""
    columns = where.grid[1]
    pieces = np.empty((len(offsets), *where.piece, 3), np.uint8)
    for index, (down, across) in enumerate(offsets):
        top = where.origin[0] + index // columns * where.cell[0] + int(down)
        left = where.origin[1] + index % columns * where.cell[1] + int(across)
        pieces[index] = image[top : top + where.piece[0], left : left + where.piece[1]]
    return pieces


@dataclass(frozen=True, eq=False)
class Sheet:
    """A shuffled picture (height, width, 3) whose tiles begin at (top, left) and do not fill it."""

    image: Pixels
    top: int
    left: int

    def around(self, solved: Pixels) -> Pixels:
        """The solved tiles with the margins of the sheet around them."""
        whole = self.image.copy()
        height, width = solved.shape[:2]
        whole[self.top : self.top + height, self.left : self.left + width] = solved
        return whole


@dataclass(
    frozen=True, eq=False, repr=False
)  # arrays have no one answer to ==; a puzzle equals itself
class Puzzle:
    """Shuffled pieces (n, height, width, 3), the grid, and the true positions when known.

    Fewer pieces than cells means that some are missing.
    """

    pieces: Pixels
    grid: Grid
    truth: Positions | None = None
    names: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    sheet: Sheet | None = None

    def __post_init__(self) -> None:
        if self.pieces.ndim != 4 or self.pieces.shape[3] != 3 or self.pieces.dtype != np.uint8:
            raise PuzzleError(
                f"pieces have shape {self.pieces.shape} of {self.pieces.dtype}; "
                "(n, height, width, 3) of uint8 is needed"
            )
        if len(self.pieces) < 1:
            raise PuzzleError("a puzzle needs at least one piece")
        object.__setattr__(self, "grid", parse_grid(self.grid))
        if self.truth is not None:
            placed = self.truth[self.truth >= 0]
            if (
                len(self.truth) != len(self.pieces)
                or len(set(placed.tolist())) != len(placed)
                or np.any(self.truth >= self.cells)
            ):
                raise PuzzleError("the truth does not give each piece a cell of its own")

    def __repr__(self) -> str:
        high, wide = self.pieces.shape[1:3]
        return (
            f"Puzzle({self.grid[0]}x{self.grid[1]}, {len(self.pieces)} pieces of "
            f"{wide} x {high} pixels)"
        )

    @property
    def cells(self) -> int:
        """Number of cells of the grid."""
        return self.grid[0] * self.grid[1]

    @classmethod
    def from_image(
        cls,
        image: Pixels | Image.Image | str | Path,
        grid: Grid | int | str = 3,
        *,
        gap: float = 0.0,
        jitter: bool = False,
        missing: int = 0,
        seed: int = 0,
    ) -> Puzzle:
        """Cut, drop `missing` pieces and shuffle, all by one seed."""
        grid = parse_grid(grid)
        pixels = read_image(image) if isinstance(image, str | Path) else as_pixels(image)
        check_cut(grid, gap, missing, seed)
        # Before anything is drawn: a grid may be as large as anyone can type.
        geometry(pixels.shape[0], pixels.shape[1], grid, gap)
        cells = grid[0] * grid[1]
        rng = np.random.default_rng(seed)
        order = rng.permutation(cells)[: cells - missing]
        pieces = cut(pixels, grid, gap, jitter, rng)
        settings = {"gap": gap, "jitter": jitter, "missing": missing, "seed": seed}
        return cls(pieces[order], grid, order.astype(np.int64), settings=settings)

    @classmethod
    def from_shuffled(cls, image: Pixels | Image.Image, grid: Grid | int | str) -> Puzzle:
        """Cut a shuffled picture into its pieces; piece i is raster cell i of that picture.

        An RGBA picture may have holes: cells that are fully transparent hold no piece. Margins
        around the tiles, and a strip beside them, are known by the seams and kept as `sheet`.
        """
        grid, image = parse_grid(grid), as_pixels(image, holes=True)
        sheet = None
        if (lines := seams.rulings(image[:, :, :3], grid)) is not None:
            down, along = lines
            sheet = Sheet(np.ascontiguousarray(image[:, :, :3]), down.start, along.start)
            image = image[down.start : down.end, along.start : along.end]
        rgb, alpha = image[:, :, :3], image[:, :, 3] if image.shape[2] == 4 else None
        pieces = cut(np.ascontiguousarray(rgb), grid)
        if alpha is not None:
            there = cut(np.repeat(alpha[:, :, None], 3, axis=2), grid).any(axis=(1, 2, 3))
            if not there.any():
                raise PuzzleError("the picture is fully transparent")
            if not there.all():
                pieces = pieces[there]
        used = grid[0] * pieces.shape[1], grid[1] * pieces.shape[2]
        return cls(pieces, grid, settings={"cropped": used != image.shape[:2]}, sheet=sheet)

    def save(self, folder: str | Path) -> None:
        """Write piece files, the shuffled picture and puzzle.json; all of it or nothing."""
        from puzlm.pieces import folder as puzzle_folder

        puzzle_folder.write(self, Path(folder))

    @classmethod
    def load(
        cls, path: str | Path, grid: Grid | int | str | None = None, *, incomplete: bool = False
    ) -> Puzzle:
        """Read a folder of piece files (with or without puzzle.json) or a shuffled picture.

        Pieces may be missing, or be more than cells; then some stay out. Where nobody names the
        grid of a folder, the solver tries all. `incomplete` is no longer needed.
        """
        path = Path(path)
        if not path.exists():
            raise PuzzleError(f"{path}: no such file or folder")
        if path.is_dir():
            from puzlm.pieces import folder as puzzle_folder

            return puzzle_folder.read(path, grid)
        image = open_image(path)
        if grid is None:
            pixels = to_rgb(image)
            found = seams.find_tiles(pixels)
            if found is None:
                raise PuzzleError(
                    f"{path}: no seams found both ways; say into how many pieces it was cut, for "
                    "example --grid 3"
                )
            puzzle = cls.from_shuffled(with_holes(image), found)
            return replace(puzzle, settings={**puzzle.settings, "found": True})
        return cls.from_shuffled(with_holes(image), grid)


def with_holes(image: Image.Image) -> Pixels:
    """Pixels of a shuffled picture: RGBA where the picture can be transparent, else RGB."""
    clear = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return np.asarray(image.convert("RGBA")) if clear else to_rgb(image)


def as_pixels(image: Pixels | Image.Image, holes: bool = False) -> Pixels:
    """Pixels of a picture (height, width, 3) of uint8, or 4 where it may have `holes`."""
    if isinstance(image, Image.Image):
        return with_holes(image) if holes else to_rgb(image)
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] not in (3, 4)[: 1 + holes] or image.dtype != np.uint8:
        raise PuzzleError(
            f"the picture has shape {image.shape} of {image.dtype}; "
            f"(height, width, 3{' or 4' if holes else ''}) of uint8 is needed"
        )
    return image


def open_grid(count: int) -> Grid:
    """The squarest grid that holds so many pieces: a place-holder until the grid is found.

    >>> open_grid(7)
    (3, 3)
    """
    columns = max(2, math.ceil(count**0.5))
    return max(1, math.ceil(count / columns)), columns


def assemble(pieces: Pixels, positions: Positions, grid: Grid, overlap: Grid = (0, 0)) -> Pixels:
    """Put the pieces on the grid, (rows * height, columns * width, 3); holes are light grey.

    Pieces that `overlap` by some pixels, down and along, are laid over one another.
    """
    height, width = pieces.shape[1:3]
    down, along = height - overlap[0], width - overlap[1]
    size = grid[0] * down + overlap[0], grid[1] * along + overlap[1]
    canvas = np.full((*size, 3), HOLE, np.uint8)
    for piece, cell in zip(pieces, positions, strict=True):
        if cell >= 0:
            top, left = int(cell) // grid[1] * down, int(cell) % grid[1] * along
            canvas[top : top + height, left : left + width] = piece
    return canvas


def shuffled(puzzle: Puzzle) -> Pixels:
    """Lay the pieces down in input order; RGBA with transparent holes when pieces are missing."""
    picture = assemble(puzzle.pieces, np.arange(len(puzzle.pieces)), puzzle.grid)
    if len(puzzle.pieces) == puzzle.cells:
        return picture
    there = np.zeros((*puzzle.pieces.shape[:3], 3), np.uint8) + 255
    alpha = assemble(there, np.arange(len(puzzle.pieces)), puzzle.grid)[:, :, :1]
    return np.concatenate([picture, np.where(alpha == 255, 255, 0).astype(np.uint8)], axis=2)


def draw(
    pieces: Pixels, positions: Positions, grid: Grid, truth: Positions | None = None
) -> Pixels:
    """Assemble and, when the truth is known, frame every wrong placement in red."""
    canvas = assemble(pieces, positions, grid)
    if truth is None:
        return canvas
    height, width = pieces.shape[1:3]
    line = max(1, round(min(height, width) / 24))
    for cell, right in zip(positions, truth, strict=True):
        if cell >= 0 and cell != right:
            top, left = int(cell) // grid[1] * height, int(cell) % grid[1] * width
            box = canvas[top : top + height, left : left + width]
            box[:line] = box[-line:] = WRONG
            box[:, :line] = box[:, -line:] = WRONG
    return canvas
