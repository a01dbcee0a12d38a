"""Benchmarks of shredded pages: public sets of strips, pages cut by program, what is scored.

A heap is what the solver gets at once: the strips of one page, or of several mixed. Strips without
print are left out, as the authors of the public sets do. The neighbour accuracy is theirs, too: of
all strips that follow each other in the answer, the share that truly does. Where the last strip of
one page is followed by the first of another, that counts as right.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puzlm import metrics
from puzlm.errors import ImageError, PuzzleError, SettingsError, nearest
from puzlm.files import write_bytes
from puzlm.harness.evaluate import BINS, VERSION, current_commit
from puzlm.images import picture_files, read_image
from puzlm.metrics import MEASURES
from puzlm.pieces.equal_pieces import exchanged
from puzlm.pieces.strips import PAGE_ROWS, Strip, blank, inks_of, read_strip
from puzlm.puzzle import Grid, Puzzle
from puzlm.solution import Solution
from puzlm.solving.cross_cut import NAME, by_strokes
from puzlm.solving.pages import solve_strips

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PageSet:
    """One benchmark: how heaps are made, and what others have published of it, in percent."""

    name: str
    grid: Grid | None = None  # into which a page is cut by program; None: the set has strips
    mixed: bool = False  # all pages in one heap
    published: tuple[tuple[str, float], ...] = ()
    seed: int = 0


DEEPREC = "deeprec, CVPR 2020"
PAGE_SETS = {
    one.name: one
    for one in (
        PageSet("isri-d2", published=((DEEPREC, 95.4), ("Paixao et al., SIBGRAPI 2018", 94.8))),
        PageSet("marques-d1"),
        PageSet("pages-mixed-20", mixed=True, published=((DEEPREC, 97.2),)),
        PageSet("page-strips-40", (1, 40)),
        PageSet("page-strips-80", (1, 80)),
        PageSet("page-cross-10x8", (10, 8)),
        PageSet("page-cross-20x12", (20, 12)),
    )
}


@dataclass(frozen=True, eq=False)
class Heap:
    """Printed strips in their true order, and how many each page has."""

    name: str
    strips: list[Strip]
    sizes: tuple[int, ...]


def get_page_set(name: str) -> PageSet:
    """Look a benchmark of pages up by name."""
    if name not in PAGE_SETS:
        raise SettingsError(f"protocol '{name}' does not exist; {nearest(name, PAGE_SETS)}")
    return PAGE_SETS[name]


def read_heaps(path: Path, rules: PageSet, limit: int | None = None) -> Iterator[Heap]:
    """Read the heaps of a set: folders D001, D002, ... of strips, or pictures of whole pages."""
    if not path.is_dir():
        raise ImageError(f"{path}: a folder is needed here")
    heaps: list[Heap] = []
    for folder in sorted(p for p in path.iterdir() if (p / "strips").is_dir())[:limit]:
        strips = _in_order(folder)
        inks = inks_of(strips)
        printed = [strip for strip, ink in zip(strips, inks, strict=True) if not blank(ink)]
        if len(printed) < 2:
            continue
        heap = Heap(folder.name, printed, (len(printed),))
        if rules.mixed:
            heaps.append(heap)
        else:
            yield heap
    if heaps:
        strips = [strip for heap in heaps for strip in heap.strips]
        yield Heap("all", strips, tuple(len(heap.strips) for heap in heaps))


def read_cut(path: Path, rules: PageSet, limit: int | None = None) -> Iterator[tuple[str, Puzzle]]:
    """Read pictures of whole pages, bring them to 150 pixels an inch, cut and shuffle them."""
    assert rules.grid is not None
    rows, columns = rules.grid
    files = picture_files(path)[:limit]
    for index, file in enumerate(files):
        image = Image.fromarray(read_image(file))
        scale = PAGE_ROWS / max(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        page = np.asarray(image.resize(size, Image.Resampling.BOX))
        height = page.shape[0] // rows
        width = page.shape[1] // columns
        top = (page.shape[0] - rows * height) // 2
        left = (page.shape[1] - columns * width) // 2
        page = page[top : top + rows * height, left : left + columns * width]
        pieces = page.reshape(rows, height, columns, width, 3).swapaxes(1, 2)
        order = np.random.default_rng((rules.seed, index)).permutation(rows * columns)
        pieces = pieces.reshape(-1, height, width, 3)[order]
        yield file.name, Puzzle(pieces, rules.grid, order.astype(np.int64))


def _in_order(folder: Path) -> list[Strip]:
    """The strips of a page in the order of their names, which is the true one in public sets."""
    found = []
    for file in sorted((folder / "strips").iterdir()):
        mask = folder / "masks" / f"{file.stem}.png"
        found.append(read_strip(file, mask if mask.is_file() else None))
    return found


def neighbours(order: Sequence[int], sizes: Sequence[int]) -> list[bool]:
    """Whether each joint of an order of strips (true order 0, 1, ...) is right: (n - 1,).

    >>> neighbours([2, 3, 0, 1], (2, 2))
    [True, True, True]
    """
    ends = np.cumsum(sizes)
    first = set((ends - np.array(sizes)).tolist())
    last = set((ends - 1).tolist())
    page = np.repeat(np.arange(len(sizes)), sizes)
    right = []
    for i, j in zip(order[:-1], order[1:], strict=True):
        if i in last:
            right.append(j in first and page[i] != page[j])
        else:
            right.append(j == i + 1)
    return right


Solve = Callable[[list[Puzzle]], list[Solution]]
Order = Callable[[list[Strip]], Sequence[int]]  # strips -> their numbers from left to right


def evaluate_pages(
    rules: PageSet,
    data: Path,
    *,
    limit: int | None = None,
    output: Path | None = None,
    solver: tuple[str, Solve] | None = None,
    order: tuple[str, Order] | None = None,
    tick: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Solve all heaps of a set, shuffled and without names; write what came to `output`.

    `solver`, a name and a function, is asked instead of the strokes where all pieces are equal,
    `order` where they are strips.
    """
    if solver is not None and rules.grid is None:
        raise SettingsError(f"{rules.name}: only the strokes read strips of different sizes")
    name, ask = solver or (NAME, lambda puzzles: [by_strokes(p, {}) for p in puzzles])
    settings: dict[str, Any] = {}
    if order is not None:
        name = order[0]
        settings = {"about": getattr(order[1], "about", None)}
    commit = current_commit()
    outcomes: list[dict[str, Any]] = []
    records = (
        (
            _cut_outcome(index, named, puzzle, ask)
            for index, (named, puzzle) in enumerate(read_cut(data, rules, limit))
        )
        if rules.grid
        else (
            _outcome(index, heap, rules, order[1] if order else None)
            for index, heap in enumerate(read_heaps(data, rules, limit))
        )
    )
    for record in records:
        outcomes.append(record)
        tick(len(outcomes))
    if not outcomes:
        raise ImageError(f"{data}: holds no pages with print")
    sure = [value for record in outcomes for value in record["sure"]]
    right = [value for record in outcomes for value in record["right"] if record["sure"]]
    digests = "".join(f"{r['index']}:{r['digest']}\n" for r in outcomes)
    grid = list(rules.grid) if rules.grid else None
    result = {
        "version": VERSION,
        "protocol": {"name": rules.name, "grid": grid, "mixed": rules.mixed, "seed": rules.seed},
        "solver": name,
        "settings": settings,
        "commit": commit,
        "data": {"name": data.name, "fingerprint": hashlib.sha256(digests.encode()).hexdigest()},
        "puzzles": len(outcomes),
        "failed": 0,
        **{m: metrics.bootstrap([r[m] for r in outcomes]).as_dict() for m in MEASURES},
        "seconds_per_puzzle": round(float(np.mean([r["seconds"] for r in outcomes])), 3),
        **(metrics.reliability(sure, right, BINS) if sure else {"ece": None, "reliability": []}),
        "outcomes": outcomes,
    }
    if output is not None:
        write_bytes(output, (json.dumps(result) + "\n").encode())
    return result


