"""Solve puzzles from pixels alone: how well borders fit, then assembly. Needs no training.

Measures, all `(pieces) -> (right, below)` costs (n, n), lower fits better, infinite diagonal:
- `mgc`: Mahalanobis gradient compatibility (Gallagher, CVPR 2012);
- `prediction`: (L_p)^q prediction error with p = 3/10, q = 1/16 (Pomeranz et al., CVPR 2011);
- `ssd`: sum of squared differences of the border pixels.

- `seams`: the default. MGC, turned towards a measure that trusts brightness where `bleeding` says
  that colours have run across the cut; `evidence` gives it as scores that add up.

Multiplying MGC by the prediction error ranked single neighbours better on validation photos, but
did not solve more whole puzzles.

Memory for n pieces is a dozen n x n float32 matrices: 0.6 GB peak measured for 3,300 pieces of
28 px (0.1 GB for 540). With rotations count four times the pieces: 0.4 GB for 540.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import PuzzleError
from puzlm.pieces.poses import STRAIGHT, Poses, in_poses
from puzlm.pieces.repair import SOUND, Wear
from puzlm.solving.search.assembly import assemble_posed
from puzlm.solving.search.board import best_buddies

Pieces = NDArray[np.uint8]
Costs = NDArray[np.float32]
Pair = tuple[Costs, Costs]
Ints = NDArray[np.int64]

P, Q = 3 / 10, 1 / 16  # Pomeranz's norm and its outer exponent
# Nine dummy gradients (Gallagher) keep the covariance of a flat border invertible.
DUMMIES = np.concatenate(
    [np.zeros((1, 3)), np.eye(3), -np.eye(3), np.ones((1, 3)), -np.ones((1, 3))]
)
# Chroma of lossy pictures is stored at half size and smoothed, so it runs over a cut by about this.
REACH = 3  # pixels
# Log of how much more chroma changes there than further in: below, colours have not bled; above,
# they have. Of clean validation pictures whose pieces touch 0 to 22 % lie above the first, of those
# with gaps up to half.
BLED = (0.1, 0.25)
SPHERE = 2.0  # parts of a sphere for one part of the covariance, where colours have bled
# Of pixels beside learned sides, where pieces are turned and worn (gap 0.05): 11 of 12 validation
# puzzles of 3x3 right, by pixels alone 9.
PIXELS_BESIDE = 0.25
UNLIT = 6.0  # noise that is borne while lights are estimated, grey levels
CHUNK = 1 << 22  # matrix entries worked on at a time, 32 MB in float64


@dataclass(frozen=True)
class ClassicResult:
    """Hold a solution: cell, confidence in [0, 1] and pose of each piece, all (n,).

    positions[i] is the raster cell of piece i, -1 if it was left over. `laid(piece, poses[i])`
    (pieces/poses.py) sets it upright. confidence[i] is the mean over the sides of piece i that
    touch a neighbour of 1 - cost / cost of the best rival (0 if worse).
    """

    positions: Ints
    confidence: NDArray[np.float64]
    poses: Ints


def solve(
    pieces: Pieces,
    grid: tuple[int, int],
    measure: str = "seams",
    given: Mapping[int, int] | None = None,
    poses: Poses = STRAIGHT,
    seed: int = 0,
    beside: Callable[[Pieces], Pair] | None = None,
    rounds: int = 330,
) -> ClassicResult:
    """Arrange pieces (n, height, width, 3) in a grid (rows, columns) by how their borders fit.

    Each piece may lie in any of the `poses`; the picture as a whole may then come out in another
    pose unless a piece is `given`, as it lies, in its cell. Fewer pieces than cells leave holes,
    more leave pieces over. `beside` scores pairs of pieces in another way; what it says counts
    more than pixels do, which know worn borders less well.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure is {measure!r}; give one of {', '.join(MEASURES)}")
    pieces = _checked(pieces)
    n, k = len(pieces), len(poses)
    pieces = in_poses(pieces, poses)
    costs = MEASURES[measure](pieces)
    own = np.arange(k * n)
    for cost in costs:
        for pose in range(1, k):
            cost[own, (own + pose * n) % (k * n)] = np.inf
    right, below = (scores(cost) for cost in costs)
    if beside is not None:
        right, below = (
            np.where(np.isfinite(by_pixels), PIXELS_BESIDE * by_pixels + by_other, -np.inf)
            for by_pixels, by_other in zip((right, below), beside(pieces), strict=True)
        )
    positions, lies = assemble_posed(right, below, grid, poses, given, seed, rounds)
    chosen = np.searchsorted(poses, lies) * n + np.arange(n)
    return ClassicResult(positions, _confidence(positions, chosen, costs, grid), lies)


