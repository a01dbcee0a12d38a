"""Photographs of a table as files: reading them, HEIC and PDF too, and what is written of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from puzlm.errors import ImageError, PuzlmError, PuzzleError
from puzlm.files import write_all
from puzlm.images import IMAGE_SUFFIXES, Pixels, encode_image, read_image
from puzlm.pieces.table import Table, find_pieces
from puzlm.puzzle import Grid, Puzzle, open_grid, parse_grid
from puzlm.solution import Solution

HEIC = (".heic", ".heif")
PDF = ".pdf"
PDF_PIXELS = 2400  # of the longer side of a page
SUFFIXES = (*IMAGE_SUFFIXES, *HEIC, PDF)
MOST_LEFT_OUT = 1.0  # of the number of pieces: beyond, the picture shows something else


def read_photos(path: str | Path) -> list[Pixels]:
    """Read a photo, or the pages of a PDF, as upright RGB."""
    suffix = Path(path).suffix.lower()
    if suffix in HEIC:
        return [_read_heic(Path(path))]
    if suffix == PDF:
        return _read_pdf(Path(path))
    return [read_image(path)]


def _read_heic(path: Path) -> Pixels:
    """Read a phone's photo, where the plug-in is installed."""
    try:
        import pillow_heif
    except ImportError as error:
        raise ImageError(
            f"{path}: HEIC needs pip install 'puzlm[photo]'; or save the photo as JPEG"
        ) from error
    if not path.is_file():
        raise ImageError(f"{path}: no such file")
    try:
        image = pillow_heif.open_heif(path).to_pillow()
    except (ValueError, OSError, RuntimeError) as error:
        raise ImageError(f"{path}: damaged or cut short ({error})") from error
    return np.asarray(image.convert("RGB"))


def _read_pdf(path: Path) -> list[Pixels]:
    """Read the pages of a scan."""
    try:
        import pypdfium2
    except ImportError as error:
        raise ImageError(
            f"{path}: PDF needs pip install 'puzlm[photo]'; or save its pages as PNG"
        ) from error
    if not path.is_file():
        raise ImageError(f"{path}: no such file")
    try:
        with pypdfium2.PdfDocument(path) as document:
            pages = []
            for page in document:
                scale = PDF_PIXELS / max(page.get_size())
                pages.append(np.asarray(page.render(scale=scale).to_pil().convert("RGB")))
    except (pypdfium2.PdfiumError, ValueError, OSError) as error:
        raise ImageError(f"{path}: damaged or cut short ({error})") from error
    if not pages:
        raise ImageError(f"{path}: has no pages")
    return pages


def read_table(paths: Sequence[str | Path]) -> Table:
    """Find the pieces of one puzzle in photos."""
    photos = []
    names = []
    for path in paths:
        pages = read_photos(path)
        photos += pages
        names += [str(path)] if len(pages) == 1 else [f"{path}:{k + 1}" for k in range(len(pages))]
    try:
        return find_pieces(photos, tuple(names))
    except ImageError as error:
        raise ImageError(f"{', '.join(map(str, paths))}: {error}") from error


def table_of(paths: Sequence[Path], grid: str | None = None) -> Table | None:
    """The table, if every path is a photo of loose pieces on one; else None.

    A sheet of tiles may look like one. Where the grid is named, its cells must be about as many.
    """
    if not paths or not all(p.is_file() and p.suffix.lower() in SUFFIXES for p in paths):
        return None
    if any(p.suffix.lower() not in IMAGE_SUFFIXES for p in paths):
        return read_table(paths)  # nobody else reads these, so errors are told
    try:
        table = read_table(paths)
    except PuzlmError:
        return None
    if grid is not None:
        rows, columns = parse_grid(grid)
        if 2 * abs(len(table.pieces) - rows * columns) > rows * columns:
            return None
    foreign = [one for one in table.left_out if one.piece < 0]
    return table if len(foreign) <= MOST_LEFT_OUT * len(table.pieces) else None


def as_puzzle(table: Table, grid: Grid | int | str | None) -> Puzzle:
    """The pieces of a table as a puzzle; the solver finds a grid that nobody named."""
    known = open_grid(len(table.pieces)) if grid is None else parse_grid(grid)
    settings = {"rotations": table.turned, "open": grid is None}
    return Puzzle(table.pieces, known, settings=settings)


def places(table: Table) -> list[dict[str, Any]]:
    """Where each piece lies, for JSON: its photo, and its corners clockwise from its top left."""
    return [
        {
            "piece": number,
            "photo": table.names[place.photo],
            "corners": np.round(place.corners, 1).tolist(),
        }
        for number, place in enumerate(table.places)
    ]


def record(table: Table) -> dict[str, Any]:
    """What `puzlm pieces --json` prints."""
    left = [
        {"photo": table.names[one.photo], "box": list(one.box), "reason": one.reason}
        for one in table.left_out
    ]
    return {"pieces": places(table), "turned": table.turned, "left_out": left}


def write_pieces(table: Table, folder: Path) -> None:
    """Write numbered piece files, and below photos/ the pictures that show the numbers."""
    from puzlm.pieces.guide import numbered

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PuzzleError(f"{folder}: exists and is not empty; choose a new folder")
    digits = len(str(len(table.pieces) - 1))
    files = {}
    for number, piece in enumerate(table.pieces):
        name = folder / f"piece_{number:0{digits}d}.png"
        files[name] = encode_image(name, piece)
    for number in range(len(table.photos)):
        name = folder / "photos" / f"numbered_{number}.jpg"
        files[name] = encode_image(name, numbered(table, number))
    files[folder / "photos" / "pieces.json"] = (json.dumps(record(table), indent=1) + "\n").encode()
    write_all(files)


def guide_path(picture: Path) -> Path:
    """Where the guide lies: beside the solved picture."""
    return picture.with_name(f"{picture.stem}-guide.jpg")


def write_guide(table: Table, found: Solution, picture: Path) -> None:
    """Write the picture that shows which piece goes where."""
    from puzlm.pieces.guide import guide

    write_all({guide_path(picture): encode_image(guide_path(picture), guide(table, found))})


def answer(table: Table, picture: Path) -> dict[str, Any]:
    """What `puzlm solve --json` says of photos beside the solution."""
    return {"guide": str(guide_path(picture)), "places": places(table)}


def told(table: Table) -> list[str]:
    """What a person should know of what was found."""
    lines = []
    for photo, name in enumerate(table.names):
        mine = [k for k, place in enumerate(table.places) if place.photo == photo]
        numbers = f": {mine[0]} to {mine[-1]}" if mine else ""
        lines.append(f"{name}: {len(mine)} pieces{numbers}")
    for one in table.left_out:
        x, y, width, height = one.box
        lines.append(
            f"left out at x {x + width // 2}, y {y + height // 2}"
            f"{f' of {table.names[one.photo]}' if len(table.names) > 1 else ''}: {one.reason}"
        )
    how = "every piece may be turned" if table.turned else "taken to lie upright"
    lines.append(f"the pieces lie {'at all angles' if table.turned else 'straight'}: {how}")
    return lines
