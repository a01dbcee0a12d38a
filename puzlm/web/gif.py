"""An animation of the pieces moving to their places."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from puzlm.errors import PuzzleError
from puzlm.images import Pixels
from puzlm.pieces.poses import laid
from puzlm.puzzle import Puzzle

PIXELS = 420 * 420  # of a frame
FRAMES = 60  # at most; several pieces move together in a large puzzle
STEPS = 4  # frames of one move
GROUND = (24, 26, 34)


def draw(
    puzzle: Puzzle, positions: list[int], order: list[int], upright: Sequence[int] = ()
) -> bytes:
    """Draw a GIF: first shuffled, then piece after piece at its place, in the pose `upright`."""
    pieces, (rows, columns) = _shrunk(puzzle).copy(), puzzle.grid
    if any(pose % 2 for pose in upright) and pieces.shape[1] != pieces.shape[2]:
        raise PuzzleError("only square pieces can be turned by quarters")
    n, height, width = pieces.shape[:3]
    turns = list(dict.fromkeys(order)) + [i for i in range(n) if i not in set(order)]
    together = -(-n * STEPS // FRAMES)

    def spot(cell: int) -> tuple[float, float]:
        return cell // columns * height, cell % columns * width

    places = [spot(i) for i in range(n)]
    frames, lengths = [_frame(pieces, places, [], rows, columns)], [900]
    for start in range(0, n, together):
        moving = [i for i in turns[start : start + together] if positions[i] >= 0]
        for i in moving:
            pieces[i] = laid(pieces[i], upright[i] if upright else 0).copy()
        moving = [i for i in moving if spot(positions[i]) != places[i]]
        if not moving:
            continue
        before = {i: places[i] for i in moving}
        for step in range(1, STEPS + 1):
            t = step / STEPS
            t = t * t * (3 - 2 * t)
            for i in moving:
                to = spot(positions[i])
                places[i] = tuple(p + (q - p) * t for p, q in zip(before[i], to, strict=True))  # type: ignore[assignment]
            frames.append(_frame(pieces, places, moving, rows, columns))
            lengths.append(60)
    final = [spot(c) if c >= 0 else places[i] for i, c in enumerate(positions)]
    frames.append(_frame(pieces, final, [], rows, columns))
    lengths.append(2500)
    # One palette for all frames, taken from the pieces: no flicker, and a small file.
    sheet = Image.fromarray(np.concatenate(list(pieces), 1)[:, :: max(1, n * width // 4000)])
    palette = sheet.quantize(255, Image.Quantize.MEDIANCUT)
    small = [f.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG) for f in frames]
    buffer = io.BytesIO()
    small[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=small[1:],
        duration=lengths,
        loop=0,
        optimize=False,
    )
    return buffer.getvalue()


def _frame(
    pieces: Pixels, places: list[tuple[float, float]], on_top: list[int], rows: int, columns: int
) -> Image.Image:
    height, width = pieces.shape[1:3]
    canvas = np.full((rows * height, columns * width, 3), GROUND, np.uint8)
    for i in [*(k for k in range(len(pieces)) if k not in on_top), *on_top]:
        top, left = round(places[i][0]), round(places[i][1])
        canvas[top : top + height, left : left + width] = pieces[i]
    return Image.fromarray(canvas)


def _shrunk(puzzle: Puzzle) -> Pixels:
    """Pieces small enough for a frame of PIXELS."""
    height, width = puzzle.pieces.shape[1:3]
    scale = (PIXELS / (puzzle.cells * height * width)) ** 0.5
    if scale >= 1:
        return puzzle.pieces
    size = max(1, int(width * scale)), max(1, int(height * scale))
    return np.stack([np.asarray(Image.fromarray(p).resize(size)) for p in puzzle.pieces])
