"""Large grids: spanning tree, best-first fill, repair. Knows a board, no pixels and no models.

- first layout: constrained Kruskal tree (Gallagher 2012) under the frame, filled best first;
- repair, of any layout: reassign cells that do not touch (exact, linear assignment); keep a
  reliable region, move it everywhere in the frame and refill (Pomeranz 2011; LNS), best first
  or, on boards up to about 10x10, by beam search outwards.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from puzlm.pieces import poses
from puzlm.pieces.poses import AFTER
from puzlm.solving.search.board import (
    BELOW,
    RIGHT,
    STEPS,
    Bools,
    Ints,
    Scores,
    _Board,
    _certainty,
    _with_given,
    beam,
)
from puzlm.solving.search.deadline import over

NOISE = 0.3  # spread of the log margin in a refill, so that repeated refills differ
LOCAL = 10  # refills of a small window for each refill of the whole board
WINDOW = 5  # cells from the middle of a window to its border, exclusive
BEAM_WIDTH = 64  # layouts kept where a refill is a beam search: every other one if board.small
PLACES = 4  # translations tried of one kept region


@dataclass(frozen=True)
class _Segments:
    """Hold groups of pieces that move together: label, row, column, pose (n,) and the members."""

    label: Ints
    row: Ints
    column: Ints
    pose: Ints
    members: dict[int, Ints]


def _edges(board: _Board, rivals: Scores) -> NDArray[np.int64]:
    """List best buddies, most certain first: (edges, 4) of piece, piece, direction, pose."""
    n, m = board.n, board.void
    a = np.arange(n)
    found, sures = [], []
    for direction in range(4):
        near = board.toward[direction][:n, :m].argmax(axis=1)
        sure = _certainty(board, rivals, a, near, direction)
        edges = np.stack([a, near % n, np.full(n, direction), board.pose(near)], axis=1)
        found.append(edges[sure > 0])
        sures.append(sure[sure > 0])
    order = np.argsort(-np.concatenate(sures), kind="stable")
    return np.concatenate(found)[order]


def _tree(board: _Board, rivals: Scores) -> _Segments:
    """Join best buddies, the most certain first, without overlap and within the frame.

    Gallagher's constrained Kruskal algorithm. The frame joins the collision test: a tree that
    outgrows it is wrong, and trimming it afterwards would keep the wrong half.
    """
    n = board.n
    label, row, column, pose = (np.arange(n), *np.zeros((3, n), np.int64))
    members = {i: np.array([i]) for i in range(n)}
    far = 1 << 20
    taken = {i: {0} for i in range(n)}  # cells of each group, as row * far + column
    boxes = {i: (0, 0, 0, 0) for i in range(n)}  # first row, first column, last row, last column
    frames = {(board.rows, board.columns)}
    anchor = -1
    if board.given:
        pieces = np.array(list(board.given))
        anchor = int(pieces[0])
        row[pieces], column[pieces] = np.divmod(list(board.given.values()), board.columns)
        label[pieces] = anchor
        members = {i: group for i, group in members.items() if i not in board.given}
        members[anchor] = pieces
        taken[anchor] = set((row[pieces] * far + column[pieces]).tolist())
        boxes[anchor] = (0, 0, board.rows - 1, board.columns - 1)  # so that all stays inside
    elif any(pose % 2 for pose in board.poses):
        frames.add((board.columns, board.rows))

    for a, b, direction, lies in _edges(board, rivals).tolist():
        ga, gb = int(label[a]), int(label[b])
        if ga == gb:
            continue
        if gb == anchor or (ga != anchor and len(members[ga]) < len(members[gb])):
            back = poses.inverse(lies)
            a, b, direction, lies = b, a, poses.facing(back, direction + 2), back
            ga, gb = gb, ga
        moved = members[gb]
        whole = int(AFTER[AFTER[pose[a], lies], poses.inverse(int(pose[b]))])
        down, along = poses.moved(row[moved] - row[b], column[moved] - column[b], whole)
        step = STEPS[poses.facing(int(pose[a]), direction)]
        down, along = down + row[a] + step[0], along + column[a] + step[1]
        top, left, bottom, end = boxes[ga]
        top, left = min(top, int(down.min())), min(left, int(along.min()))
        bottom, end = max(bottom, int(down.max())), max(end, int(along.max()))
        if not any(bottom - top < rows and end - left < columns for rows, columns in frames):
            continue
        keys = (down * far + along).tolist()
        if not taken[ga].isdisjoint(keys):
            continue
        taken[ga].update(keys)
        boxes[ga] = (top, left, bottom, end)
        label[moved], row[moved], column[moved] = ga, down, along
        pose[moved] = AFTER[whole, pose[moved]]
        members[ga] = np.concatenate([members[ga], moved])
        del members[gb]
    return _Segments(label, row, column, pose, members)


def _tree_layout(board: _Board, rivals: Scores) -> Ints:
    """Lay the largest tree (or the one with the given pieces) in the frame and fill the rest."""
    parts = _tree(board, rivals)
    if board.given:
        group = int(parts.label[next(iter(board.given))])
    else:
        worth = rivals[:, :, 0].sum(axis=0)  # breaks ties by content, not by input order
        group = max(
            parts.members, key=lambda g: (len(parts.members[g]), worth[parts.members[g]].sum())
        )
    places = _translations(board, parts, group)
    return _fill(board, places[len(places) // 2], parts)


def _translations(board: _Board, parts: _Segments, group: int) -> list[Ints]:
    """Lay one segment at every place of the frame, else void: layouts (cells + 1,).

    In another pose only if it fits no other way; with given pieces it stays where it is.
    """
    moved = parts.members[group]
    layouts: list[Ints] = []
    for pose in board.poses:
        down, along = poses.moved(parts.row[moved], parts.column[moved], pose)
        height, width = 1, 1
        if not board.given:
            down, along = down - down.min(), along - along.min()
            height, width = (board.rows - int(down.max()), board.columns - int(along.max()))
        for r in range(height):
            for c in range(width):
                layout = np.full(len(board.cells) + 1, board.void)
                where = (down + r) * board.columns + along + c
                layout[where] = board.candidate(moved, AFTER[pose, parts.pose[moved]])
                layouts.append(_with_given(board, layout))
        if layouts:
            break
    return layouts


def _put(
    board: _Board,
    layout: Ints,
    empty: Bools,
    used: Bools,
    parts: _Segments,
    candidate: int,
    cell: int,
) -> Ints:
    """Place a candidate with its whole segment, or alone where that does not fit: cells filled."""
    piece = candidate % board.n
    lies = board.poses[candidate // board.n]
    whole = int(AFTER[lies, poses.inverse(int(parts.pose[piece]))])
    moved = parts.members[int(parts.label[piece])]
    where = np.array([cell])
    if len(moved) > 1 and not used[moved].any():
        down, along = poses.moved(
            parts.row[moved] - parts.row[piece], parts.column[moved] - parts.column[piece], whole
        )
        down, along = down + cell // board.columns, along + cell % board.columns
        inside = (down >= 0) & (down < board.rows) & (along >= 0) & (along < board.columns)
        if inside.all() and empty[cells := down * board.columns + along].all():
            where = cells
    if len(where) == 1:
        moved = np.array([piece])
    layout[where] = board.candidate(moved, AFTER[whole, parts.pose[moved]])
    used[moved] = True
    empty[where] = False
    return where


def _fill(
    board: _Board,
    layout: Ints,
    parts: _Segments,
    rng: np.random.Generator | None = None,
    reach: Bools | None = None,
) -> Ints:
    """Fill empty cells, the one whose best candidate is clearest first; segments come whole.

    `reach` (cells, cells + 1), on a board wider than the picture: what can be in one with a cell.
    """
    n, m, size = board.n, board.void, len(board.cells)
    layout = layout.copy()
    used = np.zeros(n, bool)
    used[layout[layout < m] % n] = True
    free = np.flatnonzero(~np.tile(used, len(board.poses)))
    heap: list[tuple[float, int, int, int]] = []
    stamp = [0] * size

    def offer(where: Ints) -> None:
        scores = board.local(layout, where, free)
        scores[:, used[free % n]] = -np.inf
        choice = scores.argmax(axis=1)
        line = np.arange(len(where))
        top = scores[line, choice]
        scores[line, choice] = -np.inf
        margin = np.where(np.isfinite(runner := scores.max(axis=1)), top - runner, 0)
        if rng is not None:
            margin *= np.exp(NOISE * rng.standard_normal(len(where)))
        for cell, candidate, sure in zip(
            where.tolist(), free[choice].tolist(), margin.tolist(), strict=True
        ):
            stamp[cell] += 1
            heapq.heappush(heap, (-sure, cell, stamp[cell], candidate))

    empty = layout == m
    empty[-1] = False
    if reach is not None:
        empty &= reach[np.flatnonzero(layout != m)].all(axis=0)
    near = (layout[board.around] != m).any(axis=1)
    start = np.flatnonzero(empty[:-1] & near) if near.any() else np.flatnonzero(empty)
    left = n - int(used.sum())
    if left and len(start):
        offer(start)
    while heap and left:
        _, cell, version, candidate = heapq.heappop(heap)
        if version != stamp[cell] or not empty[cell]:
            continue
        if used[candidate % n]:
            offer(np.array([cell]))
            continue
        filled = _put(board, layout, empty, used, parts, candidate, cell)
        if reach is not None:
            empty &= reach[filled].all(axis=0)
        left -= len(filled)
        if left * len(board.poses) < len(free) // 2:
            free = free[~used[free % n]]
        touched = board.around[filled].ravel()
        touched = np.unique(touched[empty[touched]])
        if len(touched) and left:
            offer(touched)
    return layout


def _regions(
    board: _Board, layout: Ints, sure: dict[int, Scores], least: float, among: Bools
) -> _Segments:
    """Split the cells `among` into segments held together by pairs more certain than `least`."""
    size = len(board.cells)
    links = [np.empty((2, 0), np.int64)]
    for direction, certain in sure.items():
        hold = np.flatnonzero((certain > least) & among[:-1] & among[board.around[:, direction]])
        links.append(np.stack([hold, board.around[hold, direction]]))
    first, second = np.concatenate(links, axis=1)
    graph = coo_matrix((np.ones(len(first)), (first, second)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1]
    label, row, column, pose = np.zeros((4, board.n), np.int64)
    label[:] = size + np.arange(board.n)  # pieces not placed stay single
    cells = np.flatnonzero(layout[:-1] != board.void)
    pieces = layout[cells] % board.n
    label[pieces] = labels[cells]
    row[pieces], column[pieces] = np.divmod(cells, board.columns)
    pose[pieces] = board.pose(layout[cells])
    order = np.argsort(label, kind="stable")
    groups, starts = np.unique(label[order], return_index=True)
    members = dict(zip(groups.tolist(), np.split(order, starts[1:]), strict=True))
    return _Segments(label, row, column, pose, members)


def _broken(board: _Board, layout: Ints, sure: dict[int, Scores]) -> Bools:
    """Mark the cells with a neighbour that is not their best buddy: (cells + 1,)."""
    size = len(board.cells)
    marks = np.zeros(size + 1, bool)
    for direction, certain in sure.items():
        near = board.around[:, direction]
        weak = (certain <= 0) & (near < size)
        marks[:-1] |= weak
        marks[near[weak]] = True
    return marks


def _reassign(board: _Board, layout: Ints, where: Ints) -> Ints:
    """Place the pieces of cells that do not touch, and the unplaced ones, optimally: exact."""
    n, m = board.n, board.void
    layout = layout.copy()
    layout[where] = m
    used = np.zeros(n, bool)
    used[layout[layout < m] % n] = True
    free = np.flatnonzero(~np.tile(used, len(board.poses)))
    posed = board.local(layout, where, free).reshape(len(where), len(board.poses), -1)
    lines, columns = linear_sum_assignment(posed.max(axis=1), maximize=True)
    which = posed[lines, :, columns].argmax(axis=1)
    layout[where[lines]] = which * n + free[columns]
    return layout


def _polish(board: _Board, layout: Ints, rivals: Scores, among: Bools) -> tuple[Ints, float]:
    """Reassign patterns of cells that do not touch, among those with a doubtful neighbour."""
    where = np.flatnonzero(among[:-1] & _broken(board, layout, _sure(board, layout, rivals))[:-1])
    row, column = np.divmod(where, board.columns)
    value = board.value(layout)
    for modulus, slope in ((2, 1), (3, 1), (3, -1), (2, 1)):
        for rest in range(modulus):
            cells = where[(row + slope * column) % modulus == rest]
            if len(cells):
                trial = _reassign(board, layout, cells)
                if (better := board.value(trial)) > value + 1e-6:
                    layout, value = trial, better
    return layout, value


def _sure(board: _Board, layout: Ints, rivals: Scores) -> dict[int, Scores]:
    return {
        d: _certainty(board, rivals, layout[:-1], layout[board.around[:, d]], d)
        for d in (RIGHT, BELOW)
    }


def _movable(board: _Board) -> Bools:
    """Mark the cells whose piece is not given: (cells + 1,)."""
    movable = np.ones(len(board.cells) + 1, bool)
    movable[[*board.given.values(), len(board.cells)]] = False
    return movable


def _outwards(board: _Board, layout: Ints) -> Ints:
    """List the empty cells, those nearest to what is laid first."""
    row, column = np.divmod(np.arange(len(board.cells)), board.columns)
    empty = layout[:-1] == board.void
    steps = abs(row[empty, None] - row[~empty]) + abs(column[empty, None] - column[~empty])
    order: Ints = np.flatnonzero(empty)[
        np.argsort(steps.min(axis=1, initial=len(row)), kind="stable")
    ]
    return order


def _repair(
    board: _Board, layout: Ints, rivals: Scores, rng: np.random.Generator, rounds: int
) -> Ints:
    """Empty a part, refill it, keep what scores better; many small windows, now and then all.

    What is refilled keeps the segments held together by certain pairs; how certain is drawn
    afresh each time, so that a wrong but confident join is broken up sooner or later.
    """
    size = len(board.cells)
    movable = _movable(board)
    layout, value = _polish(board, layout, rivals, movable)
    row, column = np.divmod(np.arange(size + 1), board.columns)
    improved = 0
    for k in range(rounds):
        if k - improved > max(rounds // 3, LOCAL) or over():
            break
        sure = _sure(board, layout, rivals)
        broken = _broken(board, layout, sure) & movable
        if not broken.any():
            break
        margins = np.concatenate(list(sure.values()))
        margins = margins[margins > 0]
        least = float(np.quantile(margins, rng.uniform(0, 0.6))) if k and len(margins) else 0.0
        if k % (LOCAL + 1):
            centre = rng.choice(np.flatnonzero(broken))
            high, wide = rng.integers(1, WINDOW, 2)
            among = (abs(row - row[centre]) <= high) & (abs(column - column[centre]) <= wide)
            among &= movable
            if rng.random() < 0.5:
                among[:-1] &= broken[:-1] | broken[board.around].any(axis=1)
            parts = _regions(board, layout, sure, least, among)
            starts = [np.where(among, board.void, layout)]
            if (starts[0] == board.void).all():  # nothing left to attach to
                continue
        else:
            among = movable
            parts = _regions(board, layout, sure, least, among)
            groups = sorted(parts.members, key=lambda g: -len(parts.members[g]))
            kept = 0 if k == 0 else min(int(rng.geometric(0.5)), len(groups)) - 1
            starts = _translations(board, parts, groups[kept])
            if len(starts) > PLACES:
                drawn = rng.choice(len(starts), PLACES - 1, replace=False).tolist()
                likely = max(range(len(starts)), key=lambda p: board.value(starts[p]))
                starts = [starts[p] for p in {likely, *drawn}]
        for start in starts:
            if over():
                break
            if board.small and k % 2:
                refilled = beam(board, start, _outwards(board, start), BEAM_WIDTH)[0]
            else:
                refilled = _fill(board, start, parts, rng if k else None)
            trial, better = _polish(board, refilled, rivals, among)
            if better > value + 1e-6:
                layout, value, improved = trial, better, k
    return layout
