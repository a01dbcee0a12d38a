"""The exams of an ablation's row: what a trained model solves, by way of decoding.

Imports torch, transformers, numpy, Pillow and scipy only: it runs where nothing else is installed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from puzlm.metrics import absolute, bootstrap, perfect
from puzlm.models.backbones import TorchReader
from puzlm.models.decoding import METHODS, Decoded, assign, decode
from puzlm.puzzle import Puzzle
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training.objective import Objective

EXAM_BATCH = 256  # puzzles read at once
SLOW_DECODINGS = ("beam", "assign", "views-2", "views-6", "views-8", "fusion", "pixels")
DECODINGS = ("valid", "greedy", "head", *SLOW_DECODINGS)


class OnDevice(PieceTokenizer):
    """A tokenizer that writes sentences as always and finds its symbols on a device."""

    def __init__(self, tokenizer: PieceTokenizer, device: str) -> None:
        self.settings, self.codebooks_ = tokenizer.settings, tokenizer.codebooks_
        self.there, self.device = tokenizer.on(device), device

    def encode(self, pieces: Any) -> Any:
        """Symbols (n, b, F) of numpy pieces of any size."""
        moved = torch.from_numpy(np.ascontiguousarray(pieces)).to(self.device)
        return self.there.encode(moved).cpu().numpy()


def examine(
    objective: Objective,
    tokenizer: OnDevice,
    puzzles: list[Puzzle],
    decodings: Sequence[str],
    few: int,
) -> dict[str, Any]:
    """Absolute and perfect accuracy of a trained model, by way of decoding.

    The slow ways see the first `few` puzzles only.
    """
    model = objective.model.eval()
    reader, result = TorchReader(model), {}
    quick = [d for d in decodings if d not in SLOW_DECODINGS]
    slow = [d for d in decodings if d in SLOW_DECODINGS]
    for way, some in [(w, puzzles) for w in quick] + [(w, puzzles[:few]) for w in slow]:
        clock = time.monotonic()
        cells = _answers(objective, reader, tokenizer, some, way)
        pairs = [(got, p.truth) for got, p in zip(cells, some, strict=True) if p.truth is not None]
        result[way] = {
            "absolute": bootstrap([absolute(*p) for p in pairs]).as_dict(),
            "perfect": bootstrap([perfect(*p) for p in pairs]).as_dict(),
            "puzzles": len(some),
            "ms": round(1000 * (time.monotonic() - clock) / len(some), 2),
            # Right pieces of each puzzle: rows are compared puzzle by puzzle.
            "right": [int((got == truth).sum()) for got, truth in pairs],
        }
    return result


def _answers(
    objective: Objective, reader: TorchReader, tokenizer: OnDevice, puzzles: list[Puzzle], way: str
) -> list[NDArray[np.int64]]:
    """Cells by piece of every puzzle."""
    if way.startswith("views-"):
        from puzlm.solving.views import SETS, read_views

        found = read_views(reader, tokenizer, puzzles, SETS[int(way[6:])], batch=64)
        return list(found.cells)
    if way in ("fusion", "pixels"):  # marginals and pixels in one objective; pixels alone
        from puzlm.solver import Solver

        solver = Solver(tokenizer, reader, solver="auto" if way == "fusion" else "classic")
        return [s.positions for s in solver.solve_many(puzzles)]
    answers: list[NDArray[np.int64]] = []
    for first in range(0, len(puzzles), EXAM_BATCH):
        part = puzzles[first : first + EXAM_BATCH]
        text = tokenizer(part)
        if way == "head":
            found = _head(objective, text["input_ids"])
        else:
            assert way in METHODS
            found = decode(
                reader,
                text["input_ids"],
                slots=part[0].cells,
                grid=part[0].grid,
                first_cell=tokenizer.cell_token_id(0),
                method=way,
            )
        slot_of = np.argsort(text["order"], axis=1)
        answers += [row[slots] for row, slots in zip(found.cells, slot_of, strict=True)]
    return answers


@torch.no_grad()
def _head(objective: Objective, input_ids: NDArray[np.int64]) -> Decoded:
    """What the training-only head on the encoder says: the best assignment of its cells."""
    assert objective.heads is not None
    device = next(objective.parameters()).device
    states = objective.model.encode(torch.from_numpy(input_ids).to(device))
    _, _, cell = objective.heads(objective.pool(states).float())
    share = cell.softmax(-1).double().cpu().numpy()
    return assign(Decoded(share.argmax(-1), share.max(-1), share))
