"""The shortest path through a few dozen things, exactly, as Concorde finds it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix


def shortest_path(distances: NDArray[Any]) -> list[int]:
    """The order of least total distance from each to the next: an integer program, exactly.

    A node more, at distance zero, closes the path into a tour. Tours that fall apart are forbidden
    one by one until one is whole.
    """
    n = len(distances) + 1
    cost = np.zeros((n, n))
    cost[:-1, :-1] = distances
    off = ~np.eye(n, dtype=bool)
    rows, columns = np.nonzero(off)
    count = len(rows)
    once = lil_matrix((2 * n, count))
    once[rows, range(count)] = 1
    once[n + columns, range(count)] = 1
    limits = [LinearConstraint(once.tocsr(), 1, 1)]
    while True:
        found = milp(
            cost[off], integrality=np.ones(count, int), bounds=Bounds(0, 1), constraints=limits
        )
        assert found.x is not None, found.message
        taken = found.x > 0.5
        following = dict(zip(rows[taken].tolist(), columns[taken].tolist(), strict=True))
        tours = _tours(following)
        if len(tours) == 1:
            path = tours[0]
            at = path.index(n - 1)
            return path[at + 1 :] + path[:at]
        for tour in tours:
            inside = np.isin(rows, tour) & np.isin(columns, tour)
            limits.append(LinearConstraint(inside.astype(float), -np.inf, len(tour) - 1))


def _tours(following: dict[int, int]) -> list[list[int]]:
    left = set(following)
    tours: list[list[int]] = []
    while left:
        tour = [min(left)]
        while (step := following[tour[-1]]) != tour[0]:
            tour.append(step)
        left -= set(tour)
        tours.append(tour)
    return tours
