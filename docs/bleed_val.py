"""Sheets that were compressed after shuffling: are they seen, and what does mending them give?

python docs/bleed_val.py DATA

Images of DATA/photos-val.tar and art-val.tar are cut at many sizes, touching and worn, shuffled,
and saved as one JPEG. SEEN of each show how often `leaning` sees that, and how often it sees it
where it is not so; FIRST to LAST are solved by `auto` as it is and without mending.
DATA/kaggle/more-train.csv lists ready-made sheets. Writes docs/runs/bleed-val.json.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from fit_calibration import write
from PIL import Image

from puzlm import bleed, solver
from puzlm.evaluate import current_commit
from puzlm.evidence import ALIKE, LARGE_MENDED, MENDED
from puzlm.images import Pixels, cores, iter_images
from puzlm.metrics import absolute, perfect
from puzlm.protocols import PROTOCOLS, read_data
from puzlm.puzzle import Puzzle, shuffled
from puzlm.solution import grid_name

# Grid, gap, pixels of a piece, and of how many images one is cut so: large ones take long.
SMALL, MIDDLE, LARGE = (48, 61, 64, 67, 75, 90, 96, 110), (40, 48, 61, 64, 75), (28, 36, 44, 50)
KINDS = (
    *((3, gap, SMALL, 1) for gap in (0.0, 0.06, 0.125, 0.25, 0.5)),
    *((4, gap, MIDDLE, 4) for gap in (0.0, 0.125)),
    *((5, gap, MIDDLE, 4) for gap in (0.0, 0.125, 0.25)),
    *((9, gap, LARGE, 4) for gap in (0.0, 0.08)),
)
QUALITIES = (50, 75, 90, 95)
FIRST, LAST, SEEN = 100, 180, 500


def compressed(puzzle: Puzzle, quality: int) -> Puzzle:
    """The same pieces, saved as one JPEG in the order in which they lie."""
    Image.fromarray(shuffled(puzzle)).save(file := io.BytesIO(), "JPEG", quality=quality)
    again = Puzzle.from_shuffled(np.asarray(Image.open(file)), puzzle.grid)
    return replace(puzzle, pieces=again.pieces)


def puzzles(image: Pixels, seed: int) -> Iterator[tuple[str, Puzzle]]:
    """One image cut in every way, clean and compressed."""
    rng = np.random.default_rng(seed)
    for grid, gap, sides, every in KINDS:
        size = round(int(rng.choice(sides)) * (1 + gap)) * grid
        quality = int(rng.choice(QUALITIES))
        if seed % every:
            continue
        picture = np.asarray(Image.fromarray(image).resize((size, size)))
        puzzle = Puzzle.from_image(picture, grid, gap=gap, seed=seed)
        kind = f"{grid}x{grid}, gap {gap:g}"
        yield f"{kind}, clean", puzzle
        yield f"{kind}, compressed", compressed(puzzle, quality)


def measure(image: Pixels, seed: int) -> list[tuple[Any, ...]]:
    """(kind, marks of auto, marks without mending) of one image's puzzles."""
    auto, lines = _auto(), []
    for kind, puzzle in puzzles(image, seed):
        marks = [_marks(auto, puzzle)]
        if bleed.mended(puzzle) is not puzzle:
            with patch.object(solver, "mended", lambda puzzle: puzzle):
                marks.append(_marks(auto, puzzle))
        lines.append((kind, marks[0], marks[-1]))
    return lines


@cache
def _auto() -> solver.Solver:
    return solver.Solver.from_pretrained()  # once a process


def _marks(auto: solver.Solver, puzzle: Puzzle) -> tuple[float, ...]:
    found = auto.solve(puzzle)
    sure = float(np.mean(found.confidences))
    return absolute(found.positions, puzzle.truth), perfect(found.positions, puzzle.truth), sure


def seen(data: Path) -> dict[str, Any]:
    """How far clean and compressed sheets lean."""
    leans: dict[str, list[float]] = {}
    for name in ("photos-val", "art-val"):
        for seed, image in enumerate(iter_images([data / f"{name}.tar"], SEEN)):
            for kind, puzzle in puzzles(image, seed):
                kind = f"{grid_name(puzzle.grid)}, {kind.rpartition(', ')[2]}"
                leans.setdefault(kind, []).append(bleed.leaning(puzzle.pieces, puzzle.grid))
    ready = read_data(data / "kaggle" / "more-train.csv", PROTOCOLS["kaggle-3x3"])
    leans["ready-made"] = [bleed.leaning(p.pieces, p.grid) for _, p in ready]
    return {
        kind: {
            "sheets": len(found),
            "above": round(100 * float(np.mean(np.array(found) > bleed.LEANS)), 2),
            "least, median, most": np.quantile(found, (0, 0.5, 1)).round(3).tolist(),
        }
        for kind, found in sorted(leans.items())
    }


def main(data: str) -> None:
    images = [
        image
        for name in ("photos-val", "art-val")
        for image in islice(iter_images([Path(data) / f"{name}.tar"], LAST), FIRST, LAST)
    ]
    groups: dict[str, list[Any]] = {}
    with ProcessPoolExecutor(cores()) as pool:
        for number, lines in enumerate(pool.map(measure, images, range(len(images)))):
            for kind, *rest in lines:
                groups.setdefault(kind, []).append(rest)
            if number % 10 == 9:
                print(number + 1, flush=True)
    solved = {
        kind: {"puzzles": len(lines)}
        | {
            name: (100 * np.mean([line[k] for line in lines], 0)).round(1).tolist()
            for k, name in enumerate(("auto", "without mending"))
        }
        for kind, lines in sorted(groups.items())
    }
    record = {
        "commit": current_commit(),
        "leans": bleed.LEANS,
        "depth": bleed.DEPTH,
        "weights": {**MENDED, "pixels where borders touch": ALIKE, "above 30": LARGE_MENDED},
        "seen": seen(Path(data)),
        "images": [FIRST, LAST],
        "marks": "absolute, perfect, said confidence",
        "solved": solved,
    }
    write(str(Path(__file__).parent / "runs" / "bleed-val.json"), record)


if __name__ == "__main__":
    main(*sys.argv[1:])
