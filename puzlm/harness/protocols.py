"""The named benchmarks: geometry, erosion, seed, what is scored. numpy + Pillow only.

A puzzle depends on (protocol.seed, index) and its image alone, so every solver sees the same
puzzles on any machine. All protocols share a seed: image 7 is shuffled the same way with and
without erosion, and results on it can be paired.

An image at least as large as the protocol's is cropped in the middle and shrunk once: each pixel
of the puzzle is the mean over its own area of the image, so that no pixel on one side of a cut
holds anything from the other side. A smaller image is never enlarged, that would invent pixels:
the geometry is scaled to it instead (jpwleg-3 on 264 px: everything times 264/398, so pieces of 64
and gaps of 32 px), rounded so that all pieces are equal. The results say three things of each
image: `scale` of the geometry (1.0: as published), `stored`, the type of its file, and `shrunk`,
pixels of the puzzle per pixel of the file. A file that was compressed and is hardly shrunk carries
traces of both sides of each cut (see `leaks`).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puzlm.errors import ImageError, PuzzleError, SettingsError, nearest
from puzlm.harness.damage import damaged
from puzlm.harness.released import read_csv, read_npy, spread
from puzlm.harness.tables import pieces_of_photo
from puzlm.images import FORMATS, Pixels, iter_blobs, iter_images, picture_files, read_image
from puzlm.puzzle import (
    Geometry,
    Grid,
    Positions,
    Puzzle,
    check_cut,
    cut_at,
    draw_offsets,
    parse_grid,
)

MIN_PIECE = 4  # pixels; below that a "piece" holds nothing to solve by


@dataclass(frozen=True)
class Published:
    """A number from a paper, in percent; None where the paper gives none."""

    method: str
    absolute: float | None
    perfect: float | None
    neighbour: float | None
    source: str
    note: str = ""


@dataclass(frozen=True)
class Protocol:
    """One benchmark. Lengths are pixels; a gap is the distance between two unmoved pieces."""

    name: str
    grid: Grid
    resize: int  # the short side is brought to this; 0: the image is taken as it is
    crop: int  # then the centre square of this side is taken ...
    size: int  # ... and resized to this, the side the geometry speaks of
    cell: int
    piece: int
    gap: int
    jitter: bool = False  # pieces lie anywhere in their cells, not in the middle
    restore: bool = False  # eroded pieces are resized to the cell again
    turned: bool = False  # each piece is turned by a multiple of 90 degrees (Type 2)
    # "picture", "pieces": what is compressed before, or after, cutting, to see what that changes
    codec: str = ""
    leaks: bool = False  # measured: pictures compressed before cutting are solved better
    table: int = 0  # a camera takes a photo of the loose pieces, so many pixels wide (tables.py)
    damage: str = ""  # done to the pieces after cutting, by its name in damage.py
    missing: int = 0
    scored: str = "all"  # "all", "present" (some are missing), "non-centre" (the centre is given)
    seed: int = 0
    released: str = ""  # ready-made files: the JPwLEG file suffix, or "csv"
    papers: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    def settings(self) -> dict[str, Any]:
        """Give everything that defines the puzzles and the score, for a results file."""
        record = asdict(replace(self, papers=(), published=()))
        for name in ("papers", "published", "leaks"):  # what is known of it, not what it is
            del record[name]
        for name in (
            "turned",
            "codec",
            "damage",
            "table",
        ):  # as in results files written before there were these
            if not record[name]:
                del record[name]
        return {**record, "grid": list(self.grid)} | ({"filter": "area"} if self.resize else {})


_RG = "RG-LNS (under review)"
_PUZLM = "PuzLM paper"
_JPWLEG = ("JPwLEG (AAAI 2023)", _PUZLM, _RG)
_LSEJ = ("ImageNet-LSEJ", _RG)
_QUOTED = f"quoted in the {_PUZLM}"
_CENTRE = "whether the centre was given is not stated"


def _all() -> Iterator[Protocol]:
    plain = Protocol(
        "imagenet-3x3", (3, 3), 288, 288, 288, 96, 96, 0, papers=(_PUZLM,),
        published=(Published("PuzLM", 92.2, 87.1, None, _PUZLM,
                             "pieces of at least 76 px; image size not given"),),
    )  # fmt: skip
    yield plain
    for count, ours, theirs in ((1, (86.0, 71.3), (72.0, 41.5)), (2, (73.8, 45.1), (61.8, 21.4)),
                                (3, (61.2, 23.7), (54.1, 14.9))):  # fmt: skip
        known = (Published("PuzLM", *ours, None, _PUZLM, "image size not given"),
                 Published("JPDVT", *theirs, None, _QUOTED, "gaps not stated"))  # fmt: skip
        name = f"imagenet-3x3-missing-{count}"
        yield replace(plain, name=name, missing=count, scored="present", published=known)
    yield replace(
        plain, name="imagenet-3x3-eroded", piece=64, gap=32, papers=("JPDVT (CVPR 2024)", _PUZLM),
        published=(Published("JPDVT", 83.3, 68.7, None, "JPDVT (CVPR 2024)"),
                   Published("JPDVT", 80.0, 67.9, None, "independent run", "100 k images")),
    )  # fmt: skip
    yield Protocol(
        "imagenet-3x3-cfn", (3, 3), 256, 255, 255, 85, 64, 21, jitter=True,
        papers=("CFN (Noroozi and Favaro, ECCV 2016)", "Wei et al. (CVPR 2019), centre tiles"),
        published=(Published("CFN", 71.0, None, None, _QUOTED, "chooses among 1,000 permutations"),
                   Published("Wei et al.", None, 47.3, None, _QUOTED, "centre tiles")),
    )  # fmt: skip
    yield Protocol(
        "imagenet-3x3-fcvit", (3, 3), 256, 224, 225, 75, 64, 11, jitter=True, restore=True,
        papers=("FCViT",),
        published=(Published("FCViT", 90.6, 78.9, None, "FCViT"),
                   Published("FCViT", 83.7, 66.8, None, "independent run", "50 k images")),
    )  # fmt: skip
    three = Protocol("jpwleg-3", (3, 3), 398, 398, 398, 144, 96, 48,
                     released="48gap_33", papers=_JPWLEG,
                     published=(Published("PuzLM", 91.9, 84.5, None, _PUZLM),
                                Published("FCViT", 96.9, 87.9, None, _QUOTED),
                                Published("VLHSA", 85.4, None, None, _QUOTED),
                                Published("DiffAssemble", 79.7, 54.2, None, _QUOTED),
                                Published("JPDVT", 71.3, None, None, _QUOTED),
                                Published("PDN-GA", 81.3, 58.2, None, _QUOTED, _CENTRE),
                                Published("Deepzzle", 73.8, 52.3, None, _QUOTED, _CENTRE)),
                     )  # fmt: skip
    five = Protocol(
        "jpwleg-5", (5, 5), 534, 534, 534, 108, 96, 12, released="12gap_55", papers=_JPWLEG,
        published=(Published("RG-LNS", 69.1, 60.7, 90.9, _RG),
                   Published("RG-LNS before repair (LP)", 63.6, 52.2, 86.4, _RG),
                   Published("PuzLM", 72.1, 32.5, None, _PUZLM),
                   Published("DiffAssemble", 63.0, 16.4, None, _RG),
                   Published("FCViT", 43.2, 2.5, None, _RG),
                   Published("PuzzleFlow", 29.0, 0.0, None, _RG),
                   Published("VLHSA", 66.9, 19.0, None, _QUOTED),
                   Published("JPDVT", 4.1, 0.0, None, _QUOTED),
                   Published("ERL-MPP", 52.7, 18.6, None, _QUOTED, _CENTRE),
                   Published("PDN-GA", 44.3, 6.1, None, _QUOTED, _CENTRE),
                   Published("Deepzzle", 21.9, 0.0, None, _QUOTED, _CENTRE)),
    )  # fmt: skip
    for open_centre, siamese in ((three, (81.6, 59.7)), (five, (40.3, 5.1))):
        yield open_centre
        name = f"{open_centre.name}-fixed-centre"
        own = (Published("SD2RL (JPwLEG's own)", *siamese, None, _QUOTED),)
        yield replace(open_centre, name=name, scored="non-centre", published=own,
                      papers=("JPwLEG (AAAI 2023)",))  # fmt: skip
    ahead: dict[tuple[int, int], tuple[Published, ...]] = {
        (10, 2): (Published("RG-LNS", 86.7, 55.9, 92.1, _RG, "best of each measure"),
                  Published("RG-LNS (LP)", 85.7, 55.9, 91.2, _RG),
                  Published("RG-LNS (Pomeranz)", 86.7, 54.8, 92.1, _RG),
                  Published("RG-LNS before repair (LP)", 80.9, 44.9, 88.5, _RG),
                  Published("Edge2Vec", 55.7, 18.2, 75.3, _RG),
                  Published("MGC-Gallagher", 39.9, 8.3, 62.8, _RG)),
        (10, 5): (Published("RG-LNS", 59.8, 23.2, 77.6, _RG, "best of each measure"),
                  Published("RG-LNS (LP)", 50.6, 18.7, 72.0, _RG),
                  Published("RG-LNS before repair (LP)", 39.2, 9.2, 63.1, _RG),
                  Published("MGC-Gallagher", 3.1, 0.0, 23.7, _RG)),
    }  # fmt: skip
    for side in (10, 20):
        for off in (2, 5, 8):  # pixels off each side of a piece
            yield Protocol(
                f"imagenet-lsej-{side}x{side}-{off}", (side, side), *(50 * side,) * 3,
                50, 50 - 2 * off, 2 * off, restore=True, papers=_LSEJ,
                published=ahead.get((side, off), ()),
            )  # fmt: skip
    for side, lp, diffusion in ((6, 94.6, 90.7), (8, 93.0, 72.8), (10, 91.0, 63.3),
                                (12, 89.9, 53.1)):  # fmt: skip
        yield Protocol(
            f"paintings-type2-{side}x{side}", (side, side), *(32 * side,) * 3, 32, 32, 0,
            turned=True, papers=("DiffAssemble (CVPR 2024)",),
            published=(Published("Yu et al. (LP)", lp, None, None, "DiffAssemble (CVPR 2024)"),
                       Published("DiffAssemble", diffusion, None, None,
                                 "DiffAssemble (CVPR 2024)")),
        )  # fmt: skip
    for name, grid, paper in (
        ("mit-432", (18, 24), "Cho et al. (CVPR 2010)"),
        ("mcgill-540", (20, 27), "Pomeranz et al. (CVPR 2011)"),
        ("bgu-805", (23, 35), "Pomeranz et al. (CVPR 2011)"),
        ("bgu-2360", (40, 59), "Pomeranz et al. (CVPR 2011)"),
        ("bgu-3300", (50, 66), "Pomeranz et al. (CVPR 2011)"),
    ):
        papers = (paper, "Gallagher (CVPR 2012)")
        yield Protocol(f"classic-{name}", grid, 0, 0, 0, 28, 28, 0, papers=papers)
        if name in ("mit-432", "mcgill-540"):
            # A gap of an eighth on a board too large for a model to see at once; our own numbers.
            yield Protocol(f"worn-{name}", grid, 0, 0, 0, 28, 25, 3)
        if name in ("mcgill-540", "bgu-805"):
            # As many cells of 64 px as the image holds, 4 px off each side (7 % of what stays).
            pieces, wide = (88, (8, 11)) if name == "mcgill-540" else (150, (10, 15))
            yield Protocol(f"eroded-{name.split('-')[0]}-{pieces}", wide, 0, 0, 0, 64, 56, 8,
                           papers=("Bridger et al. (CVPR 2020)",))  # fmt: skip
        if name == "mcgill-540":
            yield Protocol(f"classic-{name}-type2", grid, 0, 0, 0, 28, 28, 0, turned=True,
                           papers=("Gallagher (CVPR 2012)",))  # fmt: skip
    for count, grid, direct in (
        (5015, (59, 85), 95.25),
        (10375, (83, 125), 98.47),
        (22834, (123, 185), None),  # so named, though its pictures make 22,755 pieces
    ):
        paper = "Sholomon et al. (CVPR 2013)"
        large = Protocol(f"classic-sholomon-{count}", grid, 0, 0, 0, 28, 28, 0, papers=(paper,))
        best = () if direct is None else (
            Published("genetic algorithm", None, None, direct, paper, "all 20 pictures of the set"),
        )  # fmt: skip
        yield replace(large, published=best)
        yield replace(large, name=f"{large.name}-type2", turned=True)
    # Grids whose cells no model of the box knows; the numbers are our own.
    for grid, piece in (((2, 2), 96), ((3, 4), 48), ((4, 4), 48), ((4, 6), 38), ((6, 6), 38)):
        cell = 288 // max(grid)
        name = "worn-{}x{}".format(*grid)
        yield Protocol(name, grid, 288, 288, 288, cell, piece, cell - piece)
    # Pieces whose turns are not known: pieces that touch, and worn as in the upright protocols.
    for name, side, size, cell, piece in (
        ("turned-3x3", 3, 288, 96, 96),
        ("turned-5x5", 5, 288, 57, 57),
        ("turned-10x10", 10, 500, 50, 50),
        ("turned-worn-3x3", 3, 288, 96, 64),  # imagenet-3x3-eroded
        ("turned-worn-5x5", 5, 534, 108, 96),  # jpwleg-5
    ):
        yield Protocol(name, (side, side), *(size,) * 3, cell, piece, cell - piece, turned=True)
    # What light, cameras, codecs and scanners do to the pieces themselves; our own numbers.
    for damage, side in (("light", 288), ("noise", 288), ("light-jpeg", 288), ("cut", 288),
                         ("scan", 480)):  # fmt: skip
        for grid in ((4, 4), (6, 8) if damage == "scan" else (8, 8)):
            cell, name = side // grid[1], "{}-{}x{}".format(damage, *grid)
            yield Protocol(name, grid, side, side, side, cell, cell, 0, damage=damage)
    ready = (Published("PermutoNet", 84.1, 64.8, None, "its repository", "validation split"),)
    yield Protocol("kaggle-3x3", (3, 3), 201, 201, 201, 67, 67, 0, released="csv",
                   papers=("github.com/cansakiroglu/Puzzle-Solver",), published=ready)  # fmt: skip


def _tables() -> Iterator[Protocol]:
    """Photos of loose pieces at all angles, and the same pieces cut cleanly with a small gap."""
    for side, wide in ((3, 180), (5, 150), (8, 120)):
        cell = 480 // side
        clean = Protocol(f"table-{side}x{side}-clean", (side, side), 480, 480, cell * side, cell,
                         round(cell / 1.05), cell - round(cell / 1.05), turned=True)  # fmt: skip
        yield clean
        yield replace(clean, name=f"table-{side}x{side}", piece=cell, gap=0, table=wide)


# Measured on the same puzzles (docs/results.md, what compression gives away).
LEAKING = ("imagenet-lsej-10x10-2", "imagenet-lsej-10x10-5", "worn-4x6", "worn-6x6")
PROTOCOLS: dict[str, Protocol] = {
    protocol.name: replace(protocol, leaks=protocol.name in LEAKING)
    for protocol in (*_all(), *_tables())
}


def get_protocol(name: str) -> Protocol:
    """Look a protocol up by name."""
    if name not in PROTOCOLS:
        raise SettingsError(f"protocol '{name}' does not exist; {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]


def prepare(protocol: Protocol, image: Pixels) -> tuple[Pixels, Geometry, float]:
    """Resize and crop an image and lay the grid on it; the last value is the geometry's scale."""
    height, width = image.shape[:2]
    if not protocol.resize:
        grid = height // protocol.cell, width // protocol.cell
        cells = protocol.grid[0] * protocol.grid[1]
        if grid[0] * grid[1] != cells:
            raise PuzzleError(
                f"{protocol.name}: an image of {width} x {height} pixels gives {grid[0]}x{grid[1]} "
                f"pieces of {protocol.cell} px, the set has {cells}; use the set's own images"
            )
        return image, Geometry(grid, (protocol.cell,) * 2, (protocol.piece,) * 2, (0, 0)), 1.0
    short, side = min(height, width), protocol.crop
    if short < protocol.resize:  # a small image is cut as it is
        side = protocol.crop * short // protocol.resize
        top, left = (height - side) // 2, (width - side) // 2
        return (
            image[top : top + side, left : left + side],
            _scaled(protocol, side),
            (side / protocol.size),
        )
    crop = protocol.crop * short / protocol.resize  # in pixels of the image
    return _shrunk(image, crop, protocol.size), _scaled(protocol, protocol.size), 1.0


