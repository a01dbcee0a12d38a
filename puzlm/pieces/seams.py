"""The seams of a shuffled picture: how many tiles it has, and where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puzlm.images import Pixels

Grid = tuple[int, int]

# Tiles that do not fill the picture: there are more ways to lay such lines than to divide a side,
# so they must be clearer. Chosen on validation pictures: docs/runs/margins-val.txt.
LEAST_TILE = 16  # pixels
MOST_MARGIN = 64  # pixels before the first tile
FEWEST = 3  # tiles a row, unless somebody says that there are two: edges of pictures look alike
CLEAR, QUARTER, RISE = 9.0, 3.0, 0.8  # what `Ruling` must reach

# Tiles that overlap: strips of neighbours differ by less than SAME of what columns of a tile
# differ by. Numbers: docs/runs/overlap-val.txt.
SAME = 0.4
LIVELY = 2.0  # grey levels by which columns of a tile differ, to say something
LINES = 3  # of cuts that must say so
MOST_OVERLAP = 16  # pixels


@dataclass(frozen=True)
class Ruling:
    """Equally distant lines across one direction of a picture: where `count` tiles lie.

    `clear`: the mean strength of the lines in standard deviations, by the root of their number.
    `quarter`: the strength, in deviations, that three of four lines have. `rise`: the mean as is.
    """

    start: int
    pitch: int
    count: int
    clear: float
    quarter: float
    rise: float

    @property
    def end(self) -> int:
        """The first pixel after the last tile."""
        return self.start + self.count * self.pitch

    @property
    def shows(self) -> bool:
        """Whether the lines are seams."""
        return self.clear >= CLEAR and self.quarter >= QUARTER and self.rise >= RISE


def find_tiles(image: Pixels) -> Grid | None:
    """The grid of a shuffled picture whose tiles fill it, or leave margins; None: none shows."""
    found = find_grid(image)
    lines = rulings(image)
    if lines is None:
        return found
    if found is not None:
        filling = 0.0
        for axis, count in enumerate(found):
            pixels = image.swapaxes(0, axis)
            filling += _ruled(_seams(pixels), 0, len(pixels) // count, count).clear
        if filling >= lines[0].clear + lines[1].clear:
            return found
    return lines[0].count, lines[1].count


def rulings(image: Pixels, grid: Grid | None = None) -> tuple[Ruling, Ruling] | None:
    """Where the tiles of a shuffled picture lie if they do not fill it: down and along; else None.

    With a `grid` its numbers of tiles are looked for, and nothing where the tiles that fill the
    picture have clearer seams.
    """
    found = []
    for axis in (0, 1):
        pixels = image.swapaxes(0, axis)
        line, length = _seams(pixels), len(pixels)
        count = None if grid is None else grid[axis]
        whole = None if count is None or count < 2 else _ruled(line, 0, length // count, count)
        if whole is not None and length % whole.count == 0 and whole.shows:
            found.append(whole)
            continue
        best = _best_ruling(line, count)
        if best is None or not best.shows or whole is not None and best.clear <= whole.clear:
            return None
        found.append(best)
    down, along = found
    filled = down.end - down.start, along.end - along.start
    return None if filled == image.shape[:2] else (down, along)


def _best_ruling(line: NDArray[np.float32], count: int | None) -> Ruling | None:
    """The clearest ruling, of `count` tiles where that is given."""
    length, best = len(line) + 1, (0.0, 0, 0)
    strength = _strength(line)
    for pitch in range(LEAST_TILE, length // 2 + 1):
        starts = np.arange(min(MOST_MARGIN, pitch))
        tiles = (length - starts) // pitch
        at = starts[:, None] - 1 + pitch * np.arange(length // pitch + 1)
        inside = (at >= 0) & (at < len(line))
        sums = np.where(inside, strength[np.clip(at, 0, len(line) - 1)], 0.0).sum(1)
        clear = sums / np.maximum(inside.sum(1), 1) ** 0.5
        clear[tiles < FEWEST if count is None else tiles != count] = 0.0
        start = int(clear.argmax())
        best = max(best, (float(clear[start]), start, pitch))
    clearest, start, pitch = best
    return _ruled(line, start, pitch, (length - start) // pitch) if clearest else None


def _ruled(line: NDArray[np.float32], start: int, pitch: int, count: int) -> Ruling:
    """Measure the lines between tiles, and those around them that lie in the picture."""
    at = start - 1 + pitch * np.arange(count + 1)
    at = at[(at >= 0) & (at < len(line))]
    strength = _strength(line)[at]
    clear = float(strength.mean()) * len(at) ** 0.5
    quarter = float(np.quantile(strength, 0.25))
    return Ruling(start, pitch, count, clear, quarter, float(line[at].mean()))


def _strength(line: NDArray[np.float32]) -> NDArray[np.float32]:
    """The line in standard deviations of its typical values, outliers clipped."""
    deviation = 1.4826 * float(np.median(np.abs(line))) + 1e-3
    strength: NDArray[np.float32] = np.clip(line / deviation, -3, 8)
    return strength


def find_grid(image: Pixels) -> Grid | None:
    """Find the grid of a shuffled picture from its seams; None when they do not show clearly.

    Seams must show both ways: a strip of pieces looks like a grid half of whose seams are hidden.
    """
    lines = [_seams(image.swapaxes(0, axis)) for axis in (0, 1)]
    # One seam alone may be an edge of the picture, so few of them have to be clearer (the last
    # number); and where one direction shows a shuffled picture, less will do for the other.
    found = [_division(line, 0.35, 0.6) for line in lines]
    if max(found) > 1:
        found = [
            n if n > 1 else _division(line, 0.25, 0.3) for n, line in zip(found, lines, strict=True)
        ]
    rows, columns = found
    return (rows, columns) if min(found) > 1 else None


def _seams(pixels: Pixels, chunks: int = 24) -> NDArray[np.float32]:
    """How much more than beside it pixels differ across each line, all along it: (length - 1,).

    A mean of logarithms over parts of the line, each of limited weight: an edge of the picture
    crosses some of them, a seam all.
    """
    jumps = np.abs(np.diff(pixels.astype(np.float32), axis=0)).mean(2)
    width = jumps.shape[1]
    starts = np.linspace(0, width, max(1, min(chunks, width // 8)) + 1).astype(int)
    parts = 1 + np.add.reduceat(jumps, starts[:-1], axis=1) / np.diff(starts)
    at = np.arange(len(parts))
    beside = np.median([parts[np.clip(at + k, 0, len(at) - 1)] for k in (-3, -2, 2, 3)], axis=0)
    line: NDArray[np.float32] = np.clip(np.log(parts / beside), -2 / 3, 2).mean(1)
    line -= np.median(line)
    block = at % 8 == 7  # JPEG's own seams
    if block.any():
        line -= max(0.0, float(np.median(line[block]) - np.median(line[~block]))) * block
    return line


def _division(line: NDArray[np.float32], least: float, few: float) -> int:
    """The finest division into equal parts all of whose lines are seams; 1 if there is none."""
    length = len(line) + 1
    found, seams = 1, np.arange(0)
    for parts in range(2, min(64, length // 8) + 1):
        if length % parts:
            continue
        at = np.arange(1, parts) * (length // parts) - 1
        strength = line[at].mean()
        if strength <= least * (1 + few / len(at)) or np.quantile(line[at], 0.25) <= 0.05:
            continue
        if found > 1 and parts % found == 0:  # has the same seams; are the others some, too?
            if np.quantile(line[np.setdiff1d(at, seams)], 0.25) <= 0.4 * line[seams].mean():
                continue
        elif found > 1 and strength <= line[seams].mean():
            continue
        found, seams = parts, at
    return found


def overlap(board: Pixels) -> tuple[int, int]:
    """By how many pixels the laid tiles (rows, columns, height, width, 3) overlap, down and along.

    Tiles of map services repeat a strip of their neighbours. Strips that show little say nothing.
    """
    return _overlap(board.transpose(1, 0, 3, 2, 4)), _overlap(board)


def _overlap(board: Pixels) -> int:
    """By how many pixels tiles overlap with those to their right.

    Every line of cuts must say so: an edge in the picture may run along one of them.
    """
    height, width = board.shape[2:4]
    most = min(MOST_OVERLAP, width // 4)
    unlike = []
    for column in range(board.shape[1] - 1):
        left, right = (board[:, column + k].astype(np.float32) for k in (0, 1))
        change = np.abs(np.diff(left[:, :, -most - 2 :], axis=2)).mean(axis=(1, 3))
        usual = np.median(change, axis=1)
        lively = usual >= LIVELY
        left, right, usual = left[lively], right[lively], usual[lively]
        if len(usual):
            apart = [
                np.abs(left[:, :, -k:] - right[:, :, :k]).mean(axis=(1, 2, 3)) / usual
                for k in range(1, most + 1)
            ]
            unlike.append(np.median(apart, axis=1))
    if len(unlike) < LINES or not most:
        return 0
    worst = np.max(unlike, axis=0)
    best = int(np.argmin(worst))
    return best + 1 if worst[best] < SAME else 0
