"""How time and memory of large puzzles grow: one photo cut into 540 to 30,745 pieces of 28 px.

    python -m bench.large PHOTO [PIECES ...]

Each size has a process of its own, so that its peak of memory is its own. Seconds are of the
processor: other work on the machine counts less.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np
from PIL import Image

from bench.timing import exponent
from puzlm.images import read_image
from puzlm.metrics import absolute, neighbour
from puzlm.puzzle import Puzzle
from puzlm.solving.search.large import Search

GRIDS = {540: (20, 27), 2360: (40, 59), 3300: (50, 66), 5015: (59, 85), 10375: (83, 125)}
GRIDS |= {22755: (123, 185), 30745: (143, 215)}
PIECE = 28  # px


def measure(photo: str, pieces: int) -> dict[str, float]:
    """Solve one puzzle in this process."""
    rows, columns = GRIDS[pieces]
    size = columns * PIECE, rows * PIECE
    image = np.asarray(Image.fromarray(read_image(photo)).resize(size, Image.Resampling.LANCZOS))
    puzzle = Puzzle.from_image(image, (rows, columns), seed=0)
    start = time.process_time()
    found = Search(puzzle.pieces, puzzle.grid).solve()
    assert puzzle.truth is not None
    return {
        "pieces": pieces,
        "seconds": round(time.process_time() - start, 2),
        "gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "absolute": round(absolute(found.positions, puzzle.truth), 4),
        "neighbour": round(neighbour(found.positions, puzzle.truth, columns), 4),
    }


def main(photo: str, sizes: list[int]) -> None:
    """Print a line for each size, and the exponent of the time."""
    rows = []
    for pieces in sizes:
        command = [sys.executable, "-m", "bench.large", photo, str(pieces), "--here"]
        rows.append(json.loads(subprocess.check_output(command, text=True)))
        print(json.dumps(rows[-1]), flush=True)
    if len(rows) > 1:
        print("time grows as pieces^", exponent((r["pieces"], r["seconds"]) for r in rows))


if __name__ == "__main__":
    if sys.argv[-1] == "--here":
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
    else:
        main(sys.argv[1], [int(x) for x in sys.argv[2:]] or list(GRIDS))