def _cut_outcome(index: int, name: str, puzzle: Puzzle, ask: Solve) -> dict[str, Any]:
    """Ask for one page cut by program and score the answer; blank pieces equal each other."""
    assert puzzle.truth is not None
    asked = replace(puzzle, truth=None)
    found = ask([asked])[0]
    whole = np.ones(puzzle.pieces.shape[1:3], bool)
    inks = inks_of([Strip(piece, whole) for piece in puzzle.pieces])
    empty = np.array([blank(ink) for ink in inks])
    kinds = np.arange(len(empty))
    if empty.any():
        kinds[empty] = np.flatnonzero(empty)[0]
    truth = exchanged(puzzle.truth, found.positions, kinds)
    pairs = metrics.joints(found.positions, puzzle.truth, puzzle.grid[1], kinds)
    placed = found.positions == truth
    return {
        "index": index,
        "name": name,
        "digest": hashlib.sha256(puzzle.pieces.tobytes()).hexdigest(),
        "blank": int(empty.sum()),
        "truth": puzzle.truth.tolist(),
        "positions": found.positions.tolist(),
        "sure": [round(float(value), 4) for value in found.confidences],
        "right": [bool(value) for value in placed],
        "absolute": float(np.mean(placed[~empty])) if not empty.all() else 1.0,
        "perfect": float(placed.all()),
        "neighbour": float(pairs[:, 2].mean()) if len(pairs) else 1.0,
        "seconds": round(found.seconds, 3),
    }


def _outcome(index: int, heap: Heap, rules: PageSet, ask: Order | None = None) -> dict[str, Any]:
    """Ask for one heap, the strokes or another, and score the answer."""
    n = len(heap.strips)
    shuffle = np.random.default_rng((rules.seed, index)).permutation(n)
    strips = [heap.strips[i] for i in shuffle]
    began = time.perf_counter()
    if ask is None:
        said, sure = _by_strokes(strips, len(heap.sizes))
    else:
        said, sure = [int(i) for i in ask([replace(strip, name="") for strip in strips])], []
        if sorted(said) != [*range(n)]:
            raise PuzzleError(f"{heap.name}: an order of {n} strips names each of them once")
    seconds = time.perf_counter() - began
    order = [int(shuffle[i]) for i in said]
    right = neighbours(order, heap.sizes)
    digest = hashlib.sha256(b"".join(s.pixels.tobytes() for s in heap.strips)).hexdigest()
    return {
        "index": index,
        "name": heap.name,
        "digest": digest,
        "strips": n,
        "order": order,
        "right": [bool(value) for value in right],
        "sure": [round(float(value), 4) for value in sure],
        "absolute": float(np.mean(np.array(order) == np.arange(n))),
        "perfect": float(all(right)),
        "neighbour": float(np.mean(right)),
        "seconds": round(seconds, 3),
    }


def _by_strokes(strips: list[Strip], pages: int) -> tuple[list[int], Sequence[float]]:
    """The strips from left to right, and how sure each joint is.

    Strips that the solver takes for blank come last, and their joints are as wrong as may be.
    """
    found = solve_strips(strips, pages, turned=False)
    order = [i for page in found.pages for i in page.strips] + list(found.blank)
    sure = np.zeros(len(strips) - 1)
    at = 0
    for page in found.pages:
        sure[at : at + len(page.sure)] = page.sure
        at += len(page.strips)
    return order, sure.tolist()
