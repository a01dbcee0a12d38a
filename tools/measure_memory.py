"""Measure what small models know by heart: docs/study/memory.json.

python -m tools.measure_memory DATA MODELS...

The rows of the study train on one set of puzzles, cut once. Each model is a folder that `puzlm
ablate` kept; DATA is the folder of the plan's images. It is asked for its training puzzles, for
training images cut in another way, and for new images cut in that way.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from puzlm.harness.evaluate import current_commit
from puzlm.models.backbones import Seq2Seq, TorchReader
from puzlm.models.decoding import decode
from puzlm.study.plan import Plan
from puzlm.study.trial import CHUNK, Gallery
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer

DOCS = Path(__file__).parents[1] / "docs"
PUZZLES = 400


def main(data: str, folders: list[str]) -> None:
    plan = Plan.load(DOCS.parent / "plans" / "study.toml")
    kind, cut = plan.kinds[0], plan.recipe(plan.rows[0], 0).cut
    gallery = Gallery([kind], data, "cpu")

    def pieces(seed: tuple[int, ...]) -> torch.Tensor:
        side = plan.recipe(plan.rows[0], 0).tokenizer.side
        # As many as Gallery.stock draws at once on a GPU: its first puzzles are these.
        return gallery.pieces(0, CHUNK, cut, side, seed)[:PUZZLES].byte()

    sets = {"training puzzles": pieces((0, 0, 0, 2)), "training images": pieces((9, 9, 9, 9))}
    gallery = Gallery([replace(kind, train=kind.val)], data, "cpu")
    sets["new images"] = pieces((9, 9, 9, 9))
    found: dict[str, dict[str, list[float]]] = {}
    for folder in folders:
        tokenizer, model = PieceTokenizer.from_pretrained(folder), Seq2Seq.from_pretrained(folder)
        found[Path(folder).name] = {}
        for what, shown in sets.items():
            symbols = tokenizer.encode_canonical(shown.flatten(0, 1))
            ids, order = tokenizer.sentences(symbols.view(PUZZLES, 9, -1, 1))
            got = decode(
                TorchReader(model),
                ids.numpy(),
                slots=9,
                grid=(3, 3),
                first_cell=tokenizer.cell_token_id(0),
            )
            right = np.asarray(got.cells) == order.numpy()
            marks = [round(100 * float(x.mean()), 1) for x in (right, right.all(1))]
            found[Path(folder).name][what] = marks
            print(Path(folder).name, what, *marks, flush=True)
    record = {
        "commit": current_commit(),
        "kind": kind.name,
        "puzzles": PUZZLES,
        "absolute_perfect": found,
    }
    (DOCS / "study" / "memory.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
