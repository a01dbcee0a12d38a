"""Safe reading of what clients send: forms, pictures, zip files. Names are labels, never paths."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from puzlm.errors import PuzlmError, nearest
from puzlm.images import MAX_PIXELS, Pixels, open_image, to_rgb
from puzlm.pieces.repair import equal_sizes, unequal
from puzlm.pieces.seams import find_tiles
from puzlm.puzzle import Grid, Puzzle, open_grid, parse_grid, with_holes
from puzlm.web.answers import Limits, Refused
from puzlm.web.archive import label, unzip

# Only formats with a plain decoder: Pillow's EPS reader, for one, starts another program.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "MPO")
SOLVE_PIXELS = 4_000_000  # pixels of a puzzle that is solved; larger ones are shrunk first
FIELD_BYTES = 100_000  # of any text field
File = tuple[str, bytes]  # a name, which is a label only, and the content


class _WholeForm(MultiPartParser):
    """Refuses a form without its closing boundary: the parser would drop the part that was cut,
    and a puzzle of the pieces before it would be solved as if the others were missing."""

    ended = False
    spool_max_size = 0  # nothing is written to disk: the guard bounds what is held in memory

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None], **most: int) -> None:
        super().__init__(headers, self._to_its_end(stream), **most)

    def on_end(self) -> None:
        self.ended = True

    async def _to_its_end(self, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for chunk in stream:
            yield chunk
        if not self.ended:
            raise MultiPartException("it was cut short")


async def read_form(
    request: Request, limits: Limits, fields: set[str], files: set[str]
) -> FormData:
    """Parse a multipart form as it streams in."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise Refused(415, "not_a_form", "Send the request as multipart/form-data.")
    parser = _WholeForm(
        request.headers,
        request.stream(),
        max_files=limits.pieces + 1,
        max_fields=32,
        max_part_size=FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        text = str(error.message)
        if text.startswith("Too many files"):
            raise Refused(
                413, "too_many_pieces", f"At most {limits.pieces} files a request."
            ) from error
        raise Refused(400, "bad_form", f"The form cannot be read: {one_line(text)}") from error
    except (ValueError, KeyError, LookupError) as error:
        raise Refused(400, "bad_form", "The form cannot be read.") from error
    except ClientDisconnect as error:
        raise Refused(400, "bad_form", "The form was cut short.") from error
    for name, value in form.multi_items():
        allowed = files if isinstance(value, UploadFile) else fields
        if name not in allowed:
            await form.close()
            what = "a file" if isinstance(value, UploadFile) else "a field"
            raise Refused(
                422,
                "unknown_field",
                f"The form has {what} '{label(name)}', known are "
                f"{', '.join(sorted(allowed)) or 'none'}.",
            )
    return form


def text(form: FormData, name: str, default: str = "") -> str:
    """A text field; the last one counts."""
    value = form.get(name, default)
    return value.strip() if isinstance(value, str) else default


def number(form: FormData, name: str, default: float, low: float, high: float) -> float:
    """A number in a range."""
    raw = text(form, name)
    try:
        value = float(raw) if raw else default
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise Refused(
            422,
            "bad_field",
            f"Field {name} is '{label(raw)}', it must be a number from {low:g} to {high:g}.",
        )
    return value


def whole(form: FormData, name: str, default: int, high: int) -> int:
    """A whole number from 0."""
    value = number(form, name, default, 0, high)
    if value != int(value):
        raise Refused(422, "bad_field", f"Field {name} is {value:g}, it must be a whole number.")
    return int(value)


def choice(form: FormData, name: str, default: str, known: Sequence[str]) -> str:
    """One of a few words."""
    value = text(form, name) or default
    if value not in known:
        raise Refused(
            422, "bad_field", f"Field {name} is '{label(value)}'; {nearest(value[:99], known)}."
        )
    return value


def numbers(form: FormData, name: str, count: int | None, low: int, high: int) -> list[int]:
    """A JSON list of `count` whole numbers, of any number if None."""
    try:
        value = json.loads(text(form, name))
        if not isinstance(value, list) or len(value) != (len(value) if count is None else count):
            raise ValueError
        if not all(type(v) is int and low <= v <= high for v in value):
            raise ValueError
    except (ValueError, RecursionError) as error:
        wanted = f"{'' if count is None else f'{count} '}whole numbers from {low} to {high}"
        raise Refused(422, "bad_field", f"Field {name} must be a JSON list of {wanted}.") from error
    return value


def grid_of(raw: str, limits: Limits) -> Grid | None:
    """Read a grid field; empty means that the pieces say it."""
    if not raw:
        return None
    if len(raw) > 20:
        raise Refused(422, "bad_grid", "A grid is one number (3) or rows x columns (3x4).")
    grid = parse_grid(raw)
    _check_cells(grid, limits)
    return grid


def _check_cells(grid: Grid, limits: Limits) -> None:
    if grid[0] * grid[1] > limits.pieces:
        raise Refused(
            413,
            "too_many_pieces",
            f"A {grid[0]}x{grid[1]} grid has more than the {limits.pieces} cells allowed.",
        )


def given_of(raw: str, puzzle: Puzzle) -> dict[int, int]:
    """Read given placements, JSON {"piece": cell}."""
    try:
        record = json.loads(raw) if raw else {}
        if not isinstance(record, dict) or not all(type(v) is int for v in record.values()):
            raise ValueError
        given = {int(piece): cell for piece, cell in record.items()}
    except (ValueError, RecursionError) as error:
        raise Refused(
            422, "bad_given", 'Field given must be JSON such as {"0": 4}: piece to cell.'
        ) from error
    for piece, cell in given.items():
        if not 0 <= piece < len(puzzle.pieces) or not 0 <= cell < puzzle.cells:
            raise Refused(
                422,
                "bad_given",
                f"Given piece {piece} in cell {cell}: there are "
                f"{len(puzzle.pieces)} pieces and {puzzle.cells} cells.",
            )
    if len(set(given.values())) != len(given):
        raise Refused(422, "bad_given", "Two given pieces lie in the same cell.")
    return given


# ---- pictures -------------------------------------------------------------------------------


class Budget:
    """Counts the pixels that one request may decode."""

    def __init__(self, pixels: int) -> None:
        self.allowed = self.left = min(pixels, MAX_PIXELS)

    def open(self, data: bytes, name: str) -> Image.Image:
        """Decode one picture whose header promises few enough pixels."""
        name = label(name)
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise Refused(
                413,
                "too_many_pixels",
                f"{name}: too many pixels, a request may hold {self.allowed:,} in all.",
            ) from error
        except Exception as error:  # Pillow raises many kinds on bad headers: all mean the same
            raise Refused(422, "bad_image", f"{name}: not a picture that can be read.") from error
        self.left -= width * height
        if self.left < 0:
            raise Refused(
                413,
                "too_many_pixels",
                f"{name}: {width} x {height} pixels, a request may hold {self.allowed:,} in all.",
            )
        try:
            return open_image(data, name=name)
        except PuzlmError as error:
            raise Refused(422, "bad_image", one_line(str(error))) from error
        except Exception as error:
            raise Refused(422, "bad_image", f"{name}: damaged or cut short.") from error

    def pixels(
        self, data: bytes, name: str, convert: Callable[[Image.Image], Pixels] = to_rgb
    ) -> Pixels:
        """Decode one picture, to RGB if nothing else is said."""
        image = self.open(data, name)
        try:
            return convert(image)
        except Exception as error:
            raise Refused(
                422, "bad_image", f"{label(name)}: of a kind that is not read."
            ) from error


def fit_inside(picture: Pixels, side: int) -> Pixels:
    """Shrink a picture so that no side is longer than `side` pixels."""
    scale = side / max(picture.shape[:2])
    if scale >= 1:
        return picture
    size = max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS))


