"""Strips of shredded pages: read them, find their paper, straighten their cut sides.

    folder of pictures -> Strip(pixels, paper) -> sides: bands of ink along both cuts

Strips may differ in width and height. What is paper is said by an alpha channel, by a mask of the
same name in a folder `masks`, or by the ground that the strip was scanned on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import median_filter

from puzlm.errors import ImageError, PuzzleError
from puzlm.images import IMAGE_SUFFIXES, Pixels, open_image, to_rgb

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

PAGE_ROWS = 1650  # rows of a page at 150 pixels an inch; sides are read at this scale
GROUND = 60  # grey levels by which a scanner's ground must differ from paper
NOISE = 24  # grey levels that one ground may vary
LEAST_CONTRAST = 60  # grey levels between paper and print; what is nearer is a stain
WHITE = 170  # paper is lighter than this ...
PRINT = 0.45  # ... at most this share of it bears print ...
GLARE = 0.02  # ... and hardly anything is lighter still
STROKE = 1 / 80  # of a page's longer side: most ink lies in strokes that are thinner
SMALLEST = 500  # pixels of the longer side of a page whose print can be read
STROKES = 200  # strokes of a page, in some 400 rows; with fewer there is little to read
FADE = 0.35  # ink of a mark that counts as print


@dataclass(frozen=True, eq=False)
class Strip:
    """One strip: pixels (height, width, 3), paper (height, width) true on the strip itself."""

    pixels: Pixels
    paper: Bools
    name: str = ""

    def turned(self) -> Strip:
        """The strip upside down."""
        return replace(self, pixels=self.pixels[::-1, ::-1], paper=self.paper[::-1, ::-1])

    @property
    def height(self) -> int:
        """Rows of the picture."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """Typical width of the paper, in pixels."""
        left, right = self.edges
        return max(1, int(np.median(right - left)))

    @property
    def edges(self) -> tuple[Ints, Ints]:
        """First column of paper and first column after it, in each row: two (height,)."""
        return edges_of(self.paper)


def edges_of(paper: Bools) -> tuple[Ints, Ints]:
    """Smooth edges of the paper: two (height,); ragged teeth of a cut do not move them."""
    height, width = paper.shape
    rows = np.flatnonzero(paper.any(1))
    left = paper.argmax(1)
    right = width - paper[:, ::-1].argmax(1)
    every = np.arange(height)
    size = max(3, height // 110) | 1
    smooth = []
    for edge in (left, right):
        whole = np.interp(every, rows, edge[rows])
        smooth.append(np.rint(median_filter(whole, size, mode="nearest")).astype(np.int64))
    return smooth[0], np.maximum(smooth[1], smooth[0] + 1)


# ---- reading ----------------------------------------------------------------------------------


def read_strips(folder: Path) -> list[Strip]:
    """Read all strips of a folder, or of its folder `strips`; masks may lie in `masks`.

    The order is that of the pictures' contents, so names cannot tell anything.
    """
    place = folder / "strips" if (folder / "strips").is_dir() else folder
    files = [
        p
        for p in place.iterdir()
        if p.is_file() and p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith(".")
    ]
    if not files:
        raise PuzzleError(f"{folder}: holds no pictures of strips")
    strips = []
    for file in files:
        masks = [folder / "masks" / f"{file.stem}{suffix}" for suffix in (".png", ".npy")]
        strips.append(read_strip(file, next((m for m in masks if m.is_file()), None)))
    return sorted(strips, key=lambda strip: hashlib.sha256(strip.pixels.tobytes()).digest())


def read_strip(file: Path, mask: Path | None = None) -> Strip:
    """Read one strip and find its paper."""
    image = open_image(file)
    pixels = to_rgb(image)
    if mask is not None:
        paper = _read_mask(mask)
        if paper.shape != pixels.shape[:2]:
            raise PuzzleError(f"{mask}: has another size than {file.name}")
    elif image.mode in ("RGBA", "LA", "PA"):
        paper = np.asarray(image.convert("RGBA"))[:, :, 3] > 127
    else:
        paper = find_paper(pixels)
    if not paper.any():
        raise PuzzleError(f"{file}: no paper is left, all of it is transparent or masked")
    return cropped(Strip(pixels, paper, file.name))


def _read_mask(file: Path) -> Bools:
    """Read a mask, white or not zero where there is paper."""
    if file.suffix == ".png":
        return np.asarray(open_image(file).convert("L")) > 127
    try:
        return np.asarray(np.load(file, allow_pickle=False)) > 0
    except (OSError, ValueError) as error:
        raise ImageError(f"{file}: not a mask that can be read ({error})") from error


def cropped(strip: Strip) -> Strip:
    """Cut empty columns off, but no rows: they say how high a strip lay on the glass."""
    columns = np.flatnonzero(strip.paper.any(0))
    part = slice(int(columns[0]), int(columns[-1]) + 1)
    return replace(strip, pixels=strip.pixels[:, part], paper=strip.paper[:, part])


def find_paper(pixels: Pixels) -> Bools:
    """Tell paper from a plain ground that is much darker or of another colour: (height, width).

    The ground must fill two corners at least and be reached from the sides of the picture.
    """
    height, width = pixels.shape[:2]
    values = pixels.astype(np.int16)
    typical = np.median(values[:: max(1, height // 200)], axis=(0, 1))
    corners = values[[0, 0, -1, -1], [0, -1, 0, -1]]
    for corner in corners:
        alike = (np.abs(corners - corner).max(1) <= NOISE).sum() >= 2
        if alike and np.abs(corner - typical).max() >= GROUND:
            ground = np.abs(values - corner).max(2) <= NOISE
            from_left = np.logical_and.accumulate(ground, axis=1)
            from_right = np.logical_and.accumulate(ground[:, ::-1], axis=1)[:, ::-1]
            paper = ~(from_left | from_right)
            if paper.mean() > 0.2:
                return np.asarray(paper)
    return np.ones((height, width), bool)


# ---- ink --------------------------------------------------------------------------------------


def mostly_white(pieces: Sequence[Pixels], extent: int) -> bool:
    """Whether pieces look like printed pages: light paper, and thin strokes on it.

    `extent` is the longer side of the page in pixels. A thing on a white ground is no print: its
    dark pixels lie in long runs, those of print in short ones.
    """
    if extent < SMALLEST:
        return False
    rows = [piece[:: max(1, extent // 400)].mean(2) for piece in pieces]
    grey = np.concatenate([row.ravel() for row in rows])
    paper = np.quantile(grey, 0.7)
    if paper < WHITE or (np.abs(grey - paper) < NOISE).mean() < 1 - PRINT:
        return False
    if (grey > paper + NOISE).mean() > GLARE:
        return False
    lengths = np.concatenate([_runs(row < paper - GROUND / 2) for row in rows])
    if len(lengths) < STROKES:
        return False
    half = lengths[lengths <= extent * STROKE].sum() / lengths.sum()
    return bool(half > 0.5)


def _runs(dark: Bools) -> Ints:
    """Lengths of the dark runs in all rows of a picture (height, width)."""
    edges = np.diff(np.pad(dark, ((0, 0), (1, 1))).astype(np.int8), axis=1).ravel()
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


def inks_of(strips: Sequence[Strip]) -> list[Floats]:
    """Ink of each strip (height, width), 0: paper, 1: print; paper is judged strip by strip."""
    greys = [strip.pixels.mean(2, dtype=np.float32) for strip in strips]
    on_paper = [grey[strip.paper] for grey, strip in zip(greys, strips, strict=True)]
    papers = [float(np.quantile(grey[::7], 0.8)) for grey in on_paper]
    darks = [float(np.quantile(grey[::7], 0.01)) for grey in on_paper]
    print_level = float(np.quantile(darks, 0.25))
    result = []
    for strip, grey, paper in zip(strips, greys, papers, strict=True):
        span = max(paper - print_level, LEAST_CONTRAST)
        ink = np.clip((paper - grey) / span * 1.1 - 0.05, 0, 1)
        ink[~strip.paper] = 0
        result.append(ink.astype(np.float32))
    return result


def sides_of(
    strip: Strip, ink: Floats, scale: float, rows: int, depth: int
) -> tuple[Floats, Floats]:
    """Read the bands along both cuts, from the cut inwards: (before, after), each (depth, rows).

    `before` is the right side of the strip, which lies before a cut, `after` the left one. `scale`
    turns pixels of the strip into pixels at 150 an inch.
    """
    left, right = strip.edges
    height, width = ink.shape
    deep = max(1, round(depth / scale))
    inward = np.arange(deep)
    every = np.arange(height)[:, None]
    columns = {"before": right[:, None] - 1 - inward, "after": left[:, None] + inward}
    bands = []
    for at in columns.values():
        inside = (at >= left[:, None]) & (at < right[:, None])
        band = np.where(inside, ink[every, np.clip(at, 0, width - 1)], 0)
        bands.append(_scaled(band, scale, rows, depth))
    return bands[0], bands[1]


def _scaled(band: Floats, scale: float, rows: int, depth: int) -> Floats:
    """Bring a band (height, deep) to the common scale: (depth, rows), paper below its end."""
    height = min(rows, max(1, round(len(band) * scale)))
    image = Image.fromarray(band.astype(np.float32))
    small = np.asarray(image.resize((depth, height), Image.Resampling.BILINEAR))
    result = np.zeros((depth, rows), np.float32)
    result[:, :height] = small.T
    return result


def blank(ink: Floats) -> bool:
    """Whether nothing is printed on a piece: (height, width) of ink."""
    return bool((ink > FADE).sum() <= 2e-4 * ink.size)
