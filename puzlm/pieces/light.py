"""The light that fell on each piece, estimated from all pieces together, and evened out.

A piece that was photographed alone has a light of its own: pixels = gain * picture + offset. Across
a border the picture hardly changes, so two neighbours say how their lights differ. Who they are is
not known: pairs are taken that choose each other under any light, and a pair that contradicts the
others loses its say. Pieces in one light then fit better, and the pairs are chosen anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.images import Pixels

Floats = NDArray[np.float64]
# How badly j fits right of i, and below it, (n, n) each, if lights may differ by deviations of a
# log-gain and an offset.
Costs = Callable[[Floats, float, float], tuple[NDArray[Any], NDArray[Any]]]

GREY = 128.0  # levels are counted from here, so that a gain moves no middle grey
GAIN, OFFSET = 0.2, 14.0  # deviations of a log-gain and an offset before anything is known ...
KNOWN = 0.05, 3.0  # ... and at least afterwards
ROUNDS = 4
LEAST = 16  # pieces; fewer have hardly more pairs than lights
# Lights differ if the deviations of gain and offset are above these, if they explain this much of
# how pieces differ across borders, and if what is left is not much more than what pixels inside
# differ by: where borders are worn it is.
DIFFER = 0.06, 7.0
EXPLAINED = 0.6
LEFT = 1.1
ALIKE = 4.0  # pixels along a border that say the same
CHANGE = 3.0  # least difference of neighbouring pixels, grey levels
WEIGHED = 3  # times that pairs are weighed anew; a pair has half its say ...
STRANGE = 3.0  # ... if its pixels differ by the root of this more than those inside pieces


@dataclass(frozen=True)
class _Lights:
    """Log-gain and offset (n,) of each piece; the share of the differences across borders that they
    explain, and what is left, 1 if that is as much as pixels inside the pieces differ."""

    gain: Floats
    offset: Floats
    explained: float
    left: float

    def differ(self, most_left: float) -> bool:
        """Whether pieces really lie in different lights."""
        strong = self.gain.std() > DIFFER[0] and self.offset.std() > DIFFER[1]
        return bool(strong and self.explained > EXPLAINED and self.left < most_left)


def evened(pieces: Pixels, costs: Costs, most_left: float = LEFT) -> Pixels:
    """Pieces (n, height, width, 3) in one light; the same ones where lights hardly differ."""
    if len(pieces) < LEAST or min(pieces.shape[1:3]) < 4:
        return pieces
    levels = pieces.astype(np.float64) - GREY
    gain, offset = np.zeros(len(pieces)), np.zeros(len(pieces))
    prior = np.array([GAIN, OFFSET])
    even = levels
    for turn in range(ROUNDS):
        lights = _lights(even, costs(even + GREY, *(prior * 2**0.5)), prior)
        if not turn and not lights.differ(most_left):
            return pieces
        offset += np.exp(gain) * lights.offset
        gain += lights.gain
        even = (levels - offset[:, None, None, None]) * np.exp(-gain)[:, None, None, None]
        prior = np.maximum(prior / 2, KNOWN)
    result: Pixels = np.clip(np.rint(even + GREY), 0, 255).astype(np.uint8)
    return result


def _lights(levels: Floats, costs: tuple[NDArray[Any], NDArray[Any]], prior: Floats) -> _Lights:
    """The light of each piece that its likely neighbours ask for.

    Least squares: r = m * (gain of j - gain of i) + offset of j - offset of i at each pixel of the
    border of each pair, where m is the mean of the two sides there, and r their difference.
    """
    n = len(levels)
    ways = zip((levels, levels.transpose(0, 2, 1, 3)), costs, strict=True)
    parts = [_pairs(*way) for way in ways]
    i, j = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    sure, spread, mm, m1, mr, r1, rr, count = np.concatenate([part[2] for part in parts], axis=1)
    weight = sure / spread
    found: Floats = np.zeros((n, 2))
    left = rr
    for _ in range(WEIGHED):
        equations = np.diag(np.tile(1 / prior**2, n))
        values = np.zeros(2 * n)
        for a, b, what in ((0, 0, mm), (0, 1, m1), (1, 0, m1), (1, 1, count)):
            for one, other, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
                np.add.at(equations, (2 * one + a, 2 * other + b), sign * weight * what)
        for a, what in ((0, mr), (1, r1)):
            np.add.at(values, 2 * j + a, weight * what)
            np.add.at(values, 2 * i + a, -weight * what)
        found = np.asarray(np.linalg.solve(equations, values), np.float64).reshape(n, 2)
        g, o = (found[j] - found[i]).T
        left = rr - 2 * (g * mr + o * r1) + g * g * mm + 2 * g * o * m1 + o * o * count
        weight = sure / spread / (1 + (ALIKE * left / (count * spread) / STRANGE) ** 2)
    share = sure / spread
    explained = 1 - (share * left).sum() / max((share * rr).sum(), 1e-9)
    unlike = ALIKE * (share * left / count).sum() / max(sure.sum(), 1e-9)
    return _Lights(found[:, 0], found[:, 1], float(explained), float(unlike))


def _pairs(
    turned: Floats, cost: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Pieces i and j that choose each other, and of each pair (8, pairs): how sure it is, how much
    its pixels may differ, the sums along its border of m * m, m, m * r, r, r * r and 1."""
    n = len(turned)
    best = cost.argmin(1)
    i = np.flatnonzero(cost.argmin(0)[best] == np.arange(n))
    j = best[i]
    rival = np.minimum(np.partition(cost, 1, 1)[i, 1], np.partition(cost, 1, 0)[1, j])
    sure = 1 - cost[i, j] / np.maximum(rival, 1e-9)
    first, second, before, last = (turned[:, :, k].reshape(n, -1) for k in (0, 1, -2, -1))
    change = ((last - before)[i] ** 2).mean(1) + ((first - second)[j] ** 2).mean(1)
    spread = ALIKE * (change / 2 + CHANGE**2)
    m, r = (last[i] + first[j]) / 2, first[j] - last[i]
    sums = [(m * m).sum(1), m.sum(1), (m * r).sum(1), r.sum(1), (r * r).sum(1)]
    return i, j, np.stack([sure, spread, *sums, np.full(len(i), float(m.shape[1]))])
