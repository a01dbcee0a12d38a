"""Paikin and Tal's placer (CVPR 2015) as ZaydH/sjsu_thesis wrote it for its mixed-bag solver.

It needs square, upright pieces; some may be missing. The grid is told, as every solver is told it.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np

from peers import Peer, needed
from peers.python2 import import_from

PEER = Peer(
    "paikin_tal",
    "ZaydH/sjsu_thesis",
    "85f281d5e25a6f92dc1aad8da95b86276857d606",
    "mixed_bag_solver/paikin_tal_solver/paikin_tal_solver.py",
)

_folder = PEER.checkout()
import_from(_folder / "mixed_bag_solver")
try:
    import cv2
    from hammoudeh_puzzle.puzzle_importer import PuzzleType
    from hammoudeh_puzzle.puzzle_piece import PuzzlePiece, top_level_calculate_asymmetric_distance
    from paikin_tal_solver.inter_piece_distance import InterPieceDistance
    from paikin_tal_solver.paikin_tal_solver import PaikinTalSolver
except ImportError as error:
    raise needed("paikin_tal", error) from error

PaikinTalSolver._ALLOW_POST_INITIAL_CONSTRUCTION_PICKLE_EXPORT = False
InterPieceDistance._USE_MULTIPLE_PROCESSES = False


def solve(pieces: list[Any], grid: tuple[int, int]) -> list[int]:
    """Pieces (height, width, 3) -> the cell of each."""
    random.seed(zlib.crc32(b"".join(piece.tobytes() for piece in pieces)))
    parts = []
    for number, piece in enumerate(pieces):
        lab = cv2.cvtColor(piece, cv2.COLOR_RGB2LAB)
        # Where the piece "is" in the original says nothing: the pieces come shuffled.
        parts.append(PuzzlePiece(0, divmod(number, grid[1]), lab, number, grid))
    solver = PaikinTalSolver(
        parts, top_level_calculate_asymmetric_distance, 1, PuzzleType.type1, None, tuple(grid)
    )
    solver.run_standard()
    places = np.array([part.location for part in parts])
    rows, columns = (places - places.min(0)).T
    return [int(cell) for cell in rows * grid[1] + columns]


solve.about = PEER.about(_folder) | {"settings": "type 1, known grid, one board"}  # type: ignore[attr-defined]
