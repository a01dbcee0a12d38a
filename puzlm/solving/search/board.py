"""Evidence about pairs and cells in the shape a search reads. Knows no search, pixels or models.

A layout is (rows * columns + 1,) candidates by cell, the last one void. Pieces that may lie in
several poses are several candidates each: candidate `k * n + i` is piece `i` in pose `poses[k]`
(pieces/poses.py); the first pose is 0, as given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from puzlm.pieces.poses import STRAIGHT, Poses

Floats = NDArray[np.floating]
Scores = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Counter-clockwise from the right, so that a quarter turn adds one.
RIGHT, ABOVE, LEFT, BELOW = range(4)
BEAM_GRID = 150  # cells
STEPS = np.array([[0, 1], [-1, 0], [0, -1], [1, 0]])  # (row, column) of each direction


@dataclass(frozen=True)
class _Board:
    """Hold the evidence in the shape the search reads: one void candidate, no infinities.

    toward[d]: (m + 1, m + 1), row q = scores of every candidate in direction d of q; candidate
    m = n * len(poses) is the void (a hole, or outside the frame) and scores 0 against everything.
    cells: (rows * columns, m + 1). around: (rows * columns, 4), the cell in each direction, or
    rows * columns where there is none. kinds: (n,), the first piece that equals each (kinds.py).
    """

    toward: tuple[Scores, Scores, Scores, Scores]
    cells: Scores
    around: Ints
    rows: int
    columns: int
    n: int
    poses: Poses
    given: dict[int, int]
    kinds: Ints

    @property
    def small(self) -> bool:
        """Whether beam search over the whole board costs little beside its repair."""
        return len(self.poses) == 1 and len(self.cells) <= BEAM_GRID

    @property
    def void(self) -> int:
        return self.n * len(self.poses)

    def pose(self, candidates: Ints) -> Ints:
        """The pose of each candidate."""
        return np.array(self.poses)[candidates // self.n]

    def candidate(self, pieces: Ints, poses: Ints) -> Ints:
        """The candidates that are pieces in poses."""
        number: Ints = self._first[poses] + pieces
        return number

    @cached_property
    def _first(self) -> Ints:
        """The first candidate of each pose: (8,)."""
        first = np.zeros(8, np.int64)
        first[list(self.poses)] = self.n * np.arange(len(self.poses))
        return first

    def local(self, layout: Ints, where: Ints, candidates: Ints) -> Scores:
        """Score candidates in each of the cells `where`: (len(where), len(candidates))."""
        near = layout[self.around[where]]
        if 4 * len(candidates) > self.void:  # whole rows are then cheaper to read
            result = self.cells[where]
            for direction in range(4):
                result += self.toward[(direction + 2) % 4][near[:, direction]]
            return result[:, candidates]
        result = self.cells[where[:, None], candidates]
        for direction in range(4):
            result += self.toward[(direction + 2) % 4][near[:, direction, None], candidates]
        return result

    def value(self, layout: Ints) -> float:
        """Score a layout: (rows * columns + 1,) candidates by cell, the last one void."""
        own = layout[:-1]
        total = self.cells[np.arange(len(own)), own].sum(dtype=np.float64)
        for direction in (RIGHT, BELOW):
            near = layout[self.around[:, direction]]
            total += self.toward[direction][own, near].sum(dtype=np.float64)
        return float(total)


def _board(
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    cells: Floats | None,
    given: Mapping[int, int] | None,
    poses: Poses = STRAIGHT,
    hole: float | None = None,
    kinds: Ints | None = None,
) -> _Board:
    """Check the evidence and lay it out for the search.

    With holes, log scores (all negative) would reward spreading the pieces apart. So all pair
    scores are then shifted by what a hole is worth: `hole`, or as much as the typical runner-up,
    less than a true neighbour and more than a wrong one.
    """
    rows, columns = grid
    m = len(right)
    turns = len(poses)
    n = m // turns
    if rows < 1 or columns < 1:
        raise ValueError(f"grid is {rows}x{columns}; give at least 1 row and 1 column")
    if m == 0 or m % turns or right.shape != (m, m) or below.shape != (m, m):
        raise ValueError(
            f"right is {right.shape} and below {below.shape}; give two equal square matrices"
        )
    if cells is not None and cells.shape not in ((n, rows * columns), (m, rows * columns)):
        raise ValueError(f"cells is {cells.shape}; give {(n, rows * columns)}, pieces by cells")
    given = {int(piece): int(cell) for piece, cell in (given or {}).items()}
    if any(not (0 <= p < n and 0 <= c < rows * columns) for p, c in given.items()):
        raise ValueError(f"given is {given}; give pieces below {n}, cells below {rows * columns}")
    if len(set(given.values())) < len(given):
        raise ValueError(f"given is {given}; give every piece a cell of its own")

    same = np.arange(m)
    pairs = []
    for scores in (right, below):
        padded = np.zeros((m + 1, m + 1), np.float32)
        padded[:m, :m] = scores
        for turn in range(turns):  # a piece is never its own neighbour, however turned
            padded[same, (same + turn * n) % m] = -np.inf
        pairs.append(padded)
    low = min(float(p.min(where=np.isfinite(p), initial=np.inf)) for p in pairs)
    high = max(float(p.max(where=np.isfinite(p), initial=-np.inf)) for p in pairs)
    floor = low - 2 * (high - low) - 1  # forbidden, yet finite: sums stay comparable
    if not 1 < n < rows * columns:
        hole = 0.0
    elif hole is None:
        hole = runner_up(*(p[:m, :m] for p in pairs))
        hole = hole if np.isfinite(hole) else low
    for padded in pairs:
        np.maximum(padded, floor, out=padded)
        padded[:m, :m] -= hole

    absolute = np.zeros((rows * columns, m + 1), np.float32)
    if cells is not None:
        known = cells[np.isfinite(cells)]
        least = 2 * float(known.min()) - float(known.max()) - 1 if known.size else 0.0
        absolute[:, :m] = np.tile(np.maximum(cells, least).T, m // len(cells))
    row, column = np.divmod(np.arange(rows * columns), columns)
    around = np.empty((rows * columns, 4), np.int64)
    for direction, (down, along) in enumerate(STEPS):
        r, c = row + down, column + along
        inside = (r >= 0) & (r < rows) & (c >= 0) & (c < columns)
        around[:, direction] = np.where(inside, r * columns + c, rows * columns)
    to_right, to_below = pairs
    toward = (
        to_right,
        np.ascontiguousarray(to_below.T),
        np.ascontiguousarray(to_right.T),
        to_below,
    )
    kinds = np.arange(n) if kinds is None else kinds
    return _Board(toward, absolute, around, rows, columns, n, poses, given, kinds)


def runner_up(right: Floats, below: Floats) -> float:
    """The typical second best score of a side."""
    second = [np.partition(p, len(p) - 2, axis=1)[:, len(p) - 2] for p in (right, below)]
    return float(np.median(np.concatenate(second)))


def best_buddies(right: Floats, below: Floats) -> float:
    """Share of the sides whose best partner has them as its own best: 0 to 1."""
    mutual = [p.argmax(0)[p.argmax(1)] == np.arange(len(p)) for p in (right, below)]
    return float(np.mean(mutual))


def _positions(board: _Board, layout: Ints) -> tuple[Ints, Ints]:
    positions = np.full(board.n, -1, np.int64)
    poses = np.zeros(board.n, np.int64)
    cells = np.flatnonzero(layout[:-1] != board.void)
    positions[layout[cells] % board.n] = cells
    poses[layout[cells] % board.n] = board.pose(layout[cells])
    return positions, poses


def _with_given(board: _Board, layout: Ints) -> Ints:
    layout[list(board.given.values())] = list(board.given)
    return layout


def _rivals(board: _Board) -> Scores:
    """Find the best and second-best score of every side: (4, m + 1, 2)."""
    m = board.void
    tops = np.full((4, m + 1, 2), -np.inf, np.float32)
    for direction in range(4 if m > 1 else 0):
        scores = np.partition(board.toward[direction][:m, :m], m - 2, axis=1)
        tops[direction, :m] = scores[:, : -3 if m > 2 else None : -1]
    return tops


def _certainty(board: _Board, rivals: Scores, own: Ints, near: Ints, direction: int) -> Scores:
    """Measure by how much each pair beats the best rival on either of its sides; -inf with void.

    Positive for best buddies only. In log scores this is Gallagher's ratio to the second best.
    """
    score = board.toward[direction][own, near]
    first, second = rivals[direction][own], rivals[(direction + 2) % 4][near]
    result = np.full(len(own), np.inf, np.float32)
    for tops in (first, second):
        result = np.minimum(result, score - np.where(score < tops[:, 0], tops[:, 0], tops[:, 1]))
    result[(own == board.void) | (near == board.void)] = -np.inf
    return result


def _next_equal(board: _Board, free: Bools) -> tuple[Ints, list[Ints]]:
    """The next free piece equal to each, else the void: (n + 1,); and the groups of equal ones."""
    after = np.full(board.n + 1, board.n)
    groups = []
    for kind in np.flatnonzero(np.bincount(board.kinds) > 1):
        same = np.flatnonzero((board.kinds == kind) & free[: board.n])
        after[same[:-1]] = same[1:]
        groups.append(same)
    return after, groups


def beam(board: _Board, layout: Ints, order: Ints, width: int) -> Ints:
    """Fill the cells `order` of a layout, keeping the `width` best: (k, cells + 1), best first.

    Partial layouts are compared by what they have given up: each side of each piece could fetch
    half of its best score, so a pair costs what it stays below its two halves, and a side at the
    frame costs its half. All pieces come to lie somewhere, hence the sum of what they could fetch
    is the same for all layouts; only with pieces to spare it must be counted.

    Of equal pieces only the first that is free can be laid: else a beam fills up with boards that
    differ in nothing but which of them lies where.
    """
    n, size, m = board.n, len(board.cells), board.void
    half = np.zeros((4, m + 1), np.float32)
    if m > 1:
        half[:, :m] = [toward[:m, :m].max(axis=1) / 2 for toward in board.toward]
    used = layout[layout != m]
    free = np.ones((1, n + 1), bool)
    free[0, used] = False
    holes = np.array([len(order) - int(free[0, :n].sum())])
    after, equals = _next_equal(board, free[0])
    free[0, after[after < n]] = False
    spare = half.sum(axis=0) if holes[0] < 0 else np.zeros(m + 1, np.float32)
    best_cell = board.cells.max(axis=0) if holes[0] >= 0 else np.zeros(m + 1, np.float32)
    layouts, scores = layout[None].copy(), np.zeros(1, np.float32)
    # Beside holes many layouts are worth the same. Which of them is kept must not depend on the
    # order of the pieces, so they are told apart by what the pieces say: a number a layout.
    mark, marks = half.sum(axis=0, dtype=np.float64), np.zeros(1)
    placed = layout != m
    placed[-1] = True
    for cell in order.tolist():
        around = board.around[cell]
        closed = [d for d in range(4) if placed[around[d]]]
        gain = scores[:, None] + (board.cells[cell] - best_cell + spare - half[closed].sum(axis=0))
        for direction in closed:
            if around[direction] < size:
                before, back = layouts[:, around[direction]], (direction + 2) % 4
                gain += board.toward[back][before]
                gain -= half[back][before, None]
        free[:, n] = holes > 0
        gain[~free] = -np.inf
        keep = min(width, int(free.sum()))
        flat = gain.ravel()
        best = np.argpartition(flat, -keep)[-keep:]
        tied = np.flatnonzero(flat == flat[best].min())
        inside = best[flat[best] > flat[tied[0]]]
        if len(inside) + len(tied) > keep:
            state, piece = np.divmod(tied, n + 1)
            chosen = np.argsort(marks[state] + (cell + 1) * mark[piece], kind="stable")
            best = np.append(inside, tied[chosen[: keep - len(inside)]])
        state, piece = np.divmod(best, n + 1)
        marks = marks[state] + (cell + 1) * mark[piece]
        layouts, scores, free = layouts[state], flat[best], free[state]
        layouts[:, cell] = piece
        placed[cell] = True
        free[np.arange(keep), piece] = False
        free[np.arange(keep), after[piece]] = True
        holes = holes[state] - (piece == n)
    best_first: Ints = layouts[np.lexsort((marks, -scores))]
    for same in equals:  # from the first cell to the last: beams from other corners compare
        for one in best_first:
            cells = np.flatnonzero(np.isin(one, same))
            one[cells] = same[: len(cells)]
    return best_first