def scores(cost: Costs) -> Costs:
    """Turn costs (n, n) into scores that add up: the log of the ratio to the second best.

    Both of its row and of its column, so that a border where everything fits (sky) says little
    and one where a single piece fits says much. Positive for a clear best.
    """
    tiny = np.float32(max(1e-6 * float(np.median(cost)), 1e-6)) if len(cost) > 2 else 1
    result: Costs = np.log(cost + tiny)
    if len(cost) < 3:  # nothing to compare with
        return -result
    second_of_row = np.partition(result, 1, axis=1)[:, 1:2]
    second_of_column = np.partition(result, 1, axis=0)[1:2]
    result *= -2
    result += second_of_row
    result += second_of_column
    return result


def evidence(pieces: Pieces, bled: float | None = None, wear: Wear = SOUND) -> Pair:
    """Score all pairs by their pixels, (right, below) (n, n): what the search adds up."""
    right, below = seams(pieces, bled) if wear == SOUND else worn(pieces, wear)
    return scores(right), scores(below)


def worn(pieces: NDArray[Any], wear: Wear) -> Pair:
    """Compute MGC that bears noise, and lights that differ, in pieces of any number type."""
    turned = pieces.astype(np.float64), pieces.transpose(0, 2, 1, 3).astype(np.float64)
    costs = _mgc(turned[0], wear=wear), _mgc(turned[1], wear=wear)
    for cost in costs:
        np.fill_diagonal(cost, np.inf)
    return costs


def lit(pieces: NDArray[Any], gain: float, offset: float) -> Pair:
    """Compute costs under lights of such deviations, before they are known."""
    return worn(pieces, Wear(UNLIT, gain, offset))


def fitting(pieces: Pieces, wear: Wear = SOUND) -> int:
    """Count the pairs of sides that are each other's best partner."""
    if len(pieces) < 2:
        return 0
    return round(best_buddies(*evidence(pieces, None, wear)) * 2 * len(pieces))


def seams(pieces: Pieces, bled: float | None = None) -> Pair:
    """Compute MGC, less of it the more colours have bled over the cut: two (n, n).

    MGC divides by the covariance of the gradients, so it lives on chroma, which hardly changes
    from one pixel to the next. When a picture is compressed after it was shuffled, the two sides
    of a cut share their chroma, and MGC then finds the shuffled picture again. There the
    covariance is drawn towards a sphere, so that brightness decides. In between, the geometric
    mean of both. Numbers: docs/log.md, "pieces compressed after shuffling". `bled` is how far they
    have, where that is known: pieces that were mended (bleed.py) show it no more.
    """
    share = bleeding(pieces) if bled is None else bled
    if share == 0:
        return mgc(pieces)
    round_ones = _both_ways(pieces, partial(_mgc, sphere=SPHERE))
    if share == 1:
        return round_ones
    costs = mgc(pieces)
    for cost, other in zip(costs, round_ones, strict=True):
        cost **= 1 - share
        cost *= other**share
    return costs


def bleeding(pieces: Pieces) -> float:
    """Estimate how far colours have bled across the cuts: 0 (not at all) to 1.

    Suspects too many puzzles rather than too few: MGC loses little by a false alarm.
    Inside a picture chroma changes as much over the `REACH` pixels next to the border as over the
    `REACH` pixels further in. Where the border took colour from a stranger, it changes more.
    """
    pixels = _checked(pieces)
    if min(pixels.shape[1:3]) < 4 * REACH + 2:  # the inner pixels of both sides would overlap
        return 0.0
    excess = []
    for turned in (pixels, pixels.transpose(0, 2, 1, 3)):
        for lines in (turned, turned[:, :, ::-1]):
            chroma = lines[:, :, : 2 * REACH + 1 : REACH].astype(np.float32)
            chroma -= chroma.mean(axis=3, keepdims=True)
            change = (np.diff(chroma, axis=2) ** 2).sum(axis=(1, 3))
            excess.append(np.log((change[:, 0] + 1) / (change[:, 1] + 1)))
    least, most = BLED
    return float(np.clip((np.mean(excess) - least) / (most - least), 0, 1))


