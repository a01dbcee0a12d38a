"""What the tokens say: entropy, Zipf, Heaps, and what touching borders know of each other.

Pure functions from arrays to numbers. Knows no files and no figures; `analyze.py` has those. A
"sequence" is one puzzle's symbols, (cells * b * F,).

Intervals are 95 %. Where a bootstrap over puzzles shifts the estimate itself (a resample repeats
puzzles, so it shows fewer symbols and more repeated pairs), only its spread is used: estimate
+- 1.96 standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from puzlm.tokenizer.piece_tokenizer import TokenizerSettings

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Result = dict[str, Any]
Pairs = Sequence[tuple[Ints, Ints]]  # two sides of touching borders, for each token set

RARE = 5  # symbols seen fewer times than this are rare
HEAPS_RANGE = (100, 10_000)  # tokens; beyond it k = 4096 is used up, below it nothing repeats


# ---- entropy --------------------------------------------------------------------------------


def entropy(sequences: NDArray[Any]) -> Floats:
    """Shannon entropy in bits of each row of (rows, n), from the row's own frequencies."""
    rows, n = sequences.shape
    flat = np.sort(sequences, axis=1).reshape(-1)
    fresh = np.r_[True, flat[1:] != flat[:-1]]
    fresh[::n] = True
    starts = np.flatnonzero(fresh)
    counts = np.diff(np.r_[starts, rows * n])
    result: Floats = np.log2(n) - np.bincount(starts // n, counts * np.log2(counts), rows) / n
    return np.maximum(result, 0.0)  # rounding


@cache
def uniform_entropy(k: int, n: int, draws: int = 200, seed: int = 0) -> tuple[float, float, float]:
    """Mean entropy of n tokens drawn uniformly from k, and the range that holds 95 % of draws."""
    values = entropy(np.random.default_rng((seed, k, n)).integers(0, k, (draws, n)))
    low, high = np.percentile(values, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def entropy_growth(parts: NDArray[Any], k: int, lengths: Sequence[int], seed: int = 0) -> Result:
    """Mean entropy of the first parts of sequences (puzzles, parts, size), in random order.

    `lengths` counts parts; the last one stands for whole puzzles. `below_uniform` is the distance
    to uniformly drawn sequences of that length. Any uneven vocabulary has one that grows, so
    `shuffled` gives the entropy after all symbols change places with those of other puzzles: what
    is missing from there to `mean` is what symbols of one picture share.
    """
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(parts.shape[1]), (len(parts), 1)), axis=1)
    parts = np.take_along_axis(parts, order[:, :, None], 1)
    mixed = rng.permutation(parts.reshape(-1)).reshape(parts.shape)
    rows = []
    for length in lengths:
        values = entropy(parts[:, :length].reshape(len(parts), -1))
        error = float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        other = entropy(mixed[:, :length].reshape(len(parts), -1)).mean()
        n = length * parts.shape[2]
        rows.append((n, values.mean(), error, uniform_entropy(k, n)[0], other))
    n, mean, error, uniform, other = np.array(rows).T
    return {
        "tokens": n.astype(int),
        "mean": mean,
        "low": mean - 1.96 * error,
        "high": mean + 1.96 * error,
        "uniform": uniform,
        "below_uniform": uniform - mean,
        "shuffled": other,
        "bound": float(np.log2(k)),
        "bits": mean[-1],
    }


# ---- Zipf -----------------------------------------------------------------------------------


def zipf_fit(counts: NDArray[Any], first: int = 1, last: int | None = None) -> float:
    """Maximum-likelihood s of p(rank) ~ rank^-s on ranks first .. last (default: all).

    The likelihood peaks where the model's mean log-rank is the observed one.
    """
    ranked = np.sort(counts)[::-1][first - 1 : last].astype(float)
    logs = np.log(np.arange(first, first + len(ranked)))
    if len(ranked) < 2 or ranked.sum() == 0:
        return float("nan")
    wanted = float(ranked @ logs / ranked.sum())

    def excess(s: float) -> float:
        weights = np.exp(-s * (logs - logs[0]))
        return float(weights @ logs / weights.sum()) - wanted

    steepest = 30.0
    return steepest if excess(steepest) >= 0 else float(brentq(excess, -1.0, steepest))


