"""Where pieces of a known size lie, told by their edges: also pieces that look like the ground.

An edge of a piece is a jump of colour with ground beyond it. The edge of a shadow is one, too, but
what lies inside it is ground that is darker. Part of an edge may be lost where piece and ground are
of one colour; four sides of a known length still say where the piece is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from puzlm.pieces.camera import View, rectangle
from puzlm.pieces.ground import FAR, Floats, Ground

Points = NDArray[np.float64]
Mask = NDArray[np.bool_]

SHORT = 64  # pixels of a side in the copy that is searched
SAMPLES = 20  # along a side
BESIDE = 2.0  # pixels from the edge at which its two sides are looked at
# What an edge is worth without ground beyond it, and without a piece inside of it.
NO_GROUND, NO_PIECE = 0.15, 0.2
SIDE_STEP, TURN_STEP = 0.085, np.radians(6)  # of the first, coarse search
ROOM = 0.45  # sides around a spot's middle in which the middle of its piece is looked for


def worth(jump: Floats, beyond: Floats, inside: Floats) -> Floats:
    """Worth 0 to 1 of edge points: jump in spreads, and how foreign both sides of it are."""
    ground = NO_GROUND + (1 - NO_GROUND) * np.clip(1.5 - beyond / FAR, 0, 1)
    piece = NO_PIECE + (1 - NO_PIECE) * np.clip(inside / FAR - 0.25, 0, 1)
    found: Floats = jump / (jump + FAR) * ground * piece
    return found


class Edges:
    """A photo's jumps of colour and its ground, to be asked how well squares fit into it."""

    def __init__(self, values: Floats, ground: Ground, side: float) -> None:
        """Logs of light (height, width, 3), the ground, and the length of a piece's side."""
        # In a copy where sides are short a search in small steps passes over no edge.
        self.step = max(1, round(side / SHORT))
        values, surface = (
            ndimage.uniform_filter(x, (self.step, self.step, 1))[
                self.step // 2 :: self.step, self.step // 2 :: self.step
            ]
            for x in (values, ground.surface)
        )
        self.foreign = ground.shaded(values, surface)
        # Colours in spreads of the ground: then a jump says how far it is from chance.
        spread = values @ ground.whiten.astype(np.float32)
        down = ndimage.gaussian_filter(spread, (1, 1, 0), order=(1, 0, 0)) * 2
        across = ndimage.gaussian_filter(spread, (1, 1, 0), order=(0, 1, 0)) * 2
        self.tensor = np.stack(
            [(across**2).sum(-1), (across * down).sum(-1), (down**2).sum(-1)], -1
        )

    def fit(self, quads: Points) -> Floats:
        """How much of each side of quads (n, 4, 2) is an edge of a piece: (n, 4), 0 to 1."""
        begin = quads[:, :, None]
        way = np.roll(quads, -1, 1)[:, :, None] - begin
        normal = np.stack([way[..., 1], -way[..., 0]], -1)
        normal = normal / np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-9)
        share = ((np.arange(SAMPLES) + 0.5) / SAMPLES)[:, None]
        at = begin + way * share
        tensor = self._at(self.tensor, at)
        x, y = normal[..., 0], normal[..., 1]
        jump = np.sqrt(
            np.maximum(
                tensor[..., 0] * x**2 + 2 * tensor[..., 1] * x * y + tensor[..., 2] * y**2, 0
            )
        )
        beyond = self._at(self.foreign, at + BESIDE * self.step * normal)
        inside = self._at(self.foreign, at - BESIDE * self.step * normal)
        found: Floats = worth(jump, beyond, inside).mean(-1)
        return found

    def _at(self, values: Floats, at: Points) -> Floats:
        """Values at the pixels nearest to x, y (..., 2); the margin is repeated."""
        height, width = values.shape[:2]
        at = (at - self.step // 2) / self.step
        column = np.clip(np.rint(at[..., 0]), 0, width - 1).astype(np.intp)
        row = np.clip(np.rint(at[..., 1]), 0, height - 1).astype(np.intp)
        found: Floats = values[row, column]
        return found

    def search(self, view: View, spot: Mask, low: tuple[int, int]) -> tuple[Points, float]:
        """The piece (4, 2) that explains a spot best, and how well its sides fit.

        `spot` (height, width) lies with its first pixel at `low`, row and column.
        """
        rows, columns = np.nonzero(spot)
        points = np.stack([columns + low[1], rows + low[0]], 1).astype(float)
        flat = view.flat(points[:: max(1, len(points) // 400)])
        side = min(view.width, view.height)
        middle = (flat.min(0) + flat.max(0)) / 2
        reach = np.maximum(ROOM * side, (np.ptp(flat, axis=0) - side) / 2 + 0.1 * side)
        counts = np.maximum(3, np.ceil(2 * reach / (SIDE_STEP * side)).astype(int))
        xs = middle[0] + np.linspace(-reach[0], reach[0], counts[0])
        ys = middle[1] + np.linspace(-reach[1], reach[1], counts[1])
        oblong = abs(view.width - view.height) > 0.02 * side
        turns = np.arange(0, np.pi if oblong else np.pi / 2, TURN_STEP)
        grid = np.stack(np.meshgrid(xs, ys, turns, indexing="ij"), -1).reshape(-1, 3)
        best = grid[self._order(view, grid, flat)[:6]]
        return self._climbed(view, best, np.array([SIDE_STEP * side] * 2 + [TURN_STEP]), flat)

    def polished(self, view: View, quad: Points) -> tuple[Points, float]:
        """The piece (4, 2) near a quad whose sides fit best, and how well."""
        side = min(view.width, view.height)
        start = pose(view, quad)[None]
        return self._climbed(view, start, np.array([0.08 * side] * 2 + [0.08]), None)

    def sized(self, view: View, quads: Points) -> View:
        """The view with the size at which pieces near some quads (n, 4, 2) have the best sides.

        Shadows make every spot larger by as much, so spots do not tell the size.
        """
        some = quads[:: max(1, len(quads) // 8)]
        best = 1.0
        for step in (0.04, 0.02, 0.01):
            factors = best + step * np.arange(-4 if step == 0.04 else -1, 2)
            views = [replace(view, width=view.width * f, height=view.height * f) for f in factors]
            fits = [np.median([self.polished(one, q)[1] for q in some]) for one in views]
            best = float(factors[int(np.argmax(fits))])
        return replace(view, width=view.width * best, height=view.height * best)

    def _climbed(
        self, view: View, best: Points, step: Points, spot: Points | None
    ) -> tuple[Points, float]:
        """The best pose near some, in ever smaller steps."""
        around = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3, indexing="ij"), -1).reshape(-1, 3)
        for _ in range(5):
            step = step / 2
            poses = (best[:, None] + around * step).reshape(-1, 3)
            best = poses[self._order(view, poses, spot)[:3]]
        quad = lay(view, best[:1])[0]
        return quad, float(self.fit(quad[None])[0].mean())

    def _order(self, view: View, poses: Points, spot: Points | None) -> NDArray[np.intp]:
        """Poses (n, 3) from best to worst: their sides are edges, and the spot lies within."""
        score = np.empty(len(poses))
        for first in range(0, len(poses), 4096):
            some = poses[first : first + 4096]
            score[first : first + 4096] = self.fit(lay(view, some)).mean(1)
            if spot is None:
                continue
            cos, sin = np.cos(some[:, 2:]), np.sin(some[:, 2:])
            x = spot[None, :, 0] - some[:, :1]
            y = spot[None, :, 1] - some[:, 1:2]
            inside = (np.abs(x * cos + y * sin) < view.width * 0.52) & (
                np.abs(y * cos - x * sin) < view.height * 0.52
            )
            score[first : first + 4096] += 0.5 * inside.mean(1)
        return np.argsort(-score)


def lay(view: View, poses: Points) -> Points:
    """Pieces (n, 4, 2) in the photo from x, y and angle (n, 3) on the flat table."""
    cos, sin = np.cos(poses[:, 2]), np.sin(poses[:, 2])
    turn = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], -2)
    shape = rectangle(view.width, view.height)
    return view.photo(np.einsum("kj,nji->nki", shape, turn) + poses[:, None, :2])


def pose(view: View, quad: Points) -> Points:
    """x, y and angle (3,) on the flat table of the piece nearest to a quad (4, 2)."""
    flat = view.flat(view.rigid(quad))
    along = flat[1] - flat[0]
    if np.linalg.norm(along) < np.linalg.norm(flat[2] - flat[1]) and view.width > view.height:
        along = flat[2] - flat[1]
    return np.array([*flat.mean(0), np.arctan2(along[1], along[0])])