def _shrunk(image: Pixels, crop: float, side: int) -> Pixels:
    """Cut out the centre square of `crop` pixels; average it over areas to (side, side, 3)."""
    pixels: NDArray[Any] = image
    for _ in range(2):  # rows, then columns; floor: an image of the right size keeps its pixels
        edges = np.floor((len(pixels) - crop) / 2) + np.arange(side + 1) * (crop / side)
        whole = np.minimum(edges.astype(np.int64), len(pixels) - 1)
        sums = np.concatenate([np.zeros_like(pixels[:1], np.float64), np.cumsum(pixels, 0, float)])
        # The sum of all pixels before an edge; an edge inside a pixel takes its part of it.
        before = sums[whole] + (edges - whole)[:, None, None] * pixels[whole]
        pixels = np.swapaxes(np.diff(before, axis=0) / (crop / side), 0, 1)
    rounded: Pixels = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    return rounded


def _scaled(protocol: Protocol, side: int) -> Geometry:
    scale, count = side / protocol.size, max(protocol.grid)
    cell = round(protocol.cell * scale)
    gap = max(1, round(protocol.gap * scale)) if protocol.gap else 0
    # Rounding up may reach beyond the image. Only jitter uses the outer half gaps.
    unused = 0 if protocol.jitter else gap
    while count * cell - unused > side:
        cell -= 1
    if cell - gap < MIN_PIECE:
        raise PuzzleError(
            f"{protocol.name}: {side} px are too few for {count}x{count} pieces; use larger images"
        )
    top, left = ((side - (n * cell - unused)) // 2 - unused // 2 for n in protocol.grid)
    return Geometry(protocol.grid, (cell, cell), (cell - gap,) * 2, (top, left))


def _resized(image: Pixels, size: tuple[int, int]) -> Pixels:
    return np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.LANCZOS))


