"""What the models of vision.py share with their ONNX graphs, without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puzlm.saved import read_settings as read_settings

RARE = -14.0  # a millionth, as a log


@dataclass(frozen=True)
class VisionSettings:
    """Shape of the ViT that places pieces."""

    side: int = 48
    """Pieces are resized to this many pixels."""
    patch: int = 12
    layers: int = 8
    d_model: int = 512
    heads: int = 8
    feed_forward: int = 2048
    grids: tuple[str, ...] = ("3x3", "5x5")
    """The grids it has an output for."""


@dataclass(frozen=True)
class EdgeSettings:
    """Shape of the encoder of sides."""

    side: int = 48
    depth: int = 24
    """Pixels that a side is read inwards."""
    column: int = 4
    """Pixels along the side that make one token."""
    layers: int = 4
    d_model: int = 256
    heads: int = 4
    feed_forward: int = 1024
    vector: int = 128


def against_none(log_p: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Log-ratios (n, m, m) of a neighbour to none, from log-probabilities (n, m, cells + 1).

    Nothing lies beside a piece at the frame or at a hole: a sum of these over touching pairs is the
    likelihood of an arrangement up to a constant, with or without holes. Rare events are cut off.
    """
    others = log_p[..., :size]
    none = np.log(np.clip(1 - np.exp(others).sum(-1, keepdims=True), 1e-6, 1))
    result: NDArray[np.float64] = np.maximum(others, RARE) - none
    return result
