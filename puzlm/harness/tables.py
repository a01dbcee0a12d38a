"""Photographs of loose pieces on a table, rendered with a camera model; the truth is known.

Lengths on the table are in sides of a piece. All light is linear until the last step, so light,
shadow and vignette multiply, as they do in a camera.

    picture -> pieces, each at its place and angle on the table -> camera -> light -> JPEG
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from puzlm.errors import ImageError
from puzlm.images import Pixels, write_image
from puzlm.pieces.table import Table, find_pieces
from puzlm.puzzle import Grid, cut, parse_grid

Floats = NDArray[np.float32]
Points = NDArray[np.float64]

GAMMA = 2.2
TILT = 25.0  # degrees, the most that the camera leans
JPEG_QUALITY = 80
GROUNDS = ("plain", "wood", "stone", "cloth", "speckle")
NEAR = 0.25  # sides: a piece whose corners lie further from its true ones was not found
SQUARE = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])  # clockwise from top left


@dataclass(frozen=True)
class TablePhoto:
    """A photograph (height, width, 3) and where each piece truly lies in it.

    corners[i] (4, 2) are x, y in pixels, clockwise from the piece's own top left. cells[i] is the
    raster cell that piece i came from.
    """

    image: Pixels
    corners: Points
    cells: NDArray[np.int64]
    ground: str


@dataclass(frozen=True)
class Camera:
    """A pinhole with one term of radial distortion that looks at the table's origin."""

    rotation: Points  # (3, 3): table -> camera
    distance: float
    focal: float  # pixels
    bend: float  # of a ray at the picture's corner, as a share of its length
    size: tuple[int, int]  # height, width

    @property
    def _corner(self) -> float:
        """Squared length of the undistorted ray through the corner of the picture."""
        height, width = self.size
        return (height**2 + width**2) / (2 * self.focal) ** 2

    def project(self, points: Points) -> Points:
        """Table (n, 2) -> x, y in pixels (n, 2)."""
        flat = np.concatenate([points, np.zeros((len(points), 1))], 1)
        seen = flat @ self.rotation.T + np.array([0, 0, self.distance])
        rays = seen[:, :2] / seen[:, 2:]
        bent = rays * (1 + self.bend * (rays**2).sum(1, keepdims=True) / self._corner)
        middle = np.array([self.size[1], self.size[0]]) / 2 - 0.5
        found: Points = bent * self.focal + middle
        return found

    def table(self) -> tuple[Floats, Floats]:
        """The table's coordinates that each pixel sees: two of (height, width)."""
        height, width = self.size
        across = (np.arange(width) - width / 2 + 0.5) / self.focal
        down = (np.arange(height) - height / 2 + 0.5) / self.focal
        bent_x, bent_y = np.meshgrid(across, down)
        x, y = bent_x, bent_y
        for _ in range(6):  # converges: the bend is small
            factor = 1 + self.bend * (x**2 + y**2) / self._corner
            x, y = bent_x / factor, bent_y / factor
        # On the table z = 0: distance along the ray from the third row of the inverse rotation.
        back = self.rotation.T
        eye = -back @ np.array([0, 0, self.distance])
        ways = [back[i, 0] * x + back[i, 1] * y + back[i, 2] for i in range(3)]
        far = -eye[2] / ways[2]
        return (
            (eye[0] + far * ways[0]).astype(np.float32),
            (eye[1] + far * ways[1]).astype(np.float32),
        )


def photograph(
    picture: Pixels,
    grid: Grid,
    rng: np.random.Generator,
    *,
    side: int = 170,
    ground: str | None = None,
    turned: float = 180.0,
    tilt: float = TILT,
) -> TablePhoto:
    """Cut a picture, lay the pieces on a table in any order and turn, and take a photograph.

    A piece is about `side` pixels wide in it, turned by up to `turned` degrees either way.
    """
    cells = rng.permutation(grid[0] * grid[1])
    places, angles = _lay(len(cells), turned, rng)
    outline = _outlines(places, angles)
    camera = _camera(outline.reshape(-1, 2), side, tilt, rng)
    pieces = _resampled(cut(with_square_cells(picture, grid), grid)[cells], side)
    ground = ground or GROUNDS[rng.integers(len(GROUNDS))]
    u, v = camera.table()
    scene = paint_ground(u, v, ground, side, rng)
    scene *= _shadows(camera, outline, side, rng)[..., None]
    for piece, place, angle in zip(pieces, places, angles, strict=True):
        _draw(scene, camera, piece, place, angle, (u, v))
    corners = np.stack([camera.project(one) for one in outline])
    return TablePhoto(_expose(scene, rng), corners, cells.astype(np.int64), ground)


