"""Put strips in a row: the asymmetric travelling-salesman path with free ends.

Scores of "j follows i" make a matrix (n, n); one more row and column stand for the end of the row.
Up to `EXACT` strips the best order is found exactly. Beyond that the best assignment is patched
into one tour, segments are moved until no move helps, and restarts follow from shaken tours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXACT = 12  # nodes, the end counted
LONGEST = 60  # strips of a segment that is moved as one, in large heaps
SHAKES = 60  # restarts of a heap of 30 strips; fewer in larger ones


def best_path(score: Floats, begin: Floats, end: Floats, seed: int = 0) -> Ints:
    """Order strips so that the scores of all that follow each other sum to the most: (n,).

    `score[i, j]`: strip j follows i. `begin[j]`: j is the first. `end[i]`: i is the last.

    >>> best_path(np.array([[0.0, 1.0], [5.0, 0.0]]), np.zeros(2), np.zeros(2)).tolist()
    [1, 0]
    """
    n = len(score)
    if n == 1:
        return np.zeros(1, np.int64)
    gain = np.full((n + 1, n + 1), -1e9)
    gain[:n, :n] = score
    gain[:n, n] = end
    gain[n, :n] = begin
    np.fill_diagonal(gain, -1e9)
    tour = _exact(gain) if n + 1 <= EXACT else _searched(gain, seed)
    start = int(np.flatnonzero(tour == n)[0])
    return np.roll(tour, -start)[1:]


def _exact(gain: Floats) -> Ints:
    """Held and Karp: the best tour through all nodes, starting at the last of them."""
    n = len(gain) - 1
    best = np.full((1 << n, n), -np.inf)
    before = np.zeros((1 << n, n), np.int64)
    best[1 << np.arange(n), np.arange(n)] = gain[n, :n]
    for subset in range(1, 1 << n):
        free = [j for j in range(n) if not subset >> j & 1]
        row = best[subset]
        if not free or not np.isfinite(row).any():
            continue
        total = row[:, None] + gain[:n, free]
        which = total.argmax(0)
        for k, j in enumerate(free):
            grown = subset | 1 << j
            if total[which[k], k] > best[grown, j]:
                best[grown, j] = total[which[k], k]
                before[grown, j] = which[k]
    subset = (1 << n) - 1
    last = int((best[subset] + gain[:n, n]).argmax())
    tour = [n]
    while subset:
        tour.append(last)
        previous = int(before[subset, last])
        subset ^= 1 << last
        last = previous
    return np.array(tour[:1] + tour[:0:-1], np.int64)


def _searched(gain: Floats, seed: int) -> Ints:
    """Assignment, patching, segment moves and shaken restarts."""
    rng = np.random.default_rng(seed)
    best = _improved(_patched(gain), gain)
    value = _value(best, gain)
    bound = _bound(gain)
    for _ in range(SHAKES * 30 // max(30, len(gain))):
        if value >= bound - 1e-6:
            break
        cuts = np.sort(rng.choice(len(best) - 1, 3, replace=False) + 1)
        a, b, c, d = np.split(best, cuts)
        trial = _improved(np.concatenate([a, c, b, d]), gain)
        if (other := _value(trial, gain)) > value + 1e-9:
            best, value = trial, other
    return best


def _value(tour: Ints, gain: Floats) -> float:
    return float(gain[tour, np.roll(tour, -1)].sum())


def _bound(gain: Floats) -> float:
    rows, columns = linear_sum_assignment(gain, maximize=True)
    return float(gain[rows, columns].sum())


def _patched(gain: Floats) -> Ints:
    """The best assignment, its cycles joined one after another where it costs least."""
    _, follower = linear_sum_assignment(gain, maximize=True)
    follower = follower.astype(np.int64)
    while True:
        label = _cycles(follower)
        sizes = np.bincount(label)
        if len(sizes) == 1:
            break
        # Join the smallest cycle to any other: i -> f(j) and j -> f(i).
        own = np.flatnonzero(label == sizes.argmin())
        others = np.flatnonzero(label != sizes.argmin())
        kept = gain[own, follower[own]][:, None] + gain[others, follower[others]]
        change = gain[np.ix_(own, follower[others])] + gain[np.ix_(others, follower[own])].T - kept
        at = np.unravel_index(int(change.argmax()), change.shape)
        i = own[at[0]]
        j = others[at[1]]
        follower[[i, j]] = follower[[j, i]]
    tour = [0]
    while (node := int(follower[tour[-1]])) != 0:
        tour.append(node)
    return np.array(tour, np.int64)


def _cycles(follower: Ints) -> Ints:
    """The number of the cycle that each node lies on: (n,)."""
    label = np.full(len(follower), -1)
    count = 0
    for start in range(len(follower)):
        node = start
        if label[node] >= 0:
            continue
        while label[node] < 0:
            label[node] = count
            node = int(follower[node])
        count += 1
    return label


def _improved(tour: Ints, gain: Floats) -> Ints:
    """Move segments to better places until none is better off elsewhere."""
    n = len(tour)
    longest = min(n - 2, LONGEST)
    while True:
        nexts = np.roll(tour, -1)
        joint = gain[tour, nexts]
        best = 1e-9
        move: tuple[int, int, int] | None = None
        for length in range(1, longest + 1):
            # The segment at positions s+1 .. s+length leaves s and enters between t and t+1.
            s = np.arange(n)
            first = tour[(s + 1) % n]
            last = tour[(s + length) % n]
            after = tour[(s + length + 1) % n]
            leave = gain[tour, after] - joint - joint[(s + length) % n]
            enter = gain[tour][:, first].T + gain[last][:, nexts] - joint[None]
            inside = (s[None] - s[:, None]) % n
            enter[inside <= length] = -np.inf
            total = leave[:, None] + enter
            at = int(total.argmax())
            if total.flat[at] > best:
                best = float(total.flat[at])
                move = (at // n, at % n, length)
        if move is None:
            return tour
        s0, t, length = move
        turned = np.roll(tour, -(s0 + 1))
        segment = turned[:length]
        rest = turned[length:]
        place = (t - s0 - 1 - length) % n + 1
        tour = np.concatenate([rest[:place], segment, rest[place:]])