def zipf(sequences: NDArray[Any], k: int, resamples: int = 100, seed: int = 0) -> Result:
    """Frequency against rank of (puzzles, n) symbols below k, with the fit and how good it is.

    The p-value draws as many independent tokens from the fitted law, ranks and fits them anew, and
    asks how often their Kolmogorov-Smirnov distance is as large. Tokens of one picture are not
    independent, so it is too small for them: read the distance first. Ranks come from the counts
    they explain, which steepens the fit (0.02 at 54,000 tokens of 4096 symbols with s = 0.5); the
    same draws measure that, and the exponent is freed of it.
    """
    rng = np.random.default_rng(seed)
    counts = np.bincount(sequences.reshape(-1), minlength=k)
    n, s = int(counts.sum()), zipf_fit(counts)
    draws = (rng.integers(0, len(sequences), len(sequences)) for _ in range(resamples))
    again = [zipf_fit(np.bincount(sequences[d].reshape(-1), minlength=k)) for d in draws]
    law = np.arange(1, k + 1) ** -s / np.sum(np.arange(1, k + 1) ** -s)

    def distance(ranked: NDArray[Any], law: Floats) -> float:
        return float(np.abs(np.cumsum(ranked) / ranked.sum() - np.cumsum(law)).max())

    ranked = np.sort(counts)[::-1]
    observed, larger, refits = distance(ranked, law), 0, []
    for _ in range(resamples):
        drawn = np.sort(rng.multinomial(n, law))[::-1]
        refits.append(zipf_fit(drawn))
        fitted = np.arange(1, k + 1) ** -refits[-1]
        larger += distance(drawn, fitted / fitted.sum()) >= observed
    bias = float(np.mean(refits)) - s
    spots = _spaced(1, int((counts > 0).sum()))
    edges = [1, max(2, k // 64), max(3, k // 4), k]
    return {
        "exponent": around(s - bias, float(np.std(again))),
        "ranking_bias": bias,
        "ks_distance": observed,
        "p_value": (1 + larger) / (1 + resamples),
        # A true power law has one slope everywhere; a rising one is a tail that thins out.
        "slopes": [
            {"ranks": [a, b], "exponent": zipf_fit(counts, a, b)}
            for a, b in zip(edges, edges[1:], strict=False)
        ],
        "tail_share": {
            "ranks": [k // 2 + 1, k],
            "observed": ranked[k // 2 :].sum() / n,
            "fitted": law[k // 2 :].sum(),
        },
        "dead": int((counts == 0).sum()),
        "rare": int(((counts > 0) & (counts < RARE)).sum()),
        "rank": spots,
        "frequency": ranked[spots - 1] / n,
        "fitted_frequency": law[spots - 1],
    }


# ---- Heaps ----------------------------------------------------------------------------------


def heaps(sequences: NDArray[Any], shuffles: int = 40, seed: int = 0) -> Result:
    """Distinct symbols against tokens read, (puzzles, n), mean over shuffles of the puzzles.

    beta is the least-squares slope of log distinct on log tokens over HEAPS_RANGE, or as far as
    nine tenths of the tokens go; its interval leaves out a tenth of the puzzles at a time
    (jackknife).
    """
    rng = np.random.default_rng(seed)
    total, groups = sequences.size, min(10, len(sequences))
    low = min(HEAPS_RANGE[0], max(1, total // 10))
    high = min(HEAPS_RANGE[1], max(low + 1, total * 9 // 10))
    spots, inside = _spaced(1, total), np.unique(np.geomspace(low, high, 40).astype(int))
    need = -(-high // sequences.shape[1])  # puzzles

    def distinct(order: Ints, at: Ints) -> Ints:
        first = np.unique(sequences[order].reshape(-1), return_index=True)[1]
        return np.searchsorted(np.sort(first), at)

    curves, fits = [], []  # each shuffle: its curve; the fitted stretch of all, and of all but one
    for _ in range(shuffles):
        order = rng.permutation(len(sequences))
        curves.append(distinct(order, spots))
        kept = [order, *(order[order % groups != g] for g in range(groups) if groups > 1)]
        fits.append([distinct(o[:need], inside) for o in kept])
    logs = np.log(np.mean(fits, axis=0))
    beta, *others = np.polyfit(np.log(inside), logs.T, 1)[0]
    error = np.sqrt((groups - 1) * np.var(others)) if others else 0.0
    return {
        "beta": around(beta, error),
        "range": [low, high],
        "tokens": spots,
        "distinct": np.mean(curves, axis=0),
    }


# ---- touching borders -----------------------------------------------------------------------


def touching(tokens: NDArray[Any], grid: tuple[int, int], settings: TokenizerSettings) -> Any:
    """First symbols on the two sides of every inner border: two (puzzles, borders, B) arrays.

    Right sides face left sides, bottoms face tops; both sides are read in the same direction.
    """
    from puzlm.tokenizer.piece_tokenizer import side_symbols

    sides = side_symbols(tokens, settings)[..., 0]
    (first, out), (second, into), _ = inner_borders(grid)
    return sides[:, first, out], sides[:, second, into]


def inner_borders(grid: tuple[int, int]) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints], Ints]:
    """Inner borders of a grid: cells and sides on both sides of each, and its two corners.

    Right sides come before bottoms. Corners are numbered along the lines of the grid.
    """
    rows, columns = grid
    cell = np.arange(rows * columns).reshape(grid)
    corner = np.arange((rows + 1) * (columns + 1)).reshape(rows + 1, columns + 1)
    first = np.concatenate([cell[:, :-1].reshape(-1), cell[:-1].reshape(-1)])
    second = np.concatenate([cell[:, 1:].reshape(-1), cell[1:].reshape(-1)])
    across = np.arange(len(first)) < rows * (columns - 1)
    starts = np.concatenate([corner[:-1, 1:-1].reshape(-1), corner[1:-1, :-1].reshape(-1)])
    ends = np.concatenate([corner[1:, 1:-1].reshape(-1), corner[1:-1, 1:].reshape(-1)])
    out, into = np.where(across, 1, 2), np.where(across, 3, 0)
    return (first, out), (second, into), np.stack([starts, ends], 1)


def apart(grid: tuple[int, int], most: int = 128, seed: int = 0) -> Ints:
    """Pairs of inner borders (pairs, 2) without a common corner: the first side of one, the second
    side of the other, of two pieces. `most` of them are drawn where there are more.

    Sides that meet in a corner show the same spot of the picture.
    """
    (first, _), (second, _), corners = inner_borders(grid)
    meet = (corners[:, None, :, None] == corners[None, :, None, :]).any((2, 3))
    pairs = np.argwhere(~meet & (first[:, None] != second[None]))
    if len(pairs) > most:
        pairs = pairs[np.random.default_rng(seed).permutation(len(pairs))[:most]]
    return pairs


def plug_in_information(first: NDArray[Any], second: NDArray[Any], classes: int) -> float:
    """Mutual information in bits of the observed frequencies; biased upwards."""
    joint = np.bincount(first.reshape(-1) * classes + second.reshape(-1), minlength=classes**2)
    p = joint.reshape(classes, classes) / joint.sum()
    expected = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    seen = p > 0
    return float((p[seen] * np.log2(p[seen] / expected[seen])).sum())


def mutual_information(
    first: NDArray[Any], second: NDArray[Any], classes: int, resamples: int = 20, seed: int = 0
) -> Result:
    """Mutual information in bits between paired classes (puzzles, pairs), with its interval.

    Corrected by subtracting what is left after the second half is shuffled over all puzzles. That
    keeps both marginals and so measures the bias at just these frequencies; Miller-Madow knows the
    bias only where every joint cell is well filled, which 64 x 64 cells are not.
    """
    rng = np.random.default_rng(seed)
    first, second = first.reshape(len(first), -1), second.reshape(len(second), -1)
    first, second = first.astype(np.int64), second.astype(np.int64)
    plain, flat = plug_in_information(first, second, classes), second.reshape(-1)
    bias = float(
        np.mean(
            [plug_in_information(first, rng.permutation(flat), classes) for _ in range(resamples)]
        )
    )
    draws = [rng.integers(0, len(first), len(first)) for _ in range(resamples)]
    spread = np.std([plug_in_information(first[d], second[d], classes) for d in draws])
    return {**around(plain - bias, float(spread)), "plug_in": plain, "bias": bias}


def border_information(
    tokens: NDArray[Any], grid: tuple[int, int], settings: TokenizerSettings, labels: Ints
) -> Result:
    """How much touching borders know of each other, given a class for each symbol (k,).

    `touching` pairs facing positions, `same_picture` a side with a side of another piece that has
    no corner in common with it (what the picture's colours alone tell; left out of grids too small
    for that), `offset` positions further along the facing side, `own_border` positions of one piece
    that many steps apart on its walk.
    """
    classes = int(labels.max()) + 1
    a, b = (labels[side] for side in touching(tokens, grid, settings))
    B, walk = a.shape[2], labels[tokens[..., 0]]
    result: Result = {
        "classes": classes,
        "pairs": int(a.size),
        "entropy": plug_in_information(a, a, classes),
        "touching": mutual_information(a, b, classes),
    }
    here, there = apart(grid).T
    if len(here):
        result["same_picture"] = mutual_information(a[:, here], b[:, there], classes)
    result["offset"] = [result["touching"]] + [
        mutual_information(
            np.concatenate([a[..., : B - d], a[..., d:]], 1),
            np.concatenate([b[..., d:], b[..., : B - d]], 1),
            classes,
        )
        for d in range(1, B)
    ]
    if settings.clockwise:
        result["own_border"] = [
            mutual_information(walk, np.roll(walk, -d, 2), classes)
            for d in range(1, walk.shape[2] // 2 + 1)
        ]
    return result


def equal_super_tokens(tokens: NDArray[Any]) -> Result:
    """Share of pieces (puzzles, cells, b, F) whose super-token another piece has too."""

    def shared(groups: NDArray[Any]) -> float:
        _, inverse, counts = np.unique(groups, axis=0, return_inverse=True, return_counts=True)
        return float((counts[inverse.reshape(-1)] > 1).mean())

    words = tokens.reshape(tokens.shape[0] * tokens.shape[1], -1)
    puzzle = np.repeat(np.arange(len(tokens)), tokens.shape[1])
    return {"in_same_puzzle": shared(np.column_stack([puzzle, words])), "in_set": shared(words)}


def around(value: float, error: float) -> Result:
    """A value with its 95 % interval, from its standard error."""
    return {"value": value, "low": value - 1.96 * error, "high": value + 1.96 * error}


def _spaced(low: int, high: int, count: int = 60) -> Ints:
    """Whole numbers from low to high, evenly spaced on a log axis."""
    return np.unique(np.rint(np.geomspace(low, max(low, high), count)).astype(np.int64))