def mgc(pieces: Pieces) -> Pair:
    """Compute the symmetric Mahalanobis gradient compatibility of all pairs: two (n, n)."""
    return _both_ways(pieces, _mgc)


def prediction(pieces: Pieces) -> Pair:
    """Compute the prediction-based cost of all pairs: two (n, n).

    Not a matrix product, hence the slow one: n * n * length * 12 table look-ups.
    """
    return _both_ways(pieces, _prediction)


def ssd(pieces: Pieces) -> Pair:
    """Compute the sum of squared differences of touching border pixels: two (n, n)."""
    return _both_ways(pieces, _ssd)


MEASURES: dict[str, Callable[[Pieces], Pair]] = {
    "seams": seams,
    "mgc": mgc,
    "prediction": prediction,
    "ssd": ssd,
}


def _checked(pieces: Pieces) -> Pieces:
    pieces = np.asarray(pieces)
    if pieces.ndim != 4 or pieces.shape[3] != 3 or len(pieces) == 0:
        raise PuzzleError(f"pieces is {pieces.shape}; give (number, height, width, 3)")
    if pieces.dtype != np.uint8:
        raise PuzzleError(f"pieces is {pieces.dtype}; give uint8, 0 to 255")
    if min(pieces.shape[1:3]) < 2:
        raise PuzzleError(
            f"pieces are {pieces.shape[1]}x{pieces.shape[2]} pixels; give 2x2 or more"
        )
    return pieces


def _both_ways(pieces: Pieces, measure: Callable[[NDArray[np.int16]], Costs]) -> Pair:
    """Apply a right-of measure to the pieces and, for below, to the pieces transposed."""
    pixels = _checked(pieces).astype(np.int16)
    costs = measure(pixels), measure(pixels.transpose(0, 2, 1, 3))
    for cost in costs:
        np.fill_diagonal(cost, np.inf)
    return costs


def _mgc(pixels: NDArray[Any], sphere: float = 0.0, wear: Wear = SOUND) -> Costs:
    first, second, before_last, last = (pixels[:, :, k].astype(np.float64) for k in (0, 1, -2, -1))
    cost = _mahalanobis(last, before_last, first, sphere, wear)
    cost += _mahalanobis(first, second, last, sphere, wear).T
    return cost


def _mahalanobis(
    edge: NDArray[np.float64],
    inner: NDArray[np.float64],
    other: NDArray[np.float64],
    sphere: float,
    wear: Wear,
) -> Costs:
    """Measure the gradient from each edge to each other edge against the gradient inside.

    All (n, length, 3). Entry (i, j) is the sum over p of d S d' with d = other_j(p) - edge_i(p) -
    mean gradient of i, S the inverse covariance of the gradients of i. `sphere` parts of a sphere
    of the same trace are added to the covariance, and the mean gradient is trusted that much less.
    So is the variance of the noise. Expanding the square makes it one matrix product; in float64,
    because its terms are far larger than their sum.
    """
    n, length, _ = edge.shape
    gradient = edge - inner
    sample = np.concatenate([gradient, np.broadcast_to(DUMMIES, (n, *DUMMIES.shape))], axis=1)
    sample = sample - sample.mean(axis=1, keepdims=True)
    covariance = sample.transpose(0, 2, 1) @ sample / (sample.shape[1] - 1)
    energy = np.trace(covariance, axis1=1, axis2=2)[:, None, None] / 3
    added = sphere * energy + wear.noise**2
    precision = np.linalg.inv(covariance + added * np.eye(3))
    expected = edge + gradient.mean(axis=1, keepdims=True) / (1 + added / energy)
    weighted = expected @ precision
    constant = (weighted * expected).sum(axis=(1, 2))
    second_moment = other.transpose(0, 2, 1) @ other
    features = np.concatenate([other.reshape(n, -1), second_moment.reshape(n, 9)], axis=1)
    weights = np.concatenate([-2 * weighted.reshape(n, -1), precision.reshape(n, 9)], axis=1)
    cost = np.empty((n, n), np.float32)
    for rows in _chunks(n, n):
        cost[rows] = np.maximum(weights[rows] @ features.T + constant[rows, None], 0)
    if wear.offset:
        cost -= _by_light(edge, expected, other, precision, wear)
        np.maximum(cost, 0, out=cost)
    return cost


