"""Draw the sample pictures of the page: `python -m puzlm.web.samples` writes static/samples.

They are drawn here, so they carry nobody's licence, and stored as WebP, so that the service needs
no font and no drawing at run time.
"""

from __future__ import annotations

import colorsys
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Floats = NDArray[np.float64]

SIDE = 720  # pixels of a stored sample
SCALE = 2  # drawn larger, then shrunk, so that edges are smooth
FOLDER = Path(__file__).parent / "static" / "samples"
TITLES = {
    "shore": "Evening shore",
    "mandala": "Mandala",
    "poster": "Poster",
    "town": "Night town",
}


def gradient(stops: list[tuple[float, str]], at: Floats) -> Floats:
    """Colours (..., 3) of a gradient of (place, '#rrggbb') stops."""
    places = [place for place, _ in stops]
    rgb = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for _, c in stops], np.float64)
    return np.stack([np.interp(at, places, rgb[:, k]) for k in range(3)], -1)


def ridge(x: Floats, seed: int, rough: float = 0.5) -> Floats:
    """A random hill line over x in 0..1: a few octaves of sines."""
    rng = np.random.default_rng(seed)
    total = np.zeros_like(x)
    for octave in range(1, 8):
        phase, wave = rng.uniform(0, 6.3), 1.3**octave * rng.uniform(1.5, 3.0)
        total += rough**octave * np.sin(wave * 2.2 * x * octave**0.6 + phase)
    return total


def plane() -> tuple[int, Floats, Floats]:
    """Pixels a side, and y and x in 0..1 of every pixel."""
    n = SIDE * SCALE
    y, x = np.mgrid[0:n, 0:n] / n
    return n, y, x


def finish(picture: Floats, grain: float = 2.5, seed: int = 0) -> Image.Image:
    """Shrink to the stored size and add a little grain, as a photo has."""
    image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)).astype(np.float64)
    small += np.random.default_rng(seed).normal(0, grain, (SIDE, SIDE, 1))
    return Image.fromarray(np.clip(small, 0, 255).astype(np.uint8))


