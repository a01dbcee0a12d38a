"""What of a photograph is ground: a colour that varies slowly over it, and its texture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from puzlm.images import Pixels

Floats = NDArray[np.float32]

GAMMA = 2.2
DARK = 0.02  # linear light that is added before the logarithm: a camera's noise floor
LEAST_SPREAD = 0.03  # of the logarithm: a ground is never known better than to 3 %
FAR = 4.0  # spreads from the ground that make a pixel foreign
ROUNDS = 6
ROUGH = 400  # pixels of the longer side of the copy in which the ground's light is learned
SOME = 50_000  # pixels say enough of a texture


def logs(pixels: Pixels) -> Floats:
    """Logarithms of linear light (..., 3): light and shadow add to them."""
    table = np.log((np.arange(256) / 255) ** GAMMA + DARK).astype(np.float32)
    found: Floats = table[pixels]
    return found


@dataclass(frozen=True)
class Ground:
    """The ground's logs at every pixel (height, width, 3), and how they spread."""

    surface: Floats
    whiten: NDArray[np.float64]  # (3, 3): residuals times this have unit spread
    share: float  # of the photograph that is ground

    def distance(self, values: Floats, surface: Floats | None = None) -> Floats:
        """How many spreads logs (..., 3) lie from the ground."""
        rest = values - (self.surface if surface is None else surface)
        found: Floats = np.sqrt(((rest @ self.whiten.astype(np.float32)) ** 2).sum(-1))
        return found

    def shaded(self, values: Floats, surface: Floats) -> Floats:
        """The same, but ground that lies in shadow is ground: it is darker, of the same hue."""
        rest = values - surface
        light = np.clip(rest.mean(-1, keepdims=True), -1.2, 0.0)
        found: Floats = np.sqrt((((rest - light) @ self.whiten.astype(np.float32)) ** 2).sum(-1))
        return found


def learn_ground(values: Floats) -> Ground:
    """Fit the ground to logs (height, width, 3): its light in a rough copy, its texture here."""
    height, width = values.shape[:2]
    step = max(1, round(max(height, width) / ROUGH))
    rough = ndimage.uniform_filter(values, (step, step, 1))[step // 2 :: step, step // 2 :: step]
    ground, known = _learn(rough)
    if step == 1:
        return ground
    rows = np.minimum(np.arange(height) // step, len(rough) - 1)
    columns = np.minimum(np.arange(width) // step, rough.shape[1] - 1)
    surface = np.empty_like(values)
    for c in range(3):  # between the rough copy's pixels, linearly
        down = ((np.arange(height) - step // 2) / step).clip(0, len(rough) - 1)
        across = ((np.arange(width) - step // 2) / step).clip(0, rough.shape[1] - 1)
        surface[..., c] = ndimage.map_coordinates(
            ground.surface[..., c], np.meshgrid(down, across, indexing="ij"), order=1
        )
    is_ground = known[rows][:, columns]
    some = (values - surface)[is_ground]
    whiten = _whitener(some[:: max(1, len(some) // SOME)])
    return Ground(surface, whiten, ground.share)


def _learn(values: Floats) -> tuple[Ground, NDArray[np.bool_]]:
    """Fit the ground to logs, starting from the photograph's border; also says where it is seen."""
    height, width = values.shape[:2]
    down, across = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    rim = np.zeros((height, width), bool)
    band = max(2, min(height, width) // 40)
    rim[:band] = rim[-band:] = True
    rim[:, :band] = rim[:, -band:] = True
    step = max(1, round((height * width / 60_000) ** 0.5))
    thin = np.zeros_like(rim)
    thin[::step, ::step] = True
    basis = np.stack([np.ones_like(down), across, down, across**2, down**2, across * down], -1)
    chosen = rim & (np.arange(width) % 2 == 0)
    # The rim may hold some pieces: begin with the middle of its values, and with a plane.
    start = np.median(values[chosen], axis=0)
    rest = values - start
    whiten = _whitener(rest[chosen])
    near = chosen & (np.abs(rest).max(-1) < 3 * np.abs(rest[chosen]).mean() + 0.2)
    surface = values
    for turn in range(ROUNDS):
        terms = 3 if turn < 2 else 6
        flat, seen = basis[near][:, :terms], values[near]
        found, *_ = np.linalg.lstsq(flat, seen, rcond=None)
        surface = (basis[..., :terms] @ found).astype(np.float32)
        rest = values - surface
        whiten = _whitener(rest[near])
        ground = Ground(surface, whiten, 0.0)
        pool = chosen if turn < 1 else thin
        near = pool & (ground.distance(values) < FAR)
        if near.sum() < 50:
            near = chosen
    # Shadows and lamps bend the light more than a parabola: follow the ground where it is seen.
    ground = Ground(surface, whiten, 0.0)
    for reach in (height + width) / 2 * np.array([0.12, 0.06]):
        is_ground = ground.distance(values) < FAR
        surface = _followed(values, is_ground, surface, float(reach))
        whiten = _whitener((values - surface)[is_ground & thin])
        ground = Ground(surface, whiten, float(is_ground.mean()))
    return ground, ground.distance(values) < FAR


def _whitener(rest: Floats) -> NDArray[np.float64]:
    """What gives residuals (n, 3) unit spread; those far out count little."""
    scale = 1.4826 * np.median(np.abs(rest), axis=0) + LEAST_SPREAD
    inner = rest[(np.abs(rest) < 3 * scale).all(-1)]
    spread = np.cov(inner.T) if len(inner) > 10 else np.diag(scale**2)
    values, vectors = np.linalg.eigh(spread)
    found: NDArray[np.float64] = vectors / np.sqrt(np.maximum(values, 0) + LEAST_SPREAD**2)
    return found


def _followed(values: Floats, known: NDArray[np.bool_], base: Floats, reach: float) -> Floats:
    """The base, corrected by the mean residual of the known pixels around."""
    step = max(1, int(reach / 4))
    small = (slice(None, None, step),) * 2
    # Means over blocks first: the blur is wide.
    weight = ndimage.uniform_filter(known.astype(np.float32), step)[small]
    blur = reach / step
    total = ndimage.gaussian_filter(weight, blur)
    parts = []
    for c in range(3):
        rest = np.where(known, values[..., c] - base[..., c], 0)
        mean = ndimage.gaussian_filter(ndimage.uniform_filter(rest, step)[small], blur)
        parts.append(mean / (total + 0.05))  # little ground around: little is corrected
    smooth = np.stack(parts, -1)
    zoom = base.shape[0] / smooth.shape[0], base.shape[1] / smooth.shape[1], 1
    wide = ndimage.zoom(smooth, zoom, order=1, grid_mode=True, mode="nearest")
    found: Floats = base + wide[: base.shape[0], : base.shape[1]]
    return found
