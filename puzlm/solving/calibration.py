"""Make confidences mean what they say: of pieces said to be 90 % sure, 90 % lie right.

How sure a solver sounds is one thing, how often it is then right another, and one temperature does
not lead from the one to the other: a piece is right less often where the rest of its puzzle is in
doubt, and with holes or given pieces the search weighs other rivals. So for each kind of answer

    P(right) = sigmoid(bias + sum of weight x feature)

is fitted to validation puzzles by tools/fit_calibration.py. A feature never leaves the range it had
there, so a puzzle of an unknown kind is treated like the nearest known one. P(right) rises with a
piece's own confidence, and an answer never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from puzlm.solution import Used

Floats = NDArray[np.float64]
Numbers = dict[str, tuple[float, float, float]]  # feature: weight, lowest, highest value

VERSION = 11  # of the numbers in FITTED; stands in results files with such confidences
PLACES = 5  # decimals of raw confidences, as in a results file: so both give the same numbers
DOUBT = 0.005  # raw confidences are kept so far from 0 and 1: closer says no more (chosen of six),
FINE = 0.00002  # but for solvers of sides alone, which are soon sure, it does (chosen of four)
NEAR = 2  # rows and columns: a piece is judged by 24 others around it
SIDES = ("auto sides", "bigram", "vision-pairs")
# Where sides left no doubt: of 1,258 validation puzzles none was wrong, docs/runs/clear-val.json.
ALL_RIGHT = 0.999


def calibrated(
    used: Used,
    confidences: Sequence[float] | Floats,
    positions: Sequence[int] | NDArray[np.int64],
    grid: tuple[int, int],
    given: Collection[int] = (),
) -> Floats:
    """P(right) of each piece, from the raw confidences of an answer and what gave it.

    Given pieces are sure; those not placed, and answers of a kind that was not fitted, stay as
    they are.
    """
    raw = np.asarray(confidences, np.float64)
    which = kind(used, grid[0] * grid[1])
    if which == "auto clear":
        return np.full(len(raw), ALL_RIGHT)
    numbers = FITTED.get(which, {})
    if not numbers or not len(raw):
        return raw
    sure = judged(features(raw, grid, given, doubt(which), positions), numbers)
    if used.early:  # the fewer pieces fit, the likelier the board as a whole lies rolled
        sure = sure * sure.mean()
    sure = np.where(np.asarray(positions) < 0, raw, sure)
    sure[list(given)] = 1.0
    return sure


def judged(told: dict[str, Floats], numbers: Numbers) -> Floats:
    """P(right) from features and the numbers of one kind of answer: (n,)."""
    terms = [w * np.clip(told[name], low, high) for name, (w, low, high) in numbers.items()]
    odds: Floats = np.sum(terms, 0)
    return 1 / (1 + np.exp(-odds))


def kind(used: Used, cells: int) -> str:
    """Which of FITTED an answer belongs to, by what gave it.

    >>> kind(Used("auto", ("reader", "edges", "pixels")), 9)
    'auto reader'
    >>> kind(Used("auto", ("reader", "edges", "pixels"), looks=6), 9)
    'auto looks'
    >>> kind(Used("auto", ("reader windows", "edges")), 432)
    'auto windows large'
    """
    from puzlm.solving.search.assembly import (
        SMALL_GRID,  # beyond, raw confidences are shares of sides that fit
    )

    name = used.solver
    read = "seq2seq" in used.evidence
    if "joined" in used.evidence:
        return "joined"  # says itself how sure it is (search/large.py)
    if "turns" in used.evidence:
        return "turned"  # not fitted
    if name == "seq2seq" and used.decoding != "valid":
        # Both of these read the marginals of a beam and answer nearly alike.
        name += " beam" if used.decoding in ("beam", "assign") else " greedy"
    if name == "symbols" and not read:
        name = "auto" if "reader" in used.evidence else "bigram"  # much the same answer
    if name == "auto" and used.clear:
        name += " clear"
    elif name == "auto" and used.looks > 1:
        name += " again" if read else " looks"
    elif name == "auto" and "reader" in used.evidence:
        name += " reader"
    elif name == "auto" and "reader windows" in used.evidence:
        return "auto windows large"
    elif name == "auto":
        name += " language" if read else " framed" if "frame" in used.evidence else " sides"
    if name == "seq2seq" and cells > 9:
        name += " reader"  # another language model
    if cells <= SMALL_GRID:
        return name
    if name == "auto looks":
        return "auto reader large"
    return "pairs large" if name in SIDES else f"{name} large"


def doubt(which: str) -> float:
    """How far a kind's raw confidences are kept from 0 and 1."""
    return FINE if which in SIDES else DOUBT


