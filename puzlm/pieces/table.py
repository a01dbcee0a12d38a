"""Loose pieces in a photograph of a table: find them, straighten them, number them.

    photo -> small copy -> ground -> spots that are not ground -> quads -> one view of the table
          -> sides at full size -> pieces, straightened, turned to the nearest quarter, numbered

All pieces of a puzzle are of one size. So the clear ones teach the view (camera.py), and the view
says what size the others must have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.spatial import ConvexHull, QhullError

from puzlm.errors import ImageError
from puzlm.images import Pixels
from puzlm.pieces.camera import learn_view
from puzlm.pieces.ground import FAR, Ground, learn_ground, logs

Points = NDArray[np.float64]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

WORK = 1400  # pixels of the longer side of the copy in which pieces are looked for
LEAST_SIDE = 12  # pixels of a piece in that copy
MOST = 600  # spots that are looked at
STRIP = 96  # samples along a side, and ...
MARGIN = 0.14  # ... how far from it its true place is looked for, in sides
INSET = 0.015  # of a side is cut off all around: no ground may show at a border
LEAST_PIECE, MOST_PIECE = 24, 256  # pixels of a straightened piece
NEAR_SQUARE = 0.80  # of a spot and its rectangle that must be common to both
STRAIGHT = 20.0  # degrees: who sets pieces upright by hand turns none of them further
EVEN = 0.12  # by which a piece's sides may differ from the common size


@dataclass(frozen=True)
class Place:
    """Where a piece lies: corners (4, 2) as x, y, clockwise from its top left, in one photo."""

    photo: int
    corners: Points

    @property
    def centre(self) -> tuple[float, float]:
        """The middle of the piece, x and y."""
        x, y = self.corners.mean(0)
        return float(x), float(y)

    @property
    def angle(self) -> float:
        """Degrees by which the piece lies turned clockwise, -45 to 45."""
        x, y = self.corners[1] - self.corners[0] + self.corners[2] - self.corners[3]
        return float(np.degrees(np.arctan2(y, x)))


@dataclass(frozen=True)
class LeftOut:
    """Something on the table that is no piece: where (x, y, width, height), and why."""

    photo: int
    box: tuple[int, int, int, int]
    reason: str


@dataclass(frozen=True, eq=False)
class Table:
    """Pieces (n, height, width, 3) found in photographs; piece i lies at places[i]."""

    pieces: Pixels
    places: tuple[Place, ...]
    left_out: tuple[LeftOut, ...]
    photos: tuple[Pixels, ...]
    names: tuple[str, ...]

    @property
    def turned(self) -> bool:
        """Whether pieces lie at all angles, so that nobody has set them upright."""
        return any(abs(place.angle) > STRAIGHT for place in self.places)


@dataclass(frozen=True)
class _Found:
    """What one photograph holds, in its own pixels."""

    quads: Points  # (n, 4, 2)
    left_out: list[tuple[tuple[int, int, int, int], str]]
    ground: Ground
    scale: float  # photograph -> small copy


def find_pieces(photos: Pixels | Sequence[Pixels], names: tuple[str, ...] = ()) -> Table:
    """Find the pieces of one puzzle in photographs (height, width, 3) of a table."""
    if isinstance(photos, np.ndarray) and photos.ndim == 3:
        photos = [photos]
    found = [_find(photo) for photo in photos]
    places = [
        Place(k, quad) for k, one in enumerate(found) for quad in _in_reading_order(one.quads)
    ]
    left = [LeftOut(k, box, why) for k, one in enumerate(found) for box, why in one.left_out]
    if len(places) < 2:
        what = "no pieces were found" if not places else "only one piece was found"
        raise ImageError(
            f"{what}: pieces must lie apart, each on all sides surrounded by one even ground "
            f"that differs from them{_why(left)}"
        )
    side = int(np.median([_side(p.corners) for p in places]))
    side = int(np.clip(side, LEAST_PIECE, MOST_PIECE))
    pieces = []
    for place in places:
        pieces.append(straighten(photos[place.photo], place.corners, (side, side)))
    names = names or tuple(f"photo {k}" for k in range(len(photos)))
    return Table(np.stack(pieces), tuple(places), tuple(left), tuple(photos), names)


def _why(left: Sequence[LeftOut]) -> str:
    """The first thing that was left out, for the end of an error."""
    return f" (left out: {left[0].reason})" if left else ""


def _side(corners: Points) -> float:
    """Mean length of the sides of a quad (4, 2)."""
    return float(np.linalg.norm(np.roll(corners, -1, 0) - corners, axis=1).mean())


# ---- one photograph ---------------------------------------------------------------------------


def _find(photo: Pixels) -> _Found:
    """Find pieces in one photograph."""
    height, width = photo.shape[:2]
    scale = min(1.0, WORK / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BOX))
    values = logs(small)
    ground = learn_ground(values)
    foreign = ndimage.uniform_filter(values - ground.surface, (3, 3, 1)) + ground.surface
    spots = ground.distance(foreign) > FAR
    spots = ndimage.binary_opening(spots, iterations=2)
    spots = ndimage.binary_fill_holes(spots)
    labels, count = ndimage.label(spots)
    boxes = ndimage.find_objects(labels)
    areas = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    quads: list[Points] = []
    fits: list[float] = []
    owners: list[int] = []
    for k in np.argsort(-areas)[:MOST]:
        if areas[k] < LEAST_SIDE**2:
            break
        spot = labels[boxes[k]] == k + 1
        quad, fit = _quad(spot)
        if quad is None:
            continue
        quads.append(quad + [boxes[k][1].start, boxes[k][0].start])
        fits.append(fit)
        owners.append(int(k))
    kept, left = _choose(np.array(quads).reshape(-1, 4, 2), np.array(fits), small.shape[:2])
    corners = (np.array(quads).reshape(-1, 4, 2)[kept] + 0.5) / scale - 0.5
    corners = _refined(photo, corners, ground, scale)
    notes = []
    for k, why in left:
        box = boxes[owners[k]]
        corner = box[1].start, box[0].start, box[1].stop - box[1].start, box[0].stop - box[0].start
        notes.append((tuple(int(v / scale) for v in corner), why))
    return _Found(corners, notes, ground, scale)  # type: ignore[arg-type]


def _quad(spot: Mask) -> tuple[Points | None, float]:
    """The quad (4, 2) that a spot fills best, and the share of both that is common to both."""
    inner = ndimage.binary_erosion(spot)
    rows, columns = np.nonzero(spot & ~inner)
    points = np.stack([columns, rows], 1).astype(float)
    if len(points) < 12:
        return None, 0.0
    try:
        hull = points[ConvexHull(points).vertices]
    except QhullError:
        return None, 0.0
    quad = _least_rectangle(hull)
    for _ in range(3):
        quad = _lines(points, quad)
    return quad, _common(spot, quad)


def _least_rectangle(hull: Points) -> Points:
    """The rectangle (4, 2) of least area around a convex hull (n, 2)."""
    edges = np.roll(hull, -1, 0) - hull
    angles = np.unique(np.round(np.arctan2(edges[:, 1], edges[:, 0]) % (np.pi / 2), 4))
    best, least = hull[:4], np.inf
    for angle in angles:
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        laid = hull @ turn.T
        low, high = laid.min(0), laid.max(0)
        area = float(np.prod(high - low))
        if area < least:
            least = area
            box = np.array([low, [high[0], low[1]], high, [low[0], high[1]]])
            best = box @ turn
    return best


def _lines(points: Points, quad: Points) -> Points:
    """Move each side of a quad onto the outline's points near it; far ones count little."""
    ways = np.roll(quad, -1, 0) - quad
    lengths = np.linalg.norm(ways, axis=1, keepdims=True)
    ways = ways / np.maximum(lengths, 1e-9)
    normals = np.stack([ways[:, 1], -ways[:, 0]], 1)
    offsets = np.einsum("nki,ki->nk", points[:, None] - quad[None], normals)
    along = np.einsum("nki,ki->nk", points[:, None] - quad[None], ways) / lengths.T
    lines = []
    for k in range(4):
        mine = (np.abs(offsets[:, k]) < 0.2 * lengths.mean()) & (abs(along[:, k] - 0.5) < 0.44)
        if mine.sum() < 5:
            return quad
        t, d = along[mine, k], offsets[mine, k]
        weight = np.ones(len(t))
        slope = level = 0.0
        for _ in range(8):  # least absolute distance
            basis = np.stack([t - 0.5, np.ones_like(t)], 1) * weight[:, None]
            slope, level = np.linalg.lstsq(basis, d * weight, rcond=None)[0]
            rest = np.abs(d - level - slope * (t - 0.5))
            weight = 1 / np.sqrt(rest + 0.3)
        begin = quad[k] + normals[k] * (level - slope / 2)
        end = quad[k] + ways[k] * lengths[k] + normals[k] * (level + slope / 2)
        lines.append((begin, end - begin))
    return _crossings(lines, quad)


