"""Mixed bags: several puzzles of a classic set in one pile, nothing told, parted and solved.

    python -m tools.mixed_bags FOLDER -o results/mixed-bags.json --puzzles 2 3 5 --bags 3

The pictures of a bag are drawn by a seed. Pieces of 28 px; type 2: each turned by any quarter turn.
Score of a bag, as the enhanced neighbour score (ENAS) of Hammoudeh and Pollett: the answer with
most pieces of a puzzle is taken for it; right sides by all that touch inside the puzzle; sides of
pieces of other puzzles in that answer count as wrong. Mean over the puzzles of the bag.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from puzlm.harness.evaluate import current_commit
from puzlm.images import read_image, write_bytes
from puzlm.metrics import bootstrap
from puzlm.pieces.folder import natural
from puzlm.puzzle import cut
from puzlm.solver import Solver

PIECE = 28  # pixels


def bag(paths: list[Path], turned: bool, rng: np.random.Generator) -> tuple[Any, ...]:
    """Shuffled pieces, and the puzzle, cell and turn of each; the grid of each puzzle."""
    pieces, own, cells, grids = [], [], [], []
    for number, path in enumerate(paths):
        image = read_image(path)
        grids.append((image.shape[0] // PIECE, image.shape[1] // PIECE))
        pieces.append(cut(image, grids[-1]))
        own += [number] * len(pieces[-1])
        cells += list(range(len(pieces[-1])))
    order = rng.permutation(len(own))
    turns = rng.integers(0, 4, len(own)) * turned  # what sets each piece upright again
    shuffled = np.concatenate(pieces)[order]
    shuffled = np.stack([np.rot90(p, -t) for p, t in zip(shuffled, turns, strict=True)])
    return shuffled, np.array(own)[order], np.array(cells)[order], turns, grids


def enas(found: Any, own: Any, cells: Any, turns: Any, grids: Any) -> float:
    """Mean over the puzzles of a bag of the share of their sides that touch rightly."""
    scores = []
    for number, (rows, columns) in enumerate(grids):
        members, solution = max(found, key=lambda one: int((own[one[0]] == number).sum()))
        at = np.full((rows * columns, 4), -10_000)  # where each true cell lies: row, column, turn
        answered = np.array(solution.turns or [0] * len(members))
        for k, piece in enumerate(members):
            if own[piece] == number and solution.positions[k] >= 0:
                down, along = divmod(int(solution.positions[k]), solution.grid[1])
                at[cells[piece]] = down, along, (answered[k] - turns[piece]) % 4, 1
        at = at.reshape(rows, columns, 4)
        right = total = 0
        for first, second, step in (
            (at[:, :-1], at[:, 1:], (0, 1)),
            (at[:-1], at[1:], (1, 0)),
        ):
            total += first[..., 0].size
            apart = second[..., :2] - first[..., :2]
            for turn in range(4):
                want = step
                for _ in range(turn):
                    want = -want[1], want[0]
                same = (first[..., 2] == turn) & (second[..., 2] == turn)
                right += int((same & (apart == want).all(-1)).sum())
        foreign = int(((own[members] != number) & (solution.positions >= 0)).sum())
        scores.append(right / (total + 2 * foreign))
    return float(np.mean(scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--puzzles", type=int, nargs="+", default=[2, 3, 4, 5])
    parser.add_argument("--bags", type=int, default=3)
    parser.add_argument("--type", type=int, choices=(1, 2), default=2)
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.jpg"), key=lambda path: natural(path.name))
    engine = Solver.from_pretrained(solver="classic", rotations=options.type == 2)
    settings = {
        "set": options.folder.name,
        "type": options.type,
        "piece": PIECE,
        "solver": "classic",
    }
    rows: list[dict[str, Any]] = []
    record = {"settings": settings, "commit": current_commit(), "rows": rows}
    for count in options.puzzles:
        bags: list[dict[str, Any]] = []
        rows.append({"puzzles": count, "bags": bags})
        for seed in range(options.bags):
            rng = np.random.default_rng((count, seed))
            chosen = [files[i] for i in rng.permutation(len(files))[:count]]
            pieces, *truth = bag(chosen, options.type == 2, rng)
            start = time.process_time()
            found = engine.solve_pile(list(pieces))
            bags.append(
                {
                    "seed": seed,
                    "pictures": [path.name for path in chosen],
                    "found": len(found),
                    "enas": round(enas(found, *truth), 4),
                    "cpu_seconds": round(time.process_time() - start, 1),
                }
            )
            print(count, bags[-1], flush=True)
            rows[-1]["enas"] = bootstrap([one["enas"] for one in bags]).as_dict()
            rows[-1]["number_right"] = float(np.mean([one["found"] == count for one in bags]))
            write_bytes(options.output, json.dumps(record, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
