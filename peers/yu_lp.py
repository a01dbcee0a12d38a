"""Linear programs after Yu, Russell and Agapito (2015), as mhmoed/jigsaw wrote them.

It needs square, upright pieces and gives real coordinates, no arrangement: the paper's second stage
is not in it. Here each piece goes to a cell by the assignment with the least squared distance.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from peers import Peer, needed
from peers.python2 import import_from

PEER = Peer(
    "yu_lp",
    "mhmoed/jigsaw",
    "33f16a6cb4870bd21f249b7d0444368a271a082f",
    "jigsaw/linprog.py",
)

_folder = PEER.checkout()
import_from(_folder)
try:
    from jigsaw.linprog import solve as coordinates
except ImportError as error:
    raise needed("yu_lp", error) from error


def solve(pieces: list[Any], grid: tuple[int, int]) -> list[int]:
    """Pieces (height, width, 3) -> the cell of each."""
    random.seed(zlib.crc32(b"".join(piece.tobytes() for piece in pieces)))
    x, y = coordinates(pieces)
    cells = np.array([divmod(cell, grid[1]) for cell in range(grid[0] * grid[1])])
    places = np.stack([y - y.min(), x - x.min()], 1)
    far = ((places[:, None] - cells) ** 2).sum(-1)
    return [int(cell) for cell in linear_sum_assignment(far)[1]]


_settings = "its coordinates, each piece to a cell by assignment"
solve.about = PEER.about(_folder) | {"settings": _settings}  # type: ignore[attr-defined]
