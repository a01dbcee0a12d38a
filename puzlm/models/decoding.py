"""From logits to positions: greedy, valid, beam, assign. numpy only, and never a pixel.

A sentence has one slot for each piece, in the tokenizer's order, missing pieces last. The decoder
writes the cell of slot 0, then of slot 1, and so on. A reader is anything with

    state = reader.start(input_ids, attention_mask)
    logits, state = reader.step(state, tokens)        (rows,) -> (rows, vocabulary)
    state = reader.reorder(state, rows)               row k goes on from row rows[k]
    state = reader.only(state, tokens)                if it has it: score no others from here on

where rows of one puzzle stay together and only ever take over from one another. The same code
serves torch and ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import SettingsError, nearest
from puzlm.tokenizer.settings import BOS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

METHODS = ("valid", "greedy", "beam", "assign")
WIDTH = 16  # hypotheses a beam keeps


class Reader(Protocol):
    """What a backbone offers to a decoder."""

    def start(self, input_ids: Ints, attention_mask: Ints | None) -> Any: ...
    def step(self, state: Any, tokens: Ints) -> tuple[NDArray[np.float32], Any]: ...
    def reorder(self, state: Any, rows: Ints) -> Any: ...


@dataclass(frozen=True)
class Decoded:
    """Cells (rows, slots), the confidence of each in [0, 1], and what a beam found beside."""

    cells: Ints
    confidence: Floats
    marginals: Floats | None = None  # (rows, slots, cells)
    alternatives: Ints | None = None  # (rows, hypotheses, slots), best first
    scores: Floats | None = None  # (rows, hypotheses) log-probabilities; -inf: no such board


def decode(
    reader: Reader,
    input_ids: Ints,
    *,
    slots: int,
    grid: tuple[int, int],
    first_cell: int,
    attention_mask: Ints | None = None,
    method: str = "valid",
    width: int = WIDTH,
    temperature: float = 1.0,
    given: Sequence[Mapping[int, int]] | None = None,
) -> Decoded:
    """Write down the cell of each of the first `slots` slots of every sentence.

    `first_cell` is the token id of cell 0. `given` fixes cells by slot, one mapping a row. Every
    method but 'greedy' gives each slot a cell of its own.
    """
    if method not in METHODS:
        raise SettingsError(f"decode '{method}' is unknown; {nearest(method, METHODS)}")
    cells = grid[0] * grid[1]
    fixed = np.full((len(input_ids), slots), -1, np.int64)
    for row, placed in enumerate(given or []):
        for slot, cell in placed.items():
            fixed[row, slot] = cell
    start = reader.start(input_ids, attention_mask)
    if method != "greedy" and hasattr(reader, "only"):  # nothing but cells is looked at
        start = reader.only(start, np.arange(first_cell, first_cell + cells))
    arguments = (reader, start, fixed, cells, first_cell, temperature)
    if method == "greedy":
        return _greedy(*arguments)
    found = _beam(*arguments, width if method != "valid" else 1)
    return assign(found, fixed) if method == "assign" else found


def _greedy(
    reader: Reader, state: Any, fixed: Ints, cells: int, first_cell: int, temperature: float
) -> Decoded:
    """Take the argmax over the whole vocabulary, as the paper does; cells may repeat.

    A token that is no cell gives position -1.
    """
    rows, slots = fixed.shape
    chosen, confidence = np.empty((rows, slots), np.int64), np.empty((rows, slots))
    tokens = np.full(rows, BOS, np.int64)
    for slot in range(slots):
        logits, state = reader.step(state, tokens)
        tokens = np.where(fixed[:, slot] >= 0, fixed[:, slot] + first_cell, logits.argmax(-1))
        shares = np.exp(_log_softmax(logits / temperature))
        confidence[:, slot] = shares[np.arange(rows), tokens]
        cell = tokens - first_cell
        chosen[:, slot] = np.where((cell >= 0) & (cell < cells), cell, -1)
    return Decoded(chosen, confidence)


def _beam(
    reader: Reader,
    state: Any,
    fixed: Ints,
    cells: int,
    first_cell: int,
    temperature: float,
    width: int,
) -> Decoded:
    """Keep the `width` best partial placements; a cell is used once. Width 1 is 'valid'."""
    rows, slots = fixed.shape
    taken = np.zeros((rows, 1, cells), bool)  # also by a given slot that comes later
    for row, slot in zip(*np.nonzero(fixed >= 0), strict=True):
        taken[row, 0, fixed[row, slot]] = True
    every = np.arange(rows)[:, None]
    # One empty hypothesis a row; the first step makes as many of it as the beam is wide.
    score, tokens = np.zeros((rows, 1)), np.full(rows, BOS, np.int64)
    chosen, sure = np.zeros((rows, 1, slots), np.int64), np.zeros((rows, 1, slots))
    for slot in range(slots):
        logits, state = reader.step(state, tokens)
        now = score.shape[1]
        own = logits[:, first_cell : first_cell + cells].reshape(rows, now, cells)
        allowed = ~taken
        is_fixed = fixed[:, slot] >= 0
        if is_fixed.any():
            allowed[is_fixed] = False
            allowed[is_fixed, :, fixed[is_fixed, slot]] = True
        log_p = _log_softmax(np.where(allowed, own / temperature, -np.inf))
        total = (score[:, :, None] + log_p).reshape(rows, now * cells)
        if total.shape[1] < width:  # fewer choices than places in the beam: fill up with nothing
            total = np.pad(total, ((0, 0), (0, width - total.shape[1])), constant_values=-np.inf)
        best = np.argsort(-total, axis=1, kind="stable")[:, :width]
        parent, cell = np.minimum(best // cells, now - 1), best % cells
        score = np.take_along_axis(total, best, 1)
        taken, chosen, sure = taken[every, parent], chosen[every, parent], sure[every, parent]
        taken[every, np.arange(width), cell] = True
        chosen[:, :, slot] = cell
        sure[:, :, slot] = np.exp(log_p[every, parent, cell])
        tokens = (cell + first_cell).reshape(-1)
        if width > 1:
            state = reader.reorder(state, (every * now + parent).reshape(-1))
    if width == 1:
        return Decoded(chosen[:, 0], sure[:, 0], scores=score)
    share = np.exp(score - score.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    marginals = np.zeros((rows, slots, cells))
    for k in range(width):
        np.add.at(marginals, (every, np.arange(slots), chosen[:, k]), share[:, k, None])
    marginals = np.minimum(marginals, 1.0)  # sums of shares, right but for rounding
    confidence = np.take_along_axis(marginals, chosen[:, 0, :, None], 2)[..., 0]
    return Decoded(chosen[:, 0], confidence, marginals, chosen, score)


def by_slot(order: Ints, given: Sequence[Mapping[int, int]]) -> list[dict[int, int]]:
    """Pieces that are given, {piece: cell}, as slots of sentences whose pieces stand in `order`."""
    return [
        {int(np.flatnonzero(row == piece)[0]): cell for piece, cell in some.items()}
        for row, some in zip(order, given, strict=True)
    ]


def assign(found: Decoded, fixed: Ints | None = None) -> Decoded:
    """Give every slot a cell of its own so that the product of the marginals is largest."""
    assert found.marginals is not None
    rows, slots, _ = found.marginals.shape
    chosen = np.empty((rows, slots), np.int64)
    for row in range(rows):
        given = (
            {}
            if fixed is None
            else {int(slot): int(fixed[row, slot]) for slot in np.nonzero(fixed[row] >= 0)[0]}
        )
        chosen[row] = assigned(found.marginals[row], given)
    confidence = np.take_along_axis(found.marginals, chosen[..., None], 2)[..., 0]
    return Decoded(chosen, confidence, found.marginals, found.alternatives, found.scores)


def assigned(marginals: Floats, given: Mapping[int, int] | None = None) -> Ints:
    """Cells (pieces,), all different, with the largest product of marginals (pieces, cells)."""
    from scipy.optimize import linear_sum_assignment  # late: a third of a cold start

    value = np.log(marginals + 1e-9)
    for piece, cell in (given or {}).items():
        value[piece] = -1e6
        value[piece, cell] = 0.0
    result: Ints = linear_sum_assignment(-value)[1]
    return result


def _log_softmax(x: Any) -> Floats:
    """Log-softmax over the last axis; rows without any allowed entry stay -inf."""
    x = np.asarray(x, np.float64)
    top = x.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Floats = x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
    return np.where(np.isfinite(x), result, -np.inf)
