"""Sparse scores of pairs of sides: how likely two sides are to touch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puzlm.solving.search.candidates import Candidates

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

STEEP = 4.0  # the likelihood of a pair falls with this power of its cost
DAMAGED = 0.1  # share of a partner, of a mean one, whose border tells nothing of it
LEAST = 10.0  # added to a cost: smaller differences are noise


@dataclass(frozen=True)
class Pairs:
    """Hold the scores of all candidate pairs, each once: `one` < `other`, numbers of sides.

    The score is the log of the product of two shares: of `other` among all that `one` may meet,
    and of `one` among all that `other` may meet; less the same for a pair by chance among k. A
    pair that no list holds scores `rest[one] + rest[other]`.
    """

    one: Ints
    other: Ints
    score: Floats
    rest: Floats
    keys: Ints
    total: Floats

    def look_up(self, one: Ints, other: Ints) -> Floats:
        """Score pairs of sides; a side of -1 (nothing there) scores 0."""
        low, high = np.minimum(one, other), np.maximum(one, other)
        key = low * len(self.rest) + high
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        known = self.keys[at] == key
        score = np.where(known, self.score[at], self.rest[low] + self.rest[high])
        return np.where(low < 0, np.float32(0), score).astype(np.float32)

    def of_costs(self, one: Ints, other: Ints, cost: Floats) -> Floats:
        """Score pairs of sides by their costs, all with all: (one, other)."""
        likely = fit(cost)
        score: Floats = share(likely - self.total[one][:, None])
        score += share(likely - self.total[other])
        return score


def fit(cost: Floats) -> Floats:
    """Log of how likely a pair of such a cost is, up to a constant."""
    result: Floats = -STEEP * np.log(cost + np.float32(LEAST))
    return result


def share(likely: Floats) -> Floats:
    """Log of the share of a partner, a mean one being 1; never below that of a damaged border."""
    result: Floats = np.log(np.float32(DAMAGED) + np.exp(likely))
    return result


def weigh(found: Candidates) -> Pairs:
    """Turn candidates and their costs into scores."""
    sides, k = found.partner.shape
    likely = fit(found.cost)
    total = np.logaddexp.reduce(likely, axis=1)
    here = found.partner >= 0
    one = np.broadcast_to(np.arange(sides)[:, None], found.partner.shape)[here]
    other = found.partner[here].astype(np.int64)
    last = np.where(here, likely, np.inf).min(axis=1)
    likely = likely[here]
    low, high = np.minimum(one, other), np.maximum(one, other)
    keys, first = np.unique(low * sides + high, return_index=True)
    low, high, likely = low[first], high[first], likely[first]
    # Where the comparing ended early, a side without a list has those that list it.
    bare = total == -np.inf
    for ends in (low, high):
        chosen = bare[ends]
        np.logaddexp.at(total, ends[chosen], likely[chosen])
    total[total == -np.inf] = 0
    total = (total - np.log(k)).astype(np.float32)
    score = share((likely - total[low]).astype(np.float32))
    score += share((likely - total[high]).astype(np.float32))
    rest = share(np.where(np.isfinite(last), last - total - 1, 0).astype(np.float32))
    return Pairs(low, high, score, rest, keys, total)
