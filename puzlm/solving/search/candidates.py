"""The best partners of every side of every piece, from pixels: memory O(pieces x k).

A side is numbered `4 * piece + direction`, directions counter-clockwise from the right (board.py).
Each side is read with the piece turned so that the side looks to the right, from top to bottom; a
partner's line is then read backwards. So two sides fit or do not, whichever way they lie, and
turned pieces (Type 2) need nothing more: there any side may meet any other.

The cost of a pair is the Mahalanobis gradient compatibility (MGC, Gallagher 2012) both ways. Its
square expands to one scalar product of two vectors a side, so all costs are a matrix product, made
block by block in float32. The product only chooses; costs that are kept are computed without
cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

# Nine dummy gradients (Gallagher) keep the covariance of a flat border invertible.
DUMMIES = np.concatenate(
    [np.zeros((1, 3)), np.eye(3), -np.eye(3), np.ones((1, 3)), -np.ones((1, 3))]
)
BLOCK = 1 << 23  # costs in memory at a time: 32 MB
SPARE = 8  # partners kept beyond k until their costs are exact
PAIRS = 1 << 15  # pairs whose exact costs are computed at a time


@dataclass(frozen=True)
class Lines:
    """Describe the sides of one length: what MGC compares, (sides, ...) each.

    side: their numbers. edge: the border pixels (sides, length, 3). expected: where each border
    would go on. root: a 3x3 root of the inverse covariance of the gradients.
    """

    side: Ints
    edge: Floats
    expected: Floats
    root: Floats

    def __getitem__(self, rows: slice | Ints) -> Lines:
        return Lines(self.side[rows], self.edge[rows], self.expected[rows], self.root[rows])


@dataclass(frozen=True)
class Candidates:
    """Hold the best partners of each side, cheapest first; -1 and inf where there are fewer.

    partner: (4n, k) numbers of sides. cost: (4n, k).
    """

    partner: NDArray[np.int32]
    cost: Floats


class Measure:
    """Say what two sides of pieces (n, height, width, 3) cost, one by one or all with all.

    `turned`: any side may meet any other; else only the opposite one, as the pieces lie.
    `sphere`: parts of a sphere mixed into the covariance, where colours have bled (classic.py).
    """

    def __init__(self, pieces: Pixels, turned: bool = False, sphere: float = 0.0) -> None:
        self.count = len(pieces)
        self.turned = turned
        # Sides of one length lie together, first all to the right, then all to the left; or all
        # above, then all below.
        self.axes = [_lines(pieces, (axis, axis + 2), sphere) for axis in (0, 1)]

    def lines(self, sides: Ints) -> Lines:
        """What is compared of some sides, all of one length."""
        axis = self.axes[int(sides[0]) % 2]
        if self.turned and len(np.unique(sides % 2)) > 1:
            axis = _together(self.axes)
            return axis[sides % 2 * 2 * self.count + sides // 2 % 2 * self.count + sides // 4]
        return axis[sides // 2 % 2 * self.count + sides // 4]

    def matrix(self, one: Ints, other: Ints) -> Floats:
        """Costs of all pairs of some sides: (one, other)."""
        if not len(one) or not len(other):
            return np.empty((len(one), len(other)), np.float32)
        ahead, back = self.lines(one), self.lines(other)
        centre = ahead.edge.mean(axis=(0, 1))
        cost: Floats = np.maximum(_vectors(ahead, centre)[0] @ _vectors(back, centre)[1].T, 0)
        cost[one[:, None] // 4 == other // 4] = np.inf
        return cost

    def best(self, k: int = 32, tick: Callable[[float], bool] = lambda share: True) -> Candidates:
        """Find the k cheapest partners of every side.

        `tick` is told the share of the work that is done; when it says False the work ends early.
        """
        n = self.count
        partner = np.full((4 * n, k), -1, np.int32)
        cost = np.full((4 * n, k), np.inf, np.float32)
        if self.turned:
            every = _together(self.axes)
            groups = [(every, every)]
        else:
            halves = slice(0, n), slice(n, 2 * n)
            groups = [
                (axis[halves[way]], axis[halves[1 - way]]) for axis in self.axes for way in (0, 1)
            ]
        for number, (one, other) in enumerate(groups):
            for share, rows, found, costs in _cheapest(one, other, k):
                width = found.shape[1]
                partner[rows, :width] = found
                cost[rows, :width] = costs
                if not tick((number + share) / len(groups)):
                    return Candidates(partner, cost)
        return Candidates(partner, cost)


def _together(axes: list[Lines]) -> Lines:
    return Lines(
        np.concatenate([lines.side for lines in axes]),
        np.concatenate([lines.edge for lines in axes]),
        np.concatenate([lines.expected for lines in axes]),
        np.concatenate([lines.root for lines in axes]),
    )


def _lines(pieces: Pixels, directions: tuple[int, int], sphere: float) -> Lines:
    """Read two opposite sides of all pieces, turned so that they look to the right."""
    looking = [np.rot90(pieces, -direction, axes=(1, 2)) for direction in directions]
    edge = np.concatenate([one[:, :, -1] for one in looking]).astype(np.float64)
    inner = np.concatenate([one[:, :, -2] for one in looking]).astype(np.float64)
    gradient = edge - inner
    n = len(edge)
    sample = np.concatenate([gradient, np.broadcast_to(DUMMIES, (n, *DUMMIES.shape))], axis=1)
    sample = sample - sample.mean(axis=1, keepdims=True)
    covariance = sample.transpose(0, 2, 1) @ sample / (sample.shape[1] - 1)
    if sphere:
        energy = np.trace(covariance, axis1=1, axis2=2)[:, None, None] / 3
        covariance = covariance + sphere * energy * np.eye(3)
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    expected = edge + gradient.mean(axis=1, keepdims=True) / (1 + sphere)
    side = np.concatenate([4 * np.arange(len(pieces)) + direction for direction in directions])
    return Lines(side, *(x.astype(np.float32) for x in (edge, expected, root)))


def _vectors(lines: Lines, centre: Floats) -> tuple[Floats, Floats]:
    """Turn sides into vectors whose scalar product is the cost of a pair: as one and as other.

    With S the inverse covariance, e the expected and o the other border, less the mean colour:
    sum (o - e) S (o - e)' = sum e S e' - 2 sum (e S) o' + sum of S * (o' o).
    """
    edge = (lines.edge - centre)[:, ::-1]  # a partner is read backwards
    expected = lines.expected - centre
    n = len(edge)
    precision = lines.root @ lines.root.transpose(0, 2, 1)
    weighted = expected @ precision
    constant = (weighted * expected).sum(axis=(1, 2), dtype=np.float64).astype(np.float32)
    moment = edge.transpose(0, 2, 1) @ edge
    weights = [-2 * weighted.reshape(n, -1), precision.reshape(n, 9), constant[:, None]]
    feature = [edge.reshape(n, -1), moment.reshape(n, 9), np.ones((n, 1), np.float32)]
    return np.concatenate(weights + feature, axis=1), np.concatenate(feature + weights, axis=1)


def _cheapest(
    one: Lines, other: Lines, k: int
) -> Iterator[tuple[float, Ints, NDArray[np.int32], Floats]]:
    """Find the k cheapest of `other` for the sides of `one`, block by block.

    Yields the share done, the numbers of the sides, their partners and costs (rows, k).
    """
    centre = one.edge.mean(axis=(0, 1))
    left, _ = _vectors(one, centre)
    _, right = _vectors(other, centre)
    count = len(other.side)
    keep = min(k + SPARE, count - 1)
    if keep < 1:
        return
    # A bound for the k-th smallest of a row is the k-th smallest minimum of groups of it.
    groups = min(count, 8 * keep)
    size = -(-count // groups)
    padded = np.zeros((groups * size, right.shape[1]), np.float32)
    padded[:count] = right
    right = np.ascontiguousarray(padded.T)
    piece = other.side // 4
    by_piece = np.argsort(piece, kind="stable").reshape(piece.max() + 1, -1)
    step = max(1, BLOCK // right.shape[1])
    for start in range(0, len(one.side), step):
        rows = slice(start, start + step)
        cost = left[rows] @ right
        cost[:, count:] = np.inf
        own = by_piece[one.side[rows] // 4]  # a piece is never its own neighbour
        np.put_along_axis(cost, own, np.inf, axis=1)
        least = cost.reshape(len(cost), size, groups).min(axis=1)
        bound = np.partition(least, keep - 1, axis=1)[:, keep - 1]
        row, column = np.divmod(np.flatnonzero(cost <= bound[:, None]), cost.shape[1])
        chosen = _first(row, cost[row, column], keep, len(cost))
        i, j = row[chosen] + start, column[chosen]
        exact = pair_costs(one, other, i.ravel(), j.ravel()).reshape(i.shape)
        order = np.argsort(exact, axis=1, kind="stable")[:, :k]
        partner = other.side[np.take_along_axis(j, order, axis=1)].astype(np.int32)
        yield (
            min(1.0, (start + step) / len(one.side)),
            one.side[rows],
            partner,
            np.take_along_axis(exact, order, axis=1),
        )


def _first(row: Ints, value: Floats, keep: int, rows: int) -> Ints:
    """Index the `keep` smallest values of each row, of which there are at least as many."""
    order = np.lexsort((value, row))
    start = np.searchsorted(row[order], np.arange(rows))
    chosen: Ints = order[start[:, None] + np.arange(keep)]
    return chosen


def pair_costs(one: Lines, other: Lines, i: Ints, j: Ints) -> Floats:
    """Compute the costs of pairs of sides exactly: (pairs,)."""
    cost = np.empty(len(i), np.float32)
    for start in range(0, len(i), PAIRS):
        part = slice(start, start + PAIRS)
        a, b = one[i[part]], other[j[part]]
        ahead = (b.edge[:, ::-1] - a.expected) @ a.root
        back = (a.edge[:, ::-1] - b.expected) @ b.root
        cost[part] = np.einsum("plc,plc->p", ahead, ahead)
        cost[part] += np.einsum("plc,plc->p", back, back)
    return cost
