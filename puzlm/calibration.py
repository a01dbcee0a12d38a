"""Make confidences mean what they say: of pieces said to be 90 % sure, 90 % lie right.

How sure a solver sounds is one thing, how often it is then right another, and one temperature does
not lead from the one to the other: a piece is right less often where the rest of its puzzle is in
doubt, and with holes or given pieces the search weighs other rivals. So for each kind of answer

    P(right) = sigmoid(bias + sum of weight x feature)

is fitted to validation puzzles by docs/fit_calibration.py. A feature never leaves the range it had
there, so a puzzle of an unknown kind is treated like the nearest known one. P(right) rises with a
piece's own confidence, and an answer never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = dict[str, tuple[float, float, float]]  # feature: weight, lowest, highest value

VERSION = 1  # of the numbers in FITTED; stands in results files with such confidences
PLACES = 5  # decimals of raw confidences, as in a results file: so both give the same numbers
DOUBT = 0.005  # raw confidences are kept so far from 0 and 1: closer says no more (chosen of six)


def calibrated(
    solver: str,
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
    numbers = FITTED.get(kind(solver, grid[0] * grid[1]), {})
    if not numbers or not len(raw):
        return raw
    sure = judged(features(raw, grid, given), numbers)
    sure = np.where(np.asarray(positions) < 0, raw, sure)
    sure[list(given)] = 1.0
    return sure


def judged(told: dict[str, Floats], numbers: Numbers) -> Floats:
    """P(right) from features and the numbers of one kind of answer: (n,)."""
    terms = [w * np.clip(told[name], low, high) for name, (w, low, high) in numbers.items()]
    odds: Floats = np.sum(terms, 0)
    return 1 / (1 + np.exp(-odds))


def kind(solver: str, cells: int) -> str:
    """Which of FITTED an answer belongs to, by the name of what gave it.

    >>> kind("auto (seq2seq puzlm-3x3 + vision + edges + pixels)", 9), kind("auto (edges)", 100)
    ('auto', 'pairs large')
    """
    from puzlm.assembly import SMALL_GRID  # beyond, raw confidences are shares of sides that fit

    name, _, how = solver.partition(" (")
    if name == "seq2seq" and not how.startswith(("valid", "greedy")):
        name += " beam"
    if name == "auto" and "vision" not in how:
        name += " language" if "seq2seq" in how else " sides"
    if cells <= SMALL_GRID:
        return name
    return "pairs large" if name in ("auto sides", "vision-pairs", "bigram") else f"{name} large"


def features(
    confidences: Floats, grid: tuple[int, int], given: Collection[int] = ()
) -> dict[str, Floats]:
    """What P(right) is told from, each (n,).

    own: log-odds of the piece's raw confidence; others, least: their mean and minimum over all
    other pieces that were not given; missing, given: share of the cells; cells: log of their
    number.
    """
    n, cells = len(confidences), grid[0] * grid[1]
    free = ~np.isin(np.arange(n), list(given))
    sure = np.clip(np.round(confidences, PLACES), DOUBT, 1 - DOUBT)
    own = np.log(sure / (1 - sure))
    rest = free.sum() - free  # how many others there are
    total = own[free].sum() - np.where(free, own, 0.0)
    lowest = np.sort(own[free])[:2] if free.any() else own[:1]
    same = np.ones(n)
    return {
        "one": same,
        "own": own,
        "others": np.where(rest > 0, total / np.maximum(rest, 1), own),
        "least": np.where(free & (own <= lowest[0]), lowest[-1], lowest[0]),
        "missing": same * max(0.0, 1 - n / cells),
        "given": same * len(given) / cells,
        "cells": same * np.log(cells),
    }


FITTED: dict[str, Numbers] = {
    "auto": {
        "one": (1.658, 1.0, 1.0),
        "own": (0.623, -1.963, 5.293),
        "others": (0.19, -1.204, 5.293),
        "least": (0.52, -1.963, 5.293),
        "missing": (1.412, 0.0, 0.333),
        "given": (2.916, 0.0, 0.333),
        "cells": (-0.642, 2.197, 3.219),
    },
    "auto sides": {
        "one": (-1.004, 1.0, 1.0),
        "own": (0.374, -1.339, 5.293),
        "others": (0.033, -0.616, 5.293),
        "least": (0.346, -1.339, 5.293),
        "missing": (0.296, 0.0, 0.125),
    },
    "bigram": {
        "one": (-0.559, 1.0, 1.0),
        "own": (0.436, -3.434, 5.293),
        "others": (0.013, -1.627, 5.293),
        "least": (0.23, -3.434, 5.293),
        "missing": (2.46, 0.0, 0.333),
        "given": (1.487, 0.0, 0.333),
        "cells": (-0.147, 2.197, 3.219),
    },
    "classic": {
        "one": (0.564, 1.0, 1.0),
        "own": (0.186, -5.293, 5.293),
        "others": (0.608, -5.293, 4.833),
        "least": (0.113, -5.293, 3.888),
        "missing": (-8.215, 0.0, 0.333),
        "given": (4.492, 0.0, 0.333),
        "cells": (0.833, 2.197, 3.219),
    },
    "classic large": {
        "one": (2.638, 1.0, 1.0),
        "own": (0.4, -5.293, 5.293),
        "others": (1.039, -3.876, 1.7),
    },
    "pairs large": {
        "one": (-0.748, 1.0, 1.0),
        "own": (0.305, -5.293, 5.293),
        "others": (1.168, -1.471, 5.099),
    },
    "seq2seq": {
        "one": (-1.802, 1.0, 1.0),
        "own": (0.257, -2.732, 5.293),
        "others": (0.526, -1.807, 5.293),
        "least": (0.482, -2.732, 5.293),
        "missing": (1.322, 0.0, 0.333),
        "given": (-0.329, 0.0, 0.333),
        "cells": (0.662, 2.197, 3.219),
    },
    "vision": {
        "one": (-0.852, 1.0, 1.0),
        "own": (0.652, -5.293, 5.293),
        "others": (0.143, -2.312, 5.293),
        "least": (0.338, -5.293, 5.293),
        "missing": (-1.665, 0.0, 0.333),
        "given": (4.521, 0.0, 0.333),
        "cells": (0.61, 2.197, 3.219),
    },
}
