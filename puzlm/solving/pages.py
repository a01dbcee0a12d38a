"""Put shredded pages together: strips -> sides -> fits -> one path -> pages.

strips  = turned upright                     fits of both ways up decide
fits    = strokes across every possible cut  the network of strokes.py, small slips searched
path    = the best order with free ends      path.py; blank strips take no part
pages   = the path, parted where a page ends and the next begins better than the joint fits
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import PuzzleError
from puzlm.images import Pixels
from puzlm.models.strokes import DEPTH, Fits, Strokes, load, load_sure
from puzlm.pieces.strips import PAGE_ROWS, Strip, blank, inks_of, sides_of
from puzlm.solving.search.path import best_path

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bands = NDArray[np.float32]

MOST_STRIPS = 1500
SUREST = 12.0  # log-odds; beyond, a joint is not surer
PAGE_WIDTH = 1250  # pixels at 150 an inch, between A4 and letter
LANDSCAPE = 1.6  # one page may be as wide as this many upright ones
WIDTH_VARIES = 0.15  # of pages in one heap, as a part of their width; margins are blank strips
LEAN_LAGS = range(2, 11)  # rows at 150 an inch between thin and thick parts of one line of print
FEW = 1 / 3  # share of strips that may lie upside down before the rest is doubted, too
SIZES = 1.045  # strips whose heights differ by more than this factor are of other paper


@dataclass(frozen=True, eq=False)
class Page:
    """One page put together: strips from left to right, and how sure each joint is.

    `strips` holds numbers of the strips given, `turned` which of them lay upside down, `down` how
    many pixels each lies lower than the first. `sure[k]` is the probability that strip k + 1 does
    follow strip k.
    """

    strips: Ints
    turned: NDArray[np.bool_]
    down: Ints
    sure: Floats


@dataclass(frozen=True, eq=False)
class Pages:
    """The pages found in a heap of strips; `blank` strips have no print and lie on no page."""

    pages: tuple[Page, ...]
    blank: Ints
    seconds: float


def solve_strips(strips: Sequence[Strip], count: int = 0, turned: bool = True) -> Pages:
    """Put strips of `count` pages together, 0: judged by widths; `turned`: some lie upside down."""
    start = time.perf_counter()
    if len(strips) > MOST_STRIPS:
        raise PuzzleError(
            f"{len(strips):,} strips are more than the {MOST_STRIPS:,} that are taken"
        )
    inks = inks_of(strips)
    empty = np.array([blank(ink) for ink in inks])
    pages: list[Page] = []
    for group in paper_sizes(strips):
        printed = group[~empty[group]]
        if len(printed):
            some = [strips[i] for i in printed]
            bands = bands_of(some, [inks[i] for i in printed])
            pages += [_renamed(page, printed) for page in _solve(some, bands, count, turned)]
    return Pages(tuple(pages), np.flatnonzero(empty), time.perf_counter() - start)


def paper_sizes(strips: Sequence[Strip]) -> list[Ints]:
    """Part strips by the height of their paper: numbers of the strips of each size."""
    heights = np.array([np.count_nonzero(strip.paper.any(1)) for strip in strips], np.float64)
    order = np.argsort(heights, kind="stable")
    jumps = np.flatnonzero(heights[order[1:]] > SIZES * heights[order[:-1]]) + 1
    return [np.sort(part) for part in np.split(order, jumps)]


def bands_of(
    strips: Sequence[Strip], inks: Sequence[NDArray[np.float32]]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Bands of ink along all cuts, before and after: two (n, DEPTH, rows)."""
    height = float(np.median([strip.height for strip in strips]))
    scale = PAGE_ROWS / height
    rows = round(max(strip.height for strip in strips) * scale / 2) * 2
    both = [
        sides_of(strip, ink, scale, rows, DEPTH) for strip, ink in zip(strips, inks, strict=True)
    ]
    return np.stack([b for b, _ in both]), np.stack([a for _, a in both])


