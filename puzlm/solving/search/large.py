"""Solve puzzles of hundreds to tens of thousands of pieces, from pixels.

candidates  the best partners of each side            candidates.py
pairs       how likely two sides touch                pairs.py
join        groups that grow where sides agree        joining.py
lay         the largest group in the frame, the rest around it
fill        what is left, by assignment
repair      loosen what does not hold together, and join anew
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from scipy.optimize import linear_sum_assignment

from puzlm.solving.search.board import STEPS
from puzlm.solving.search.candidates import Measure
from puzlm.solving.search.deadline import over, tell
from puzlm.solving.search.joining import TURNS, Groups, anchored, grouped, join, singles, solid
from puzlm.solving.search.pairs import Pairs, weigh

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

K = 32  # candidates of a side
SURE = 2 * float(np.log(K))  # score of a pair without any rival
FIRST = [SURE - 0.02, SURE - 0.3, SURE - 1]
AGAIN = [share * SURE for share in (3, 2, 1.5, 1, 0.8, 0.6, 0.4)]
LOOSE = [*AGAIN, 0.2 * SURE, 0.0, -0.3 * SURE]  # the board takes what is left
HALF = SURE / 2  # what a join by one pair of sides must do without; what a cut through a square is
# How a full board is mended: what a cut through a square must be worth for it to stay, and where
# the largest group goes from where it lies, if it can.
MOVES: list[tuple[float, tuple[int, int] | None]] = [
    (HALF, None),
    (HALF, (-1, 0)),
    (HALF, (1, 0)),
    (HALF, (0, -1)),
    (HALF, (0, 1)),
    (SURE, None),
    (HALF, None),
    (0.0, None),
]
# Log-odds that a piece lies in its true cell, fitted to photographs cut into 540 and 2,360 pieces.
SURENESS = {"one": -2.51, "own": 0.11, "near": 3.76, "whole": 0.58, "open": -2.87}
ROUNDS = 60
MOST = 1500  # cells whose pieces are exchanged at once


@dataclass
class Board:
    """Hold an arrangement: the piece in each cell (rows, columns) or -1, turns (n,)."""

    cells: Ints
    turns: Ints

    def copy(self) -> Board:
        return Board(self.cells.copy(), self.turns.copy())


@dataclass(frozen=True)
class Arranged:
    """Hold an answer: positions, turns, and how sure it is of each piece, (n,)."""

    positions: Ints
    turns: Ints
    sure: NDArray[np.float64]


class Search:
    """Search one puzzle; ended early, it answers with what lies so far."""

    def __init__(
        self,
        pieces: NDArray[np.uint8],
        grid: tuple[int, int],
        *,
        turned: bool = False,
        sphere: float = 0.0,
    ) -> None:
        self.n, self.grid, self.turned = len(pieces), grid, turned
        self.given: dict[int, int] = {}
        self.measure = Measure(pieces, turned, sphere)
        found = self.measure.best(K, self._compared)
        first = found.partner[:, 0]
        # Share of the sides whose best partner has them as its own best.
        self.touching = float(np.mean(first[first] == np.arange(len(first))))
        self.pairs: Pairs = weigh(found)
        rows, columns = grid
        self.frames = [grid, (columns, rows)] if turned and rows != columns else [grid]

    def _compared(self, share: float) -> bool:
        tell("comparing", share)
        return not over()

    def solve(self, given: Mapping[int, int] | None = None) -> Arranged:
        """Arrange the pieces; `given` lie in their cells, the right way up."""
        self.given = dict(given or {})
        if given:
            cells = np.full(self.grid, -1)
            cells.ravel()[list(given.values())] = list(given)
            groups = anchored(cells, np.zeros(self.n, np.int64), self.n)
            groups.fixed = frozenset(self.given)
        else:
            groups = singles(self.n)
        join(self.pairs, groups, FIRST, self.frames, self._joined)
        for _ in range(2):
            groups = solid(self.pairs, groups, HALF)
            join(self.pairs, groups, AGAIN, self.frames, self._joined, alone=HALF)
        board = self.polish(self.complete(solid(self.pairs, groups, HALF)))
        value = self.value(board)
        for least, shift in MOVES:
            if over():
                break
            groups = self.loosen(board, least)
            if shift and not self._fits(groups, shift):
                continue
            other = self.polish(self.complete(groups, shift))
            better = self.value(other)
            if better > value:
                board, value = other, better
        return self.answer(board)

    def complete(self, groups: Groups, shift: tuple[int, int] | None = None) -> Board:
        """Let the largest group take the others, lay it in the frame, and fill the frame."""
        if shift is None:
            main = self._main(groups)
            join(self.pairs, groups, AGAIN, self.frames, self._joined, main, HALF, ROUNDS)
        self.lay(groups, shift)
        return self.fill(self.take(groups))

    def _fits(self, groups: Groups, shift: tuple[int, int]) -> bool:
        """Whether the largest group can be moved in the frame."""
        if groups.anchor >= 0 or self.given:
            return False
        top, left, bottom, end = groups.boxes[self._main(groups)]
        rows, columns = self.grid
        return (
            top + shift[0] >= 0
            and bottom + shift[0] < rows
            and left + shift[1] >= 0
            and end + shift[1] < columns
        )

    def _main(self, groups: Groups) -> int:
        """The group of given pieces, or the largest."""
        if groups.anchor >= 0:
            return groups.anchor
        return max(groups.cells, key=lambda group: len(groups.cells[group]))

    def loosen(self, board: Board, least: float) -> Groups:
        """Take a board apart where it does not hold together."""
        row, column = np.zeros((2, self.n), np.int64)
        placed = board.cells >= 0
        row[board.cells[placed]], column[board.cells[placed]] = np.nonzero(placed)
        label = np.arange(self.n) + 1
        label[board.cells[placed]] = 0
        groups = grouped(label, row, column, board.turns)
        if self.given:
            groups.fix(frozenset(self.given), (0, 0, self.grid[0] - 1, self.grid[1] - 1))
        return solid(self.pairs, groups, least)

    def _joined(self, groups: Groups) -> bool:
        tell("joining", 1 - len(groups.cells) / self.n)
        return not over()

    # ---- laying -----------------------------------------------------------------------------

    def lay(self, groups: Groups, shift: tuple[int, int] | None = None) -> None:
        """Lay the largest group in the frame, for good: where it fits best, or `shift` from here.

        A given group lies where it is.
        """
        if groups.anchor >= 0:
            return
        rows, columns = self.grid
        group = self._main(groups)
        moved = np.fromiter(groups.cells[group].values(), np.int64)
        row, column, turn = groups.row[moved], groups.column[moved], groups.turn[moved]
        if shift is not None:
            row, column = row + shift[0], column + shift[1]
        else:
            top, left, bottom, end = groups.boxes[group]
            if bottom - top >= rows or end - left >= columns:
                row, column = TURNS[1] @ np.stack([row, column])
                turn = (turn + 1) % 4
            row, column = row - row.min(), column - column.min()
            row += self._slide(moved, turn, row, 1, rows - 1 - int(row.max()))
            column += self._slide(moved, turn, column, 2, columns - 1 - int(column.max()))
        groups.anchor_at(group, moved, row, column, turn, self.grid)

    def _slide(self, moved: Ints, turn: Ints, line: Ints, before: int, slack: int) -> int:
        """How far to move a group from the frame's first line, where it does not fill it.

        At the frame sides have no partner; those of the group's first and last line tell how much
        there is before and after them.
        """
        if slack <= 0:
            return 0
        pull = []
        for direction, edge in ((before, 0), ((before + 2) % 4, int(line.max()))):
            at = line == edge
            sides = 4 * moved[at] + (direction - turn[at]) % 4
            pull.append(float(np.maximum(self._best[sides], 0).mean()) + 1e-6)
        return round(slack * pull[0] / sum(pull))

    @property
    def _best(self) -> Floats:
        """The best score of each side."""
        best = np.full(4 * self.n, -np.inf, np.float32)
        np.maximum.at(best, self.pairs.one, self.pairs.score)
        np.maximum.at(best, self.pairs.other, self.pairs.score)
        return best

    def take(self, groups: Groups) -> Board:
        """Let the group that is laid take the others, whole ones first, then piece by piece."""
        for _ in range(2):
            join(self.pairs, groups, LOOSE, [self.grid], self._joined, groups.anchor, HALF, ROUNDS)
            cells = np.full(self.grid, -1)
            own = np.flatnonzero(groups.label == groups.anchor)
            cells[groups.row[own], groups.column[own]] = own
            turns = groups.turn
            groups = anchored(cells, turns, self.n)
            groups.fixed = frozenset(self.given)
        return Board(cells, turns)

    # ---- filling ----------------------------------------------------------------------------

    def fill(self, board: Board) -> Board:
        """Fill the holes beside pieces by assignment, ring by ring."""
        rows, columns = self.grid
        for ring in range(2 * (rows + columns)):
            used = np.zeros(self.n, bool)
            used[board.cells[board.cells >= 0]] = True
            free = np.flatnonzero(~used)
            hole = board.cells < 0
            if not len(free) or not hole.any() or over():
                break
            padded = np.pad(~hole, 1)
            near = padded[2:, 1:-1] | padded[:-2, 1:-1] | padded[1:-1, 2:] | padded[1:-1, :-2]
            row, column = np.nonzero(hole & near)
            odd = (row + column) % 2 == ring % 2
            if odd.any():
                self.assign(board, row[odd], column[odd], free)
        return board

    def assign(self, board: Board, row: Ints, column: Ints, free: Ints) -> None:
        """Put free pieces into cells that do not touch, as well as can be."""
        value, turn = self.local(board, row, column, free)
        cell, piece = linear_sum_assignment(value, maximize=True)
        board.cells[row[cell], column[cell]] = free[piece]
        board.turns[free[piece]] = turn[cell, piece]

    def local(self, board: Board, row: Ints, column: Ints, free: Ints) -> tuple[Floats, Ints]:
        """Score free pieces in cells: (cells, free), and the turn that is best."""
        padded = np.pad(board.cells, 1, constant_values=-1)
        values = []
        for spin in range(4 if self.turned else 1):
            value = np.zeros((len(row), len(free)), np.float32)
            for direction, (down, along) in enumerate(STEPS.tolist()):
                near = padded[row + 1 + down, column + 1 + along]
                there = np.flatnonzero(near >= 0)
                sides = 4 * near[there] + (direction + 2 - board.turns[near[there]]) % 4
                own = 4 * free + (direction - spin) % 4
                cost = self.measure.matrix(sides, own)
                value[there] += self.pairs.of_costs(sides, own, cost)
            values.append(np.maximum(value, -1e6))
        every = np.stack(values)
        turn = every.argmax(axis=0)
        return every.max(axis=0), turn

    def polish(self, board: Board) -> Board:
        """Exchange pieces among cells that do not touch and lie beside sides that do not fit."""
        for modulus, slope in ((2, 1), (3, 1), (3, -1)):
            for rest in range(modulus):
                row, column = np.nonzero(self.doubtful(board))
                chosen = (row + slope * column) % modulus == rest
                row, column = row[chosen], column[chosen]
                for start in range(0, len(row), MOST):
                    if over():
                        return board
                    part = slice(start, start + MOST)
                    board = self._exchange(board, row[part], column[part])
        return board

    def _exchange(self, board: Board, row: Ints, column: Ints) -> Board:
        """Lay the pieces of some cells, and those left over, there as well as can be."""
        other = board.copy()
        other.cells[row, column] = -1
        used = np.zeros(self.n, bool)
        used[other.cells[other.cells >= 0]] = True
        used[list(self.given)] = True
        free = np.flatnonzero(~used)
        if not len(free):
            return board
        self.assign(other, row, column, free)
        return other if self.value(other) > self.value(board) else board

    def doubtful(self, board: Board) -> Bools:
        """Whether a cell holds a piece that does not fit one of its neighbours: (rows, columns)."""
        right, below = (part < 0 for part in self.contacts(board))
        doubt = np.zeros(self.grid, bool)
        doubt[:, :-1] |= right
        doubt[:, 1:] |= right
        doubt[:-1] |= below
        doubt[1:] |= below
        doubt &= board.cells >= 0
        doubt.ravel()[list(self.given.values())] = False
        return doubt

    # ---- the answer -------------------------------------------------------------------------

    def contacts(self, board: Board) -> tuple[Floats, Floats]:
        """Scores of what lies side by side (rows, columns - 1) and one below the other."""
        result = []
        for direction, first, second in (
            (0, board.cells[:, :-1], board.cells[:, 1:]),
            (3, board.cells[:-1], board.cells[1:]),
        ):
            both = (first >= 0) & (second >= 0)
            one = np.where(both, 4 * first + (direction - board.turns[first]) % 4, -1)
            other = np.where(both, 4 * second + (direction + 2 - board.turns[second]) % 4, -1)
            result.append(self.pairs.look_up(one.ravel(), other.ravel()).reshape(first.shape))
        return result[0], result[1]

    def value(self, board: Board) -> float:
        """The objective: the sum over all pairs that touch."""
        return float(sum(part.sum(dtype=np.float64) for part in self.contacts(board)))

    def answer(self, board: Board) -> Arranged:
        """The positions, and how sure they are."""
        positions = np.full(self.n, -1, np.int64)
        placed = board.cells >= 0
        pieces = board.cells[placed]
        positions[pieces] = np.flatnonzero(placed)
        sure = np.zeros(self.n)
        told = self.features(board)
        odds = sum(weight * told[name] for name, weight in SURENESS.items())
        sure[pieces] = 1 / (1 + np.exp(-np.asarray(odds)[placed]))
        sure[list(self.given)] = 1.0
        return Arranged(positions, board.turns, sure)

    def features(self, board: Board) -> dict[str, NDArray[np.float64]]:
        """What tells whether a piece lies right, by cell (rows, columns).

        own: the mean score of its sides, of a sure one 1. near: the same of 24 cells around.
        whole: log-odds of the share of the placed pieces that it holds together with. open: how
        far the largest group could be moved in the frame, as a logarithm.
        """
        right, below = self.contacts(board)
        total = np.zeros(self.grid)
        count = np.zeros(self.grid)
        placed = board.cells >= 0
        for part, first, second in (
            (right, np.s_[:, :-1], np.s_[:, 1:]),
            (below, np.s_[:-1], np.s_[1:]),
        ):
            both = placed[first] & placed[second]
            for where in (first, second):
                total[where] += part
                count[where] += both
        around = [uniform_filter(part, 5, mode="constant") for part in (total, count)]
        groups = self.loosen(board, HALF)
        size = np.zeros(self.grid)
        size[placed] = [len(groups.cells[g]) for g in groups.label[board.cells[placed]].tolist()]
        top, left, bottom, end = groups.boxes[self._main(groups)]
        slack = self.grid[0] - 1 - bottom + top + self.grid[1] - 1 - end + left
        share = size / max(1, placed.sum())
        return {
            "one": np.ones(self.grid),
            "own": total / np.maximum(count, 1) / SURE,
            "near": around[0] / np.maximum(around[1], 1e-9) / SURE,
            "whole": np.log((share + 0.02) / (1.02 - share)),
            "open": np.full(self.grid, np.log1p(slack)),
        }
