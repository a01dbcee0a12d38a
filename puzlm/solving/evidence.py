"""What the models say of a puzzle, and how much of it to believe.

The weights of `auto`, and the rules that change them: where borders touch pixels know, where
colours bled symbols count too. Chosen in docs/results.md, "Choosing the weights".
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import ModelError
from puzlm.models.decoding import Decoded
from puzlm.pieces.repair import SOUND, Wear
from puzlm.puzzle import Grid, Positions, Puzzle
from puzlm.solution import Floats, Solution

Seen = tuple[Floats | None, Floats, Floats]  # what is read: of cells, right of, and below what
Pairs = dict[str, tuple[Floats, Floats]]  # evidence by name: what lies right of, and below, what

# Weights of `auto`, chosen on photos-val and art-val: docs/results.md, "Choosing the weights".
# "context" is what is read of neighbours. The pixel scores are log-ratios to the second best,
# so where borders are worn they fade by themselves. Temperatures make confidences true.
FUSION = {
    "seq2seq": 1.0,
    "pixels": 1.0,
    "sides": 0.5,
    "edges": 1.0,
    "context": 1.0,
    "temperature": 5.0,
}
READ = {  # beside what the reader, or a ViT, says of the puzzle as a whole
    "whole": 1.0,
    "context": 1.0,
    "edges": 0.5,
    "pixels": 0.25,
    "seq2seq": 0.1,  # where colours bled; where there is doubt, AGAIN
    "temperature": 10.0,
}
# After one reading, an answer with a piece less sure than this (before calibration) is in doubt:
# then five more views are read.
SURE = 0.95
# Then the language models of these grids read those views, too, and count so much.
AGAIN = {"3x3": 6.0}
# Where the pixels' own answer agrees with itself this much, borders really touch: then they know.
TOUCHING, SEAMS = 0.8, 4.0
# In plain pictures that touch fewer sides are best buddies, but still more by their pixels than by
# learned sides, which know worn borders better; then both count alike: docs/runs/touching-val.json.
AHEAD, ALIKE = 0.02, 1.0
# Of pixels that must bear noise or lights that differ: sure where they fit, and never quite true.
BORNE = 3.0
WORN = 0.5  # pixels beside learned sides in large worn puzzles: docs/runs/weights-10x10-val.txt
# Sides alone leave no doubt if the best arrangement agrees with them, and beats the second, by so
# much: docs/runs/clear-val.json.
CLEAR, AHEAD_OF_SECOND = 0.95, 3.0
AGREED = 64  # width of the beam that looks for such an answer; as good for this as a wide one
# Where colours had run over the cuts and were mended (bleed.py) symbols count too, since pixels are
# no longer quite true: docs/runs/bleed-choices.txt, sections 2 and 3; of large boards 4 and 7.
MENDED = {"seq2seq": 0.5, "sides": 0.5}
LARGE_MENDED = {"pixels": 1.0, "sides": 1.0}

# `symbols`: what the sides say beside a language model, which reads them, too.
BESIDE = {"sides": 0.1, "temperature": 2.0}


UNSEEN = 1.0  # nats below the last board of a beam: where one is taken to be that it did not hold


class Models(typing.Protocol):
    """What fusion asks of a solver: its name, and the models that it has."""

    solver: str
    card: dict[str, Any]
    box: Any

    @property
    def tokenizer(self) -> Any: ...
    @property
    def sides(self) -> Any: ...
    @property
    def whole(self) -> Any: ...
    @property
    def edges(self) -> Any: ...
    @property
    def frame(self) -> Any: ...
    def neighbours(
        self, puzzle: Puzzle, made: tuple[Positions, Floats, Floats]
    ) -> tuple[Floats, Floats] | None: ...


@dataclass(frozen=True)
class Read:
    """What the encoder-decoder said of one puzzle, by input piece."""

    cells: Positions
    confidence: Floats
    marginals: Floats | None
    order: tuple[int, ...]
    model: str
    """Which model of the box it was."""
    boards: Positions
    """Arrangements (k, n) that were thought of, best first; none but after a beam ..."""
    likely: Floats
    """... and their log-probabilities (k,)."""


@dataclass
class Evidence:
    """What the models said of one puzzle, and the seconds it took them."""

    repairs: tuple[str, ...] = ()  # what was done to the pieces before, in words ...
    wear: Wear = SOUND  # ... and what pixels must bear
    seq2seq: Any = None  # Read
    seen: Seen | None = None
    sides: Pairs = field(default_factory=dict)  # what pixels and learned sides said, if asked
    clear: Solution | None = None  # the answer, where sides alone leave no doubt
    doubtful: bool = False  # the answer after one reading was in doubt, and more views were read
    seconds: float = 0.0

    @property
    def bled(self) -> bool:
        """Whether its colours had run over the cuts, and were mended."""
        return "mended colours" in self.repairs


def in_doubt(found: Solution, evidence: Evidence) -> bool:
    """Whether more views of a puzzle with this answer should be read."""
    looked = evidence.seen is not None and evidence.clear is None and not evidence.bled
    return looked and float(found.confidences.min()) < SURE


def by_piece(found: Decoded, order: NDArray[np.int64], row: int, model: str = "") -> Read:
    """Turn slots of the sentence back into input pieces."""
    slot_of = np.argsort(order)
    boards, likely = np.zeros((0, len(order)), np.int64), np.zeros(0)
    if found.alternatives is not None and found.scores is not None:
        # Where there are fewer boards than places in the beam, impossible ones fill it up.
        there = np.isfinite(found.scores[row])
        boards, likely = found.alternatives[row][there][:, slot_of], found.scores[row][there]
    return Read(
        found.cells[row][slot_of],
        found.confidence[row][slot_of],
        None if found.marginals is None else found.marginals[row][slot_of],
        tuple(order.tolist()),
        model,
        boards,
        likely,
    )


def most_likely(
    boards: Positions, scores: Floats, read: Read, kinds: Positions, weight: float
) -> int:
    """Which of some arrangements (k, n), best first by their scores (k,), is best together with
    what the encoder-decoder said of each as a whole.

    Marginals forget which cells go together: of two pieces that may change places both are in
    doubt, whatever follows from where the first one lies. Arrangements that it did not think of are
    UNSEEN less likely than the last that it did. Equal pieces may change places.
    """

    def look(board: Positions) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(zip(board.tolist(), kinds.tolist(), strict=True)))

    said: dict[Any, float] = {}
    for board, value in zip(read.boards, read.likely.tolist(), strict=True):
        said[look(board)] = max(value, said.get(look(board), -np.inf))
    least = float(read.likely.min()) - UNSEEN
    whole = np.array([said.get(look(board), least) for board in boards])
    return int(np.argmax(scores + weight * whole))


def pair_confidence(
    positions: Positions, right: Any, below: Any, grid: Grid, kinds: Positions | None = None
) -> Floats:
    """Share of a piece's neighbours that are of its own first choice or it of theirs."""
    kinds = np.arange(len(positions)) if kinds is None else kinds
    total, good = np.zeros(len(positions)), np.zeros(len(positions))
    at = {int(c): i for i, c in enumerate(positions) if c >= 0}
    for cell, i in at.items():
        for scores, other, inside in (
            (right, cell + 1, (cell + 1) % grid[1]),
            (below, cell + grid[1], True),
        ):
            j = at.get(other)
            if j is None or not inside:
                continue
            first, second = kinds[scores[:, j].argmax()], kinds[scores[i].argmax()]
            fits = 0.5 * (int(first == kinds[i]) + int(second == kinds[j]))
            for piece in (i, j):
                total[piece] += 1
                good[piece] += fits
    return np.where(positions >= 0, good / np.maximum(total, 1), 0.0)


