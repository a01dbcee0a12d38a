"""Measure which way up `auto` sets pictures of turned pieces: docs/runs/upright-val.txt.

    python docs/upright_val.py DATA

DATA holds photos-val.tar and art-val.tar. The first pictures of each fit the temperature of
puzlm/upright.py, as they are; the next are cut, turned and solved.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import numpy as np

from puzlm import upright
from puzlm.images import iter_images
from puzlm.puzzle import Puzzle, cut
from puzlm.solver import Solver

OUTPUT = Path(__file__).parent / "runs" / "upright-val.txt"
KINDS, FITTED, SOLVED = ("photos", "art"), 100, 100
GRIDS = ((3, 3), (4, 4), (6, 6), (2, 4))
TEMPERATURES = np.geomspace(2, 100, 200)
LOOK, memory = upright.scores, {}


def remembered(vision, picture, turns):
    """upright.scores, read once of a picture that several grids give, whichever way it lies."""
    if len(turns) < 4:
        return LOOK(vision, picture, turns)
    ways = [np.rot90(picture, k).tobytes() for k in range(4)]
    first = ways.index(min(ways))
    if ways[first] not in memory:
        memory[ways[first]] = LOOK(vision, np.rot90(picture, first), turns)
    return memory[ways[first]][[(turn - first) % 4 for turn in turns]]


def turned(image, grid, seed):
    """A puzzle of turned pieces, and the turns that set them upright."""
    high = image.shape[1] * grid[0] // grid[1]
    top = (image.shape[0] - high) // 2
    pieces = cut(image[top : top + high], grid)
    rng = np.random.default_rng(seed)
    order, turns = rng.permutation(len(pieces)), rng.integers(0, 4, len(pieces))
    shown = np.stack([np.rot90(pieces[i], -t) for i, t in zip(order, turns, strict=True)])
    return Puzzle(shown, grid, order), turns


def right(found, truth, turns):
    """Which pieces lie in their cell and upright: (n,)."""
    return (found.positions == truth) & (np.array(found.turns) == turns)


def whole(found, grid, truth, turns):
    """Share of pieces that are right after the best turn of the whole, and whether that is none."""
    shares = []
    for k in range(0, 4, 1 if grid[0] == grid[1] else 2):
        cells = np.rot90(np.arange(len(truth)).reshape(grid), k).ravel()
        spun = (np.array(found.turns) + k) % 4
        shares.append(((np.argsort(cells)[found.positions] == truth) & (spun == turns)).mean())
    return max(shares), shares[0] == max(shares)


def measured(task):
    """Scores (pictures, 4) of true pictures, and what came of every grid, of one kind."""
    data, kind = task
    images = list(islice(iter_images([Path(data) / f"{kind}-val.tar"], None), FITTED + SOLVED))
    seeing = Solver.from_pretrained(rotations=True)
    plain = Solver(solver="classic", rotations=True)
    with patch.object(upright, "scores", remembered):
        fit = [remembered(seeing.vision, image, range(4)) for image in images[:FITTED]]
        rows = []
        for grid in GRIDS:
            for seed, image in enumerate(images[FITTED:]):
                puzzle, turns = turned(image, grid, seed)
                with patch.object(upright, "settled", lambda found, *_: found):
                    before = plain.solve(puzzle)
                told = remembered(
                    seeing.vision, before.image, range(0, 4, 1 if grid[0] == grid[1] else 2)
                )
                rows.append((grid, before, puzzle.truth, turns, told))
    return kind, np.array(fit), rows


def loss(scores, temperature):
    """Mean surprise at the true turn, the first."""
    told = scores / temperature
    return float((np.logaddexp.reduce(told, axis=1) - told[:, 0]).mean())


def main() -> None:
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(measured, [(sys.argv[1], kind) for kind in KINDS]))
    fit = np.concatenate([scores for _, scores, _ in found])
    losses = [loss(fit, t) for t in TEMPERATURES]
    temperature = round(float(TEMPERATURES[int(np.argmin(losses))]), 1)
    lines = [
        f"Temperature, fitted to the first {FITTED} pictures of each set as they are: "
        f"{temperature}; mean surprise {loss(fit, temperature):.2f}, by chance {np.log(4):.2f}.",
        f"The next {SOLVED} of each were cut, turned and solved:",
        "",
        "Set upright: share of pictures, of those with at least half of the pieces right up to a",
        "turn of the whole; sure: what was said of that. Said, right: mean confidence and share of",
        "pieces in their cell and upright, in percent: before; classic alone now; auto now.",
        "",
        "set     grid  pictures  upright  sure  | said right | said right | said right",
    ]
    everything = {}
    for kind, _, rows in found:
        for grid, before, truth, turns, told in rows:
            here = everything.setdefault((kind, grid), [])
            alone = upright.settled(before, (), None)
            with (
                patch.object(upright, "scores", lambda *_, told=told: told),
                patch.object(upright, "TEMPERATURE", temperature),
            ):
                now = upright.settled(before, (), "a ViT")
            best, up = whole(now, grid, truth, turns)
            said = [(a.confidences.mean(), right(a, truth, turns).mean())
                    for a in (before, alone, now)]  # fmt: skip
            here.append((best, up, now.upright, *np.ravel(said)))
    bins = []
    for (kind, grid), here in everything.items():
        table = np.array(here, float)
        joined = table[table[:, 0] >= 0.5]
        bins += [tuple(row[1:3]) for row in joined]
        said = 100 * table[:, 3:].mean(0)
        lines.append(
            f"{kind:6s}  {grid[0]}x{grid[1]}   {len(joined):4d}/{len(table)}  "
            f"{100 * joined[:, 1].mean():5.0f}  {100 * joined[:, 2].mean():5.0f}  | "
            + " | ".join(f"{a:4.0f} {b:5.0f}" for a, b in said.reshape(3, 2))
        )
    lines += ["", "How sure of the turn, and how often it was right:"]
    ups, sures = np.array(bins, float).T
    for low in np.arange(0.2, 1, 0.2):
        some = (sures >= low) & (sures < low + 0.2 + 1e-9)
        if some.any():
            lines.append(f"{low:.1f} to {low + 0.2:.1f}: {some.sum():4d} pictures, said "
                         f"{sures[some].mean():.2f}, right {ups[some].mean():.2f}")  # fmt: skip
    OUTPUT.write_text("\n".join(lines) + "\n")
    print(OUTPUT.read_text())


if __name__ == "__main__":
    main()
