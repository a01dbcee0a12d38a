"""Measure what the frame is worth on validation puzzles: docs/runs/frame-val.json.

    python docs/frame_val.py DATA ANSWERS.jsonl...

DATA and ANSWERS are those of docs/gather_calibration.py. Every answer of `auto` to a whole
board of 31 to 150 pieces that was given without `frame` is framed after the fact, whether or not
`auto` would do so (it does not where borders touch). A weight multiplies what the network says
beside the seams of the board. Before that the network alone is asked of true boards that were
rolled at random.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import patch

import gather_calibration
import numpy as np
from search_val import evidence

from puzlm import assembly, checkpoints
from puzlm.assembly import SMALL_GRID
from puzlm.board import BEAM_GRID
from puzlm.box import VISION
from puzlm.evaluate import current_commit
from puzlm.frame import framed
from puzlm.frame_train import FrameNet, take
from puzlm.protocols import make_puzzle
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

OUTPUT = Path(__file__).parent / "runs" / "frame-val.json"
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
BEST = "the best of all rolls, by the truth"
GRIDS, GAPS, SHOWN = ("6x6", "6x10", "10x10", "16x16", "18x24"), (0.0, 0.25, 0.5), 60


class Louder:
    """A network whose word counts so many times."""

    def __init__(self, network, weight: float) -> None:
        self.network, self.weight = network, weight

    def read(self, pieces):
        return tuple(self.weight * said for said in self.network.read(pieces))


def boards(images, files: list[str]):
    """Yield (setting, puzzle, positions) of every answer, the puzzle as it was asked."""
    kinds = {setting.name: setting for setting in gather_calibration.settings()}
    seen = set()
    for line in (line for file in files for line in Path(file).read_text().splitlines()):
        answer = json.loads(line)
        cells = answer["grid"][0] * answer["grid"][1]
        setting = kinds.get(answer["setting"])
        key = answer["setting"], answer["image"], tuple(answer["truth"])
        whole = len(answer["truth"]) == cells > SMALL_GRID and "frame" not in answer["solver"]
        if answer["asked"] != "auto" or not whole or setting is None or key in seen:
            continue
        some = images.get(setting.data, [])
        if answer["image"] >= len(some) or cells > BEAM_GRID:
            continue
        seen.add(key)
        puzzle = make_puzzle(setting.rules, some[answer["image"]], 0)
        # The same pieces in the order in which they were asked.
        order = np.argsort(puzzle.truth)[answer["truth"]]
        asked = replace(puzzle, pieces=puzzle.pieces[order], truth=np.array(answer["truth"]))
        yield answer["setting"], asked, np.array(answer["positions"])


def best_roll(positions, truth, grid):
    """Roll a board to where most pieces are right: no frame could do better."""
    row, column = np.divmod(positions, grid[1])
    rolls = [(row - i) % grid[0] * grid[1] + (column - j) % grid[1] for i, j in np.ndindex(*grid)]
    return max(rolls, key=lambda found: (found == truth).sum())


def alone(images) -> dict[str, dict[str, float]]:
    """Ask the network of true boards: share of rows, columns and frames that it finds."""
    network, found = FrameNet.from_pretrained(checkpoints.BOX / VISION), {}
    for kind in ("288 px", "art"):
        for grid, gap in product(GRIDS, GAPS):
            cuts = [
                Puzzle.from_image(image, grid, gap=gap, seed=n)
                for n, image in enumerate(images[kind][:SHOWN])
            ]
            marks = take(network, [("", cuts)])
            found[f"{grid}, gap {gap:g}, {kind}"] = {k[1:]: round(v, 1) for k, v in marks.items()}
    return found


def main(data: str, *files: str) -> None:
    """Roll every board with every weight; with 1 look at the pieces again, too, as `auto` does."""
    solver, images = Solver.from_pretrained(), gather_calibration.read(data)
    network_alone = alone(images)
    rows: dict[str, list] = {}
    ways = [f"rolled, weight {w:g}" for w in WEIGHTS] + ["weight 1, repaired", BEST]
    for setting, puzzle, before in boards(images, list(files)):
        right, below, grid, _ = evidence(solver, puzzle)
        answers = [before]
        with patch.object(assembly, "repaired", lambda positions, *_: positions):
            for weight in WEIGHTS:
                louder = Louder(solver.frame, weight)
                answers.append(framed(louder, puzzle.pieces, before, right, below, grid))
        answers.append(framed(solver.frame, puzzle.pieces, before, right, below, grid))
        answers.append(best_roll(before, puzzle.truth, grid))
        hits = [a == puzzle.truth for a in answers]
        rows.setdefault(setting, []).append([[h.mean(), h.all()] for h in hits])
        print(setting, [round(float(h.mean()), 2) for h in hits], flush=True)
    record = {
        "commit": current_commit(),
        "answers": [Path(f).name for f in files],
        "network alone": {"boards of each": SHOWN} | network_alone,
    }
    everything = {"all": [r for found in rows.values() for r in found]}
    for name, found in (everything | rows).items():
        table = 100 * np.array(found)  # (boards, ways, marks)
        gained = table[:, :, 0] - table[:, :1, 0]
        record[name] = {"boards": len(table)} | {
            way: {
                "absolute": round(table[:, k, 0].mean(), 2),
                "perfect": round(table[:, k, 1].mean(), 2),
                "won": int((gained[:, k] > 10).sum()),
                "lost": int((gained[:, k] < -10).sum()),
            }
            for k, way in enumerate(["as found", *ways])
        }
    OUTPUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