def features(
    confidences: Floats,
    grid: tuple[int, int],
    given: Collection[int] = (),
    doubt: float = DOUBT,
    positions: Sequence[int] | NDArray[np.int64] | None = None,
) -> dict[str, Floats]:
    """What P(right) is told from, each (n,).

    own: log-odds of the piece's raw confidence; others, least: their mean and minimum over all
    other pieces that were not given, spread: log of their deviation; near: their mean over the
    pieces around it, if that is lower; missing, given: share of the cells; cells: log of their
    number. Where borders touch, what is in doubt is where the picture as a whole lies, so all
    pieces are equally sure; where they are worn, pieces differ: that is what the spread tells. In a
    large picture it is regions that go wrong, a plain sky for one.
    """
    n, cells = len(confidences), grid[0] * grid[1]
    free = ~np.isin(np.arange(n), list(given))
    sure = np.clip(np.round(confidences, PLACES), doubt, 1 - doubt)
    own = np.log(sure / (1 - sure))
    rest = free.sum() - free  # how many others there are

    def of_others(x: Floats) -> Floats:
        # Sums before and after a piece, so that its own value leaves not even a rounding error.
        counted = np.append(0.0, np.where(free, x, 0.0))
        total = np.cumsum(counted)[:-1] + np.append(np.cumsum(counted[:1:-1])[::-1], 0.0)
        return np.where(rest > 0, total / np.maximum(rest, 1), x)

    others = of_others(own)
    variance = np.maximum(of_others(own**2) - others**2, 0.0)
    lowest = np.sort(own[free])[:2] if free.any() else own[:1]
    same = np.ones(n)
    return {
        "one": same,
        "own": own,
        "others": others,
        "least": np.where(free & (own <= lowest[0]), lowest[-1], lowest[0]),
        "spread": np.log(0.02 + np.sqrt(variance)),
        "near": others
        if positions is None
        else np.minimum(others, around(own, np.asarray(positions), grid, others)),
        "missing": same * max(0.0, 1 - n / cells),
        "given": same * len(given) / cells,
        "cells": same * np.log(cells),
    }


def around(
    values: Floats, positions: NDArray[np.int64], grid: tuple[int, int], none: Floats
) -> Floats:
    """Mean over the other pieces at most NEAR rows and columns away, where there are any: (n,)."""
    laid = positions >= 0
    row, column = np.divmod(np.where(laid, positions, 0), grid[1])
    sums = np.zeros((2, grid[0] + 2 * NEAR + 1, grid[1] + 2 * NEAR + 1))
    np.add.at(sums[0], (row[laid] + NEAR + 1, column[laid] + NEAR + 1), values[laid])
    np.add.at(sums[1], (row[laid] + NEAR + 1, column[laid] + NEAR + 1), 1.0)
    sums = sums.cumsum(1).cumsum(2)
    low, left, high, right = row, column, row + 2 * NEAR + 1, column + 2 * NEAR + 1
    total, count = (
        sums[:, high, right] - sums[:, low, right] - sums[:, high, left] + sums[:, low, left]
    )
    alone = ~laid | (count <= 1.5)
    return np.where(alone, none, (total - values) / np.where(alone, 1.0, count - 1))


