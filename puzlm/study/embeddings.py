"""What embeddings are close to: symbols that look alike, or symbols that fit together.

Pure functions from arrays to numbers, as in analysis.py.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from puzlm.study.analysis import Floats, Ints, Pairs, Result, around

SEEN = 20  # touching pairs a symbol needs before its neighbours are counted as known


def pair_scores(pairs: Pairs, known: Ints, labels: Ints) -> Floats:
    """Score how well known symbols fit together, (known, known), from touching pairs.

    Two symbols hardly ever meet twice among k^2 pairs, so the score asks how often each touches
    the other's class (labels, (k,)): pointwise mutual information in bits, the mean of both ways,
    shrunk by one count to log2 (seen + 1) / (expected + 1). Give every symbol its own class for
    the plain score.
    """
    k, classes = len(labels), int(labels.max()) + 1
    place = np.full(k, -1)
    place[known] = np.arange(len(known))
    seen = np.zeros(len(known) * classes)
    for pair in pairs:
        for a, b in (pair, pair[::-1]):
            rows = place[a.reshape(-1)]
            cells = rows * classes + labels[b.reshape(-1)]
            seen += np.bincount(cells[rows >= 0], minlength=seen.size)
    counts = touch_counts(pairs, k)
    expected = np.outer(counts[known], np.bincount(labels, counts)) / max(1, counts.sum())
    one_way = np.log2((seen.reshape(expected.shape) + 1) / (expected + 1))[:, labels[known]]
    scores: Floats = (one_way + one_way.T) / 2
    return scores


def touch_counts(pairs: Pairs, k: int) -> Ints:
    """How often each symbol touches another one, (k,)."""
    return sum(
        (np.bincount(side.reshape(-1), minlength=k) for pair in pairs for side in pair),
        np.zeros(k, np.int64),
    )


def spearman(x: Floats, y: Floats) -> float:
    """Rank correlation of x and y."""
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def partial(xy: float, xz: float, yz: float) -> float:
    """Correlation of what is left of x and y once z is taken out, from the three correlations."""
    rest = (1 - xz**2) * (1 - yz**2)
    return float((xy - xz * yz) / np.sqrt(rest)) if rest > 0 else float("nan")


def embedding_geometry(
    embeddings: dict[str, Floats],
    looks: Floats,
    scores: Floats,
    halves: tuple[Floats, Floats] | None = None,
    sample: int = 20_000,
    seed: int = 0,
) -> Result:
    """Ask whether near embeddings look alike or fit together: rank correlations over pairs.

    Row i of every table is the same known symbol. Half of the sampled pairs touch more often than
    chance, half are drawn blindly. Closeness is cosine for embeddings, minus distance for looks.
    `only_` rows take the other explanation out. Pairs share symbols, so intervals count symbols.
    `halves` are scores of two halves of the puzzles: their agreement says how reliably fit is
    known. Noise in fit lowers its correlations, and with fit held it leaves to looks what is due to
    fit; `corrected_` rows divide every correlation with fit by the root of its reliability first.
    """
    rng = np.random.default_rng(seed)
    fits = np.argwhere(np.triu(scores > 0.5, 1))
    if len(looks) < 10 or not len(fits):
        return {"skipped": f"fewer than 10 symbols touch {SEEN} others; give more puzzles"}
    blind = rng.integers(0, len(looks), (sample // 2, 2))
    drawn = np.concatenate([fits[rng.integers(0, len(fits), sample // 2)], blind])
    i, j = drawn[drawn[:, 0] != drawn[:, 1]].T
    near, fit = -np.linalg.norm(looks[i] - looks[j], axis=1), scores[i, j]
    alike, error, reliability = spearman(near, fit), 1 / np.sqrt(len(looks)), float("nan")
    result: Result = {"symbols": len(looks), "pairs": len(i), "looks_and_compatibility": alike}
    if halves is not None:
        r = spearman(halves[0][i, j], halves[1][i, j])
        reliability = max(0.0, 2 * r / (1 + r))  # Spearman-Brown: of the whole
        result["compatibility_reliability"] = reliability
    for name, table in embeddings.items():
        close = (unit_rows(table)[i] * unit_rows(table)[j]).sum(1)
        by_looks, by_fit = spearman(close, near), spearman(close, fit)
        rows = {
            "looks": by_looks,
            "compatibility": by_fit,
            "only_looks": partial(by_looks, by_fit, alike),
            "only_compatibility": partial(by_fit, by_looks, alike),
        }
        if reliability > 0:
            freed, both = by_fit / np.sqrt(reliability), alike / np.sqrt(reliability)
            rows["corrected_only_looks"] = partial(by_looks, freed, both)
            rows["corrected_only_compatibility"] = partial(freed, by_looks, both)
        result[name] = {key: around(value, error) for key, value in rows.items()}
    return result


def unit_rows(table: Floats) -> Floats:
    """Scale every row to length 1."""
    result: Floats = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    return result


def nearest_symbols(closeness: Floats, queries: Ints, count: int = 4) -> Ints:
    """The rows closest to each query, (queries, count), by closeness (queries, rows)."""
    near = closeness.copy()
    near[np.arange(len(queries)), queries] = -np.inf
    return np.argsort(-near, axis=1, kind="stable")[:, :count]
