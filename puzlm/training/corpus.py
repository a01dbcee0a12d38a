"""Images for training: an album that lives on the device, and puzzles cut from it there.

Every step draws its puzzles with a generator seeded by (seed, step), so a run that was killed goes
on exactly as if it had not been, and CPU and GPU see the same puzzles. Knows no training.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from puzlm.errors import ImageError, SettingsError
from puzlm.images import Pixels, iter_blobs, read_image
from puzlm.puzzle import Grid, parse_grid
from puzlm.sections import at_least

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class CutSettings:
    """How training puzzles are made from images."""

    grid: str = "3"
    """Rows x columns."""
    min_crop: float = 0.7
    """Smallest crop, as a share of the image; crops are drawn from here to the whole image."""
    stretch: float = 0.5
    """Share of puzzles whose height and width are cropped independently."""
    whole: float = 0.0
    """Share of puzzles that show all of an image instead of a crop of it, as those of people do:
    half of them its centre square, the others all of it."""
    flip: bool = True
    """Mirror half of the puzzles."""
    gap_share: float = 0.0
    """Share of puzzles with eroded pieces."""
    max_gap: float = 0.5
    """Largest gap of those, as a fraction of the piece."""
    gap_power: float = 1.0
    """Gaps are max_gap times a uniform number to this power: below 1 wide gaps come more often."""
    jitter: float = 0.0
    """Share of eroded puzzles whose pieces lie off the centre of their cells."""
    flush: float = 0.0
    """Share of puzzles whose outer pieces reach the edge of what is shown, so that gaps are only
    between pieces (JPwLEG's geometry); these have no jitter."""
    missing_share: float = 0.0
    """Share of puzzles that lack pieces."""
    max_missing: int = 3
    """Most pieces that one puzzle lacks; drawn uniformly from 1."""
    colour: float = 0.0
    """Strength of random brightness and contrast changes, 0 to 1."""

    def __post_init__(self) -> None:
        cells = math.prod(parse_grid(self.grid))
        at_least(0, self, "cut", "max_gap", "gap_power")
        at_least(1, self, "cut", "max_missing")
        shares = ("min_crop", "stretch", "whole", "gap_share", "jitter", "flush", "missing_share")
        for name in (*shares, "colour"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"cut.{name} {getattr(self, name)}: must be from 0 to 1")
        if self.missing_share and self.max_missing >= cells:
            raise SettingsError(
                f"cut.max_missing {self.max_missing}: must be below the {cells} pieces of a "
                f"puzzle (cut.grid {self.grid})"
            )


SMALLEST = 2  # pixels of a cell
EXACT = 2  # times shrunk: as far as the four taps of `cut_batch` hold the whole filter
TOO_FAR = 3  # times: from there on, images shrunk before the cut read more like the tokenizer's own


@dataclass(frozen=True)
class Bounds:
    """Sizes of images, (vertical, horizontal) in pixels, that puzzles can be cut from."""

    least: tuple[int, int]
    most: tuple[int, int]
    shrunk: tuple[int, int]
    """What is left of a side that is longer than `most`."""

    @classmethod
    def of(cls, grids: Iterable[str], side: int) -> Bounds:
        """Bounds for puzzles of these grids whose pieces are cut at a canonical side."""
        rows, columns = zip(*map(parse_grid, grids), strict=True)
        least = SMALLEST * max(rows), SMALLEST * max(columns)
        few = min(rows), min(columns)
        most, shrunk = (
            (max(least[0], k * side * few[0]), max(least[1], k * side * few[1]))
            for k in (TOO_FAR, EXACT)
        )
        return cls(least, most, shrunk)

    def fit(self, image: Pixels, name: str) -> Pixels:
        """Shrink the sides of an image (height, width, 3) that are too long; mostly none is."""
        size = image.shape[:2]
        if size[0] < self.least[0] or size[1] < self.least[1]:
            raise ImageError(
                f"{name}: {size[1]} x {size[0]} pixels; training puzzles of this grid need at "
                f"least {self.least[1]} x {self.least[0]}"
            )
        sides = zip(size, self.most, self.shrunk, strict=True)
        high, wide = (small if now > most else now for now, most, small in sides)
        if (high, wide) == size:
            return image
        # A soft box: one with hard ends would drop and double rows where the factor is no integer.
        resized = Image.fromarray(image).resize((wide, high), Image.Resampling.HAMMING)
        return np.asarray(resized)


class Album:
    """Images of any size in one flat uint8 tensor, with the offset and size of each."""

    words: Tensor | None = None
    """The same with four bytes a pixel (with_words)."""

    def __init__(self, pixels: Tensor, offsets: Tensor, sizes: Tensor) -> None:
        self.pixels, self.offsets, self.sizes = pixels, offsets, sizes

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def of(cls, images: Iterable[Pixels], device: str = "cpu") -> Album:
        """Pack images (height, width, 3)."""
        flat, sizes = [], []
        for image in images:
            flat.append(
                torch.from_numpy(np.array(image)).reshape(-1)
            )  # a copy: Pillow lends read-only
            sizes.append(image.shape[:2])
        if not flat:
            raise ImageError("no images for training")
        shape = torch.tensor(sizes)
        area = shape[:, 0] * shape[:, 1] * 3
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), area.cumsum(0)[:-1]])
        return cls(torch.cat(flat).to(device), offsets.to(device), shape.to(device))

    @classmethod
    def read(
        cls,
        sources: Sequence[str | Path],
        device: str = "cpu",
        limit: int | None = None,
        workers: int = 2,
        bounds: Bounds | None = None,
    ) -> Album:
        """Decode folders and tars of images with several threads, and fit them to the bounds."""

        def decode(named: tuple[str, bytes]) -> Pixels:
            image = read_image(named[1], name=named[0])
            return image if bounds is None else bounds.fit(image, named[0])

        blobs = iter_blobs(sources)
        if limit is not None:
            blobs = (blob for _, blob in zip(range(limit), blobs, strict=False))
        with ThreadPoolExecutor(workers) as pool:
            return cls.of(_in_order(pool, decode, blobs, 2 * workers), device)

    def within(self, bounds: Bounds) -> Album:
        """The same images, fitted to the bounds; itself if they all are."""
        sizes, offsets = self.sizes.cpu(), self.offsets.tolist()
        least, most = torch.tensor(bounds.least), torch.tensor(bounds.most)
        if ((sizes >= least) & (sizes <= most)).all():
            return self
        images = (
            self.pixels[at : at + 3 * high * wide].view(high, wide, 3).cpu().numpy()
            for at, (high, wide) in zip(offsets, sizes.tolist(), strict=True)
        )
        fitted = (bounds.fit(image, f"image {n} of the album") for n, image in enumerate(images))
        return Album.of(fitted, str(self.pixels.device))

    def save(self, path: Path) -> None:
        """Write the decoded images, for other processes."""
        from safetensors.torch import save_file

        # Not by `write_bytes`: gigabytes would be held twice.
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        tensors = {"pixels": self.pixels, "offsets": self.offsets, "sizes": self.sizes}
        save_file(tensors, part)  # words are made again from these
        part.replace(path)

    @classmethod
    def load(cls, path: Path, device: str = "cpu") -> Album:
        """Read what `save` wrote."""
        from safetensors.torch import load_file

        return cls(**load_file(path, device))

    def with_words(self, part: int = 2**26) -> Album:
        """Add pixels of four bytes: one read brings all colours, for 4/3 of the memory on top."""
        album = Album(self.pixels, self.offsets, self.sizes)
        colours = self.pixels.view(-1, 3)
        album.words = torch.empty(len(colours), dtype=torch.int32, device=colours.device)
        for start in range(0, len(colours), part):
            red, green, blue = colours[start : start + part].int().unbind(1)
            album.words[start : start + part] = red | green << 8 | blue << 16
        return album


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[_T], _R], items: Iterable[_T], ahead: int
) -> Iterator[_R]:
    """Results in the order of the items; few are waited for at once, as `pool.map` takes all."""
    waiting: deque[Future[_R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@dataclass(frozen=True)
class Draw:
    """One batch of puzzles to cut, as plain arrays: which image, where, and what is missing."""

    image: NDArray[np.int64]  # (n,)
    piece: NDArray[np.int64]  # (n, 2) pixels of a piece, vertical and horizontal
    corner: NDArray[np.int64]  # (n, cells, 2) top-left pixel of each piece
    flip: NDArray[np.bool_]  # (n,)
    tint: NDArray[np.float32]  # (n, 2) contrast and brightness
    present: NDArray[np.bool_]  # (n, cells)


def draw_batch(sizes: NDArray[np.int64], n: int, s: CutSettings, seed: tuple[int, ...]) -> Draw:
    """Choose n puzzles; everything random about a step comes from here."""
    rng = np.random.default_rng(seed)
    grid = np.array(parse_grid(s.grid))
    cells = int(grid.prod())
    image = rng.integers(0, len(sizes), n)
    size = sizes[image]
    share = rng.uniform(s.min_crop, 1, (n, 2))
    together = rng.random(n) >= s.stretch
    share[together, 1] = share[together, 0]
    wide = s.max_gap * rng.uniform(0, 1, n) ** s.gap_power
    gap = (wide * (rng.random(n) < s.gap_share))[:, None]
    # By numbers of their own, so that recipes without them draw what they always drew.
    whole, square, flush = np.random.default_rng((*seed, 3)).random((3, n, 1))
    whole, flush = whole < s.whole, flush < s.flush
    all_of_it = np.where(square < 0.5, size.min(1, keepdims=True), size)
    shown = np.where(whole, all_of_it, size * share)
    # m pieces and the gaps between them fill what is shown; a cell is a piece and a gap.
    pitch = np.where(flush, (1 + gap) / (grid + gap * (grid - 1)), 1 / grid)
    cell = np.maximum(SMALLEST, (shown * pitch).astype(np.int64))
    piece = np.clip(np.rint(cell / (1 + gap)).astype(np.int64), 1, cell)
    slack = cell - piece
    spare = size - (cell * grid - slack * flush)
    corner = np.where(whole, spare // 2, (rng.random((n, 2)) * (spare + 1)).astype(np.int64))
    loose = rng.random(n) < s.jitter
    where = np.stack(np.divmod(np.arange(cells), grid[1]), 1)
    anywhere = (rng.random((n, cells, 2)) * (slack[:, None] + 1)).astype(np.int64)
    offset = np.where(loose[:, None, None], anywhere, slack[:, None] // 2) * ~flush[:, None]
    flip = (rng.random(n) < 0.5) & s.flip
    tint = np.stack(
        [1 + s.colour * rng.uniform(-0.4, 0.4, n), s.colour * rng.uniform(-40, 40, n)], 1
    ).astype(np.float32)
    lacking = rng.integers(1, s.max_missing + 1, n) * (rng.random(n) < s.missing_share)
    present = rng.random((n, cells)).argsort(1) >= lacking[:, None]
    return Draw(image, piece, corner[:, None] + where * cell[:, None] + offset, flip, tint, present)


def cut_batch(
    album: Album,
    image: Tensor,
    piece: Tensor,
    corner: Tensor,
    flip: Tensor,
    tint: Tensor,
    *,
    side: int,
) -> Tensor:
    """Cut a drawn batch at the canonical size: (n, cells, side, side, 3) in whole grey levels.

    The filter is that of PieceTokenizer.canonical, a triangle as wide as the shrinking (up to
    EXACT, four taps), clamped to each piece's own pixels: not even a fraction of a neighbour's
    pixel may reach a piece. The tensors are those of `Draw`.
    """
    scale = piece / side  # (n, 2)
    centre = (torch.arange(side, device=image.device) + 0.5) * scale[:, :, None] - 0.5
    taps = torch.arange(-1, 3, device=image.device)
    index = centre.floor().long()[..., None] + taps  # (n, 2, side, 4)
    weight = 1 - (index - centre[..., None]).abs() / scale.clamp_min(1)[:, :, None, None]
    weight = weight.clamp_min(0) * ((index >= 0) & (index < piece[:, :, None, None]))
    weight = weight / weight.sum(-1, keepdim=True)
    index = torch.minimum(index.clamp_min(0), piece[:, :, None, None] - 1)

    width = album.sizes[image][:, 1, None, None, None]
    rows = corner[:, :, 0, None, None] + index[:, None, 0]  # (n, cells, side, 4)
    rows = album.offsets[image][:, None, None, None] // 3 + rows * width
    columns = corner[:, :, 1, None, None] + index[:, None, 1]
    columns = torch.where(flip[:, None, None, None], width - 1 - columns, columns)
    channel = torch.arange(3, device=image.device)
    down, across = weight[:, None, 0], weight[:, None, 1]
    mixed: Tensor | float = 0.0
    for i in range(4):
        line: Tensor | float = 0.0
        for j in range(4):
            where = rows[..., i][..., :, None] + columns[..., j][..., None, :]
            if album.words is None:
                pixel = album.pixels[where[..., None] * 3 + channel]
            else:
                pixel = album.words[where][..., None] >> 8 * channel & 255
            line = line + pixel.float() * across[..., j][..., None, :, None]
        mixed = mixed + line * down[..., i][..., :, None, None]
    contrast, light = tint[:, 0, None, None, None, None], tint[:, 1, None, None, None, None]
    return ((mixed - 128) * contrast + 128 + light).clamp(0, 255).round()


def neighbour_slots(order: Tensor, present: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Slot of the piece right of / below each slot's piece, (batch, cells); none = cells.

    `order[b, slot]` is the raster cell of the slot's piece, `present` is in raster order.
    """
    cells = grid[0] * grid[1]
    slot_of = torch.empty_like(order).scatter_(
        1, order, torch.arange(cells, device=order.device).expand_as(order)
    )
    slot_of = torch.where(present, slot_of, cells)
    padded = torch.cat([slot_of, torch.full_like(slot_of[:, :1], cells)], 1)
    column, row = order % grid[1], order // grid[1]
    right = torch.where(column + 1 < grid[1], order + 1, cells)
    below = torch.where(row + 1 < grid[0], order + grid[1], cells)
    return padded.gather(1, right), padded.gather(1, below)
