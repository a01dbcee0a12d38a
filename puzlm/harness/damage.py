"""What happens to pieces between the cut and the computer: named, drawn by a seed.

Each damage takes the pieces of one puzzle and a generator, and gives as many pieces back. Only
`scan` changes their sizes. Lengths are pixels, light is in grey levels of 0 to 255.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from puzlm.errors import PuzzleError
from puzlm.images import Pixels
from puzlm.pieces.repair import equal_sizes

Pieces = Sequence[Pixels]

GAIN, OFFSET = 0.15, 10.0  # deviations of the light that falls on each piece
NOISE = 15.0  # deviation of each value
QUALITY = 50  # of the JPEG that each piece is stored as
LOST = 2  # pixels cut off every side, before the piece is brought to its size again
TURN = 2.0  # degrees that a piece lies askew on the scanner at most
BLUR = 0.6  # deviation, pixels
UNEVEN = 0.1  # of the brightness, from one end of the piece to the other at most
GROUND = (244, 243, 238)  # of the scanner's lid
LINE = 2  # pixels of it that a crop by hand leaves on a side at most ...
SHARE = 0.25  # ... on so many of the sides; as many lose a pixel


def light(pieces: Pieces, rng: np.random.Generator) -> list[Pixels]:
    """Another light on each piece: a gain and an offset."""
    found = []
    for piece in pieces:
        gain = 1 + GAIN * rng.standard_normal()
        found.append(_pixels(piece * gain + OFFSET * rng.standard_normal()))
    return found


def noise(pieces: Pieces, rng: np.random.Generator) -> list[Pixels]:
    """Noise of its own in each value."""
    return [_pixels(piece + NOISE * rng.standard_normal(piece.shape)) for piece in pieces]


def jpeg(pieces: Pieces, rng: np.random.Generator) -> list[Pixels]:
    """Each piece compressed on its own."""
    found = []
    for piece in pieces:
        file = io.BytesIO()
        Image.fromarray(piece).save(file, "JPEG", quality=QUALITY)
        found.append(np.asarray(Image.open(file)))
    return found


def light_jpeg(pieces: Pieces, rng: np.random.Generator) -> list[Pixels]:
    """Another light on each piece, then compressed on its own."""
    return jpeg(light(pieces, rng), rng)


def cut(pieces: Pieces, rng: np.random.Generator) -> list[Pixels]:
    """Cut a little off every side, and bring the piece to its size again."""
    found = []
    for piece in pieces:
        size = piece.shape[1], piece.shape[0]
        inner = Image.fromarray(piece[LOST:-LOST, LOST:-LOST])
        found.append(np.asarray(inner.resize(size, Image.Resampling.BICUBIC)))
    return found


def scan(pieces: Pieces, rng: np.random.Generator) -> list[Pixels]:
    """Lay each piece on a scanner and crop it by hand: sizes then differ by some pixels."""
    found = []
    for piece in pieces:
        height, width = piece.shape[:2]
        turn = float(np.clip(TURN / 2 * rng.standard_normal(), -TURN, TURN))
        image = Image.fromarray(piece).filter(ImageFilter.GaussianBlur(BLUR))
        image = image.rotate(turn, Image.Resampling.BICUBIC)
        sine = abs(np.sin(np.radians(turn)))
        down, along = int(np.ceil(width * sine / 2)), int(np.ceil(height * sine / 2))
        pixels = np.asarray(image, np.float64)[down : height - down, along : width - along]
        slope = np.linspace(-0.5, 0.5, pixels.shape[1])[None, :, None]
        pixels = pixels * (1 + UNEVEN * (2 * rng.random() - 1) * slope)
        for _ in range(4):  # side after side; a quarter turn brings the next one up
            chance = rng.random()
            if chance < SHARE:
                deep = int(rng.integers(1, LINE + 1))
                line = np.array(GROUND) + 2 * rng.standard_normal((deep, pixels.shape[1], 3))
                pixels = np.concatenate([line, pixels])
            elif chance < 2 * SHARE:
                pixels = pixels[1:]
            pixels = np.rot90(pixels)
        found.append(_pixels(pixels))
    return found


def _pixels(values: NDArray[Any]) -> Pixels:
    result: Pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return result


DAMAGES: dict[str, Callable[[Pieces, np.random.Generator], list[Pixels]]] = {
    "light": light,
    "noise": noise,
    "jpeg": jpeg,
    "light-jpeg": light_jpeg,
    "cut": cut,
    "scan": scan,
}


def damaged(name: str, pieces: Pieces, rng: np.random.Generator) -> Pixels:
    """Damage the pieces of a puzzle, and read them as one reads a folder: brought to one size."""
    found = equal_sizes(DAMAGES[name](pieces, rng))
    if found is None:
        raise PuzzleError(f"damage '{name}': {pieces[0].shape[1]} px are too few for a piece")
    return found