def make_puzzle(protocol: Protocol, image: Pixels, index: int) -> Puzzle:
    """Cut, erode, drop and shuffle image number `index` (height, width, 3) of a benchmark.

    With a fixed centre `settings["given"]` is {piece: cell} of the one piece not scored.
    """
    rng = np.random.default_rng((protocol.seed, index))
    short = min(image.shape[:2])
    image, where, scale = prepare(protocol, image)
    shrunk = min(1.0, protocol.resize / short) if protocol.resize else 1.0
    if protocol.table:
        pieces, order, found = pieces_of_photo(image, where.grid, protocol.table, rng)
        settings = {"scale": round(scale, 4), "shrunk": round(shrunk, 4), **found}
        return _finish(protocol, pieces, where.grid, order, index, settings)
    if protocol.codec == "picture":
        image = _compressed(image)
    cells = where.grid[0] * where.grid[1]
    order = rng.permutation(cells)[: cells - protocol.missing]
    offsets = draw_offsets(where, rng, protocol.jitter)
    pieces = cut_at(image, where, offsets)[order]
    if protocol.codec == "pieces":
        pieces = np.stack([_compressed(piece) for piece in pieces])
    if protocol.damage:
        pieces = damaged(protocol.damage, list(pieces), rng)
    if protocol.restore:
        pieces = np.stack([_resized(piece, where.cell) for piece in pieces])
    settings = {"scale": round(scale, 4), "cell": where.cell[0], "piece": where.piece[0]}
    settings["shrunk"] = round(shrunk, 4)
    if protocol.turned:
        turns = rng.integers(0, 4, len(pieces))  # what sets each piece upright again
        pieces = np.stack([np.rot90(p, -t) for p, t in zip(pieces, turns, strict=True)])
        settings |= {"rotations": True, "turns": turns.tolist()}
    return _finish(protocol, pieces, where.grid, order.astype(np.int64), index, settings
                   | ({"offsets": offsets[order].tolist()} if protocol.jitter else {}))  # fmt: skip