def _solve(
    strips: Sequence[Strip],
    bands: tuple[NDArray[np.float32], NDArray[np.float32]],
    count: int,
    turned: bool,
) -> list[Page]:
    """Order the printed strips of one paper size."""
    before, after = bands
    n = len(strips)
    network = load("right")
    flipped = np.zeros(n, bool)
    if turned:
        flipped = upside_down(network, before, after)
        before, after = _turned(before, after, flipped)
    fits = network.fits(before, after)
    path, sure = ordered(fits)
    scale = PAGE_ROWS / float(np.median([strip.height for strip in strips]))
    slips = fits.slip[path[:-1], path[1:]]
    down = np.concatenate([[0], np.cumsum(slips)]) * 2 / scale
    pages = []
    widths = np.array([strips[i].width for i in path]) * scale
    for part in _parted(path, fits, widths, count or pages_in(widths)):
        pages.append(
            Page(
                path[part],
                flipped[path[part]],
                np.rint(down[part] - down[part[0]]).astype(np.int64),
                sure[part[:-1]],
            )
        )
    return pages


def _turned(before: Bands, after: Bands, which: NDArray[np.bool_]) -> tuple[Bands, Bands]:
    """Turn some strips upside down: their sides change places and run the other way."""
    at = which[:, None, None]
    return np.where(at, after[:, :, ::-1], before), np.where(at, before[:, :, ::-1], after)


def upside_down(network: Strokes, before: Bands, after: Bands) -> NDArray[np.bool_]:
    """Find the strips that lie upside down: (n,).

    Every strip votes on every other: does it fit better as it lies, or turned? The votes are one
    signed matrix, and its first eigenvector parts the strips. If a few lie the other way, those are
    upside down. If many do, the lines of print say which part lies upright.
    """
    n = len(before)
    every = np.ones(n, bool)
    both = [
        np.concatenate(pair)
        for pair in zip((before, after), _turned(before, after, every), strict=True)
    ]
    u = network.features(both[0], "before")
    v = network.features(both[1], "after")
    score = network.quick(u, v).astype(np.float64)
    itself = np.tile(np.eye(n, dtype=bool), (2, 2))
    score[itself] = -np.inf
    share = np.exp(score - np.logaddexp.reduce(score, axis=1, keepdims=True))
    share *= np.exp(score - np.logaddexp.reduce(score, axis=0, keepdims=True))
    same = share[:n, :n] + share[n:, n:].T
    other = share[:n, n:] + share[n:, :n]
    vote = same + same.T - other - other.T
    direction = np.linalg.eigh(vote)[1][:, -1]
    part = direction < 0
    if part.sum() > n / 2:
        part = ~part
    if part.mean() < FEW:
        return part
    lean = line_lean(np.concatenate([before, after], axis=1).mean(1))
    return part if lean[~part].sum() - lean[part].sum() > 0 else ~part


def line_lean(profiles: Bands) -> Floats:
    """Tell which way up print lies by its ink a row (n, rows): positive for upright, (n,).

    Print is heavier above its lines than below them: capitals and high letters are many, low ones
    are few. So thin rows come before thick ones more often than after them.
    """
    total = np.zeros(len(profiles))
    for lag in LEAN_LAGS:
        upper = profiles[:, :-lag]
        lower = profiles[:, lag:]
        total += (upper * lower * (lower - upper)).sum(1)
    return total


def ordered(fits: Fits) -> tuple[Ints, Floats]:
    """The best path, and how sure each of its joints is: (n,), (n - 1,)."""
    path = best_path(fits.score.astype(float), fits.begin.astype(float), fits.end.astype(float))
    return path, joints_sure(fits, path[:-1], path[1:])


def joints_sure(fits: Fits, i: Ints, j: Ints) -> Floats:
    """Probability that strips j follow strips i, from how far each joint stands out: (joints,)."""
    bias, *weights = load_sure("joint")
    return likely(bias + joint_odds(fits, i, j) @ np.array(weights))