def write_photo(picture: Pixels, grid: Grid | int | str, seed: int, path: Path) -> dict[str, Any]:
    """Write a photo of a picture's pieces on a table; gives where each truly lies."""
    photo = photograph(picture, parse_grid(grid), np.random.default_rng(seed))
    write_image(path, photo.image)
    return {
        "photo": str(path),
        "truth": photo.cells.tolist(),
        "corners": np.round(photo.corners, 1).tolist(),
    }


def pieces_of_photo(
    picture: Pixels, grid: Grid, side: int, rng: np.random.Generator
) -> tuple[Pixels, NDArray[np.int64], dict[str, Any]]:
    """Pieces found in a photo of a picture's pieces, their true cells (-1: no piece), and more.

    `turns` set the pieces upright. `off` says how far each piece's worst corner lies from its true
    place, in sides. A piece that was not found is a blank one without a cell: no solver is right.
    """
    photo = photograph(picture, grid, rng, side=side)
    try:
        table: Table | None = find_pieces(photo.image)
    except ImageError:
        table = None
    cells, turns, off = [], [], []
    middles = photo.corners.mean(1)
    for place in table.places if table is not None else ():
        true = int(np.linalg.norm(middles - place.corners.mean(0), axis=1).argmin())
        wide = np.linalg.norm(photo.corners[true][0] - photo.corners[true][2]) / 2**0.5
        errors = [
            np.linalg.norm(np.roll(place.corners, k, 0) - photo.corners[true], axis=1).max() / wide
            for k in range(4)
        ]
        best = int(np.argmin(errors))
        is_piece = errors[best] < NEAR and photo.cells[true] not in cells
        cells.append(int(photo.cells[true]) if is_piece else -1)
        turns.append(-best % 4)
        off.append(round(float(min(errors[best], 1.0)), 4))
    found = table.pieces if table is not None else np.zeros((0, side, side, 3), np.uint8)
    lost = len(photo.cells) - sum(cell >= 0 for cell in cells)
    blank = np.full((lost, *found.shape[1:]), 128, np.uint8)
    cells += [-1] * lost
    off += [1.0] * lost
    turns += [0] * lost
    settings = {"turns": turns, "rotations": True, "off": off}
    return np.concatenate([found, blank]), np.array(cells, np.int64), settings