def shore() -> Image.Image:
    """A low sun between hills, its path on the water, and a pine."""
    n, y, x = plane()
    horizon, sun = 0.56, (0.66, 0.40)
    sky = [
        (0.0, "#1d2b53"),
        (0.25, "#43478a"),
        (0.45, "#c0607c"),
        (0.56, "#ffb066"),
        (1, "#ffb066"),
    ]
    out = gradient(sky, y + 0.05 * np.sin(3 * x))
    far = np.hypot(x - sun[0], (y - sun[1]) * 1.0)
    out += 150 * np.exp(-((far / 0.16) ** 2))[..., None] * np.array([1.0, 0.72, 0.35])
    clouds = ridge(x * 2 + 0.6 * np.sin(9 * y), 3) * np.cos(46 * y + 2 * ridge(x * 2, 8))
    out += (38 * np.clip(clouds - 0.12, 0, 1) * (y < 0.5))[..., None] * np.array([1.3, 0.8, 0.7])
    disc = np.clip((0.062 - far) * n / 3, 0, 1)[..., None]
    out = out * (1 - disc) + disc * gradient([(0, "#fff3c4"), (1, "#ffcf6b")], (y - 0.34) / 0.12)
    for base, height, tint, seed in (
        (0.53, 0.10, "#7a4f82", 1),
        (0.555, 0.085, "#4d3a6b", 5),
        (0.57, 0.06, "#2c2850", 11),
    ):
        line = base - height * (0.35 + ridge(x, seed)) * (0.4 + 0.9 * np.abs(x - 0.62))
        hill = np.clip((y - line) * n / 2, 0, 1)[..., None]
        tone = gradient([(0, tint), (1, "#e08a78")], np.clip((y - line) * 3.2, 0, 1))
        out = out * (1 - hill) + hill * tone
    depth = np.clip((y - horizon) / (1 - horizon), 1e-4, 1)
    water = gradient([(0, "#f0a070"), (0.12, "#b0607e"), (0.45, "#4a3f78"), (1, "#151b3d")], depth)
    wave = np.sin(9.5 / (depth + 0.09) + 2.2 * ridge(x * (1.2 - depth), 21) + 5 * x)
    water += (wave * (10 + 16 * depth))[..., None]
    track = np.exp(-(((x - sun[0] + 0.015 * wave) / (0.035 + 0.12 * depth)) ** 2)) * (
        0.55 + 0.45 * wave
    )
    water += (150 * track * (1 - 0.55 * depth))[..., None] * np.array([1.0, 0.72, 0.42])
    wet = (y > horizon)[..., None]
    out = np.where(wet, water, out)
    beach = 0.93 - 0.16 * (1 - x) ** 2.2 + 0.010 * ridge(x * 3, 31)
    sand = np.clip((y - beach) * n / 3, 0, 1)[..., None]
    foam = np.exp(-(((y - beach + 0.006) / 0.005) ** 2))[..., None]
    out = out * (1 - sand) + sand * gradient([(0, "#6d5263"), (1, "#2b2036")], (y - beach) / 0.2)
    out += foam * 110
    image = Image.fromarray(np.clip(out, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    pen.polygon(
        [(n * 0.125, n), (n * 0.147, n * 0.22), (n * 0.158, n * 0.22), (n * 0.19, n)], "#0d0b1c"
    )
    rng = np.random.default_rng(4)
    for step in range(17):
        top, wide = 0.2 + step * 0.036, 0.028 + step * 0.0105
        left, right = wide * rng.uniform(0.7, 1.1), wide * rng.uniform(0.7, 1.1)
        pen.polygon(
            [
                (n * 0.152, n * (top - 0.045)),
                (n * (0.152 + right), n * (top + 0.035)),
                (n * 0.157, n * (top + 0.018)),
                (n * (0.152 - left), n * (top + 0.035)),
            ],
            "#0f0d20",
        )
    for bird in range(6):
        bx, by, s = 0.36 + 0.05 * bird, 0.2 + 0.022 * ((bird * 7) % 5), 0.014
        for turn in (-1, 1):
            pen.line(
                [
                    (n * bx, n * by),
                    (n * (bx + turn * s * 0.6), n * (by - s * 0.7)),
                    (n * (bx + turn * s * 1.3), n * (by - s * 0.3)),
                ],
                "#241a38",
                5,
            )
    return finish(np.asarray(image, np.float64))


def mandala() -> Image.Image:
    """Rings of petals; hue turns with the angle, so that no two pieces look alike."""
    n, y, x = plane()
    angle, radius = np.arctan2(y - 0.5, x - 0.5), np.hypot(y - 0.5, x - 0.5)
    turn = (angle / (2 * np.pi) + 0.5)[..., None]
    night = gradient([(0, "#10243f"), (0.5, "#43204f"), (1, "#10243f")], turn[..., 0])
    image = Image.fromarray(np.clip(night * (1.25 - radius[..., None]), 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)

    def place(r: float, a: float) -> tuple[float, float]:
        return n * (0.5 + r * math.cos(a)), n * (0.5 + r * math.sin(a))

    def petal(a: float, inner: float, outer: float, wide: float, fill: Any, line: Any) -> None:
        steps = np.linspace(0, 1, 40)
        half = wide * np.sin(np.pi * steps**0.8)
        out = [place(inner + (outer - inner) * t, a + h) for t, h in zip(steps, half, strict=True)]
        back = [place(inner + (outer - inner) * t, a - h) for t, h in zip(steps, half, strict=True)]
        pen.polygon(out + back[::-1], fill=fill, outline=line, width=n // 300)

    rings = [
        (30, 0.40, 0.69, 0.105, 0.00),
        (24, 0.31, 0.46, 0.13, 0.08),
        (18, 0.215, 0.36, 0.17, 0.55),
        (14, 0.13, 0.255, 0.21, 0.93),
        (9, 0.035, 0.165, 0.33, 0.12),
    ]
    for number, (count, inner, outer, wide, shift) in enumerate(rings):
        for k in range(count):
            a = 2 * math.pi * (k + 0.5 * (number % 2)) / count
            hue = (shift + k / count * 0.9) % 1
            light = [int(255 * c) for c in colorsys.hls_to_rgb(hue, 0.58, 0.62)]
            deep = [int(255 * c) for c in colorsys.hls_to_rgb(hue, 0.30, 0.70)]
            petal(a, inner, outer, wide, tuple(deep), (250, 236, 205))
            petal(a, inner + 0.02, inner + (outer - inner) * 0.78, wide * 0.55, tuple(light), None)
            dot = place(outer - 0.012, a + math.pi / count)
            size = n * (0.006 + 0.0025 * (5 - number))
            pen.ellipse([dot[0] - size, dot[1] - size, dot[0] + size, dot[1] + size], "#ffe9b0")
    for r, fill in ((0.052, "#fbe7b5"), (0.038, "#b3344c"), (0.02, "#ffd166")):
        pen.ellipse([n * (0.5 - r), n * (0.5 - r), n * (0.5 + r), n * (0.5 + r)], fill)
    return finish(np.asarray(image, np.float64), 2.0)


def poster() -> Image.Image:
    """Large letters over bands of colour, as printed posters have them."""
    n, y, x = plane()
    out = gradient([(0, "#f6ead2"), (0.6, "#f3d9b0"), (1, "#e9b98a")], 0.75 * y + 0.25 * x)
    for r, colour in (
        (0.35, "#e4572e"),
        (0.295, "#f08a3c"),
        (0.24, "#f3b13e"),
        (0.185, "#17736b"),
        (0.13, "#0f4c5c"),
        (0.075, "#f6ead2"),
    ):
        disc = np.clip((r - np.hypot(x - 0.78, y - 0.47)) * n / 2, 0, 1)[..., None]
        rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.float64)
        out = out * (1 - disc) + disc * rgb
    image = Image.fromarray(np.clip(out, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    fonts = Path("/usr/share/fonts/truetype/dejavu")
    bold = ImageFont.truetype(str(fonts / "DejaVuSans-Bold.ttf"), round(n * 0.215))
    slim = ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), round(n * 0.037))
    for text, at, fill in (
        ("READ", 0.06, "#132a3e"),
        ("THE", 0.345, "#c8371b"),
        ("EDGES", 0.61, "#132a3e"),
    ):
        size = bold if text != "EDGES" else bold.font_variant(size=round(n * 0.225))
        pen.text((n * 0.045, n * at), text, fill, size)
    pen.rectangle([n * 0.055, n * 0.885, n * 0.945, n * 0.889], "#132a3e")
    pen.text((n * 0.055, n * 0.91), "nine pieces · one sentence · no pixels", "#132a3e", slim)
    return finish(np.asarray(image, np.float64), 3.5)


def town() -> Image.Image:
    """Lit windows under a moon, and their reflection in a canal."""
    n, y, x = plane()
    out = gradient(
        [(0, "#0b1030"), (0.35, "#1f2a5c"), (0.62, "#6a4c86"), (0.7, "#d98a7a")], y - 0.1 * x
    )
    moon = np.hypot(x - 0.24, y - 0.2)
    out += (120 * np.exp(-((moon / 0.13) ** 2)))[..., None] * np.array([0.8, 0.85, 1.0])
    disc = np.clip((0.085 - moon) * n / 3, 0, 1)[..., None]
    spots = 14 * ridge(x * 9 + 3 * np.sin(14 * y), 17)
    out = out * (1 - disc) + disc * (np.array([246, 240, 214]) - np.clip(spots, 0, 40)[..., None])
    image = Image.fromarray(np.clip(out, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    rng = np.random.default_rng(12)
    for _ in range(260):
        sx, sy, r = rng.uniform(0, n), n * rng.uniform(0, 0.42) ** 1.15, rng.uniform(0.6, 2.6)
        pen.ellipse([sx - r, sy - r, sx + r, sy + r], (255, 250, 230))
    walls = ["#2a2d55", "#3b2f5e", "#274060", "#4a3358", "#1f3550", "#54405f"]
    left, number = -0.02, 0
    while left < 1.0:
        wide, top = rng.uniform(0.085, 0.15), rng.uniform(0.36, 0.58) - 0.12 * (number in (3, 6))
        wall = walls[number % len(walls)]
        pen.rectangle([n * left, n * top, n * (left + wide), n * 0.76], wall)
        kind = number % 3
        if kind == 0:
            pen.polygon(
                [
                    (n * (left - 0.008), n * top),
                    (n * (left + wide / 2), n * (top - 0.09)),
                    (n * (left + wide + 0.008), n * top),
                ],
                "#8c3b4a",
            )
        elif kind == 1:
            for k in range(3):
                pen.rectangle(
                    [
                        n * (left + wide * (0.05 + 0.32 * k)),
                        n * (top - 0.03),
                        n * (left + wide * (0.27 + 0.32 * k)),
                        n * top,
                    ],
                    wall,
                )
        else:
            pen.pieslice(
                [n * left, n * (top - wide / 2), n * (left + wide), n * (top + wide / 2)],
                180,
                360,
                "#3f7a72",
            )
        columns = 3 if wide > 0.11 else 2
        for row in range(int((0.74 - top) / 0.052)):
            for column in range(columns):
                wx = left + wide * (column + 0.5) / columns - 0.011
                wy = top + 0.02 + 0.052 * row
                lit = rng.random() < 0.66
                tone = (
                    ["#ffd98a", "#ffc061", "#ffe9bd", "#f79e6b"][rng.integers(4)]
                    if lit
                    else "#161a38"
                )
                pen.rectangle([n * wx, n * wy, n * (wx + 0.022), n * (wy + 0.031)], tone)
                pen.line(
                    [n * (wx + 0.011), n * wy, n * (wx + 0.011), n * (wy + 0.031)], wall, n // 500
                )
        left, number = left + wide + rng.uniform(-0.004, 0.012), number + 1
    pen.rectangle([0, n * 0.745, n, n * 0.77], "#15172f")
    upper = np.asarray(image.filter(ImageFilter.GaussianBlur(n / 900)), np.float64)
    result = np.asarray(image, np.float64).copy()
    water = round(n * 0.77)
    rows = np.arange(n - water)
    wobble = (np.sin(rows / n * 190) + 0.6 * np.sin(rows / n * 430 + 1)) * (3 + rows * 0.035)
    for row in range(len(rows)):
        source = upper[max(0, water - 1 - round(row * 1.9))]
        line = np.roll(source, round(float(wobble[row])), 0) * 0.62 + np.array([12, 20, 48])
        result[water + row] = line * (1 - 0.35 * row / len(rows))
    return finish(result, 2.5, 2)


def main() -> None:
    """Write every sample, each under 60 kB."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in {"shore": shore, "mandala": mandala, "poster": poster, "town": town}.items():
        image = make()
        for quality in range(90, 20, -4):
            image.save(FOLDER / f"{name}.webp", quality=quality, method=6)
            if (FOLDER / f"{name}.webp").stat().st_size < 58_000:
                break
        print(name, quality, (FOLDER / f"{name}.webp").stat().st_size)


if __name__ == "__main__":
    main()