def likely(odds: Floats) -> Floats:
    """Turn log-odds into probabilities."""
    sure: Floats = 1 / (1 + np.exp(-odds))
    return sure


def joint_odds(fits: Fits, i: Ints, j: Ints) -> Floats:
    """Log-odds of joints among all that could follow i, and all that could precede j: (joints, 2).

    An end of the page counts as one more of both.
    """
    score = fits.score.astype(np.float64)
    np.fill_diagonal(score, -np.inf)
    rows = np.concatenate([score[i], fits.end[i, None]], 1)
    columns = np.concatenate([score[:, j].T, fits.begin[j, None]], 1)
    odds = []
    for others, own in ((rows, j), (columns, i)):
        at = np.arange(len(own))
        value = others[at, own]
        others[at, own] = -np.inf
        odds.append(value - np.logaddexp.reduce(others, axis=1))
    clipped: Floats = np.clip(np.stack(odds, 1), -SUREST, SUREST)
    return clipped


def pages_in(widths: Floats) -> int:
    """Judge of how many pages strips are by their widths, at 150 pixels an inch."""
    share = widths.sum() / PAGE_WIDTH
    return 1 if share < LANDSCAPE else round(share)


def _parted(path: Ints, fits: Fits, widths: Floats, count: int) -> list[Ints]:
    """Part a path into `count` pages of about one width: parts of its indices.

    A joint is a good place to part where both sides fit blank paper better than each other.
    """
    n = len(path)
    if count <= 1 or n <= count:
        return [np.arange(n)] if count <= 1 else list(np.arange(n)[:, None])
    i = path[:-1]
    j = path[1:]
    gain = np.concatenate([[0], fits.end[i] + fits.begin[j] - fits.score[i, j]])
    reach = np.concatenate([[0], np.cumsum(widths)])
    usual = reach[-1] / count
    best = np.full((count + 1, n + 1), -np.inf)
    before = np.zeros((count + 1, n + 1), np.int64)
    best[0, 0] = 0
    for page in range(1, count + 1):
        for last in range(page, n + 1):
            starts = np.arange(page - 1, last)
            off = (reach[last] - reach[starts]) / usual - 1
            total = best[page - 1, starts] + gain[starts] - (off / WIDTH_VARIES) ** 2 / 2
            before[page, last] = starts[int(total.argmax())]
            best[page, last] = total.max()
    parts = []
    last = n
    for page in range(count, 0, -1):
        first = int(before[page, last])
        parts.append(np.arange(first, last))
        last = first
    return parts[::-1]


def _renamed(page: Page, numbers: Ints) -> Page:
    """The page with the numbers that its strips have in the whole heap."""
    return Page(numbers[page.strips], page.turned, page.down, page.sure)


# ---- pictures ---------------------------------------------------------------------------------


def draw(page: Page, strips: Sequence[Strip]) -> Pixels:
    """Lay the strips of a page side by side, straightened, on white."""
    columns = []
    top = int(page.down.min())
    height = max(
        strips[i].height + int(d) - top for i, d in zip(page.strips, page.down, strict=True)
    )
    for number, upside, down in zip(page.strips, page.turned, page.down, strict=True):
        strip = strips[number].turned() if upside else strips[number]
        straight = straightened(strip)
        column = np.full((height, straight.shape[1], 3), 255, np.uint8)
        begin = int(down) - top
        column[begin : begin + len(straight)] = straight
        columns.append(column)
    return np.concatenate(columns, 1)


def straightened(strip: Strip) -> Pixels:
    """The paper of a strip with straight upright sides, white beside it: (height, width, 3)."""
    left, _ = strip.edges
    width = strip.width
    at = left[:, None] + np.arange(width)
    every = np.arange(strip.height)[:, None]
    inside = at < strip.paper.shape[1]
    safe = np.where(inside, at, 0)
    shown = inside & strip.paper[every, safe]
    return np.where(shown[:, :, None], strip.pixels[every, safe], 255).astype(np.uint8)
