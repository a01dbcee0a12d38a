"""The genetic algorithm of nemanja-m/gaps, after Sholomon, David and Netanyahu.

It needs all pieces, square ones, upright. Random numbers are seeded by the pieces.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import zlib
from typing import Any

import numpy as np

from peers import Peer, needed

PEER = Peer(
    "gaps",
    "nemanja-m/gaps",
    "78f982b01ce53107a3e93b848262f3caaa08df5c",
    "gaps/genetic_algorithm.py",
)
POPULATION = 200  # the defaults of `gaps run`
GENERATIONS = 20

_folder = PEER.checkout()
sys.path.insert(0, str(_folder))
try:
    from gaps.genetic_algorithm import GeneticAlgorithm
except ImportError as error:
    raise needed("gaps", error) from error


def solve(pieces: list[Any], grid: tuple[int, int]) -> list[int]:
    """Pieces (height, width, 3) -> the cell of each."""
    rows, columns = grid
    side = pieces[0].shape[0]
    if len(pieces) != rows * columns or pieces[0].shape[1] != side:
        raise ValueError("gaps takes whole puzzles of square pieces")
    bands = [np.hstack(pieces[row * columns : (row + 1) * columns]) for row in range(rows)]
    image = np.vstack(bands)
    seed = zlib.crc32(image.tobytes())
    random.seed(seed)
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):  # it draws a bar of progress
        evolution = GeneticAlgorithm(image, side, POPULATION, GENERATIONS)
        best = evolution.start_evolution(verbose=False)
    cells = {piece.id: cell for cell, piece in enumerate(best.pieces)}
    return [cells[piece] for piece in range(len(pieces))]


solve.about = PEER.about(_folder) | {"settings": f"{GENERATIONS} generations of {POPULATION}"}  # type: ignore[attr-defined]