def shrink(pieces: Pixels, pixels: int) -> Pixels:
    """Shrink all pieces (n, height, width, 3) alike to at most `pixels` together."""
    n, height, width, _ = pieces.shape
    scale = (pixels / (n * height * width)) ** 0.5
    if scale >= 1:
        return pieces
    size = max(1, int(width * scale)), max(1, int(height * scale))
    small = [np.asarray(Image.fromarray(p).resize(size, Image.Resampling.BOX)) for p in pieces]
    return np.stack(small)


# ---- puzzles --------------------------------------------------------------------------------


def read_puzzle(
    pieces: list[File],
    archive: bytes | None,
    picture: File | None,
    grid: Grid | None,
    limits: Limits,
    *,
    pixels: int = SOLVE_PIXELS,
) -> Puzzle:
    """Make a puzzle of piece files, a zip of them, or one shuffled picture."""
    if (bool(pieces) + (archive is not None) + (picture is not None)) != 1:
        raise Refused(
            422,
            "no_pieces",
            "Send either files named 'pieces', or one 'zip', or one shuffled 'picture'.",
        )
    budget, truth = Budget(limits.pixels), None
    if len(pieces) == 1 and zipfile.is_zipfile(io.BytesIO(pieces[0][1])):
        archive, pieces = pieces[0][1], []
    if picture is not None:
        whole = budget.pixels(picture[1], picture[0], with_holes)
        grid = grid or find_tiles(np.ascontiguousarray(whole[:, :, :3]))
        if grid is None:
            raise Refused(
                422,
                "bad_grid",
                "No seams were found both ways; say into how many pieces it was cut, for example "
                "3 or 3x4.",
            )
        _check_cells(grid, limits)
        puzzle = Puzzle.from_shuffled(whole, grid)
        names = tuple(f"piece {i}" for i in range(len(puzzle.pieces)))
        return Puzzle(shrink(puzzle.pieces, pixels), grid, None, names)
    if archive is not None:
        pieces, known, truth = unzip(archive, limits)
        grid = grid or known
    if len(pieces) > limits.pieces:
        raise Refused(
            413, "too_many_pieces", f"{len(pieces)} pieces, at most {limits.pieces} are allowed."
        )
    settings = {} if grid else {"open": True}
    grid = grid or open_grid(len(pieces))
    if len(pieces) > grid[0] * grid[1]:
        raise Refused(
            422,
            "bad_grid",
            f"{len(pieces)} pieces, a {grid[0]}x{grid[1]} grid has only "
            f"{grid[0] * grid[1]} cells; choose a larger grid.",
        )
    images = [budget.pixels(data, name) for name, data in pieces]
    names = tuple(label(name) for name, _ in pieces)
    one_size = equal_sizes(images)
    if one_size is None:
        raise Refused(422, "unequal_pieces", f"These {unequal(images, names)}.")
    positions = None if truth is None else np.array(truth, np.int64)
    try:
        return Puzzle(shrink(one_size, pixels), grid, positions, names, settings)
    except PuzlmError:
        return Puzzle(shrink(one_size, pixels), grid, None, names, settings)


def one_line(message: str) -> str:
    """A message on one line, without the command's flags."""
    return " ".join(message.split()).replace("--solver", "solver").replace("--grid", "grid")


def refusing(call: Callable[[], Any]) -> Any:
    """Run a call whose user errors become 422."""
    try:
        return call()
    except PuzlmError as error:
        raise Refused(422, "unusable", one_line(str(error))) from error


async def one_file(form: FormData, name: str) -> File | None:
    """The file of a form field, if there is one."""
    value = form.get(name)
    return (value.filename or name, await value.read()) if isinstance(value, UploadFile) else None