def _by_light(
    edge: NDArray[np.float64],
    expected: NDArray[np.float64],
    other: NDArray[np.float64],
    precision: NDArray[np.float64],
    wear: Wear,
) -> Costs:
    """How much of each cost the likeliest difference in gain and offset explains: (n, n)."""
    n, length, _ = edge.shape
    level = edge - 128  # what a gain multiplies; an offset adds one everywhere
    by_gain = level @ precision
    by_offset = precision.sum(axis=2)
    gain = by_gain.reshape(n, -1) @ other.reshape(n, -1).T
    gain -= (by_gain * expected).sum(axis=(1, 2))[:, None]
    offset = by_offset @ other.sum(axis=1).T
    offset -= (by_offset * expected.sum(axis=1)).sum(axis=1)[:, None]
    gains = ((by_gain * level).sum(axis=(1, 2)) + wear.gain**-2)[:, None]
    offsets = (by_offset.sum(axis=1) * length + wear.offset**-2)[:, None]
    both = (by_offset * level.sum(axis=1)).sum(axis=1)[:, None]
    explained = offset**2 * gains - 2 * offset * gain * both + gain**2 * offsets
    result: Costs = (explained / (gains * offsets - both**2)).astype(np.float32)
    return result


def _ssd(pixels: NDArray[np.int16]) -> Costs:
    n = len(pixels)
    last, first = (pixels[:, :, k].reshape(n, -1).astype(np.float64) for k in (-1, 0))
    cost = np.empty((n, n), np.float32)
    for rows in _chunks(n, n):
        product = last[rows] @ first.T
        cost[rows] = (last[rows] ** 2).sum(1)[:, None] + (first**2).sum(1) - 2 * product
    return cost


def _prediction(pixels: NDArray[np.int16]) -> Costs:
    n = len(pixels)
    cost = np.empty((n, n), np.float32)
    every = np.arange(n)
    for rows in _chunks(n, n):
        i = every[rows]
        cost[rows] = _prediction_of(pixels, i.repeat(n), np.tile(every, len(i))).reshape(-1, n)
    return cost


def _prediction_of(pixels: NDArray[np.int16], i: Ints, j: Ints) -> Costs:
    """Measure how badly the linear continuation of i predicts j on its right, and back: (pairs,).

    Differences are whole numbers up to 510, so |d| ** p is read from a table.
    """
    table = np.arange(511, dtype=np.float32) ** np.float32(P)
    n = len(pixels)
    first, second, before_last, last = (pixels[:, :, k].reshape(n, -1) for k in (0, 1, -2, -1))
    onward, backward = 2 * last - before_last, 2 * first - second
    total = np.empty(len(i), np.float32)
    for part in _chunks(len(i), first.shape[1]):
        a, b = i[part], j[part]
        total[part] = table[np.abs(onward[a] - first[b])].sum(axis=1)
        total[part] += table[np.abs(backward[b] - last[a])].sum(axis=1)
    return total ** np.float32(Q / P)


def _chunks(count: int, width: int) -> list[slice]:
    step = max(1, CHUNK // width)
    return [slice(start, start + step) for start in range(0, count, step)]


def _confidence(
    positions: Ints, chosen: Ints, costs: Pair, grid: tuple[int, int]
) -> NDArray[np.float64]:
    """Average over each piece's touching sides how far its neighbour beats the best rival."""
    rows, columns = grid
    layout = np.full((rows, columns), -1)
    placed = np.flatnonzero(positions >= 0)
    layout.ravel()[positions[placed]] = placed
    total, sides = np.zeros((2, len(positions)))
    for cost, first, second in (
        (costs[0], layout[:, :-1], layout[:, 1:]),
        (costs[1], layout[:-1], layout[1:]),
    ):
        both = (first >= 0) & (second >= 0)
        one, two = first[both], second[both]
        i, j = chosen[one], chosen[two]
        own = cost[i, j]
        rival = np.full(len(i), np.inf, np.float32)
        for lines, at in ((cost[i], j), (cost[:, j].T, i)):
            lines[np.arange(len(at)), at] = np.inf
            rival = np.minimum(rival, lines.min(axis=1))
        sure = np.clip(1 - (own + 1e-6) / (rival + 1e-6), 0, 1)
        for piece in (one, two):
            np.add.at(total, piece, sure)
            np.add.at(sides, piece, 1)
    return total / np.maximum(sides, 1)
