"""What `puzlm solve` does with shredded pages: find the heap, put it together, write and tell."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from puzlm.cli.solve import percent
from puzlm.errors import PuzzleError, SettingsError
from puzlm.files import write_all
from puzlm.images import IMAGE_SUFFIXES, Pixels, encode_image, open_image, to_rgb
from puzlm.pieces.folder import RECORD, visible
from puzlm.pieces.strips import Strip, mostly_white, read_strips
from puzlm.solving.pages import Pages, draw, solve_strips

KINDS = ("auto", "picture", "page")
SLIM = 3  # a strip is this many times as high as wide, or more
LOOKED_AT = 12  # pictures of a folder that tell whether it holds strips
NAMED = 3  # least sure joints that are named


def is_heap(path: Path, kind: str, grid: str | None) -> bool:
    """Whether a path is a heap of strips; what is no folder, or has a grid, is none."""
    if kind not in KINDS:
        raise SettingsError(f"--kind {kind}: must be one of {', '.join(KINDS)}")
    if kind == "picture" or grid is not None or not path.is_dir() or (path / RECORD).is_file():
        return False
    if kind == "page" or (path / "strips").is_dir():
        return True
    files = [p for p in visible(path) if p.suffix.lower() in IMAGE_SUFFIXES]
    if len(files) < 2:
        return False
    images = [open_image(p) for p in sorted(files)[:LOOKED_AT]]
    slim = np.median([image.height / image.width for image in images]) >= SLIM
    extent = max(image.height for image in images)
    return bool(slim) and mostly_white([to_rgb(image) for image in images], extent)


def check_output(output: Path) -> None:
    """Refuse a name that pages cannot be written under."""
    suffix = output.suffix.lower()
    if suffix != ".pdf" and suffix not in IMAGE_SUFFIXES:
        raise SettingsError(f"-o {output}: give a name that ends in .png, .jpg or .pdf")


def solve(folder: Path, output: Path, pages: int) -> dict[str, Any]:
    """Put a heap together, write its pages and give the record that --json prints."""
    check_output(output)
    strips = read_strips(folder)
    if len(strips) < 2:
        raise PuzzleError(f"{folder}: holds one strip only; there is nothing to put together")
    found = solve_strips(strips, pages)
    files = write(found, strips, output)
    return record(found, strips, files)


def write(found: Pages, strips: Sequence[Strip], output: Path) -> list[Path]:
    """Write all pages or nothing: a PDF, or a picture for each page."""
    pictures = [draw(page, strips) for page in found.pages]
    if not pictures:
        raise PuzzleError("all strips are blank: there is no print to go by")
    if output.suffix.lower() == ".pdf":
        write_all({output: _pdf(pictures)})
        return [output]
    names = [output]
    if len(pictures) > 1:
        names = [output.with_stem(f"{output.stem}-{k + 1}") for k in range(len(pictures))]
    write_all({n: encode_image(n, p) for n, p in zip(names, pictures, strict=True)})
    return names


def _pdf(pictures: Sequence[Pixels]) -> bytes:
    """One PDF with a page for each picture, each 11 inches high."""
    buffer = io.BytesIO()
    images = [Image.fromarray(picture) for picture in pictures]
    dpi = max(50.0, images[0].height / 11)
    images[0].save(buffer, "PDF", save_all=True, append_images=images[1:], resolution=dpi)
    return buffer.getvalue()


def record(found: Pages, strips: Sequence[Strip], files: Sequence[Path]) -> dict[str, Any]:
    """What `puzlm solve --json` prints of a heap of strips."""
    pages = [
        {
            "strips": [strips[i].name for i in page.strips],
            "upside_down": [
                strips[i].name for i, t in zip(page.strips, page.turned, strict=True) if t
            ],
            "sure": [round(float(value), 4) for value in page.sure],
        }
        for page in found.pages
    ]
    return {
        "kind": "page",
        "solver": "strokes",
        "pages": pages,
        "blank": [strips[i].name for i in found.blank],
        "seconds": round(found.seconds, 3),
        "images": [str(file) for file in files],
    }


def show(told: dict[str, Any]) -> None:
    """Print what was found, for people."""
    for number, page in enumerate(told["pages"], 1):
        names = page["strips"]
        line = f"page {number}: {len(names)} strips"
        if page["sure"]:
            line += f", joints {percent(float(np.mean(page['sure'])))} sure on average"
        print(line)
        print("  " + " ".join(Path(name).stem for name in names))
        order = np.argsort(page["sure"])[:NAMED]
        doubtful = [k for k in order if page["sure"][k] < 0.9]
        if doubtful:
            said = ", ".join(
                f"{Path(names[k]).stem} | {Path(names[k + 1]).stem} ({percent(page['sure'][k])})"
                for k in doubtful
            )
            print(f"  least sure: {said}")
        if page["upside_down"]:
            print(f"  turned: {' '.join(Path(name).stem for name in page['upside_down'])}")
    if told["blank"]:
        print(
            f"blank, so they fit anywhere in the margins and were left out: "
            f"{' '.join(Path(name).stem for name in told['blank'])}"
        )
    print(f"solved by {told['solver']} in {told['seconds']:.2f} s")
    print(f"{'picture' if len(told['images']) == 1 else 'pictures'}: {' '.join(told['images'])}")
