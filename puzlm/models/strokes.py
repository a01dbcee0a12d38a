"""How well two cut sides of a printed page fit: a small network that reads strokes and lines.

Every side is a band of ink `DEPTH` pixels deep at 150 pixels an inch, read from the cut inwards.
Two one-dimensional networks along the cut, one for sides before a cut and one for sides after it,
turn each band into features a row. A small head joins the features of two sides row by row and its
scores are summed. Two blank sides score exactly zero: they fit everything and nothing.

The weights are made by tools/train_strokes.py, and what makes probabilities of the scores, by
tools/fit_pages.py. Here is numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puzlm.model_files import read_json, read_safetensors

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

DEPTH = 24  # pixels of a side that are read, 4 mm
WIDTH = 96  # channels of the side networks
FIT = 48  # features a row that the head joins
QUICK = 32  # features a row of the quick product, which chooses candidates and shifts
HIDDEN = 24  # channels of the head

SHIFTS = tuple(range(-4, 5))  # feature rows that strips may have slipped, up to 1.4 mm
ALL_PAIRS = 120  # sides: up to this many, the head joins all pairs ...
CANDIDATES = 24  # ... and of more, the best so many of each side by the quick product
WEIGHTS = Path(__file__).parent / "page"


@dataclass(frozen=True, eq=False)
class Fits:
    """How well side i, before a cut, continues in side j, after it: scores and slips (n, m).

    `end[i]` and `begin[j]` say the same with blank paper on the other side. `slip` is how many
    feature rows j must be moved down to meet i.
    """

    score: Floats
    slip: Ints
    end: Floats
    begin: Floats


class Strokes:
    """The network of one direction of cutting: 'right' or 'below'."""

    def __init__(self, file: Path) -> None:
        stored = {name: w.astype(np.float32) for name, w in read_safetensors(file).items()}
        self.weights = stored

    def features(self, ink: Floats, which: str) -> Floats:
        """Read sides (n, DEPTH, rows), 'before' or 'after': (FIT + QUICK, n, rows / 2)."""
        x = np.ascontiguousarray(ink.transpose(1, 0, 2), np.float32)
        x = _relu(self._conv(x, f"{which}.first"))
        x = _relu(self._conv(x, f"{which}.second", stride=2))
        x = x + _relu(self._conv(x, f"{which}.third"))
        return self._conv(x, f"{which}.out")

    def fits(self, before: Floats, after: Floats, shifts: tuple[int, ...] = SHIFTS) -> Fits:
        """Score all pairs of sides before (n, DEPTH, rows) and after (m, DEPTH, rows) a cut."""
        blank = np.zeros((1, *before.shape[1:]), np.float32)
        u = self.features(np.concatenate([before, blank]), "before")
        v = self.features(np.concatenate([after, blank]), "after")
        n, m = len(before), len(after)
        asked = np.ones((n + 1, m + 1), bool)
        if max(n, m) > ALL_PAIRS:
            asked[:n, :m] = self._likely(u[:, :n], v[:, :m], shifts)
        best = np.full((n + 1, m + 1), -np.inf, np.float32)
        slip = np.zeros((n + 1, m + 1), np.int64)
        nothing = {shift: self._join(u[:, -1:], v[:, -1:], shift)[0] for shift in shifts}
        for i in range(n + 1):
            columns = np.flatnonzero(asked[i])
            for shift in sorted(shifts, key=abs):
                score = self._join(u[:, i : i + 1], v[:, columns], shift) - nothing[shift]
                better = score > best[i, columns]
                best[i, columns[better]] = score[better]
                slip[i, columns[better]] = shift
        least = best[np.isfinite(best)].min()
        best[~np.isfinite(best)] = least
        return Fits(best[:n, :m], slip[:n, :m], best[:n, m], best[n, :m])

    def quick(self, u: Floats, v: Floats, shifts: tuple[int, ...] = SHIFTS) -> Floats:
        """Score all pairs of features by a plain product, many at once: (n, m)."""
        best = np.full((u.shape[1], v.shape[1]), -np.inf, np.float32)
        for shift in shifts:
            a, b = _overlap(u[FIT:], v[FIT:], shift)
            product = np.tensordot(a, b, ([0, 2], [0, 2])) / np.float32(QUICK**0.5)
            np.maximum(best, product, out=best)
        return best

    def _likely(self, u: Floats, v: Floats, shifts: tuple[int, ...]) -> NDArray[np.bool_]:
        """Choose the pairs worth joining by the quick product: (n, m)."""
        quick = self.quick(u, v, shifts)
        rows = np.argsort(np.argsort(-quick, axis=1), axis=1) < CANDIDATES
        columns = np.argsort(np.argsort(-quick, axis=0), axis=0) < CANDIDATES
        return np.asarray(rows | columns)

    def _join(self, u: Floats, v: Floats, shift: int) -> Floats:
        """Score one side before a cut (..., 1, rows) with sides after it (..., m, rows): (m,)."""
        a, b = _overlap(u[:FIT], v[:FIT], shift)
        hidden = _relu(self._conv(_relu(a + b), "join"))
        total: Floats = self.weights["score.weight"][0, :, 0] @ hidden.sum(2)
        total += hidden.shape[2] * self.weights["score.bias"][0]
        return total

    def _conv(self, x: Floats, name: str, stride: int = 1) -> Floats:
        """Convolve along the cut: (channels, n, rows) -> (outputs, n, rows / stride).

        One matrix product for each tap of the filter, over all sides at once.
        """
        weight = self.weights[f"{name}.weight"]
        outputs, channels, size = weight.shape
        rows = (x.shape[2] + stride - 1) // stride
        padded = np.pad(x, ((0, 0), (0, 0), (size // 2, size // 2)))
        result = np.zeros((outputs, x.shape[1] * rows), np.float32)
        for k in range(size):
            part = padded[:, :, k : k + (rows - 1) * stride + 1 : stride]
            result += weight[:, :, k] @ part.reshape(channels, -1)
        result += self.weights[f"{name}.bias"][:, None]
        return result.reshape(outputs, -1, rows)


@cache
def load(direction: str) -> Strokes:
    """The shipped network for cuts down a page ('right') or across it ('below')."""
    return Strokes(WEIGHTS / f"{direction}.safetensors")


@cache
def load_sure(what: str) -> list[float]:
    """Numbers that make probabilities: a bias and weights, of a 'joint' or of a 'cell'."""
    return [float(number) for number in read_json(WEIGHTS / "sure.json")[what]]


def _relu(x: Floats) -> Floats:
    return np.maximum(x, 0, out=x)


def _overlap(u: Floats, v: Floats, shift: int) -> tuple[Floats, Floats]:
    """The rows of two sides that meet when v is moved down by `shift` feature rows."""
    rows = u.shape[2] - abs(shift)
    top = max(shift, 0)
    other = max(-shift, 0)
    return u[:, :, top : top + rows], v[:, :, other : other + rows]
