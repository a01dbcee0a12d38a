"""Join pieces into groups and groups into larger ones, by how many sides agree.

All candidate pairs between two groups that mean the same place of one beside the other add up, and
the strongest joins are made first. So a pair alone joins two pieces only if it is sure; later two
groups join by many sides at once. The level falls from round to round; each round looks at all
pairs that are still open at once, hence the cost is nearly linear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from puzlm.solving.search.board import STEPS
from puzlm.solving.search.pairs import Pairs

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

MANY = 12  # pieces of a group that is joined even if some have to leave their cells
CLASH = 0.2  # share of a group whose cells may be taken when it joins another
DEAR = 7.0  # score that pays for a piece that has to leave its cell
FAR = 1 << 20  # cells; rows and columns of a group are kept below half of it
TURNS = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]], [[-1, 0], [0, -1]], [[0, 1], [-1, 0]]])


@dataclass
class Groups:
    """Hold pieces that move together.

    label, row, column, turn: (n,), the group of each piece and how it lies there. cells: for each
    group its pieces by cell. boxes: first row, first column, last row, last column.
    """

    label: Ints
    row: Ints
    column: Ints
    turn: Ints
    cells: dict[int, dict[int, int]] = field(default_factory=dict)
    boxes: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    anchor: int = -1
    """The group that lies where it is, if there is one: in the frame from 0, 0."""
    fixed: frozenset[int] = frozenset()
    """Pieces that never leave their group."""
    names: int = 1 << 40
    """The name of the next group that is named after no piece."""

    def fix(self, pieces: frozenset[int], box: tuple[int, int, int, int]) -> None:
        """Make the group of some pieces the anchor in a frame; the pieces never leave it."""
        self.fixed = pieces
        self.anchor = int(self.label[min(pieces)])
        self.boxes[self.anchor] = box

    def anchor_at(
        self, group: int, moved: Ints, row: Ints, column: Ints, turn: Ints, grid: tuple[int, int]
    ) -> None:
        """Lay a group in a frame (rows, columns), from where it never moves."""
        self.row[moved], self.column[moved], self.turn[moved] = row, column, turn
        keys = (row * FAR + column).tolist()
        self.cells[group] = dict(zip(keys, moved.tolist(), strict=True))
        self.boxes[group] = (0, 0, grid[0] - 1, grid[1] - 1)
        self.anchor = group

    def release(self, piece: int) -> None:
        """Take a piece out of its group."""
        old = int(self.label[piece])
        del self.cells[old][int(self.row[piece] * FAR + self.column[piece])]
        self.label[piece] = self.names
        self.row[piece] = self.column[piece] = 0
        self.cells[self.names] = {0: piece}
        self.boxes[self.names] = (0, 0, 0, 0)
        self.names += 1


def anchored(board: Ints, turns: Ints, n: int) -> Groups:
    """Groups of which one lies on a board (rows, columns) of pieces, -1 for none; else singles."""
    groups = singles(n)
    row, column = np.nonzero(board >= 0)
    pieces = board[row, column]
    anchor = int(pieces[0])
    for piece in pieces.tolist():
        del groups.cells[piece], groups.boxes[piece]
    groups.anchor = anchor
    groups.label[pieces] = anchor
    groups.row[pieces] = row
    groups.column[pieces] = column
    groups.turn[pieces] = turns[pieces]
    groups.cells[anchor] = dict(zip((row * FAR + column).tolist(), pieces.tolist(), strict=True))
    groups.boxes[anchor] = (0, 0, len(board) - 1, board.shape[1] - 1)
    return groups


def solid(pairs: Pairs, groups: Groups, least: float = 0.0) -> Groups:
    """Take groups apart where they do not hold together by squares of four pieces that all fit.

    A wrong join hangs on few sides, so no square goes across it.
    """
    n = len(groups.label)
    rank = np.unique(groups.label, return_inverse=True)[1]
    place = (rank * FAR + groups.row + FAR // 2) * FAR + groups.column + FAR // 2
    order = np.argsort(place)

    def beside(step: int) -> Ints:
        at = np.minimum(np.searchsorted(place, place + step, sorter=order), n - 1)
        return np.where(place[order[at]] == place + step, order[at], -1)

    right, below = beside(1), beside(FAR)
    fits = []
    for direction, near in ((0, right), (3, below)):
        one = 4 * np.arange(n) + (direction - groups.turn) % 4
        other = 4 * near + (direction + 2 - groups.turn[near]) % 4
        score = pairs.look_up(one, np.where(near < 0, one, other))
        fits.append(np.where(near < 0, -np.inf, score))
    # Both ways to cut a square in two must cut sides that fit.
    square = (fits[0] + fits[0][below] > least) & (fits[1] + fits[1][right] > least)
    square &= (right >= 0) & (below >= 0)
    links = np.flatnonzero(square)
    first = np.concatenate([links, links, links])
    second = np.concatenate([right[links], below[links], right[below[links]]])
    graph = coo_array((np.ones(len(first)), (first, second)), (n, n))
    label = connected_components(graph, directed=False)[1].astype(np.int64)
    fixed = np.array(sorted(groups.fixed), np.int64)
    if len(fixed):  # they lie where they are, together or not
        label[np.isin(label, label[fixed])] = label[fixed[0]]
    apart = grouped(label, groups.row, groups.column, groups.turn)
    if len(fixed):
        apart.fix(groups.fixed, groups.boxes[groups.anchor])
    return apart


def grouped(label: Ints, row: Ints, column: Ints, turn: Ints) -> Groups:
    """Groups of pieces with equal labels, each named after one of its pieces."""
    order = np.argsort(label, kind="stable")
    names, start = np.unique(label[order], return_index=True)
    groups = Groups(label.copy(), row.copy(), column.copy(), turn.copy())
    for members in np.split(order, start[1:]):
        name = int(members[0])
        down, along = row[members], column[members]
        groups.label[members] = name
        keys = (down * FAR + along).tolist()
        groups.cells[name] = dict(zip(keys, members.tolist(), strict=True))
        groups.boxes[name] = int(down.min()), int(along.min()), int(down.max()), int(along.max())
    return groups


def singles(n: int) -> Groups:
    """Every piece a group of its own."""
    zeros = np.zeros(n, np.int64)
    groups = Groups(np.arange(n), zeros.copy(), zeros.copy(), zeros.copy())
    for piece in range(n):
        groups.cells[piece] = {0: piece}
        groups.boxes[piece] = (0, 0, 0, 0)
    return groups


def join(
    pairs: Pairs,
    groups: Groups,
    levels: list[float],
    frames: list[tuple[int, int]],
    tick: Callable[[Groups], bool] = lambda groups: True,
    only: int = -1,
    alone: float = 0.0,
    rounds: int = 8,
) -> Groups:
    """Join groups, the surest first, without overlap and within one of the frames.

    `tick` is shown the groups after each round; when it says False the work ends early.
    `only`: a group; only joins with it are made. `alone`: what a join by one pair of sides
    must do without, since nothing confirms it. A level ends after `rounds`, or when all is joined.
    """
    alive = np.arange(len(pairs.one))
    for level in levels:
        alive = alive[_open(groups, pairs.one[alive], pairs.other[alive])]
        for turn in range(rounds):
            near = alive
            if only >= 0:
                own = groups.label == only
                near = alive[own[pairs.one[alive] // 4] != own[pairs.other[alive] // 4]]
            if turn or only >= 0:
                near = near[_open(groups, pairs.one[near], pairs.other[near])]
            one, other = pairs.one[near], pairs.other[near]
            offers, total = _offers(groups, one, other, pairs.score[near], alone)
            made = _make(pairs, groups, offers[total >= level], level, frames, only)
            if not tick(groups):
                return groups
            if made == 0:
                break
    return groups


def _ahead(groups: Groups, side: Ints) -> tuple[Ints, Ints, Ints]:
    """The direction of each side in its group, and the cell it looks at."""
    piece = side // 4
    direction = (side + groups.turn[piece]) % 4
    step = STEPS[direction]
    return direction, groups.row[piece] + step[:, 0], groups.column[piece] + step[:, 1]


def _open(groups: Groups, one: Ints, other: Ints) -> Bools:
    """Whether the sides of pairs belong to two groups, and nothing lies before either.

    Between two large groups something may: what lies there may be wrong.
    """
    label = groups.label
    _, rank, size = np.unique(label, return_inverse=True, return_counts=True)
    taken = np.sort((rank * FAR + groups.row + FAR // 2) * FAR + groups.column + FAR // 2)
    result: Bools = label[one // 4] != label[other // 4]
    both = np.minimum(size[rank[one // 4]], size[rank[other // 4]]) >= MANY
    for side in (one, other):
        _, row, column = _ahead(groups, side)
        key = (rank[side // 4] * FAR + row + FAR // 2) * FAR + column + FAR // 2
        at = np.minimum(np.searchsorted(taken, key), len(taken) - 1)
        result &= (taken[at] != key) | both
    return result


def _offers(
    groups: Groups, one: Ints, other: Ints, score: Floats, alone: float
) -> tuple[Ints, Floats]:
    """Add up pairs that mean the same join: one pair of sides of each (offers, 2), and its sum.

    Strongest first.
    """
    swap = groups.label[one // 4] > groups.label[other // 4]
    one, other = np.where(swap, other, one), np.where(swap, one, other)
    a, b = one // 4, other // 4
    direction, row, column = _ahead(groups, one)
    spin = (direction + 2 - other - groups.turn[b]) % 4
    lies = np.einsum("eij,ej->ei", TURNS[spin], np.stack([groups.row[b], groups.column[b]], 1))
    down, along = row - lies[:, 0], column - lies[:, 1]
    order = np.lexsort((along, down, spin, groups.label[b], groups.label[a]))
    key = np.stack([groups.label[a], groups.label[b], spin, down, along])[:, order]
    new = np.ones(len(order), bool)
    new[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    start = np.flatnonzero(new)
    if not len(start):
        return np.empty((0, 2), np.int64), np.empty(0, np.float32)
    total = np.add.reduceat(score[order], start)
    total[np.diff(start, append=len(order)) == 1] -= alone
    best = np.argsort(-total, kind="stable")
    chosen = order[start[best]]
    return np.stack([one[chosen], other[chosen]], axis=1), total[best]


def _make(
    pairs: Pairs,
    groups: Groups,
    offers: Ints,
    level: float,
    frames: list[tuple[int, int]],
    only: int,
) -> int:
    """Try joins in their order; the number that were made."""
    made = 0
    stays = groups.anchor if only < 0 else only
    label, row, column, turn = groups.label, groups.row, groups.column, groups.turn
    for side_a, side_b in offers.tolist():
        a, b = side_a // 4, side_b // 4
        if label[a] == label[b]:
            continue
        smaller = len(groups.cells[int(label[a])]) < len(groups.cells[int(label[b])])
        if label[b] == stays or smaller and label[a] != stays:
            a, b, side_a, side_b = b, a, side_b, side_a
        ga, gb = int(label[a]), int(label[b])
        direction = (side_a + int(turn[a])) % 4
        spin = (direction + 2 - side_b - int(turn[b])) % 4
        here, there = groups.cells[ga], groups.cells[gb]
        moved = np.fromiter(there.values(), np.int64, len(there))
        down, along = TURNS[spin] @ np.stack([row[moved] - row[b], column[moved] - column[b]])
        down += row[a] + STEPS[direction, 0]
        along += column[a] + STEPS[direction, 1]
        box = groups.boxes[ga]
        box = (
            min(box[0], int(down.min())),
            min(box[1], int(along.min())),
            max(box[2], int(down.max())),
            max(box[3], int(along.max())),
        )
        if not any(box[2] - box[0] < high and box[3] - box[1] < wide for high, wide in frames):
            continue
        keys = (down * FAR + along).tolist()
        new = (turn[moved] + spin) % 4
        clash = here.keys() & set(keys)
        if len(clash) > CLASH * len(keys):
            continue
        if clash:
            stay = np.array([key not in clash for key in keys])
            rest = [key for key in keys if key not in clash]
            sure = _contact(pairs, groups, here, rest, moved[stay], new[stay])
            if sure < max(level, DEAR * len(clash)):
                continue
            lost = _weaker(pairs, groups, ga, moved, keys, clash)
            for piece in lost:
                groups.release(piece)
            stay = ~np.isin(moved, lost)
            moved, down, along, new = moved[stay], down[stay], along[stay], new[stay]
            keys = (down * FAR + along).tolist()
        elif len(keys) + len(here) > 2 and _contact(pairs, groups, here, keys, moved, new) < level:
            continue
        here.update(zip(keys, moved.tolist(), strict=True))
        groups.boxes[ga] = box
        label[moved], row[moved], column[moved] = ga, down, along
        turn[moved] = new
        del groups.cells[gb], groups.boxes[gb]
        made += 1
    return made


def _weaker(
    pairs: Pairs, groups: Groups, ga: int, moved: Ints, keys: list[int], clash: set[int]
) -> list[int]:
    """Of two pieces that want one cell, the one that fits less well into its own group."""
    lost = []
    here = groups.cells[ga]
    there = groups.cells[int(groups.label[moved[0]])]
    for key, piece in zip(keys, moved.tolist(), strict=True):
        if key in clash:
            held = []
            for own, cells in ((here[key], here), (piece, there)):
                at = int(groups.row[own] * FAR + groups.column[own])
                one = np.array([own])
                held.append(_contact(pairs, groups, cells, [at], one, groups.turn[one]))
            lost.append(here[key] if held[0] < held[1] and here[key] not in groups.fixed else piece)
    return lost


def _contact(
    pairs: Pairs, groups: Groups, here: dict[int, int], keys: list[int], moved: Ints, turn: Ints
) -> float:
    """Score all sides along which moved pieces would touch a group."""
    one, other = [], []
    turns = groups.turn
    for key, piece, spin in zip(keys, moved.tolist(), turn.tolist(), strict=True):
        for direction, step in enumerate((1, -FAR, -1, FAR)):
            near = here.get(key + step)
            if near is not None:
                one.append(4 * piece + (direction - spin) % 4)
                other.append(4 * near + (direction + 2 - int(turns[near])) % 4)
    return float(pairs.look_up(np.array(one), np.array(other)).sum())
