"""How the time of each stage of solving grows with the number of pieces; a part of `puzlm bench`.

`bench_library.solve_cost` times what a person gets: one photo cut ever finer, by whatever solver
`auto` takes for the grid. Here only the number of pieces changes, they stay of one size, and every
stage is timed on every grid: also reading by the encoder-decoder, which in the box knows one grid
only. Its time does not depend on its weights, so a model of the same shape with larger tables reads
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from bench import timing as bench
from puzlm.images import read_image
from puzlm.models import pretrained as checkpoints
from puzlm.models.decoding import decode
from puzlm.puzzle import Puzzle
from puzlm.solving import classic
from puzlm.solving.search import assembly
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, side_symbols

PIECE = 48  # px, the size that the tokenizer in the box brings pieces to
GRIDS = (2, 3, 5, 8)  # rows and columns
STAGES = ("tokenise", "read", "sides", "pixels", "search")


def growth(report: bench.Report, repeats: int, grids: Sequence[int] = GRIDS) -> bench.Record:
    """Seconds of every stage on every grid, and the exponent of each over the number of pieces."""
    folder = checkpoints.find()
    most = max(grids) ** 2
    tokenizer = PieceTokenizer.from_pretrained(folder).with_cells(most)
    reader, sides = _reader(folder, tokenizer), _sides(folder)
    puzzles = {f"{g}x{g}": _puzzle(g) for g in grids}
    seconds: dict[str, dict[str, Any]] = {}
    for name, puzzle in puzzles.items():
        # Stages take turns, so that a busy moment of the machine does not fall on one of them.
        seconds[name] = bench.race(_stages(puzzle, tokenizer, reader, sides), repeats)[0]
    # Of the fastest runs, which other work on the machine disturbs least. Not of the search: for
    # large grids it is another one, and a line through both says nothing.
    exponents = {
        stage: bench.exponent(
            (len(p.pieces), seconds[name][stage]["min"]) for name, p in puzzles.items()
        )
        for stage in STAGES
        if stage != "search"
    }
    report(f"growth     pieces of {PIECE} px, one puzzle at a time, ms: {', '.join(puzzles)}")
    for stage in STAGES:
        shown = ", ".join(f"{1e3 * seconds[name][stage]['min']:.1f}" for name in puzzles)
        power = f": grows as pieces^{exponents[stage]}" if stage in exponents else ""
        report(f"           {stage:9s} {shown}{power}")
    return {
        "piece": PIECE,
        "model": folder.name,
        "seconds": seconds,
        "exponents": exponents,
        "tokens": {k: tokenizer.sentence_length(p.cells) for k, p in puzzles.items()},
        "note": "read: shape of the model with untrained weights; greedy over unused cells",
    }


def _stages(
    puzzle: Puzzle, tokenizer: PieceTokenizer, reader: Any, sides: Any
) -> dict[str, Callable[[], Any]]:
    """The stages of one puzzle as functions without arguments; each has its input ready."""
    text = tokenizer([puzzle])
    symbols = side_symbols(tokenizer.encode(puzzle.pieces), tokenizer.settings)
    right, below = (classic.scores(cost) for cost in classic.mgc(puzzle.pieces))
    np.fill_diagonal(right, -np.inf)
    np.fill_diagonal(below, -np.inf)
    small = puzzle.cells <= assembly.SMALL_GRID  # as `auto` does
    search = assembly.beam_search if small else assembly.assemble
    return {
        "tokenise": partial(tokenizer, [puzzle]),
        "read": partial(
            decode,
            reader,
            text["input_ids"],
            slots=puzzle.cells,
            grid=puzzle.grid,
            first_cell=tokenizer.cell_token_id(0),
            attention_mask=text["attention_mask"],
        ),
        "sides": partial(sides.scores, symbols),
        "pixels": lambda: [classic.scores(cost) for cost in classic.mgc(puzzle.pieces)],
        "search": partial(search, right, below, puzzle.grid),
    }


def _puzzle(side: int) -> Puzzle:
    photo = Image.fromarray(read_image(bench.SAMPLES / "china.jpg"))
    square = photo.resize((side * PIECE, side * PIECE), Image.Resampling.LANCZOS)
    return Puzzle.from_image(np.asarray(square), side, seed=1)


def _reader(folder: Any, tokenizer: PieceTokenizer) -> Any:
    """A model of the shape of the one in `folder`, for as many cells as the tokenizer has."""
    import torch

    from puzlm.models.backbones import Seq2Seq, TorchReader

    shape = Seq2Seq.from_pretrained(folder).settings
    longest = tokenizer.sentence_length(tokenizer.settings.max_cells)
    torch.manual_seed(0)
    larger = replace(shape, vocabulary=len(tokenizer), max_length=longest)
    return TorchReader(Seq2Seq(larger).eval())


def _sides(folder: Any) -> Any:
    from puzlm.models.side_model import SideModel

    return SideModel.from_pretrained(folder)