def _compressed(image: Pixels) -> Pixels:
    """Give a picture as it is after WebP of quality 75 and back."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "WEBP", quality=75)
    return np.asarray(Image.open(file).convert("RGB"))


def _finish(
    protocol: Protocol,
    pieces: Pixels,
    grid: Grid,
    truth: Positions,
    index: int,
    settings: dict[str, Any],
) -> Puzzle:
    settings = {"protocol": protocol.name, "seed": [protocol.seed, index], **settings}
    if protocol.scored == "non-centre":
        centre = grid[0] * grid[1] // 2
        settings["given"] = {int(np.flatnonzero(truth == centre)[0]): centre}
    return Puzzle(pieces, grid, truth, settings=settings)


def _named(puzzle: Puzzle, name: str, *data: bytes, stored: str = "") -> Puzzle:
    """Note which image a puzzle came from and how it was stored, for the results file."""
    digest = hashlib.sha256(name.encode("utf-8", "replace"))
    for part in data:
        digest.update(part)
    settings = {**puzzle.settings, "name": name, "digest": digest.hexdigest()}
    if stored:
        settings["stored"] = stored
    return replace(puzzle, settings=settings)


def read_data(
    path: str | Path, protocol: Protocol, limit: int | None = None
) -> Iterator[tuple[int, Puzzle]]:
    """Yield (index, puzzle) from what people have: folders, tars, JPwLEG .npy, kaggle CSV.

    A folder may be flat or in torchvision's layout. `limit` takes evenly spaced items (the first
    ones of a tar); their indices, hence their puzzles, are those of a run without limit.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise SettingsError(f"limit {limit}: give 1 or more, or leave it out for all")
    if not path.exists():
        raise ImageError(f"{path}: no such file or folder")
    if protocol.released == "csv":
        found = read_csv(path, protocol, limit)
    elif path.suffix == ".npy" or (path.is_dir() and any(path.glob("*_img_*gap_*.npy"))):
        found = read_npy(path, protocol, limit)
    else:
        yield from _read_images(path, protocol, limit)
        return
    for index, one in found:
        puzzle = _finish(protocol, one.pieces, protocol.grid, one.truth, index, one.settings)
        yield index, _named(puzzle, one.name, *one.data)


