"""Shapes of the models that torch and ONNX both run, and what both say; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import SettingsError
from puzlm.model_files import read_settings as read_settings
from puzlm.sections import at_least

Array = NDArray[np.float32]

SIDES = 4  # of a piece
TURNS = 4  # ways a piece can lie
RARE = -14.0  # a millionth, as a log
LONGEST_ROW = 3  # pieces of a single row that a ViT tells apart: docs/runs/grids-rows-val.txt


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
    """The grids it has an output of their own for."""
    waves: int = 0
    """Cosines down and across that make up the output for all other grids; 0: it has none."""

    def __post_init__(self) -> None:
        at_least(1, self, "vision", "side", "patch", "layers", "d_model", "heads", "feed_forward")
        _divides(self.side, self.patch, "vision.side")
        _divides(self.d_model, self.heads, "vision.d_model")
        at_least(0, self, "vision", "waves")

    def places(self, grid: tuple[int, int]) -> bool:
        """Whether it knows the cells of a grid: by an output of its own, or by waves.

        Waves cannot tell more cells in a row than there are waves.
        """
        return "{}x{}".format(*grid) in self.grids or 1 < min(grid) <= max(grid) <= self.waves

    @property
    def known(self) -> list[str]:
        """The grids whose cells it knows, for people."""
        by_waves = [f"2x2 to {self.waves}x{self.waves}"] if self.waves > 1 else []
        return [*self.grids, *by_waves]

    def compares(self, grid: tuple[int, int]) -> bool:
        """Whether it knows what lies beside what on a grid whose cells it does not know.

        A ViT of several grids does, but for rows of many pieces: nothing tells it that there is
        but one.
        """
        return len(self.grids) > 1 and (min(grid) > 1 or max(grid) <= LONGEST_ROW)


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

    def __post_init__(self) -> None:
        at_least(1, self, "edges", "side", "depth", "column", "layers", "d_model", "heads")
        at_least(1, self, "edges", "feed_forward", "vector")
        _divides(self.side, self.column, "edges.side")
        _divides(self.d_model, self.heads, "edges.d_model")


def _divides(whole: int, part: int, name: str) -> None:
    if whole % part:
        raise SettingsError(f"{name} {whole}: must be a multiple of {part}")


def against_none(log_p: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Log-ratios (n, m, m) of a neighbour to none, from log-probabilities (n, m, cells + 1).

    Nothing lies beside a piece at the frame or at a hole: a sum of these over touching pairs is the
    likelihood of an arrangement up to a constant, with or without holes. Rare events are cut off.
    """
    others = log_p[..., :size]
    none = np.log(np.clip(1 - np.exp(others).sum(-1, keepdims=True), 1e-6, 1))
    result: NDArray[np.float64] = np.maximum(others, RARE) - none
    return result


@dataclass(frozen=True)
class ReaderSettings:
    """Shape of the reader."""

    d_model: int = 512
    heads: int = 8
    feed_forward: int = 2048
    words: int = 3
    """Layers in which every border position is a token of its own ..."""
    sides: int = 3
    """... and layers above them, in which every side of a piece is one."""
    decoder_feed_forward: int = 1024
    slots: int = 100
    """Places in the longest sentence, as super-tokens."""
    longest: int = 30
    """Most rows, and most columns, of a grid."""
    vocabulary: int = 0
    """Token ids in all but cells; filled in from the tokenizer, as all that follows."""
    positions: int = 17
    """Tokens of a super-token and its separator."""
    whole: int = 0
    """Symbols a position that are gathered one by one; the others are parts of splits."""

    def __post_init__(self) -> None:
        at_least(1, self, "reader", "d_model", "heads", "feed_forward", "words", "sides")
        at_least(1, self, "reader", "decoder_feed_forward", "slots", "longest", "positions")
        at_least(0, self, "reader", "vocabulary", "whole")
        if self.d_model % self.heads:
            raise SettingsError(
                f"reader.d_model {self.d_model}: must be a multiple of {self.heads}"
            )

    def places(self, grid: tuple[int, int]) -> bool:
        """Whether puzzles of a grid can be read."""
        return 1 < grid[0] * grid[1] <= self.slots and max(grid) <= self.longest

    def turns(self, grid: tuple[int, int]) -> bool:
        """Whether pieces that may be turned can be read: as four words each, attention takes memory
        by their square."""
        return self.places(grid) and TURNS * grid[0] * grid[1] <= 2 * self.slots

    def compares(self, grid: tuple[int, int]) -> bool:
        """Whether it knows what lies beside what on a grid, or in windows of it."""
        return self.places(grid) or min(grid) > 1

    @property
    def known(self) -> list[str]:
        """The grids that it reads, for people."""
        return [f"up to {self.slots} pieces in up to {self.longest} rows and columns"]


class Said(NamedTuple):
    """What the reader says of sentences, as scores."""

    placed: Array
    """Of every cell (n, words, cells)."""
    right: Array
    """Of what lies right of each word, or nothing (n, words, words + 1) ..."""
    below: Array
    """... and below it."""
    upright: Array
    """Of standing upright (n, words)."""
    states: Array
    """States of words (n, words, d) ..."""
    sides: Array
    """... and of their sides (n, 4 words, d), for the decoder."""