def region_share(positions: Positions, right: Floats, below: Floats, grid: Grid) -> Floats:
    """Share of the placed pieces that each hangs together with, by sides that choose each other.

    A region laid in a wrong place fits in itself; what tells is that it does not hang together with
    the rest: docs/runs/joined-val.txt.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    board = np.full(grid[0] * grid[1], -1)
    placed = np.flatnonzero(positions >= 0)
    board[positions[placed]] = placed
    board = board.reshape(grid)
    links = []
    for scores, first, second in (
        (right, board[:, :-1], board[:, 1:]),
        (below, board[:-1], board[1:]),
    ):
        i, j = (side[(first >= 0) & (second >= 0)] for side in (first, second))
        fits, others = scores[i, j], np.array(scores)
        others[i, j] = -np.inf
        chosen = (fits > others.max(1)[i]) & (fits > others.max(0)[j])  # of equal ones neither is
        links.append(np.stack([i[chosen], j[chosen]]))
    n, pairs = len(positions), np.concatenate(links, 1)
    graph = coo_array((np.ones(pairs.shape[1]), (pairs[0], pairs[1])), (n, n))
    region = connected_components(graph, directed=False)[1]
    size: Floats = np.bincount(region)[region] / max(1, len(placed))
    return np.where(positions >= 0, size, 0.0)


def large_board(
    puzzle: Puzzle, pairs: Pairs, bled: bool, wear: Wear = SOUND
) -> tuple[dict[str, float], bool] | None:
    """Weights that differ in a large whole puzzle, and whether it may come out rolled; else None.

    No model knows the cells of such a puzzle. Whether its borders touch is told without an
    arrangement, which is the dear part here: by the share of best buddies. `bled`: its colours had.
    What borders must bear makes them agree less even where they touch.
    """
    from puzlm.solving.search import assembly
    from puzlm.solving.search.board import best_buddies

    whole = len(puzzle.pieces) == puzzle.cells > assembly.SMALL_GRID
    if not whole or not {"pixels", "edges"} <= set(pairs):
        return None
    pixels = best_buddies(*pairs["pixels"])
    if bled:
        return dict(LARGE_MENDED), pixels < TOUCHING
    if wear != SOUND:
        return {"pixels": BORNE}, True
    if pixels >= TOUCHING:
        return {"pixels": SEAMS}, False
    ahead = pixels - best_buddies(*pairs["edges"]) >= AHEAD
    return {"pixels": ALIKE if ahead else WORN}, True


def border_weights(
    pairs: Pairs, grid: Grid, bled: bool, seen: bool, kinds: Positions | None = None
) -> dict[str, float]:
    """Weights that differ in a whole puzzle whose borders touch, or whose colours had bled.

    `seen`: the reader has, beside which the language model otherwise hardly counts.
    """
    other = dict(MENDED) if bled and seen else {}
    if agreement(*pairs["pixels"], grid, kinds) >= TOUCHING:
        other["pixels"] = ALIKE if bled else SEAMS
    return other


def agreement(right: Floats, below: Floats, grid: Grid, kinds: Positions | None = None) -> float:
    """How far what the borders say agrees with itself on its own arrangement: 0 to 1."""
    return _own_answer(right, below, grid, kinds)[1]


def clear_answer(right: Floats, below: Floats, grid: Grid) -> Positions | None:
    """The arrangement that sides of one kind want, if it agrees with them and no other is near."""
    found, agrees, ahead = _own_answer(right, below, grid)
    return found if agrees >= CLEAR and ahead >= AHEAD_OF_SECOND else None


def _own_answer(
    right: Floats, below: Floats, grid: Grid, kinds: Positions | None = None
) -> tuple[Positions, float, float]:
    """The arrangement borders want, how far they agree with it, how far it beats the second."""
    from puzlm.solving.search import assembly

    found, scores = assembly.beam_search(right, below, grid, width=AGREED, top=2, kinds=kinds)
    agrees = float(pair_confidence(found[0], right, below, grid, kinds).mean())
    return found[0], agrees, float(scores[0] - scores[1]) if len(scores) > 1 else np.inf


def added(
    pairs: Pairs, cells: Mapping[str, Floats], weights: Mapping[str, float], n: int
) -> tuple[Floats, Floats, Floats | None]:
    """One objective of all evidence: scores of neighbours (right, below) and of cells."""
    from puzlm.solving.search.board import runner_up

    right, below = np.zeros((n, n)), np.zeros((n, n))
    for name, (a, b) in pairs.items():
        if not weights.get(name):
            continue
        # The reader compares with nothing, the others with each other: holes make them differ.
        least = 0.0 if name == "context" or n < 3 else runner_up(a, b)
        right, below = right + weights[name] * (a - least), below + weights[name] * (b - least)
    np.fill_diagonal(right, -np.inf)
    np.fill_diagonal(below, -np.inf)
    where = np.sum([weights[k] * v for k, v in cells.items()], 0) if cells else None
    for scores in (right, below, where):
        if scores is not None and np.isnan(scores).any():
            raise ModelError("the model's scores are no numbers; its weights are damaged")
    return right, below, where


def gather(
    puzzles: list[Puzzle],
    into: list[Evidence],
    name: str,
    takes: Callable[[Puzzle, Evidence], bool],
    read: Callable[[list[Puzzle], list[int]], list[Any]],
    most: int,
) -> None:
    """Let one model read all puzzles that it takes, those of one size together."""
    able = [i for i, p in enumerate(puzzles) if into[i].clear is None and takes(p, into[i])]
    for group in by_size(puzzles, able, most):
        start = time.perf_counter()
        answers = read([puzzles[i] for i in group], group)
        each = (time.perf_counter() - start) / len(group)
        for i, answer in zip(group, answers, strict=True):
            setattr(into[i], name, answer)
            into[i].seconds += each


def by_size(puzzles: list[Puzzle], indices: list[int], most: int) -> list[list[int]]:
    """Group puzzles of one grid and number of pieces, at most `most` together."""
    groups: dict[Any, list[int]] = {}
    for i in indices:
        groups.setdefault((puzzles[i].grid, len(puzzles[i].pieces)), []).append(i)
    return [g[k : k + most] for g in groups.values() for k in range(0, len(g), most)]