def with_square_cells(picture: Pixels, grid: Grid) -> Pixels:
    """The middle of a picture that a grid divides into squares."""
    side = min(picture.shape[0] // grid[0], picture.shape[1] // grid[1])
    height, width = side * grid[0], side * grid[1]
    top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
    return picture[top : top + height, left : left + width]


# ---- the table --------------------------------------------------------------------------------


def _lay(count: int, turned: float, rng: np.random.Generator) -> tuple[Points, Points]:
    """Places (n, 2) and angles (n,) of pieces that lie apart, in rough rows."""
    columns = int(np.ceil((count * 4 / 3) ** 0.5))
    rows = -(-count // columns)
    pitch = rng.uniform(1.45, 1.8)
    spots = rng.permutation(rows * columns)[:count]
    spots = np.stack([spots % columns - (columns - 1) / 2, spots // columns - (rows - 1) / 2], 1)
    angles = np.radians(rng.uniform(-turned, turned, count))
    # A turned square reaches out to |cos| + |sin| halves, so two of them may need this much.
    reach = np.abs(np.cos(angles)) + np.abs(np.sin(angles))
    room = np.maximum(0.0, (pitch - 0.06 - reach) / 2)[:, None]
    places: Points = spots * pitch + rng.uniform(-1, 1, (count, 2)) * room
    return places, angles


def _outlines(places: Points, angles: Points) -> Points:
    """Corners of the pieces on the table (n, 4, 2)."""
    cos, sin = np.cos(angles), np.sin(angles)
    turn = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    found: Points = places[:, None] + np.einsum("nij,kj->nki", turn, SQUARE)
    return found


def _camera(points: Points, side: int, tilt: float, rng: np.random.Generator) -> Camera:
    """A camera that leans by up to `tilt` degrees and sees all points."""
    lean, way = np.radians(rng.uniform(0, tilt)), rng.uniform(0, 2 * np.pi)
    roll = np.radians(rng.uniform(-8, 8))
    axis = np.array([np.cos(way), np.sin(way), 0]) * lean
    rotation = _turned_about(axis) @ _turned_about(np.array([0, 0, roll]))
    reach = np.ptp(points, axis=0)
    size = tuple(int(round(r * side * 1.06 + side * 0.5)) for r in reach[::-1])
    bend = rng.uniform(-0.05, 0.03)
    focal = rng.uniform(1.0, 1.4) * max(size)
    distance = focal / side
    for _ in range(60):  # step back until everything is in the picture
        camera = Camera(rotation, distance, focal, bend, (size[0], size[1]))
        seen = camera.project(points)
        edge = 0.15 * side
        if (seen.min(0) > edge).all() and (seen.max(0) < np.array(size[::-1]) - edge).all():
            break
        distance *= 1.02
    return camera


def _turned_about(axis: Points) -> Points:
    """The rotation about an axis by its length (Rodrigues)."""
    angle = float(np.linalg.norm(axis))
    if angle == 0:
        return np.eye(3)
    x, y, z = axis / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)


def _resampled(pieces: Pixels, side: int) -> list[Floats]:
    """Pieces as linear light, with about as many pixels as they have in the photograph."""
    found = []
    for piece in pieces:
        scaled = Image.fromarray(piece).resize((side, side), Image.Resampling.BICUBIC)
        found.append(((np.asarray(scaled, np.float32) / 255) ** GAMMA).astype(np.float32))
    return found


def _draw(
    scene: Floats,
    camera: Camera,
    piece: Floats,
    place: Points,
    angle: float,
    table: tuple[Floats, Floats],
) -> None:
    """Lay one piece over the scene; pixels on its edge are shared with the ground."""
    corners = camera.project(_outlines(place[None], np.array([angle]))[0])
    low = np.maximum(np.floor(corners.min(0)).astype(int) - 2, 0)
    high = np.ceil(corners.max(0)).astype(int) + 3
    box = slice(low[1], high[1]), slice(low[0], high[0])
    x, y = table[0][box] - place[0], table[1][box] - place[1]
    cos, sin = np.cos(angle), np.sin(angle)
    across, down = cos * x + sin * y, -sin * x + cos * y
    scale = np.linalg.norm(corners - np.roll(corners, 1, 0), axis=1).mean()
    inside = (0.5 - np.maximum(np.abs(across), np.abs(down))) * scale
    cover = np.clip(inside + 0.5, 0, 1)[..., None]
    side = piece.shape[0]
    at = np.stack([(down + 0.5) * side - 0.5, (across + 0.5) * side - 0.5])
    paint = [ndimage.map_coordinates(piece[..., c], at, order=1, mode="nearest") for c in range(3)]
    scene[box] = scene[box] * (1 - cover) + np.stack(paint, -1) * cover


# ---- ground, light, sensor --------------------------------------------------------------------


def paint_ground(u: Floats, v: Floats, kind: str, side: int, rng: np.random.Generator) -> Floats:
    """Linear light of an empty table (height, width, 3) at the table's coordinates."""
    value = rng.uniform(0.06, 0.8)
    warm = rng.uniform(-0.35, 0.35)
    shade: Any
    tint = np.array([1 + warm, 1 + rng.uniform(-0.1, 0.1), 1 - warm])
    if kind == "wood":
        value = rng.uniform(0.08, 0.5)
        tint = np.array([1.35, 1.0, 0.62])
        angle = rng.uniform(0, np.pi)
        along = np.cos(angle) * u + np.sin(angle) * v
        over = np.cos(angle) * v - np.sin(angle) * u
        grain = 0.6 * _noise(along / 9, over * 1.5, rng) + 0.4 * _noise(along / 4, over * 7, rng)
        shade = 1 + 0.22 * grain
    elif kind == "stone":
        shade = 1 + 0.16 * (
            0.6 * _noise(u / 2, v / 2, rng)
            + 0.4 * _noise(u * 2, v * 2, rng)
            + 0.3 * _noise(u * 9, v * 9, rng)
        )
    elif kind == "cloth":
        threads = rng.uniform(12, 30) * np.pi
        weave = np.sin(threads * u) * np.sin(threads * v)
        shade = 1 + 0.1 * weave + 0.06 * _noise(u * 12, v * 12, rng)
    elif kind == "speckle":
        shade = 1 + 0.14 * _noise(u * side / 6, v * side / 6, rng)
    elif kind == "checked":
        step = rng.uniform(0.25, 0.8)
        stripes = (np.floor(u / step) % 2 + np.floor(v / step) % 2) / 2
        shade = 1 - 0.7 * stripes.astype(np.float32)
    else:
        shade = 1 + 0.02 * _noise(u * 4, v * 4, rng)
    scene: Floats = np.clip(value * tint * shade[..., None], 0.005, 1).astype(np.float32)
    return scene


def _noise(u: Any, v: Any, rng: np.random.Generator) -> Floats:
    """Smooth noise of unit spread with one bump a unit, in coordinates of any range."""
    size = 256
    lattice = rng.standard_normal((size, size)).astype(np.float32)
    found: Floats = ndimage.map_coordinates(
        lattice, np.stack([v % size, u % size]), order=1, mode="grid-wrap"
    )
    return found


def _shadows(camera: Camera, outline: Points, side: int, rng: np.random.Generator) -> Floats:
    """How much light is left beside the pieces (height, width): they have some thickness."""
    from PIL import ImageDraw

    way, length = rng.uniform(0, 2 * np.pi), rng.uniform(0.0, 0.06)
    shift = length * np.array([np.cos(way), np.sin(way)])
    mask = Image.new("L", camera.size[::-1], 0)
    pen = ImageDraw.Draw(mask)
    for one in outline:
        pen.polygon([tuple(p) for p in camera.project(one + shift)], fill=255)
    soft = rng.uniform(0.008, 0.03) * side
    dark = ndimage.gaussian_filter(np.asarray(mask, np.float32) / 255, soft)
    return np.asarray(1 - rng.uniform(0.15, 0.6) * dark, np.float32)


def _expose(scene: Any, rng: np.random.Generator) -> Pixels:
    """Uneven light, vignette, blur, white balance, noise, JPEG."""
    height, width = scene.shape[:2]
    down, across = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    way, slope = rng.uniform(0, 2 * np.pi), rng.uniform(0, 0.3)
    light = 1 + slope * (np.cos(way) * across + np.sin(way) * down)
    light *= 1 - rng.uniform(0, 0.25) * (across**2 + down**2) / 2
    if rng.random() < 0.4:  # the shadow of whoever takes the photograph
        way = rng.uniform(0, 2 * np.pi)
        along = np.cos(way) * across + np.sin(way) * down - rng.uniform(-0.6, 0.6)
        light *= 1 - rng.uniform(0.1, 0.35) / (1 + np.exp(-along / rng.uniform(0.08, 0.3)))
    balance = rng.uniform(0.9, 1.1, 3)
    scene = scene * (light[..., None] * balance * rng.uniform(0.75, 1.1)).astype(np.float32)
    blur = rng.uniform(0.4, 0.9)
    scene = ndimage.gaussian_filter(scene, (blur, blur, 0))
    spread = np.sqrt(rng.uniform(1e-5, 1.5e-4) * np.maximum(scene, 0) + 1e-6)
    scene = scene + spread * rng.standard_normal(scene.shape, np.float32)
    shown = np.rint(255 * np.clip(scene, 0, 1) ** (1 / GAMMA)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(shown).save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return np.asarray(Image.open(buffer).convert("RGB"))
