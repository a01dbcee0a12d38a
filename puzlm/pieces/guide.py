"""Pictures to follow at the table: the same number on the photo and on the solved picture."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from puzlm.images import Pixels
from puzlm.pieces.table import Points, Table
from puzlm.solution import Solution

LONG = 1600  # pixels of the longer side of an annotated photo
FRAME, REFUSED = (0, 200, 90), (230, 40, 40)
LABEL, BEHIND = (255, 255, 255), (0, 0, 0)


def numbered(table: Table, photo: int, turns: tuple[int, ...] = ()) -> Pixels:
    """A photo with every piece framed and numbered, and what was left out in red.

    Where `turns` are known a bar marks the side of each piece that is up in the solved picture.
    """
    picture = Image.fromarray(table.photos[photo])
    scale = min(1.0, LONG / max(picture.size))
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
    pen = ImageDraw.Draw(picture)
    line = max(2, round(max(picture.size) / 500))
    for thing in table.left_out:
        if thing.photo == photo:
            x, y, width, height = (value * scale for value in thing.box)
            again = thing.piece >= 0
            colour, name = (FRAME, str(thing.piece)) if again else (REFUSED, "?")
            pen.rectangle((x, y, x + width, y + height), outline=colour, width=line)
            behind = BEHIND if again else REFUSED
            _label(pen, name, (x + width / 2, y + height / 2), line * 7, behind)
    for number, place in enumerate(table.places):
        if place.photo != photo:
            continue
        corners = place.corners * scale
        _outline(pen, corners, line)
        side = float(np.linalg.norm(corners[0] - corners[2])) / 2**0.5
        if turns:
            # A counter-clockwise turn brings the piece's side of that number to the top.
            first, second = corners[turns[number]], corners[(turns[number] + 1) % 4]
            inward = (corners.mean(0) - (first + second) / 2) * 0.12
            ends = [tuple(first + inward), tuple(second + inward)]
            pen.line(ends, fill=FRAME, width=max(line, round(side / 14)))
        x, y = corners.mean(0)
        _label(pen, str(number), (float(x), float(y)), side / 3.2, BEHIND)
    return np.asarray(picture)


def solved(found: Solution) -> Pixels:
    """The solved picture with the number of each piece in its cell."""
    image = found.array
    scale = max(1.0, 700 / max(image.shape[:2]))
    size = round(image.shape[1] * scale), round(image.shape[0] * scale)
    picture = Image.fromarray(image).resize(size)
    pen = ImageDraw.Draw(picture)
    rows, columns = found.grid
    height, width = picture.height / rows, picture.width / columns
    for piece, cell in enumerate(found.positions.tolist()):
        if cell >= 0:
            row, column = divmod(cell, columns)
            box = (column * width, row * height, (column + 1) * width, (row + 1) * height)
            pen.rectangle(box, outline=FRAME)
            middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
            _label(pen, str(piece), middle, min(height, width) / 3.2, BEHIND)
    return np.asarray(picture)


def guide(table: Table, found: Solution) -> Pixels:
    """All photos and the solved picture beside them, with the same numbers."""
    turns = found.turns or (0,) * len(found.positions)
    pictures = [numbered(table, k, turns) for k in range(len(table.photos))] + [solved(found)]
    tall = max(p.shape[0] for p in pictures)
    wide = sum(p.shape[1] for p in pictures) + 20 * (len(pictures) - 1)
    sheet = Image.new("RGB", (wide, tall), (255, 255, 255))
    left = 0
    for pixels in pictures:
        sheet.paste(Image.fromarray(pixels), (left, (tall - pixels.shape[0]) // 2))
        left += pixels.shape[1] + 20
    return np.asarray(sheet)


def _outline(pen: ImageDraw.ImageDraw, corners: Points, line: int) -> None:
    """Frame a quad (4, 2)."""
    around = [tuple(corner) for corner in [*corners, corners[0]]]
    pen.line(around, fill=FRAME, width=line)


def _label(
    pen: ImageDraw.ImageDraw,
    text: str,
    middle: tuple[float, float],
    size: float,
    behind: tuple[int, int, int],
) -> None:
    """Write a number that can be read on any ground."""
    font = ImageFont.load_default(max(10, size))
    box = pen.textbbox(middle, text, font=font, anchor="mm")
    room = size / 8
    pen.rectangle((box[0] - room, box[1] - room, box[2] + room, box[3] + room), fill=behind)
    pen.text(middle, text, font=font, fill=LABEL, anchor="mm")
