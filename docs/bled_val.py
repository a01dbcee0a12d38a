"""Pieces compressed after they were shuffled: when are symbols to count? runs/bled-val.json.

python docs/bled_val.py DATA [IMAGES]

Images of DATA/photos-val.tar and art-val.tar are cut 3x3 with gaps from none to half a piece and
5x5 with gaps up to a quarter, at several sizes, and solved as they are and after their shuffled
sheet was saved as JPEG; DATA/kaggle/valid.csv and some-train.csv (800 of its train split) list
ready-made ones.
`auto` is asked as it is, with the weights of clean borders for all, and with those of bled borders
for all. Pieces that JPEG codes in blocks of their own bleed less, by chroma alone: those are asked
clean only; see section 6 of runs/bled-choices.txt.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from fit_calibration import write
from PIL import Image

from puzlm import classic, evidence, fusion
from puzlm.evaluate import current_commit
from puzlm.images import iter_images
from puzlm.metrics import absolute, perfect
from puzlm.protocols import PROTOCOLS, read_data
from puzlm.puzzle import Puzzle, shuffled
from puzlm.solver import Solver

GAPS = {3: (0.0, 0.06, 0.125, 0.25, 0.5), 5: (0.0, 0.125, 0.25)}
SIZES = (0, 200, 288, 398, 600)  # pixels of the whole picture; 0 leaves it as it is
QUALITIES = (50, 75, 90, 95)
BLOCK = 16  # pixels that JPEG codes together: over cuts between blocks chroma alone runs


def compressed(puzzle: Puzzle, quality: int) -> Puzzle:
    """The same pieces, saved as one JPEG in the order in which they lie."""
    Image.fromarray(shuffled(puzzle)).save(file := io.BytesIO(), "JPEG", quality=quality)
    again = Puzzle.from_shuffled(np.asarray(Image.open(file)), puzzle.grid)
    return replace(puzzle, pieces=again.pieces)


def puzzles(data: Path, images: int) -> Iterator[tuple[str, Puzzle]]:
    for name in ("photos-val", "art-val"):
        rng = np.random.default_rng(0)
        for seed, image in enumerate(iter_images([data / f"{name}.tar"], images)):
            for grid, gap in ((grid, gap) for grid, gaps in GAPS.items() for gap in gaps):
                if grid == 5 and seed % 4:  # they take long
                    continue
                size = int(rng.choice(SIZES))
                picture = Image.fromarray(image).resize((size, size)) if size else image
                puzzle = Puzzle.from_image(np.asarray(picture), grid, gap=gap, seed=seed)
                yield f"{grid}x{grid}, gap {gap:g}, clean", puzzle
                if puzzle.pieces.shape[1] % BLOCK:
                    yield (
                        f"{grid}x{grid}, gap {gap:g}, bled",
                        compressed(puzzle, int(rng.choice(QUALITIES))),
                    )
    for name in ("valid", "some-train"):
        for _, puzzle in read_data(data / "kaggle" / f"{name}.csv", PROTOCOLS["kaggle-3x3"]):
            yield "ready-made", puzzle


def never(puzzle: Puzzle, pairs: Any, _: Any) -> dict[str, float]:
    pixels = evidence.agreement(*pairs["pixels"], puzzle.grid)
    return evidence.by_agreement({"pixels": pixels}, -np.inf, puzzle.cells)


def always(puzzle: Puzzle, pairs: Any, symbols: Any) -> dict[str, float]:
    pairs |= symbols(puzzle)
    return dict(evidence.BLED[puzzle.cells > 9])


WAYS = {"auto": evidence.border_weights, "never": never, "always": always}


def main(data: str, images: str = "100") -> None:
    solver = Solver.from_pretrained()
    groups: dict[str, list[Any]] = {}
    for kind, puzzle in puzzles(Path(data), int(images)):
        read, seen = solver._read([puzzle], [{}])[0], solver._look([puzzle], [0])[0]
        line = [classic.chroma_excess(puzzle.pieces) > evidence.SURELY]
        for way in WAYS.values():
            with patch.object(fusion, "border_weights", way):
                found = fusion.fused(solver, puzzle, {}, evidence.Evidence(read, seen)).positions
            line += [absolute(found, puzzle.truth), perfect(found, puzzle.truth)]
        groups.setdefault(kind, []).append(line)
        if len(groups[kind]) % 50 == 0:
            print(kind, np.mean(groups[kind], 0).round(3).tolist(), flush=True)
    summary = {}
    for kind, lines in groups.items():
        surely, *marks = 100 * np.mean(lines, 0)
        summary[kind] = {"puzzles": len(lines), "chroma_excess above surely": round(surely, 1)} | {
            name: [round(mark, 1) for mark in marks[2 * k : 2 * k + 2]]
            for k, name in enumerate(WAYS)
        }
    record = {
        "commit": current_commit(),
        "weights": dict(zip(("3x3", "5x5"), evidence.BLED, strict=True)),
        "maybe, surely": [evidence.MAYBE, evidence.SURELY],
        "marks": "absolute, perfect",
        "summary": summary,
    }
    write(str(Path(__file__).parent / "runs" / "bled-val.json"), record)


if __name__ == "__main__":
    main(*sys.argv[1:])
