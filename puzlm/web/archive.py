"""Zip files of clients, unpacked in memory and within limits. Names are labels, never paths."""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import Any

from puzlm.images import IMAGE_SUFFIXES
from puzlm.pieces.folder import natural
from puzlm.puzzle import Grid, parse_grid
from puzlm.web.answers import Limits, Refused

LABEL = 60  # characters of a client's file name in messages
JSON_BYTES = 100_000  # of puzzle.json


def unzip(data: bytes, limits: Limits) -> tuple[list[tuple[str, bytes]], Grid | None, Any]:
    """Unpack the pictures of a zip in memory: (files, grid, truth) - a saved puzzle says both."""
    # Counted before zipfile builds an object for each: a directory alone can be a bomb.
    if data.count(b"PK\x01\x02") > 2 * limits.pieces + 32:
        raise Refused(413, "zip_bomb", f"The zip holds more than {limits.pieces} files.")
    left = limits.unzipped

    def read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
        nonlocal left
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refused(422, "bad_zip", "The zip uses a compression other than deflate.")
        with archive.open(info) as file:
            content = file.read(left + 1)
        left -= len(content)
        if left < 0:
            raise Refused(
                413, "zip_bomb", f"The zip unpacks to more than {limits.unzipped >> 20} MB."
            )
        return content

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [i for i in archive.infolist() if not i.is_dir() and _wanted(i.filename)]
            if sum(i.file_size for i in entries) > limits.unzipped:
                raise Refused(
                    413, "zip_bomb", f"The zip unpacks to more than {limits.unzipped >> 20} MB."
                )
            by_name = {_base(i.filename): i for i in entries}
            if "puzzle.json" in by_name and by_name["puzzle.json"].file_size <= JSON_BYTES:
                saved = _saved(read(archive, by_name["puzzle.json"]), by_name)
                if saved is not None:
                    names, grid, truth = saved
                    if grid[0] * grid[1] <= limits.pieces:
                        return [(n, read(archive, by_name[n])) for n in names], grid, truth
            images = [i for i in entries if i.filename.lower().endswith(IMAGE_SUFFIXES)]
            images = [i for i in images if _base(i.filename) != "shuffled.png"]
            if len(images) > limits.pieces:
                raise Refused(
                    413,
                    "too_many_pieces",
                    f"The zip holds {len(images)} pictures, at most {limits.pieces} are allowed.",
                )
            if not images:
                raise Refused(422, "bad_zip", "The zip holds no pictures.")
            images.sort(key=lambda i: natural(i.filename))
            return [(_base(i.filename), read(archive, i)) for i in images], None, None
    except Refused:
        raise
    # zipfile raises a dozen kinds on damaged files, IndexError of a file without a name among them.
    except Exception as error:
        raise Refused(422, "bad_zip", "The zip file is damaged, cut short or encrypted.") from error


def _saved(raw: bytes, there: dict[str, Any]) -> tuple[list[str], Grid, Any] | None:
    """Read puzzle.json of a saved puzzle; a damaged one is as good as none."""
    try:
        record = json.loads(raw)
        names = [str(name) for name in record["pieces"]]
        grid = parse_grid((int(record["grid"][0]), int(record["grid"][1])))
        truth = record.get("truth")
        if truth is not None:
            truth = [int(cell) for cell in truth]
            cells = grid[0] * grid[1]
            if not all(-1 <= cell < cells for cell in truth):  # 2**64, say
                raise Refused(422, "bad_zip", f"puzzle.json: a grid of {cells} has no such cell.")
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        OverflowError,
    ):
        return None
    usable = names and len(set(names)) == len(names) and all(name in there for name in names)
    return (names, grid, truth) if usable else None


def _wanted(name: str) -> bool:
    return not name.startswith("__MACOSX") and not _base(name).startswith(".")


def _base(name: str) -> str:
    return re.split(r"[\\/]", name)[-1]


def label(name: str | None) -> str:
    """A client's name, fit to be shown: one short printable line."""
    shown = "".join(c for c in _base(name or "") if c.isprintable())
    return (shown[: LABEL - 1] + "…" if len(shown) > LABEL else shown) or "the file"