def _crossings(lines: Sequence[tuple[Points, Points]], quad: Points) -> Points:
    """Corners where each side meets the one before it."""
    corners = []
    for k in range(4):
        (a, u), (b, v) = lines[k - 1], lines[k]
        det = u[0] * v[1] - u[1] * v[0]
        if abs(det) < 1e-6 * np.linalg.norm(u) * np.linalg.norm(v) + 1e-12:
            return quad
        w = b - a
        corners.append(a + u * (w[0] * v[1] - w[1] * v[0]) / det)
    return np.array(corners)


def _common(spot: Mask, quad: Points) -> float:
    """Share of a spot and a quad together that is common to both."""
    rows, columns = np.indices(spot.shape)
    inside = np.ones(spot.shape, bool)
    for k in range(4):
        way = quad[(k + 1) % 4] - quad[k]
        inside &= way[0] * (rows - quad[k][1]) - way[1] * (columns - quad[k][0]) >= -1
    both = (inside & spot).sum()
    a, b = quad, np.roll(quad, -1, 0)
    area = abs((a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).sum()) / 2
    return float(both / max(1.0, spot.sum() + max(area, both) - both))


def _choose(
    quads: Points, fits: NDArray[np.float64], size: tuple[int, int]
) -> tuple[list[int], list[tuple[int, str]]]:
    """Which quads are pieces of one size, and why each other is none."""
    if not len(quads):
        return [], []
    clear = np.flatnonzero(fits > NEAR_SQUARE)
    sides = np.array([_side(q) for q in quads])
    left: list[tuple[int, str]] = []
    if len(clear):
        view = learn_view(quads[clear], size)
    kept = []
    for k, quad in enumerate(quads):
        if not len(clear):
            break
        ideal = view.rigid(quad)
        wrong = np.linalg.norm(quad - ideal, axis=1).max() / _side(ideal)
        share = (sides[k] / _side(ideal)) ** 2
        low, high = quad.min(0), quad.max(0)
        if fits[k] > NEAR_SQUARE and wrong < EVEN:
            kept.append(k)
        elif share < 0.2:
            continue  # a crumb
        elif low.min() < 1 or (high > np.array(size[::-1]) - 2).any():
            left.append((k, "cut off by the edge of the photo"))
        elif share > 1.5:
            left.append((k, "pieces that touch each other, or something larger than a piece"))
        else:
            left.append((k, "not the shape and size of the other pieces"))
    return kept, left


