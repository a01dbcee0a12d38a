"""Ask every solver for its raw confidences on validation puzzles, for docs/fit_calibration.py.

    python -m tools.gather_calibration DATA OUT.jsonl MINUTES [FIRST [SOLVER or WORD...]]

DATA holds photos-val.tar, art-val.tar, kaggle/valid.csv, and in large/, if at all, photos of
756 x 560 pixels or more, better 980 x 644, that are of none of the test sets. A few puzzles of
every setting are asked in turn, until the time is up.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

from puzlm.harness.protocols import PROTOCOLS, Protocol, _resized, make_puzzle, read_data
from puzlm.images import Pixels, iter_images
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

SEED = 100  # of the permutations; those of the protocols have 0
SIDES = ("vision-pairs", "bigram", "classic")
MODELS = ("auto", "seq2seq")
LARGE = ("auto", *SIDES)
OTHERS: Any = (  # grids whose cells no model knows: gap, puzzles a turn
    *((grid, gap, 2) for grid in (2, (2, 3), (3, 4)) for gap in (1 / 8, 1 / 4, 1 / 2)),
    *((grid, gap, 2) for grid in (4, (4, 6)) for gap in (1 / 4, 1 / 2)),
    ((1, 3), 1 / 4, 1),
    ((5, 6), 1 / 4, 1),
)


@dataclass(frozen=True)
class Setting:
    """Puzzles of one kind: how they are cut, from what, how many a turn, whom to ask."""

    rules: Protocol
    data: str
    many: int
    solvers: tuple[str, ...] = MODELS + SIDES
    given: int = 0

    @property
    def name(self) -> str:
        return f"{self.rules.name}, {self.data}"


def cut(
    side: int | tuple[int, int], gap: float, missing: int = 0, more: str = "", **rules: Any
) -> Protocol:
    """Rules of a grid with gaps of a share of a piece."""
    grid = (side, side) if isinstance(side, int) else side
    cell = 288 // max(grid)
    piece = round(cell / (1 + gap))
    named = "{}x{}".format(*grid)
    name = f"{named}, gap {gap:.3g}" + (f", {missing} missing" if missing else "") + more
    return Protocol(
        name,
        grid,
        *[cell * max(grid)] * 3,
        cell,
        piece,
        cell - piece,
        missing=missing,
        seed=SEED,
        **rules,
    )


def settings() -> Iterator[Setting]:
    """All kinds of puzzles, those with more doubt more often."""
    both = ("photos", "art")
    for data in both:
        for gap, many in ((0, 3), (1 / 8, 3), (1 / 4, 8), (1 / 3, 10), (1 / 2, 12)):
            yield Setting(cut(3, gap), data, many)
        for name, many in (("cfn", 10), ("fcvit", 8)):
            yield Setting(replace(PROTOCOLS[f"imagenet-3x3-{name}"], seed=SEED), data, many)
        yield Setting(cut(3, 0, 3), data, 8)
        yield Setting(cut(3, 1 / 4, 2), data, 6)
        yield Setting(cut(3, 1 / 2, more=", centre given", scored="non-centre"), data, 10)
        yield Setting(cut(5, 1 / 8), data, 4)
        yield Setting(cut(4, 1 / 8), data, 4, ("auto", *SIDES))
        for grid, gap, many in OTHERS:
            yield Setting(cut(grid, gap), data, many, ("auto",))
    yield Setting(cut(3, 0, 1), "photos", 4)
    yield Setting(cut(3, 0, 2), "photos", 8)
    yield Setting(cut(3, 1 / 2, 1), "art", 6)
    yield Setting(cut(3, 1 / 2, more=", 3 given"), "photos", 6, given=3)
    yield Setting(cut(5, 0), "photos", 2)
    yield Setting(cut(5, 1 / 4), "art", 4)
    yield Setting(cut(5, 1 / 2), "photos", 3)
    yield Setting(cut(5, 1 / 8, 3), "photos", 3)
    yield Setting(cut(5, 1 / 8, more=", centre given", scored="non-centre"), "art", 4)
    yield Setting(cut(5, 1 / 4, more=", centre given", scored="non-centre"), "photos", 3)
    yield Setting(cut(4, 0), "photos", 2, ("auto", *SIDES))
    yield Setting(cut(4, 1 / 3), "photos", 4, ("auto", *SIDES))
    yield Setting(cut(4, 1 / 8, 2), "photos", 3, ("auto", *SIDES))
    for grid, missing in ((4, 3), ((2, 3), 1), ((3, 4), 2)):
        yield Setting(cut(grid, 1 / 4, missing), "art", 3, ("auto",))
    yield Setting(cut(4, 1 / 3, more=", 3 given"), "art", 3, ("auto",), given=3)
    yield Setting(cut((2, 3), 1 / 2, more=", 3 given"), "photos", 3, ("auto",), given=3)
    yield Setting(PROTOCOLS["kaggle-3x3"], "ready", 10)
    for data, some in (("photos", 2), ("art", 2), ("288 px", 3)):
        for more in (2, 5, 5):  # those with more doubt twice
            rules = replace(PROTOCOLS[f"imagenet-lsej-10x10-{more}"], seed=SEED)
            yield Setting(rules, data, some, LARGE)
        for side, gap in ((6, 1 / 4), (8, 1 / 8), (12, 1 / 8)):
            yield Setting(cut(side, gap), data, 1, LARGE)
    yield Setting(cut(8, 0), "288 px", 1, LARGE)
    yield Setting(cut(8, 0, 6), "art", 1, LARGE)
    yield Setting(replace(PROTOCOLS["classic-mcgill-540"], seed=SEED), "large", 2, LARGE)
    yield Setting(replace(PROTOCOLS["classic-bgu-805"], seed=SEED), "huge", 1, LARGE)
    for gap in (0, 1 / 4, 1 / 2):
        yield Setting(cut(3, gap), "288 px", 4)
    yield Setting(cut(3, 1 / 2, more=", centre given", scored="non-centre"), "288 px", 4)
    for name in ("cfn", "fcvit"):
        yield Setting(replace(PROTOCOLS[f"imagenet-3x3-{name}"], seed=SEED), "288 px", 4)


def read(data: str) -> dict[str, list[Pixels]]:
    """All validation images, by kind."""
    found = {
        kind: list(iter_images([Path(f"{data}/{kind}-val.tar")], None))
        for kind in ("photos", "art")
    }
    found["large"], found["huge"] = [], []
    found["288 px"] = []  # as large as the test photos
    large = Path(data, "large")
    for image in iter_images([large], None) if large.is_dir() else ():
        short = min(image.shape[:2])
        top, left = (image.shape[0] - short) // 2, (image.shape[1] - short) // 2
        found["288 px"].append(_resized(image[top : top + short, left : left + short], (288, 288)))
        for kind, sides in (("large", (560, 756)), ("huge", (644, 980))):
            high, wide = sides if image.shape[0] < image.shape[1] else sides[::-1]
            if image.shape[0] >= high and image.shape[1] >= wide:
                top, left = (image.shape[0] - high) // 2, (image.shape[1] - wide) // 2
                found[kind].append(image[top : top + high, left : left + wide])
    return found


def puzzles(setting: Setting, data: str, images: list[Pixels], first: int) -> Iterator:
    """Yield (index, puzzle) for ever, from image number `first` on."""
    if setting.data == "ready":
        yield from islice(cycle(read_data(f"{data}/kaggle/valid.csv", setting.rules)), first, None)
    for step in count(first):
        index = step % len(images)
        puzzle = make_puzzle(setting.rules, images[index], step)
        if setting.given:
            puzzle.settings["given"] = {i: int(puzzle.truth[i]) for i in range(setting.given)}
        yield index, puzzle


def gather(data: str, out: str, minutes: str, first: str = "0", *only: str) -> None:
    """Ask the solvers, a few puzzles of every setting in turn; each answer is a line of `out`.

    `first` is where in the images to begin; `only` takes these solvers, and settings with these
    words in their names.
    """
    images = read(data)
    known = (*MODELS, *SIDES)
    wanted = [name for name in only if name in known] or known
    solvers = {name: Solver.from_pretrained(solver=name) for name in wanted}
    whom = [*solvers]
    words = [word for word in only if word not in known]
    for solver in solvers.values():
        solver.raw = True
    every = [
        (s, puzzles(s, data, images.get(s.data, []), int(first) + 61 * i))
        for i, s in enumerate(settings())
        if (Path(data, "kaggle").is_dir() if s.data == "ready" else images[s.data])
        and (not words or any(word in s.name for word in words))
    ]
    began = time.monotonic()
    with Path(out).open("w", encoding="utf-8") as file:
        for turn in count():
            for setting, source in every:
                some = list(islice(source, setting.many))
                for name in (name for name in setting.solvers if name in whom):
                    asked = some
                    if setting.solvers == LARGE and name in SIDES:
                        # They take up to twice the time of `auto` there, which matters more.
                        asked = some[: (turn - SIDES.index(name)) % 3 == 0]
                    for record in answers(solvers[name], name, asked):
                        file.write(json.dumps({"setting": setting.name, **record}) + "\n")
                file.flush()
            print(turn, round(time.monotonic() - began), "s", flush=True)
            if time.monotonic() - began > 60 * float(minutes):
                break


def answers(solver: Solver, name: str, asked: list[tuple[int, Puzzle]]) -> Iterator[dict]:
    """What a solver says of puzzles, in the words of a results file."""
    given = [puzzle.settings.get("given", {}) for _, puzzle in asked]
    hidden = [replace(p, truth=None, settings={}) for _, p in asked]
    found = solver.solve_many(hidden, given=given)
    for (index, puzzle), solution, fixed in zip(asked, found, given, strict=True):
        yield {
            "image": index,
            "asked": name,
            "solver": solution.solver,
            "grid": [*puzzle.grid],
            "given": {str(k): v for k, v in fixed.items()},
            "truth": puzzle.truth.tolist(),
            "positions": solution.positions.tolist(),
            "confidences": [round(float(c), 5) for c in solution.confidences],
        }


if __name__ == "__main__":
    gather(*sys.argv[1:])
