"""One objective of all evidence about a puzzle, and the best arrangement by it.

    sum over pieces of log p(cell)  +  sum over touching pairs of their fit

What the weights are, and where they change, is in evidence.py; the search is in assembly.py.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from puzlm.pieces.equal_pieces import all_differ, kinds_of, same_cells, same_kind, same_pairs
from puzlm.puzzle import Positions, Puzzle
from puzlm.solution import Floats, Solution, Used, grid_name
from puzlm.solving.evidence import (
    AGAIN,
    BESIDE,
    FUSION,
    READ,
    Evidence,
    Models,
    Pairs,
    added,
    border_weights,
    clear_answer,
    large_board,
    most_likely,
    pair_confidence,
    region_share,
)
from puzlm.solving.framing import framed
from puzlm.solving.ground import plain_ground, settled
from puzlm.solving.search.deadline import over
from puzlm.solving.views import LIT
from puzlm.solving.windows import ROUNDS
from puzlm.tokenizer.piece_tokenizer import side_symbols

TOP = 32  # arrangements whose scores make up the confidence of `auto`
# What all views say of an arrangement as a whole, beside the sum over its pieces; 2 to 16 are much
# alike (docs/runs/whole-val.txt). Larger boards are too many for a beam to hold the right one.
WHOLE, WHOLE_GRID = 8.0, 9
USES = {
    "auto": ("seq2seq", "whole", "context", "edges", "pixels", "sides"),
    "symbols": ("seq2seq", "whole", "context", "sides"),
    "bigram": ("sides",),
    "vision-pairs": ("edges",),
}


def sure_by_sides(solver: Models, puzzle: Puzzle, evidence: Evidence) -> Solution | None:
    """The answer by sides alone, if borders touch and leave no doubt; then no large model is asked.

    Two witnesses, pixels and learned sides, must each want the same arrangement and no other.
    """
    from puzlm.solving import classic
    from puzlm.solving.search import assembly

    n, edges, start = len(puzzle.pieces), solver.edges, time.perf_counter()
    if evidence.repairs or edges is None or not 2 < n == puzzle.cells <= assembly.SMALL_GRID:
        return None
    if not all_differ(kinds_of(puzzle.pieces)):
        return None
    evidence.sides["pixels"] = _alone(*classic.evidence(puzzle.pieces, None))
    first = clear_answer(*evidence.sides["pixels"], puzzle.grid)
    if first is not None:
        evidence.sides["edges"] = _alone(*edges.scores(puzzle.pieces))
        second = clear_answer(*evidence.sides["edges"], puzzle.grid)
    evidence.seconds += time.perf_counter() - start
    if first is None or second is None or (first != second).any():
        return None
    found = fused(solver, puzzle, {}, evidence)
    return replace(found, used=Used("auto", ("edges", "pixels"), clear=True))


def _alone(right: Any, below: Any) -> tuple[Floats, Floats]:
    """Scores of pairs in double precision; no piece lies beside itself."""
    both = np.array(right, np.float64), np.array(below, np.float64)
    for scores in both:
        np.fill_diagonal(scores, -np.inf)
    return both


def fused(solver: Models, puzzle: Puzzle, given: dict[int, int], evidence: Evidence) -> Solution:
    """Add the evidence up and search for the best arrangement."""
    from puzlm.solving.search import assembly

    start = time.perf_counter()
    n, use = len(puzzle.pieces), USES[solver.solver]
    # Large boards are not searched by a beam; there equal pieces as one kind placed fewer rightly.
    small = puzzle.cells <= assembly.SMALL_GRID
    kinds = kinds_of(puzzle.pieces) if small else np.arange(n)
    w = _weights(solver, puzzle, evidence)
    pairs: Pairs = {}
    cells: dict[str, Floats] = {}
    frame, touching, worn = None, False, False  # a large board's
    if evidence.seq2seq is not None:
        cells["seq2seq"] = np.log(same_cells(evidence.seq2seq.marginals, kinds) + 1e-4)
    if evidence.seen is not None:
        placed, *near = evidence.seen
        # Nobody reads where on a plain ground a picture lies; `settled` below does better.
        if placed is not None and not len(plain_ground(puzzle.pieces, kinds)):
            cells["whole"] = same_cells(placed, kinds)
        pairs["context"] = (near[0], near[1])
    read = bool(cells or pairs)  # by a model that sees the puzzle as a whole
    if n > 1:
        pairs |= _sides_of(solver, puzzle, use, read, evidence)
    pairs = {k: (same_pairs(a, kinds), same_pairs(b, kinds)) for k, (a, b) in pairs.items()}
    # With holes they would pull pieces together that do not touch.
    whole = read and n == puzzle.cells > 2
    if solver.solver == "symbols" and cells:
        w |= BESIDE if "seq2seq" in cells else {**BESIDE, "temperature": READ["temperature"]}
    elif whole:
        w |= border_weights(pairs, puzzle.grid, evidence.bled, evidence.seen is not None, kinds)
    elif (
        not read and (large := large_board(puzzle, pairs, evidence.bled, evidence.wear)) is not None
    ):
        other, rolls = large
        w, touching, worn = w | other, not rolls, rolls
        frame = solver.frame if rolls and not given else None
    right, below, where = added(pairs, cells, w, n)
    # Who knows cells knows where on a plain ground a picture lies. A given piece may be of the
    # ground and say nothing, and the place must keep it: that is left to the search.
    loose = "pixels" in use and n == puzzle.cells and not (cells or given or all_differ(kinds))
    ground = plain_ground(puzzle.pieces, kinds) if loose else kinds[:0]
    there: Floats | float = 1.0
    if small:
        found, scores = assembly.beam_search(
            right, below, puzzle.grid, where, given, top=TOP, hole=0.0, kinds=kinds
        )
        heat = w["temperature"] if read else 1.0  # fitted with the models' words in
        share = np.exp((scores - scores[0]) / heat)
        share /= share.sum()
        whole = evidence.seq2seq
        if solver.solver == "symbols" and whole is not None and puzzle.cells <= WHOLE_GRID:
            best = most_likely(found, scores, whole, kinds, WHOLE)
            first = [best, *(k for k in range(len(found)) if k != best)]
            found, share = found[first], share[first]
        boards = found
        if len(ground):
            seams = added({k: v for k, v in pairs.items() if k != "context"}, {}, FUSION, n)[:2]
            found, there = settled(boards, *seams, puzzle.grid, ground, kinds)
        sure = np.minimum((same_kind(found, found[0], kinds) * share[:, None]).sum(0), 1.0)
        others = tuple(boards[~same_kind(boards, found[0], kinds).all(1)][:5])
    else:
        one = _arranged(puzzle, right, below, where, given, frame)
        for _ in range(ROUNDS if worn else 0):
            near_by = None if over() else solver.neighbours(puzzle, (one, right, below))
            if near_by is None:
                break
            pairs["context"] = near_by
            right, below, where = added(pairs, cells, w, n)
            before, one = one, _arranged(puzzle, right, below, where, given, frame)
            if (before == one).all():
                break
        found = one[None]
        sure = pair_confidence(found[0], right, below, puzzle.grid)
        if touching:  # where borders are worn, regions told nothing more
            sure = sure * np.sqrt(region_share(found[0], right, below, puzzle.grid))
        others = ()
    sure = sure * there
    used = [solver.whole.name if name == "whole" else name for name in cells]
    used += [f"{solver.whole.name} windows"] if "context" in pairs and "whole" not in cells else []
    used += [k for k in use if k in pairs and k != "context" and w[k]]
    used += [] if frame is None else ["frame"]
    used += evidence.repairs
    several = solver.solver in ("auto", "symbols")
    told = Used(
        solver.solver,
        tuple(used) if several else (),
        model=evidence.seq2seq.model if several and evidence.seq2seq is not None else "",
        looks=len(LIT) if several and evidence.doubtful else 1,
    )
    seconds = evidence.seconds + time.perf_counter() - start
    order = tuple(np.argsort(-sure, kind="stable").tolist())
    if evidence.seq2seq is not None:
        order = evidence.seq2seq.order
    return Solution(found[0], sure, puzzle.grid, told, seconds, puzzle.pieces, others, order)


def _arranged(
    puzzle: Puzzle,
    right: Floats,
    below: Floats,
    where: Floats | None,
    given: dict[int, int],
    frame: Any,
) -> Positions:
    """The best arrangement of a large board, rolled to its frame if there is one that knows it."""
    from puzlm.solving.search import assembly

    one = assembly.assemble(right, below, puzzle.grid, where, given, hole=0.0)
    if frame is None:
        return one
    return framed(frame, puzzle.pieces, one, right, below, puzzle.grid)


def _weights(solver: Models, puzzle: Puzzle, evidence: Evidence) -> dict[str, float]:
    """Weights of the evidence: beside the reader all else says less that is new."""
    if solver.solver != "auto":
        return dict.fromkeys(USES[solver.solver], 1.0) | {"temperature": 1.0}
    chosen = FUSION if evidence.seen is None else {**FUSION, **READ}
    if evidence.doubtful and evidence.seq2seq is not None:
        chosen = {**chosen, "seq2seq": AGAIN[grid_name(puzzle.grid)]}
    return {**chosen, **solver.card.get("fusion", {})} if solver.box is None else dict(chosen)


def _sides_of(
    solver: Models, puzzle: Puzzle, use: tuple[str, ...], read: bool, evidence: Evidence
) -> Pairs:
    """What the sides say: their pixels, learned and measured, and their symbols."""
    from puzlm.solving import classic

    found = evidence.sides  # kept there for a second search, after more looks
    if "edges" in use and solver.edges is not None and "edges" not in found:
        found["edges"] = _alone(*solver.edges.scores(puzzle.pieces))
    if "pixels" in use and "pixels" not in found:
        found["pixels"] = _alone(
            *classic.evidence(puzzle.pieces, 1.0 if evidence.bled else None, evidence.wear)
        )
    # Beside stronger evidence that is sound the symbolic sides add nothing (docs/log.md).
    weak = "pixels" not in use or not read and "edges" not in found
    if "sides" in use and (weak or evidence.bled):
        model = solver.sides
        tokenizer = solver.tokenizer
        if model is not None and tokenizer is not None:
            symbols = side_symbols(tokenizer.encode(puzzle.pieces), tokenizer.settings)
            found["sides"] = model.scores(symbols)
    return found