def _read_images(path: Path, protocol: Protocol, limit: int | None) -> Iterator[tuple[int, Puzzle]]:
    index = -1
    if path.is_dir():
        files = picture_files(path)
        for index in spread(len(files), limit):
            ((label, blob),) = iter_blobs([files[index]])
            puzzle = make_puzzle(protocol, read_image(blob, name=label), index)
            name = files[index].relative_to(path).as_posix()
            yield index, _named(puzzle, name, blob, stored=_type(blob))
    else:
        for index, (label, blob) in enumerate(iter_blobs([path])):
            if limit is not None and index >= limit:
                break
            puzzle = make_puzzle(protocol, read_image(blob, name=label), index)
            # Names without the way to the archive, or two machines would get two fingerprints.
            name = path.name if label == str(path) else label.removeprefix(f"{path}:")
            yield index, _named(puzzle, name, blob, stored=_type(blob))
    if index < 0:
        raise ImageError(f"{path}: holds no images")


def _type(blob: bytes) -> str:
    """How an image file is stored: "JPEG", "PNG", "WEBP" and so on."""
    return str(Image.open(io.BytesIO(blob), formats=FORMATS).format)


def from_images(
    sources: list[Path], grid: Grid | int | str, gap: float, missing: int, seed: int,
    limit: int | None,
) -> tuple[Protocol, Iterator[tuple[int, Puzzle]]]:  # fmt: skip
    """Make an unnamed benchmark of any images: a protocol record and its puzzles."""
    parsed = parse_grid(grid)
    check_cut(parsed, gap, missing, seed)
    scored = "present" if missing else "all"
    rules = Protocol(f"images {parsed[0]}x{parsed[1]}, gap {gap:g}", parsed, 0, 0, 0, 0, 0, 0,
                     missing=missing, scored=scored, seed=seed)  # fmt: skip
    puzzles = (
        (index, Puzzle.from_image(image, parsed, gap=gap, missing=missing, seed=seed + index))
        for index, image in enumerate(iter_images(sources, limit))
    )
    return rules, puzzles
