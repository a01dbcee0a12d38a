"""Loose pieces in a photograph of a table: find them, straighten them, number them.

    photo -> small copy -> ground -> spots that are not ground -> quads -> one view of the table
          -> sides at full size -> pieces, straightened, turned to the nearest quarter, numbered

All pieces of a puzzle are of one size. So the clear ones teach the view (camera.py), and the view
says what size the others must have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.spatial import ConvexHull, QhullError

from puzlm.errors import ImageError
from puzlm.images import Pixels
from puzlm.pieces.camera import View, learn_view
from puzlm.pieces.edges import Edges, worth
from puzlm.pieces.ground import FAR, Ground, learn_ground, logs

Points = NDArray[np.float64]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

WORK = 1400  # pixels of the longer side of the copy in which pieces are looked for
LEAST_SIDE = 12  # pixels of a piece in that copy
MOST = 600  # spots that are looked at
STRIP = 96  # samples along a side, and ...
REACHES = (0.07, 0.05)  # ... how far from it its true place is looked for, in sides, each time
CUT = 0.02  # of a side: how exactly hands cut
JUMP = 20.0  # of 256: a jump of colour between two samples that is hardly noise
INSET = 0.015  # of a side is cut off all around: no ground may show at a border
LEAST_PIECE, MOST_PIECE = 24, 256  # pixels of a straightened piece
NEAR_SQUARE = 0.88  # of a spot and its rectangle that must be common to both
STRAIGHT = 20.0  # degrees: who sets pieces upright by hand turns none of them further
EVEN = 0.12  # by which a piece's sides may differ from the common size
CRUMB = 0.04  # of a piece's area: what is smaller is dirt
POOR = 0.35  # fit of the sides of what is no piece: a coin, a shadow
WEAK = 0.5  # of the usual fit of the sides, from which on a spot that is no rectangle is a piece
LARGEST = 2.6  # sides: larger spots are no few pieces that touch
FAILURES = 5  # spots that are no pieces, beyond which the rest is not looked at
LOOK = 12  # pixels of a side at which two looks at pieces are compared
# Squared difference of two looks by what is on the piece: of a drawn pile photographed twice 0.005
# to 0.03, of plain sky up to 0.38, of different pieces from 0.6 on.
ALIKE = 0.5  # twice that, once half of a photo's pieces are known
LARGE = 1e9
WITHIN = 0.8  # of such a spot lies in the piece


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
    piece: int = -1
    """The piece that is shown once more, if that is the reason."""


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
    again = _again(np.stack(pieces), np.array([place.photo for place in places]))
    own = [k for k in range(len(places)) if k not in again]
    for k, first in again.items():
        x, y = places[k].corners.min(0).astype(int).tolist()
        width, height = np.ptp(places[k].corners, axis=0).astype(int).tolist()
        piece = own.index(first)
        why = f"piece {piece} once more"
        left.append(LeftOut(places[k].photo, (x, y, width, height), why, piece))
    shown = tuple(places[k] for k in own)
    return Table(np.stack([pieces[k] for k in own]), shown, tuple(left), tuple(photos), names)


def _again(pieces: Pixels, photo: NDArray[np.int64]) -> dict[int, int]:
    """Pieces that an earlier photo shows, too, and as which: pieces of a pile photographed twice.

    Two looks at one piece differ by little of what is on it, two pieces by more than all of that.
    """
    if not photo.any():
        return {}
    looks = []
    for turn in range(4):
        turned = [Image.fromarray(np.ascontiguousarray(np.rot90(p, turn))) for p in pieces]
        small = [np.asarray(p.resize((LOOK, LOOK), Image.Resampling.BOX), float) for p in turned]
        looks.append(np.stack(small).reshape(len(pieces), -1, 3))
    looks = [(look - look.mean(1, keepdims=True)).reshape(len(pieces), -1) for look in looks]
    one = looks[0]
    alike = np.max([one @ look.T for look in looks], axis=0)
    norm = (one**2).sum(axis=1)  # the same in every turn
    apart = np.maximum(norm[:, None] + norm - 2 * alike, 0) / one.shape[1]
    lively = (looks[0] ** 2).mean(1)
    apart /= np.maximum(np.minimum(lively[:, None], lively), 1e-6)
    found: dict[int, int] = {}
    own = np.flatnonzero(photo == 0)
    for number in range(1, int(photo.max()) + 1):
        mine = np.flatnonzero(photo == number)
        if not len(mine) or not len(own):
            own = np.append(own, mine)
            continue
        some = apart[np.ix_(mine, own)].copy()
        for number_found in range(len(mine)):  # the surest first: others then have fewer rivals
            limit = ALIKE if 2 * number_found < len(mine) else 2 * ALIKE
            rivals = np.minimum(_others(some), _others(some.T).T)
            sure = np.where(some < limit, some / rivals, LARGE)
            k, nearest = np.unravel_index(int(sure.argmin()), some.shape)
            if sure[k, nearest] > 0.5:
                break
            found[int(mine[k])] = int(own[nearest])
            some[k] = some[:, nearest] = LARGE
        own = np.append(own, [k for k in mine.tolist() if k not in found]).astype(np.int64)
    return found


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
    spots = _spots(values, ground)
    clear = _clear(spots)
    if not len(clear):
        return _Found(np.zeros((0, 4, 2)), [], ground, scale)
    view = learn_view(clear, small.shape[:2])
    edges = Edges(values, ground, min(view.width, view.height))
    view = edges.sized(view, clear)
    quads, left = _settled(spots, clear, view, edges, small.shape[:2])
    corners = _refined(photo, (quads + 0.5) / scale - 0.5, ground, scale)
    notes = []
    for box, why in left:
        corner = box[1].start, box[0].start, box[1].stop - box[1].start, box[0].stop - box[0].start
        notes.append((tuple(int(v / scale) for v in corner), why))
    return _Found(corners, notes, ground, scale)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Spot:
    """What is not ground, in one connected part; its quad is in pixels of the small copy."""

    mask: Mask
    box: tuple[slice, slice]
    area: int
    quad: Points | None
    fit: float  # of the quad


def _spots(values: Floats, ground: Ground) -> list[_Spot]:
    """Everything that is not ground, the largest first."""
    soft = ndimage.uniform_filter(values, (3, 3, 1))
    foreign = ground.distance(soft) > FAR
    foreign = ndimage.binary_opening(foreign, iterations=2)
    foreign = ndimage.binary_fill_holes(foreign)
    labels, count = ndimage.label(foreign)
    boxes = ndimage.find_objects(labels)
    areas = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    spots = []
    for k in np.argsort(-areas)[:MOST]:
        mask = labels[boxes[k]] == k + 1
        quad = None
        fit = 0.0
        if areas[k] >= LEAST_SIDE**2:
            quad, fit = _quad(mask)
        if quad is not None:
            quad = quad + [boxes[k][1].start, boxes[k][0].start]
        spots.append(_Spot(mask, boxes[k], int(areas[k]), quad, fit))
    return spots


def _clear(spots: Sequence[_Spot]) -> Points:
    """Quads (n, 4, 2) of spots that are rectangles of the commonest size."""
    quads = np.array([s.quad for s in spots if s.quad is not None and s.fit > NEAR_SQUARE])
    if not len(quads):
        return np.zeros((0, 4, 2))
    lengths = np.linalg.norm(np.roll(quads, -1, 1) - quads, axis=2)
    sizes = np.sqrt(lengths.max(1) * lengths.min(1))
    ratio = sizes[:, None] / sizes[None]
    alike = (np.abs(np.log(ratio)) < 0.25).sum(1)
    best = int(np.lexsort((sizes, alike))[-1])  # of two sizes as common, the larger
    found: Points = quads[np.abs(np.log(ratio[best])) < 0.25]
    return found


def _settled(
    spots: Sequence[_Spot], clear: Points, view: View, edges: Edges, size: tuple[int, int]
) -> tuple[Points, list[tuple[tuple[slice, slice], str]]]:
    """Pieces (n, 4, 2) of the common size, and what else there is."""
    side = min(view.width, view.height)
    middles = clear.mean(1)
    quads: list[Points] = []
    fits: list[float] = []
    rest: list[_Spot] = []
    for spot in spots:
        if spot.quad is None or not (np.abs(middles - spot.quad.mean(0)).max(1) < 1e-6).any():
            rest.append(spot)
            continue
        quad, fit = edges.polished(view, spot.quad)
        off = np.linalg.norm(quad - view.rigid(spot.quad), axis=1).max()
        if off < EVEN * 2 * side and fit > POOR:
            quads.append(quad)
            fits.append(fit)
        else:
            rest.append(spot)
    usual = float(np.median(fits)) if fits else 1.0
    certain = len(quads)
    left = []
    failed = 0
    for spot in rest:
        if spot.area < CRUMB * side**2:
            break  # they come in order of their size
        mask = _outside(spot, quads)
        if mask.sum() < max(CRUMB * side**2, 0.3 * spot.area):
            continue  # a shadow, or another part of a piece that was found
        more = 0
        if max(mask.shape) > LARGEST * side or failed > FAILURES + certain // 2:
            left.append((spot.box, _reason(spot, size, side**2)))
            continue
        while mask.sum() > 0.3 * side**2 or not more and mask.any():
            quad, fit = edges.search(view, mask, (spot.box[0].start, spot.box[1].start))
            beyond = _outside(spot, [quad], mask)
            inside = (mask.sum() - beyond.sum()) / min(mask.sum(), _area(quad))
            if fit < max(WEAK * usual, POOR) or inside < WITHIN or _overlaps(quad, quads):
                break
            quads.append(quad)
            mask = beyond
            more += 1
        if not more or mask.sum() > 0.5 * side**2:
            left.append((spot.box, _reason(spot, size, side**2)))
            failed += 1
    if len(quads) > 2 * certain:  # most were guessed: a picture, not a table
        quads = quads[:certain]
    return np.array(quads).reshape(-1, 4, 2), left


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
    at = np.indices(spot.shape)
    inside = _within(quad, at[1], at[0], 0.01)
    both = (inside & spot).sum()
    return float(both / max(1.0, spot.sum() + max(_area(quad), both) - both))


def _area(quad: Points) -> float:
    """Area of a quad (4, 2)."""
    a, b = quad, np.roll(quad, -1, 0)
    return float(abs((a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).sum()) / 2)


def _outside(spot: _Spot, quads: Sequence[Points], mask: Mask | None = None) -> Mask:
    """The part of a spot that lies in none of some quads."""
    found = (spot.mask if mask is None else mask).copy()
    at = np.indices(found.shape)
    for quad in quads:
        found &= ~_within(quad, at[1] + spot.box[1].start, at[0] + spot.box[0].start, 0.04)
    return found


def _within(quad: Points, x: NDArray[Any], y: NDArray[Any], slack: float) -> Mask:
    """Which points lie in a quad (4, 2), or less than `slack` of its side beyond it."""
    inside = np.ones(x.shape, bool)
    for k in range(4):
        way = quad[(k + 1) % 4] - quad[k]
        area = way[0] * (y - quad[k][1]) - way[1] * (x - quad[k][0])
        inside &= area >= -slack * (way**2).sum()
    return inside


def _overlaps(quad: Points, others: Sequence[Points]) -> bool:
    """Whether a quad covers a good part of another."""
    share = np.stack(np.meshgrid([0.1, 0.3, 0.5, 0.7, 0.9], [0.1, 0.3, 0.5, 0.7, 0.9]), -1)
    for other in others:
        if np.linalg.norm(quad.mean(0) - other.mean(0)) > 1.5 * _side(other):
            continue
        points = _through(quad, share[..., 0], share[..., 1])
        if _within(other, points[..., 0], points[..., 1], 0.0).mean() > 0.1:
            return True
    return False


def _reason(spot: _Spot, size: tuple[int, int], area: float) -> str:
    """Why a spot is no piece."""
    down, across = spot.box
    if (
        down.start <= 1
        or across.start <= 1
        or down.stop >= size[0] - 1
        or across.stop >= size[1] - 1
    ):
        return "cut off by the edge of the photo"
    if spot.area > 1.4 * area:
        return "pieces that touch each other, or something larger than a piece"
    return "not the shape and size of the other pieces"


# ---- at full size -----------------------------------------------------------------------------


def _refined(photo: Pixels, quads: Points, ground: Ground, scale: float) -> Points:
    """Find the sides of quads (n, 4, 2) again, in the photograph itself."""
    if not len(quads):
        return quads
    view = learn_view(quads, photo.shape[:2])
    laid = np.stack([view.rigid(q) for q in quads])
    for reach in REACHES:
        found = np.stack([_sides(photo, q, ground, scale, reach) for q in laid])
        view = learn_view(found, photo.shape[:2])
        laid = np.stack([view.rigid(q) for q in found])
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
        jump = np.linalg.norm(seen[:, 4:-2] - seen[:, 2:-4], axis=2) * (FAR / JUMP)
        score = worth(jump, foreign[:, 5:-1], foreign[:, 1:-5])  # of offsets[3:-3]
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
        # Hands cut within a few percent: an edge far from where the others say it is, is not it.
        far = (offsets[3 + first] ** 2 + offsets[3 + last] ** 2) / (2 * (CUT * side) ** 2)
        best = int((total - 0.1 * far).argmax())
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


def _others(apart: Floats) -> Floats:
    """The least of each row without the entry itself: (n, m)."""
    first, second = np.sort(np.pad(apart, ((0, 0), (0, 1)), constant_values=LARGE), axis=1)[:, :2].T
    found: Floats = np.where(apart == first[:, None], second[:, None], first[:, None])
    return found


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
