"""How right an answer is. Pure functions of positions; see puzzle.py for the convention.

With missing pieces only those present are scored, as the paper does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def absolute(positions: ArrayLike, truth: ArrayLike) -> float:
    """Share of the pieces that lie in their true cell."""
    got, want = np.asarray(positions), np.asarray(truth)
    return float(np.mean(got == want))


def perfect(positions: ArrayLike, truth: ArrayLike) -> float:
    """1.0 when every piece lies in its true cell, else 0.0."""
    return float(np.array_equal(np.asarray(positions), np.asarray(truth)))


def neighbour(positions: ArrayLike, truth: ArrayLike, columns: int) -> float:
    """Share of the truly touching pairs of present pieces that touch the same way in the answer.

    1.0 when no two present pieces touch. A piece of another picture (truth -1) touches none.
    """
    got, want = np.asarray(positions), np.asarray(truth)
    piece_at = {int(cell): piece for piece, cell in enumerate(want) if cell >= 0}
    right = total = 0
    for cell, first in piece_at.items():
        steps = [(0, 1)] * ((cell + 1) % columns != 0) + [(1, 0)]
        for down, across in steps:
            second = piece_at.get(cell + down * columns + across)
            if second is None:
                continue
            total += 1
            if got[first] < 0 or got[second] < 0:
                continue
            rows = got[second] // columns - got[first] // columns
            columns_apart = got[second] % columns - got[first] % columns
            right += int(rows == down and columns_apart == across)
    return right / total if total else 1.0


@dataclass(frozen=True)
class Interval:
    """A mean in percent with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"

    def as_dict(self) -> dict[str, float]:
        """Give value, low and high in percent, rounded to two places."""
        return {k: round(v, 2) for k, v in vars(self).items()}


def bootstrap(scores: ArrayLike, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of per-puzzle scores in [0, 1] with a 95 % interval over puzzles, in percent."""
    values: Floats = np.asarray(scores, np.float64)
    if values.size == 0:
        raise ValueError("no scores: at least one puzzle is needed")
    rng = np.random.default_rng(seed)
    means = np.array(
        [values[rng.integers(0, len(values), len(values))].mean() for _ in range(resamples)]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(100 * float(values.mean()), 100 * float(low), 100 * float(high))


def reliability(sure: ArrayLike, right: ArrayLike, bins: int) -> dict[str, Any]:
    """Expected calibration error of confidences in [0, 1], and bins of equal width."""
    confidence, correct = np.asarray(sure, np.float64), np.asarray(right, np.float64)
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    rows, error = [], 0.0
    for number in range(bins):
        inside = which == number
        count = int(inside.sum())
        mean, share = (confidence[inside].mean(), correct[inside].mean()) if count else (0.0, 0.0)
        error += count / len(confidence) * abs(float(mean) - float(share))
        rows.append(
            {
                "low": number / bins,
                "high": (number + 1) / bins,
                "count": count,
                "confidence": float(mean) if count else None,
                "accuracy": float(share) if count else None,
            }
        )
    return {"ece": error, "reliability": rows}