# ---- at full size -----------------------------------------------------------------------------


def _refined(photo: Pixels, quads: Points, ground: Ground, scale: float) -> Points:
    """Find the sides of quads (n, 4, 2) again, in the photograph itself."""
    if not len(quads):
        return quads
    view = learn_view(quads, photo.shape[:2])
    laid = np.stack([view.rigid(q) for q in quads])
    first = np.stack([_sides(photo, q, ground, scale, MARGIN) for q in laid])
    view = learn_view(first, photo.shape[:2])
    found = []
    for quad in first:
        ideal = view.rigid(quad)
        close = _sides(photo, ideal, ground, scale, MARGIN / 3)
        found.append(close)
    return np.stack([clockwise(q) for q in found])


def _sides(photo: Pixels, quad: Points, ground: Ground, scale: float, reach: float) -> Points:
    """The quad whose sides lie where the ground ends, within `reach` sides of the given ones."""
    side = _side(quad)
    half = max(3, int(np.ceil(reach * min(side, STRIP * 1.5))))
    offsets = np.arange(-half - 3, half + 4) / half * reach * side  # outwards, pixels
    lines = []
    for k in range(4):
        begin, end = quad[k], quad[(k + 1) % 4]
        way = (end - begin) / max(1e-9, np.linalg.norm(end - begin))
        normal = np.array([way[1], -way[0]])
        along = (np.arange(STRIP) + 0.5) / STRIP * 0.92 + 0.04
        at = begin + along[:, None, None] * (end - begin) + offsets[None, :, None] * normal
        seen = _sampled(photo, at)
        values = logs(seen.astype(np.uint8))
        rows = (at[..., 1] + 0.5) * scale - 0.5
        columns = (at[..., 0] + 0.5) * scale - 0.5
        below = np.stack(
            [
                ndimage.map_coordinates(
                    ground.surface[..., c], [rows, columns], order=1, mode="nearest"
                )
                for c in range(3)
            ],
            -1,
        )
        foreign = ground.shaded(values, below)
        step = np.linalg.norm((seen[:, 2:] - seen[:, :-2]), axis=2)
        step = step / (step + 20)
        # A side of a piece has ground beyond it: what lies two samples further out.
        beyond = np.clip(1.5 - foreign[:, 4:] / FAR, 0, 1)
        score = step[:, 2 : 2 + beyond.shape[1] - 1] * (0.15 + 0.85 * beyond[:, 1:])
        # score[:, j] belongs to offsets[j + 3]
        width = score.shape[1]
        ends = np.arange(width)
        t = (along - 0.5)[:, None, None]
        first, last = np.meshgrid(ends, ends, indexing="ij")
        bent = np.abs(first - last) <= max(2, width // 3)
        first, last = first[bent], last[bent]
        line = first[None] + (last - first)[None] * (t[:, 0] + 0.5)
        low = np.floor(line).astype(int)
        part = line - low
        high = np.minimum(low + 1, width - 1)
        rows_ = np.arange(STRIP)[:, None]
        total = (score[rows_, low] * (1 - part) + score[rows_, high] * part).mean(0)
        best = int(total.argmax())
        out = offsets[3 + first[best]], offsets[3 + last[best]]
        a, b = begin + normal * out[0], end + normal * out[1]
        lines.append((a, b - a))
    return _crossings(lines, quad)


def _sampled(photo: Pixels, at: Points) -> Floats:
    """Colours (..., 3) of a photograph at x, y (..., 2), between pixels too."""
    height, width = photo.shape[:2]
    x = np.clip(at[..., 0], 0, width - 1.001)
    y = np.clip(at[..., 1], 0, height - 1.001)
    left, top = x.astype(int), y.astype(int)
    right, down = (x - left)[..., None], (y - top)[..., None]
    upper = photo[top, left] * (1 - right) + photo[top, left + 1] * right
    lower = photo[top + 1, left] * (1 - right) + photo[top + 1, left + 1] * right
    found: Floats = (upper * (1 - down) + lower * down).astype(np.float32)
    return found


def clockwise(quad: Points) -> Points:
    """The same corners (4, 2), clockwise from the one that is top left after a small turn."""
    middle = quad.mean(0)
    around = np.argsort(np.arctan2(*(quad - middle).T[::-1]))
    quad = quad[around]  # y points down, so growing angles run clockwise
    angles = [
        np.arctan2(*(quad[(k + 1) % 4] - quad[k] + quad[(k + 2) % 4] - quad[(k + 3) % 4])[::-1])
        for k in range(4)
    ]
    return np.roll(quad, -int(np.argmin(np.abs(angles))), axis=0)


def _in_reading_order(quads: Points) -> list[Points]:
    """Quads row by row, from left to right."""
    rows: list[list[Points]] = []
    for quad in sorted(quads, key=lambda q: float(q[:, 1].mean())):
        y = quad[:, 1].mean()
        if rows and y - np.mean([q[:, 1].mean() for q in rows[-1]]) < 0.6 * _side(quad):
            rows[-1].append(quad)
        else:
            rows.append([quad])
    return [q for row in rows for q in sorted(row, key=lambda q: float(q[:, 0].mean()))]


def straighten(photo: Pixels, corners: Points, size: tuple[int, int]) -> Pixels:
    """The piece with these corners (4, 2) as an upright picture of a size (height, width)."""
    height, width = size
    # A photo larger than the piece is averaged, not sampled: that many samples a pixel and side.
    fine = max(1, round(_side(corners) / min(size)))
    down = (np.arange(height * fine) + 0.5) / (height * fine)
    across = (np.arange(width * fine) + 0.5) / (width * fine)
    inner = [INSET + (1 - 2 * INSET) * line for line in (across, down)]
    x, y = np.meshgrid(*inner)
    seen = _sampled(photo, _through(corners, x, y))
    seen = seen.reshape(height, fine, width, fine, 3).mean((1, 3))
    found: Pixels = np.clip(np.rint(seen), 0, 255).astype(np.uint8)
    return found


def _through(corners: Points, x: Points, y: Points) -> Points:
    """Photograph's x, y (..., 2) of points in a piece, each 0 to 1, in perspective."""
    a, b, c, d = corners
    # The projective map of the unit square onto four corners (Heckbert).
    e, f, g = b - c, d - c, a - b + c - d
    det = e[0] * f[1] - e[1] * f[0]
    p = (g[0] * f[1] - g[1] * f[0]) / det
    q = (e[0] * g[1] - e[1] * g[0]) / det
    right, below = b - a + p * b, d - a + q * d
    over = (p * x + q * y + 1)[..., None]
    return np.asarray((a + x[..., None] * right + y[..., None] * below) / over)
