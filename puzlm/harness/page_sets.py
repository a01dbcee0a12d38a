"""Benchmarks of shredded pages: public sets of strips, pages cut by program, what is scored.

A heap is what the solver gets at once: the strips of one page, or of several mixed. Strips without
print are left out, as the authors of the public sets do. The neighbour accuracy is theirs, too: of
all strips that follow each other in the answer, the share that truly does. Where the last strip of
one page is followed by the first of another, that counts as right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm import metrics
from puzlm.errors import ImageError, SettingsError, nearest
from puzlm.files import write_bytes
from puzlm.harness.evaluate import BINS, VERSION, current_commit
from puzlm.images import picture_files, read_image
from puzlm.metrics import MEASURES
from puzlm.pieces.strips import Strip, blank, inks_of, read_strip
from puzlm.solving.pages import Pages, solve_strips

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PageSet:
    """One benchmark: how heaps are made, and what others have published of it, in percent."""

    name: str
    strips: int = 0  # into which a page is cut by program; 0: the set has strips
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
        PageSet("page-strips-40", strips=40),
        PageSet("page-strips-80", strips=80),
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
    if rules.strips:
        files = picture_files(path)[:limit]
        pages = ((file.stem, cut(read_image(file), rules.strips)) for file in files)
    else:
        folders = sorted(p for p in path.iterdir() if (p / "strips").is_dir())[:limit]
        pages = ((folder.name, _in_order(folder)) for folder in folders)
    heaps: list[Heap] | None = [] if rules.mixed else None
    for name, strips in pages:
        inks = inks_of(strips)
        printed = [strip for strip, ink in zip(strips, inks, strict=True) if not blank(ink)]
        if len(printed) < 2:
            continue
        heap = Heap(name, printed, (len(printed),))
        if heaps is None:
            yield heap
        else:
            heaps.append(heap)
    if heaps:
        strips = [strip for heap in heaps for strip in heap.strips]
        yield Heap("all", strips, tuple(len(heap.strips) for heap in heaps))


def cut(page: NDArray[np.uint8], count: int) -> list[Strip]:
    """Cut a page into strips of nearly equal width, from left to right."""
    at = np.linspace(0, page.shape[1], count + 1).round().astype(int)
    parts = [page[:, a:b] for a, b in zip(at[:-1], at[1:], strict=True)]
    return [Strip(part, np.ones(part.shape[:2], bool)) for part in parts]


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


Solve = Callable[[list[Strip], int], Pages]


def evaluate_pages(
    rules: PageSet,
    data: Path,
    *,
    limit: int | None = None,
    output: Path | None = None,
    solve: Solve = solve_strips,
    tick: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Solve all heaps of a set, shuffled and without names; write what came to `output`."""
    commit = current_commit()
    outcomes: list[dict[str, Any]] = []
    for index, heap in enumerate(read_heaps(data, rules, limit)):
        outcomes.append(_outcome(index, heap, rules, solve))
        tick(index + 1)
    if not outcomes:
        raise ImageError(f"{data}: holds no pages with print")
    sure = [value for record in outcomes for value in record["sure"]]
    right = [value for record in outcomes for value in record["right"]]
    digests = "".join(f"{r['index']}:{r['digest']}\n" for r in outcomes)
    result = {
        "version": VERSION,
        "protocol": {"name": rules.name, "strips": rules.strips, "seed": rules.seed},
        "solver": "strokes",
        "settings": {},
        "commit": commit,
        "data": {"name": data.name, "fingerprint": hashlib.sha256(digests.encode()).hexdigest()},
        "puzzles": len(outcomes),
        "failed": 0,
        **{m: metrics.bootstrap([r[m] for r in outcomes]).as_dict() for m in MEASURES},
        "joints": len(right),
        "joints_right": sum(right),
        "seconds_per_puzzle": round(float(np.mean([r["seconds"] for r in outcomes])), 3),
        **metrics.reliability(sure, right, BINS),
        "outcomes": outcomes,
    }
    if output is not None:
        write_bytes(output, (json.dumps(result) + "\n").encode())
    return result


def _outcome(index: int, heap: Heap, rules: PageSet, solve: Solve) -> dict[str, Any]:
    """Ask for one heap and score the answer."""
    n = len(heap.strips)
    shuffle = np.random.default_rng((rules.seed, index)).permutation(n)
    found = solve([heap.strips[i] for i in shuffle], len(heap.sizes))
    # Strips that the solver takes for blank come last, and their joints are as wrong as may be.
    order = [int(shuffle[i]) for page in found.pages for i in page.strips]
    order += [int(shuffle[i]) for i in found.blank]
    right = neighbours(order, heap.sizes)
    sure = np.zeros(n - 1)
    at = 0
    for page in found.pages:
        sure[at : at + len(page.sure)] = page.sure
        at += len(page.strips)
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
        "seconds": round(found.seconds, 3),
    }
