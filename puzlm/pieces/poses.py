"""Ways in which a piece may lie: turned by quarters, and flipped. Knows no pieces.

Pose t is t quarter turns counter-clockwise; pose 4 + t is a flip from left to right, then t turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Poses = tuple[int, ...]

STRAIGHT: Poses = (0,)
QUARTERS: Poses = (0, 1, 2, 3)

# AFTER[second, first]: the pose of a thing in pose `first` that is then laid in pose `second`.
AFTER = np.array(
    [
        [(b + (-a if b >= 4 else a)) % 4 + 4 * ((a >= 4) ^ (b >= 4)) for a in range(8)]
        for b in range(8)
    ]
)


def allowed(turned: bool, mirrored: bool, square: bool) -> Poses:
    """Poses of pieces that may be turned or flipped; rectangles are turned by halves only.

    >>> allowed(turned=True, mirrored=False, square=False)
    (0, 2)
    """
    turns = QUARTERS if turned and square else (0, 2) if turned or mirrored else STRAIGHT
    return turns + tuple(4 + turn for turn in turns) if mirrored else turns


def inverse(pose: int) -> int:
    """The pose that undoes another."""
    return pose if pose >= 4 else -pose % 4


def facing(pose: int, direction: int) -> int:
    """Where a side looks in a pose: directions counter-clockwise from the right."""
    return ((2 - direction if pose >= 4 else direction) + pose) % 4


def moved(row: Any, column: Any, pose: int) -> tuple[Any, Any]:
    """Offsets of rows and columns after a pose of the whole."""
    if pose >= 4:
        column = -column
    for _ in range(pose % 4):
        row, column = -column, row
    return row, column


def laid(pixels: NDArray[Any], pose: int) -> NDArray[Any]:
    """A picture (height, width, ...) in a pose."""
    return np.rot90(pixels[:, ::-1] if pose >= 4 else pixels, pose % 4)


def in_poses(pieces: NDArray[Any], poses: Poses) -> NDArray[Any]:
    """Pieces (n, height, width, 3) in each of k poses that keep their size: (kn, ...)."""
    return np.concatenate([np.stack([laid(p, pose) for p in pieces]) for pose in poses])
