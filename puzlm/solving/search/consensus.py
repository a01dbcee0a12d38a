"""Boards of up to about 10x10: join what several layouts agree on. Knows no pixels, no models.

One layout, repaired, keeps whole regions in the wrong place: every small step away from it costs.
Layouts found in different ways err in different places, so the pieces that lie alike beside each
other in two of them are mostly right. As in the genetic solver of Sholomon et al. (2013) such
regions are kept whole, one is laid first and the rest grows around it.
"""

from __future__ import annotations

import numpy as np

from puzlm.solving.search.board import BELOW, RIGHT, Bools, Ints, Scores, _Board, _board, beam
from puzlm.solving.search.deadline import over
from puzlm.solving.search.repair import (
    _fill,
    _movable,
    _outwards,
    _polish,
    _regions,
    _Segments,
    _sure,
    _translations,
)

LAYOUTS = 12  # more differ for longer, fewer agree too soon on what is wrong
ROUNDS = 600
PATIENCE = 250  # rounds without a better best layout
BEAMS = 0.5  # share of refills by beam search: less varied than best first, but they look ahead
WIDTH = 16  # layouts kept in such a beam


def _join(board: _Board, layouts: list[Ints], rivals: Scores, rng: np.random.Generator) -> Ints:
    """Draw two layouts, refill around what they agree on, let the result replace the worse one."""
    movable = _movable(board)
    floor = _floor(board)
    sure = _sure(board, layouts[0], rivals)
    margins = np.append(np.concatenate(list(sure.values())), 0)
    for _ in range(LAYOUTS - len(layouts)):
        if over():
            break
        least = float(np.quantile(margins[margins >= 0], rng.uniform(0, 0.8)))
        parts = _regions(board, layouts[0], sure, least, movable)
        group = int(rng.choice(list(parts.members)))
        layouts.append(_fill(board, _place(board, parts, group, rng), parts, rng))
    polished = [_polish(board, layout, rivals, movable) for layout in layouts]
    layouts = [layout for layout, _ in polished]
    values = np.array([value for _, value in polished])
    improved = 0
    for k in range(ROUNDS):
        if k - improved > PATIENCE or over():
            break
        one, other = rng.choice(len(layouts), 2, replace=False).tolist()
        agreed = _agreed(board, layouts[one], layouts[other])
        parts = _regions(board, layouts[one], agreed, 0.0, movable)
        groups = sorted(parts.members, key=lambda g: -len(parts.members[g]))
        group = groups[min(int(rng.geometric(0.5)), len(groups)) - 1]
        if rng.random() < BEAMS:
            start = _place(board, parts, group, rng)
            child = beam(board, start, _outwards(board, start), WIDTH)[0]
        elif floor is not None:
            child = _grow(board, floor, parts, group, rng)
        else:
            child = _fill(board, _place(board, parts, group, rng), parts, rng)
        child, value = _polish(board, child, rivals, movable)
        worse = min(one, other, key=lambda i: values[i])
        # A second copy of a layout would agree with the first on everything.
        if value > values[worse] + 1e-6 and abs(values - value).min() > 1e-4:
            if value > values.max():
                improved = k
            layouts[worse], values[worse] = child, value
    return layouts[int(values.argmax())]


def _agreed(board: _Board, one: Ints, other: Ints) -> dict[int, Scores]:
    """Mark by cell of `one` the pairs that `other` has too, wherever: 1, else -1."""
    marks = {}
    for direction in (RIGHT, BELOW):
        beside = np.full(board.void + 1, board.void)
        beside[other[:-1]] = other[board.around[:, direction]]
        near = one[board.around[:, direction]]
        same = (near != board.void) & (one[:-1] != board.void) & (beside[one[:-1]] == near)
        marks[direction] = np.where(same, 1, -1).astype(np.float32)
    return marks


def _place(board: _Board, parts: _Segments, group: int, rng: np.random.Generator) -> Ints:
    """Lay one segment somewhere in the frame, else void."""
    places = _translations(board, parts, group)
    return places[rng.integers(len(places))]


def _floor(board: _Board) -> tuple[_Board, Bools] | None:
    """Make room to grow a picture on every side, and say which cells can be in one picture.

    None where pieces or cells know their place.
    """
    if board.given or board.cells.any():
        return None
    rows, columns, m = 2 * board.rows - 1, 2 * board.columns - 1, board.void
    right, below = (board.toward[direction][:m, :m] for direction in (RIGHT, BELOW))
    wide = _board(right, below, (rows, columns), None, None, hole=0.0)
    row, column = np.divmod(np.arange(rows * columns), columns)
    reach = np.zeros((rows * columns, rows * columns + 1), bool)
    reach[:, :-1] = abs(row[:, None] - row) < board.rows
    reach[:, :-1] &= abs(column[:, None] - column) < board.columns
    return wide, reach


def _grow(
    board: _Board,
    floor: tuple[_Board, Bools],
    parts: _Segments,
    group: int,
    rng: np.random.Generator,
) -> Ints:
    """Fill around a segment wherever the picture wants to go; the frame follows."""
    wide, reach = floor
    moved = parts.members[group]
    row = parts.row[moved] - parts.row[moved].min() + board.rows - 1
    column = parts.column[moved] - parts.column[moved].min() + board.columns - 1
    layout = np.full(len(wide.cells) + 1, wide.void)
    layout[row * wide.columns + column] = moved
    picture = _fill(wide, layout, parts, rng, reach)[:-1].reshape(wide.rows, wide.columns)
    top, left = (np.flatnonzero((picture != wide.void).any(axis=a)).min() for a in (1, 0))
    cut = np.full((board.rows, board.columns), board.void)
    laid = picture[top : top + board.rows, left : left + board.columns]
    cut[: laid.shape[0], : laid.shape[1]] = laid
    return np.append(cut, board.void)
