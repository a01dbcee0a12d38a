"""Gather what is said of validation puzzles, and try weights of `auto` on all kinds together.

    python -m tools.fit_auto gather OUT.npz PUZZLES KIND... DATA     KIND is GRID,GAP, say 4x4,0.5
    python -m tools.fit_auto try IN.npz... whole=1 context=1 edges=0.5 pixels=0.25 views=6

`gather` reads each puzzle as it is and in five more views, and asks sides and pixels. `try`
searches with the weights that are named and prints absolute and perfect accuracy of each kind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from puzlm.images import iter_images
from puzlm.metrics import absolute, perfect
from puzlm.puzzle import Puzzle, parse_grid
from puzlm.solver import Solver
from puzlm.solving import classic, evidence, views
from puzlm.solving.fusion import _alone
from puzlm.solving.search import assembly


def gather(out: Path, count: int, kinds: list[str], data: str) -> None:
    """Write everything said of `count` puzzles of each kind."""
    solver, kept = Solver.from_pretrained(), {}
    images = list(iter_images([data], count))
    for kind in kinds:
        grid, gap = kind.split(",")
        for number, image in enumerate(images):
            puzzle = Puzzle.from_image(image, grid, gap=float(gap), seed=number)
            seen = solver._look([puzzle])
            again = views.look_again(solver._look, [puzzle], seen)
            sides = _alone(*solver.edges.scores(puzzle.pieces))
            pixels = _alone(*classic.evidence(puzzle.pieces, None))
            name = f"{Path(data).stem}|{kind}|{number}"
            kept[name + "|truth"] = puzzle.truth
            for what, arrays in (
                ("1", seen[0]),
                ("6", again[0]),
                ("edges", sides),
                ("pixels", pixels),
            ):
                for place, array in enumerate(arrays):
                    kept[f"{name}|{what}|{place}"] = np.asarray(array, np.float32)
        print(kind, flush=True)
        np.savez(out, **kept)


def attempt(files: list[Path], weights: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Absolute and perfect accuracy in percent of each kind with these weights."""
    looks = str(int(weights.pop("views", 1)))
    marks: dict[str, list[tuple[float, float]]] = {}
    for file in files:
        kept = np.load(file)
        for name in [key.removesuffix("|truth") for key in kept if key.endswith("|truth")]:
            data, kind, _ = name.split("|")
            grid, truth = parse_grid(kind.split(",")[0]), kept[name + "|truth"]
            got = {k: kept[f"{name}|{looks}|{k}"].astype(float) for k in range(3)}
            pairs = {"context": (got[1], got[2])}
            for side in ("edges", "pixels"):
                pairs[side] = tuple(kept[f"{name}|{side}|{k}"].astype(float) for k in range(2))
            right, below, where = evidence.added(pairs, {"whole": got[0]}, weights, len(truth))
            if len(truth) <= assembly.SMALL_GRID:
                found = assembly.beam_search(right, below, grid, where, {}, top=1, hole=0.0)[0][0]
            else:
                found = assembly.assemble(right, below, grid, where, {}, hole=0.0)
            mark = absolute(found, truth), float(perfect(found, truth))
            marks.setdefault(f"{data} {kind}", []).append(mark)
    return {kind: tuple(100 * np.mean(some, 0)) for kind, some in marks.items()}


if __name__ == "__main__":
    if sys.argv[1] == "gather":
        *kinds, data = sys.argv[4:]
        gather(Path(sys.argv[2]), int(sys.argv[3]), kinds, data)
    else:
        files = [Path(word) for word in sys.argv[2:] if "=" not in word]
        chosen = {k: float(v) for k, _, v in (w.partition("=") for w in sys.argv[2:] if "=" in w)}
        for kind, (first, second) in attempt(files, chosen).items():
            print(f"{kind}: {first:.1f} / {second:.1f}")
