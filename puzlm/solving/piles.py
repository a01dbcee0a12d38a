"""Several puzzles in one pile: how many they are, which piece is of which, how large each is.

Pieces join into groups without a frame (search/joining.py), the surest pairs first. Pictures do not
continue each other, so groups of different puzzles stay apart. What joined no large group goes to
the one whose sides like it best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from puzlm.images import Pixels
from puzlm.puzzle import Grid, Positions
from puzlm.solving.search.candidates import Candidates, Measure
from puzlm.solving.search.joining import FAR, Groups, join, singles, solid
from puzlm.solving.search.large import AGAIN, FIRST
from puzlm.solving.search.pairs import LEAST, STEEP, Pairs, weigh

K = 32  # partners of a side that are kept
OPEN = 150  # pieces; up to here every grid is tried, beyond it is the box of the largest group
LEARNED = 1500  # pieces; up to here learned sides are compared, too: all with all
PIXELS = 0.5  # of what pixels say beside the learned sides
FEWEST = 4  # pieces of a puzzle ...
SHARE = 0.1  # ... and their least share of the largest puzzle in the pile


@dataclass(frozen=True)
class Heap:
    """The pieces of one puzzle in a pile: their numbers (n,), and the grid they seem to fill."""

    pieces: Positions
    grid: Grid


def split(
    pieces: Pixels, edges: Any = None, turned: bool = False, number: int | None = None
) -> list[Heap]:
    """Part a pile (n, height, width, 3) into its puzzles, the largest first; `number` if known."""
    pairs = weigh(_candidates(pieces, edges, turned))
    groups = singles(len(pieces))
    for levels in (FIRST, AGAIN, AGAIN):
        join(pairs, groups, levels, [(FAR // 4, FAR // 4)])
        groups = solid(pairs, groups)
    join(pairs, groups, AGAIN, [(FAR // 4, FAR // 4)])
    names = sorted(groups.cells, key=lambda name: -len(groups.cells[name]))
    least = max(FEWEST, SHARE * len(groups.cells[names[0]]))
    main = [name for name in names if len(groups.cells[name]) >= least] or names[:1]
    if number is not None:
        main = names[:number]
    owner = _owners(pairs, groups, main)
    heaps = []
    for number, name in enumerate(main):
        top, left, bottom, end = groups.boxes[name]
        heaps.append(Heap(np.flatnonzero(owner == number), (bottom - top + 1, end - left + 1)))
    return heaps


def _candidates(pieces: Pixels, edges: Any, turned: bool) -> Candidates:
    """The best partners of each side by its pixels, in small piles by learned sides as well."""
    measure = Measure(pieces, turned)
    n = len(pieces)
    if edges is None or n > LEARNED:
        return measure.best(K)
    vectors = np.asarray(edges.vectors(pieces), np.float32)[
        :, [1, 0, 3, 2]
    ]  # right, up, left, down
    partner = np.full((4 * n, K), -1, np.int32)
    cost = np.full((4 * n, K), np.inf, np.float32)
    low = -STEEP * np.log(LEAST)  # of a cost of 0
    for direction in range(4):
        one = 4 * np.arange(n) + direction
        facing = list(range(4)) if turned else [(direction + 2) % 4]
        likely, others = [], []
        for other in facing:
            sides = 4 * np.arange(n) + other
            if pieces.shape[1] != pieces.shape[2] and direction % 2 != other % 2:
                continue
            alike = vectors[:, direction] @ vectors[:, other].T * edges.scale
            pixels = -STEEP * np.log(measure.matrix(one, sides) + LEAST)
            likely.append(alike + PIXELS * pixels)
            others.append(sides)
        scores = np.concatenate(likely, axis=1)
        scores += low - edges.scale - PIXELS * low
        sides = np.concatenate(others)
        keep = min(K, scores.shape[1])
        best = np.argsort(-scores, axis=1)[:, :keep]
        values = np.take_along_axis(scores, best, axis=1)
        there = np.isfinite(values)
        partner[one, :keep] = np.where(there, sides[best], -1)
        costs = np.exp(np.minimum(-values / STEEP, 80.0)) - LEAST
        cost[one, :keep] = np.where(there, costs, np.inf)
    return Candidates(partner, cost)


def _owners(pairs: Pairs, groups: Groups, main: list[int]) -> Positions:
    """The puzzle of each piece: (n,); small groups go where their best pairs lead."""
    owner = np.full(len(groups.label), -1)
    for number, name in enumerate(main):
        owner[groups.label == name] = number
    one, other = pairs.one // 4, pairs.other // 4
    while (owner < 0).any():
        votes = np.full((len(owner), len(main)), -np.inf)
        for piece, near in ((one, other), (other, one)):
            use = (owner[piece] < 0) & (owner[near] >= 0)
            np.maximum.at(votes, (piece[use], owner[near[use]]), pairs.score[use])
        known = np.isfinite(votes.max(axis=1))
        if not known.any():
            owner[owner < 0] = 0
            break
        owner[known] = votes[known].argmax(axis=1)
    return owner
