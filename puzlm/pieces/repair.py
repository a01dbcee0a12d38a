"""What scanning, cropping by hand, light and compression did to pieces, undone where it shows.

`repair` is the first step of solving: it looks at the pieces before anything compares borders, and
gives them back as they were where it finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puzlm.images import Pixels
from puzlm.pieces import colour_bleed, light, noise
from puzlm.puzzle import Puzzle

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# How many more sides must choose each other for each line that is trimmed, and for all of them, if
# the lines could be a picture's own. On clean pictures it was at most 4 for 14 lines, and 2 for 3.
GAIN, LEAST = 1 / 3, 3
BLOCKS = 0.15  # log-ratio of jumps at a codec's blocks to those beside; stored without loss: 0.08
COMPARED = 600  # pieces: of more, comparing all pairs again and again would take too long
NOISY = 6.0  # deviation, grey levels; clean pictures reach 4.7
UNEQUAL = 0.2  # of their side: pieces that differ by more are no pieces of one puzzle

# A line of the scanner's ground along a side, grey levels: it is of one colour, and the piece
# behind it of others.
DEPTH = 3  # pixels from the border that ground can reach, a blurred edge counted in
EVEN = 12.0  # how far it strays from its colour
CONTRAST = 16.0  # least distance from the piece's own pixels
MOST = 0.8  # of the line's length that must show both
SIDES = 3  # so many sides must show the same colour
MIXED = 0.15  # share of the ground's colour above which a line is cut off


@dataclass(frozen=True)
class Wear:
    """What repair leaves, and whoever compares borders must bear: deviations, grey levels."""

    noise: float = 0.0
    gain: float = 0.0  # a share of the level
    offset: float = 0.0


SOUND = Wear()
# What is left after evening lights out, of sound pieces, and of pieces compressed one by one.
LIT = Wear(0.0, 0.08, 8.0)
LIT_AND_STORED = Wear(6.0, 0.04, 4.0)


class Borders(Protocol):
    """Who compares borders; repair asks whether what it tries makes them fit better."""

    def fitting(self, pieces: Pixels, wear: Wear = ...) -> int:
        """How many pairs of sides choose each other."""

    def lit(self, pieces: NDArray[Any], gain: float, offset: float) -> tuple[Any, Any]:
        """Costs of all pairs under lights of such deviations."""


@dataclass(frozen=True)
class Repaired:
    """A puzzle with its pieces repaired, what was done in words, and what is left to bear."""

    puzzle: Puzzle
    done: tuple[str, ...] = ()
    wear: Wear = SOUND


def repair(puzzle: Puzzle, borders: Borders) -> Repaired:
    """Undo what can be undone; the same puzzle if nothing was done to it.

    Each repair is tried where the pieces show signs of its damage, and kept if borders do not fit
    worse for it: as many of them choose each other, or more.
    """
    pieces, wear = puzzle.pieces, SOUND
    done = []
    few = 1 < len(pieces) <= COMPARED
    if (level := noise.noise_level(pieces)) > NOISY:
        pieces = noise.smoothed(pieces, level)
        wear = replace(wear, noise=level)
        done.append("smoothed noise")
    stored = noise.blocks(pieces) > BLOCKS
    even = light.evened(pieces, borders.lit, np.inf if stored else light.LEFT) if few else pieces
    if even is not pieces:
        before = borders.fitting(pieces, wear)
        for lit in (LIT_AND_STORED,) if stored else (LIT, LIT_AND_STORED):
            lit = replace(lit, noise=max(lit.noise, wear.noise))
            if borders.fitting(even, lit) >= before:
                pieces, wear = even, lit
                done.append("evened light")
                break
    lines = lines_of_ground(pieces) if few and not done else np.zeros((0, 4), np.int64)
    if np.count_nonzero(lines) >= SIDES:
        bare = without_lines(pieces, lines)
        gain = borders.fitting(bare) - borders.fitting(pieces)
        # A picture's own frame never lies on two opposite sides of a piece.
        opposite = (lines[:, :2].astype(bool) & lines[:, 2:].astype(bool)).any()
        if gain >= (0 if opposite else max(GAIN * np.count_nonzero(lines), LEAST)):
            pieces = bare
            done.append("trimmed lines")
    if done:
        puzzle = replace(puzzle, pieces=pieces)
    mended = colour_bleed.mended(puzzle)
    if mended is not puzzle:
        done.append("mended colours")
    return Repaired(mended, tuple(done), wear)


def equal_sizes(pieces: Sequence[Pixels]) -> Pixels | None:
    """Pieces brought to one size, (n, height, width, 3); None where they differ by too much.

    Pieces that were cropped by hand differ by some pixels. They are stretched to the middle size:
    so each keeps its outermost pixels, which tell most.
    """
    sizes = np.array([piece.shape[:2] for piece in pieces])
    middle = np.median(sizes, axis=0).astype(int)
    if (np.ptp(sizes, axis=0) > np.maximum(UNEQUAL * middle, 1)).any():
        return None
    height, width = middle.tolist()
    return np.stack([stretched(piece, height, width) for piece in pieces])


def unequal(pieces: Sequence[Pixels], names: Sequence[str]) -> str:
    """Say which two pieces differ most."""
    sizes = np.array([piece.shape[:2] for piece in pieces])
    by = np.ptp(sizes, axis=0).argmax()
    least = int(sizes[:, by].argmin())
    most = int(sizes[:, by].argmax())
    both = " and ".join(
        f"{names[i]} with {pieces[i].shape[1]} x {pieces[i].shape[0]}" for i in (least, most)
    )
    return (
        f"pieces differ in size ({both} pixels); up to {UNEQUAL:.0%} of their side is borne, "
        "as from cropping by hand"
    )


def stretched(piece: Pixels, height: int, width: int) -> Pixels:
    """A piece brought to another size; the same one where it has it."""
    if piece.shape[:2] == (height, width):
        return piece
    return np.asarray(Image.fromarray(piece).resize((width, height), Image.Resampling.BICUBIC))


def lines_of_ground(pieces: Pixels) -> Ints:
    """Depth of the lines of one colour along the sides, 0 where there are none: (n, 4).

    Sides are counted counter-clockwise from the top. A picture may have such lines itself: a frame,
    or an edge that a cut followed.
    """
    none = np.zeros((len(pieces), 4), np.int64)
    if min(pieces.shape[1:3]) < 4 * DEPTH:
        return none
    turned = [np.rot90(pieces, -turn, axes=(1, 2)) for turn in range(4)]
    lines = [side[:, : DEPTH + 1].astype(np.float64) for side in turned]  # inwards from each side
    ground = _ground(lines)
    return none if ground is None else np.stack([_reach(side, ground) for side in lines], axis=1)


def without_lines(pieces: Pixels, lines: Ints) -> Pixels:
    """Pieces (n, height, width, 3) with the lines cut off, stretched to their size again."""
    height, width = pieces.shape[1:3]
    result = pieces.copy()
    for i in np.flatnonzero(lines.any(axis=1)):
        top, left, bottom, right = lines[i].tolist()
        inner = pieces[i, top : height - bottom, left : width - right]
        result[i] = stretched(np.ascontiguousarray(inner), height, width)
    return result


def _ground(lines: Sequence[Floats]) -> Floats | None:
    """The colour (3,) that lies along most sides without being of the piece; None if few show it.

    `lines` of each of the four sides: (n, DEPTH + 1, length, 3).
    """
    colours = []
    for side in lines:
        colour = np.median(side[:, 0], axis=1)
        colours.append(colour[_lined(side, colour)])
    seen = np.concatenate(colours)
    if len(seen) < SIDES:
        return None
    near = np.abs(seen[:, None] - seen[None]).max(axis=2) <= EVEN
    best = near.sum(axis=1).argmax()
    if near[best].sum() < SIDES:
        return None
    ground: Floats = np.median(seen[near[best]], axis=0)
    return ground


def _lined(side: Floats, colour: Floats) -> Bools:
    """Whether the outermost pixels are of a `colour` that those further in are not: (n,)."""
    outer = np.abs(side[:, 0] - colour[..., None, :]).max(axis=2) <= EVEN
    inner = np.abs(side[:, DEPTH] - colour[..., None, :]).max(axis=2) >= CONTRAST
    both: Bools = (outer & inner).mean(axis=1) >= MOST
    return both


def _reach(side: Floats, ground: Floats) -> Ints:
    """How many lines of each piece have the ground's colour in them: (n,)."""
    own = side[:, DEPTH]
    away = ground - own
    share = ((side - own[:, None]) * away[:, None]).sum(3)
    share /= np.maximum((away**2).sum(2), 1)[:, None]
    mixed = np.median(share[:, :DEPTH], axis=2) > MIXED
    deep = np.cumprod(mixed, axis=1).sum(axis=1)
    return np.where(_lined(side, np.broadcast_to(ground, (len(side), 3))), deep, 0)