FITTED: dict[str, Numbers] = {
    "auto again": {
        "one": (-1.066, 1.0, 1.0),
        "own": (0.693, -1.116, 5.293),
        "others": (0.119, 0.127, 5.293),
        "least": (0.209, -1.116, 5.293),
        "missing": (2.535, 0.0, 0.333),
        "given": (2.744, 0.0, 0.333),
    },
    "auto framed large": {
        "one": (0.591, 1.0, 1.0),
        "own": (0.272, -5.293, 5.293),
        "near": (1.186, -5.293, 4.858),
        "others": (0.542, -3.337, 4.942),
    },
    "auto looks": {
        "one": (1.149, 1.0, 1.0),
        "own": (0.667, -3.093, 5.293),
        "others": (0.258, -1.083, 5.269),
        "least": (0.865, -3.093, 4.718),
        "missing": (0.825, 0.0, 0.188),
        "given": (-1.332, 0.0, 0.5),
        "cells": (-0.459, 1.099, 3.401),
    },
    "auto reader": {
        "one": (-3.582, 1.0, 1.0),
        "own": (0.594, 2.945, 5.293),
        "others": (0.0, 2.992, 5.293),
        "least": (1.529, 2.945, 5.293),
        "missing": (12.91, 0.0, 0.333),
        "given": (7.875, 0.0, 0.5),
        "cells": (0.008, 1.099, 3.401),
    },
    "auto reader large": {
        "one": (0.234, 1.0, 1.0),
        "own": (0.37, -5.293, 5.293),
        "near": (0.531, -3.308, 5.293),
        "others": (0.407, -1.897, 5.293),
    },
    "auto sides": {
        "one": (-0.896, 1.0, 1.0),
        "own": (0.221, -1.339, 10.82),
        "others": (0.0, -0.616, 10.82),
        "least": (0.201, -1.339, 10.82),
        "missing": (3.895, 0.0, 0.125),
        "spread": (-0.073, -3.912, 1.654),
    },
    "auto windows large": {
        "one": (-1.287, 1.0, 1.0),
        "own": (0.427, -5.293, 5.293),
        "near": (0.617, -4.194, 4.097),
        "others": (0.605, -1.631, 4.1),
    },
    "bigram": {
        "one": (0.021, 1.0, 1.0),
        "own": (0.306, -3.434, 10.82),
        "others": (0.243, -2.211, 10.82),
        "least": (0.0, -3.434, 10.82),
        "missing": (2.212, 0.0, 0.333),
        "given": (1.947, 0.0, 0.333),
        "cells": (-0.598, 2.197, 3.219),
        "spread": (-0.3, -3.912, 1.828),
    },
    "classic": {
        "one": (0.743, 1.0, 1.0),
        "own": (0.173, -5.293, 5.293),
        "others": (0.581, -5.293, 4.833),
        "least": (0.071, -5.293, 3.908),
        "missing": (-7.415, 0.0, 0.333),
        "given": (4.927, 0.0, 0.333),
        "cells": (0.632, 2.197, 3.219),
    },
    "classic large": {
        "one": (5.171, 1.0, 1.0),
        "own": (0.52, -5.293, 5.293),
        "others": (1.103, -3.678, 1.7),
        "cells": (-0.153, 3.584, 6.292),
    },
    "pairs large": {
        "one": (0.364, 1.0, 1.0),
        "own": (0.217, -5.293, 5.293),
        "near": (1.144, -5.293, 5.293),
        "others": (0.483, -3.292, 5.293),
    },
    "seq2seq": {
        "one": (-1.318, 1.0, 1.0),
        "own": (0.318, -1.767, 5.293),
        "others": (0.415, -0.645, 5.293),
        "least": (0.729, -1.767, 5.293),
        "missing": (1.149, 0.0, 0.333),
        "given": (2.463, 0.0, 0.111),
    },
    "seq2seq beam": {
        "one": (1.783, 1.0, 1.0),
        "own": (0.394, -1.782, 5.293),
        "others": (0.398, -0.031, 5.293),
        "least": (0.594, -1.782, 5.293),
        "cells": (-0.998, 2.197, 3.219),
    },
    "seq2seq greedy": {
        "one": (-2.584, 1.0, 1.0),
        "own": (0.92, -2.905, 4.367),
        "others": (0.236, -1.594, 3.554),
        "least": (0.412, -2.905, 3.233),
        "cells": (1.382, 2.197, 3.219),
    },
    "symbols": {
        "one": (3.156, 1.0, 1.0),
        "own": (0.66, -1.606, 5.293),
        "others": (0.448, -0.463, 5.293),
        "least": (0.292, -1.606, 5.293),
        "missing": (1.952, 0.0, 0.333),
        "given": (0.902, 0.0, 0.333),
        "cells": (-1.879, 2.197, 3.219),
    },
    "vision-pairs": {
        "one": (0.129, 1.0, 1.0),
        "own": (0.356, -2.708, 10.82),
        "others": (0.205, -2.324, 10.82),
        "least": (0.146, -2.708, 10.82),
        "missing": (2.495, 0.0, 0.333),
        "given": (1.723, 0.0, 0.333),
        "cells": (-0.54, 2.197, 3.219),
        "spread": (-0.334, -3.912, 1.842),
    },
}
