"""How a flat table looks in a photograph, learned from pieces that are all of one size.

A photograph's x, y lead to flat coordinates in which every piece is the same rectangle:

    x, y  -> unbent (lens)  -> divided by 1 + l . p (perspective)  -> stretched (aspect, skew)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Points = NDArray[np.float64]

FEW = 4  # quads; from fewer of them perspective is not worth guessing, and the lens not from ...
SOME = 8
SLACK = 0.01  # of a side: residuals beyond count less and less


@dataclass(frozen=True)
class View:
    """Maps between a photograph and its flat table; `width` and `height` of a piece are in both."""

    middle: Points  # (2,) x, y
    radius: float  # half the photograph's diagonal, pixels
    lens: tuple[float, float, float, float, float]  # bend, two of perspective, stretch, skew
    width: float = 0.0
    height: float = 0.0

    def flat(self, points: Points) -> Points:
        """Photograph (..., 2) -> table (..., 2)."""
        bend, tilt_x, tilt_y, stretch, skew = self.lens
        p = (points - self.middle) / self.radius
        p = p * (1 + bend * (p**2).sum(-1, keepdims=True))
        p = p / (1 + p[..., :1] * tilt_x + p[..., 1:] * tilt_y)
        laid = np.stack([p[..., 0] + skew * p[..., 1], p[..., 1] * stretch], -1)
        found: Points = laid * self.radius
        return found

    def photo(self, points: Points) -> Points:
        """Table (..., 2) -> photograph (..., 2)."""
        bend, tilt_x, tilt_y, stretch, skew = self.lens
        y = points[..., 1:] / stretch
        p = np.concatenate([points[..., :1] - skew * y, y], -1) / self.radius
        p = p / (1 - p[..., :1] * tilt_x - p[..., 1:] * tilt_y)
        unbent = p
        for _ in range(5):
            p = unbent / (1 + bend * (p**2).sum(-1, keepdims=True))
        found: Points = p * self.radius + self.middle
        return found

    def rigid(self, corners: Points) -> Points:
        """The piece (4, 2) of the right size that lies nearest to a quad (4, 2)."""
        if not self.width:
            return corners
        quad = self.flat(corners)
        best = corners
        least = np.inf
        for size in {(self.width, self.height), (self.height, self.width)}:
            shape = rectangle(*size)
            centre = quad.mean(0)
            # The angle that turns the shape onto the quad in the least squares (Kabsch, 2-D).
            arms = quad - centre
            dot = (shape * arms).sum()
            cross = (shape[:, 0] * arms[:, 1] - shape[:, 1] * arms[:, 0]).sum()
            cos, sin = np.array([dot, cross]) / np.hypot(dot, cross)
            laid = shape @ np.array([[cos, sin], [-sin, cos]]) + centre
            distance = float(((laid - quad) ** 2).sum())
            if distance < least:
                best = self.photo(laid)
                least = distance
        found: Points = best
        return found


def rectangle(width: float, height: float) -> Points:
    """Corners (4, 2) around the origin, clockwise from top left."""
    found: Points = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * np.array([width, height]) / 2
    return found


def learn_view(quads: Points, size: tuple[int, int]) -> View:
    """Find the view in which quads (n, 4, 2) are most nearly equal squares, or equal rectangles."""
    height, width = size
    plain = View(
        np.array([width - 1, height - 1]) / 2, float(np.hypot(height, width)) / 2, (0, 0, 0, 1, 0)
    )
    square = _fitted(plain, quads, False)
    oblong = _fitted(plain, quads, True)
    clearly = oblong[0].width > 1.08 * oblong[0].height and oblong[1] < 0.5 * square[1]
    return (oblong if clearly else square)[0]


def _fitted(plain: View, quads: Points, oblong: bool) -> tuple[View, float]:
    """The view of least cost, and that cost."""
    free = 5 if len(quads) >= SOME else 4 if len(quads) >= FEW else 0
    order = [1, 2, 3, 4, 0][:free]  # the lens last
    side = float(np.median(_edges(quads)))

    def view(values: Points) -> View:
        lens = list(plain.lens)
        for place, value in zip(order, values[2:], strict=True):
            lens[place] = value
        return View(plain.middle, plain.radius, tuple(lens), *np.exp(values[:2]))  # type: ignore

    def errors(values: Points) -> Points:
        if not oblong:
            values = np.concatenate([[values[0]], values])
        one = view(values)
        flat = one.flat(quads)
        edges = _edges(flat)
        pairs = (edges[:, 0] + edges[:, 2]) / 2, (edges[:, 1] + edges[:, 3]) / 2
        long = pairs[0] > pairs[1] if oblong else np.ones(len(quads), bool)
        wanted = np.where(long[:, None], [one.width, one.height] * 2, [one.height, one.width] * 2)
        across = np.linalg.norm(flat[:, :2] - flat[:, 2:], axis=2)
        scale = np.hypot(one.width, one.height)
        wrong = [(edges - wanted) / scale, across / scale - 1]
        # A weak pull to a plain view keeps what the quads do not say near zero.
        pull = 0.02 * (values[2:] - [plain.lens[i] for i in order])
        return np.concatenate([*(w.ravel() for w in wrong), pull])

    start = np.log([side] * 2 if oblong else [side])
    values = np.concatenate([start, [plain.lens[i] for i in order]])
    found = least_squares(errors, values, loss="soft_l1", f_scale=SLACK)
    best = found.x if oblong else np.concatenate([[found.x[0]], found.x])
    return view(best), float(found.cost)


def _edges(quads: Points) -> Points:
    """Lengths (n, 4) of the sides of quads, top first."""
    lengths: Points = np.linalg.norm(np.roll(quads, -1, 1) - quads, axis=2)
    return lengths
