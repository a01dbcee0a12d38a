"""Pages drawn for tests: lines of text, cut into strips, with a shredder's wear."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from puzlm.pieces.strips import Strip

TEXT = """the quick brown fox jumps over a lazy dog while seven wizards boxed up my jugs of
liquor and every page of print that was shredded lies here again as it was before"""
WORDS = TEXT.split()


def draw_page(seed: int = 0, width: int = 620, height: int = 825, size: int = 15) -> np.ndarray:
    """A page of text in grey, 75 pixels an inch, white margins around it."""
    rng = np.random.default_rng(seed)
    image = Image.new("L", (width, height), 250)
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(size)
    margin = 60
    for top in range(margin, height - margin, round(size * 1.5)):
        line = ""
        while font.getlength(line) < width - 2 * margin - 60:
            line += " " + str(rng.choice(WORDS))
        pen.text((margin, top), line, font=font, fill=20)
    return np.asarray(image)


def cut_page(page: np.ndarray, count: int) -> list[Strip]:
    """Strips from left to right, of nearly equal width."""
    at = np.linspace(0, page.shape[1], count + 1).round().astype(int)
    return [
        Strip(np.repeat(page[:, a:b, None], 3, 2), np.ones((len(page), b - a), bool), f"{k}")
        for k, (a, b) in enumerate(zip(at[:-1], at[1:], strict=True))
    ]


def wear(strip: Strip, seed: int) -> Strip:
    """Ragged sides, a slanted lie, and a small slip up or down; the ground is black."""
    rng = np.random.default_rng(seed)
    height, width = strip.paper.shape
    slip = int(rng.integers(-1, 2))
    pixels = np.zeros((height, width + 20, 3), np.uint8)
    paper = np.zeros((height, width + 20), bool)
    for y in range(height):
        source = min(max(y + slip, 0), height - 1)
        lost = rng.integers(0, 2, 2)
        left = 2 + round(14 * y / height)
        pixels[y, left + lost[0] : left + width - lost[1]] = strip.pixels[
            source, lost[0] : width - lost[1]
        ]
        paper[y, left + lost[0] : left + width - lost[1]] = True
    return Strip(pixels, paper, strip.name)
