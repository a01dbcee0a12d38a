"""Turn evidence about pairs and cells into positions: beam search, spanning tree, repair.

Knows no pixels and no models. `positions[i]` is the raster cell (row * columns + column) of piece
`i`, -1 when it is not placed. Maximised is the sum of the pair scores of adjacent placed pieces
plus the sum of the cell scores of the placed pieces.

- up to about 5x5: beam search over the cells (`beam_search`);
- larger: constrained Kruskal tree (Gallagher 2012) under the frame, filled best first;
- both: repair by reassigning cells that do not touch (exact, linear assignment) and by keeping a
  reliable region, moving it everywhere in the frame and refilling (Pomeranz 2011; LNS).

Pieces of unknown orientation (Type 2) are `turns=4` candidates each: candidate `t * n + i` is
piece `i` after `t` quarter turns counter-clockwise (`np.rot90(piece, t)`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

Floats = NDArray[np.floating]
Scores = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Counter-clockwise from the right, so that a quarter turn adds one.
RIGHT, ABOVE, LEFT, BELOW = range(4)
STEPS = np.array([[0, 1], [-1, 0], [0, -1], [1, 0]])  # (row, column) of each direction
SMALL_GRID = 30  # cells; up to here a beam of the default width is near exact and fast
NOISE = 0.3  # spread of the log margin in a refill, so that repeated refills differ
LOCAL = 10  # refills of a small window for each refill of the whole board
BUDGET = 2400  # cells; beyond, fewer rounds, each costing more, keep the time bounded
WINDOW = 5  # cells from the middle of a window to its border, exclusive
PLACES = 4  # translations tried of one kept region


@dataclass(frozen=True)
class _Board:
    """Hold the evidence in the shape the search reads: one void candidate, no infinities.

    toward[d]: (m + 1, m + 1), row q = scores of every candidate in direction d of q; candidate
    m = n * turns is the void (a hole, or outside the frame) and scores 0 against everything.
    cells: (rows * columns, m + 1). around: (rows * columns, 4), the cell in each direction, or
    rows * columns where there is none.
    """

    toward: tuple[Scores, Scores, Scores, Scores]
    cells: Scores
    around: Ints
    rows: int
    columns: int
    n: int
    turns: int
    given: dict[int, int]

    @property
    def void(self) -> int:
        return self.n * self.turns

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


def objective(
    positions: Ints,
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    cells: Floats | None = None,
) -> float:
    """Sum the pair scores of adjacent placed pieces and the cell scores of placed pieces."""
    rows, columns = grid
    layout = np.full(rows * columns, -1)
    placed = np.flatnonzero(np.asarray(positions) >= 0)
    layout[np.asarray(positions)[placed]] = placed
    picture = layout.reshape(rows, columns)
    total = 0.0 if cells is None else float(cells[placed, positions[placed]].sum(dtype=np.float64))
    for scores, first, second in (
        (right, picture[:, :-1], picture[:, 1:]),
        (below, picture[:-1], picture[1:]),
    ):
        both = (first >= 0) & (second >= 0)
        total += float(scores[first[both], second[both]].sum(dtype=np.float64))
    return total


def assemble(
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    cells: Floats | None = None,
    given: Mapping[int, int] | None = None,
    seed: int = 0,
    beam: int = 256,
    rounds: int = 330,
) -> Ints:
    """Find positions (n,) of high objective from pair scores (n, n) and cell scores (n, cells).

    right[i, j] is the score that j sits directly right of i, below[i, j] directly below; higher
    is better, -inf never. With fewer pieces than cells, holes are left (see `_board` for what a
    hole is worth); with more, the worst fitting pieces get -1. `given` maps pieces to fixed cells.
    """
    board = _board(right, below, grid, cells, given)
    return _positions(board, _search(board, seed, beam, rounds))[0]


def assemble_turned(
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    given: Mapping[int, int] | None = None,
    seed: int = 0,
    rounds: int = 330,
) -> tuple[Ints, Ints]:
    """Find positions (n,) and quarter turns (n,) from scores (4n, 4n) of all turned pieces.

    Candidate t * n + i is piece i after t counter-clockwise quarter turns. `given` pieces lie the
    right way up. Without them the picture as a whole may come out turned by 180 degrees (or, on a
    square grid, 90): the pieces cannot tell.
    """
    board = _board(right, below, grid, None, given, turns=4)
    return _positions(board, _search(board, seed, 0, rounds))


def _search(board: _Board, seed: int, beam: int, rounds: int) -> Ints:
    size = len(board.cells)
    rivals = _rivals(board)
    if board.turns == 1 and size <= SMALL_GRID:
        layouts = list(_beam(board, beam, top=1)[0])
        rounds = rounds * max(0, size - 9) // 100  # little is left to repair: 3x3 only polishes
    else:
        rounds = rounds * BUDGET // max(size, BUDGET)
        layouts = [_tree_layout(board, rivals)]
        if board.cells.any():
            empty = _with_given(board, np.full(size + 1, board.void))
            layouts.append(_reassign(board, empty, np.flatnonzero(empty[:-1] == board.void)))
    repaired = [
        _repair(board, layout, rivals, np.random.default_rng(seed), rounds) for layout in layouts
    ]
    return max(repaired, key=board.value)


def _board(
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    cells: Floats | None,
    given: Mapping[int, int] | None,
    turns: int = 1,
) -> _Board:
    """Check the evidence and lay it out for the search.

    With holes, log scores (all negative) would reward spreading the pieces apart. So all pair
    scores are then shifted such that a hole is worth as much as the typical runner-up: less than
    a true neighbour, more than a wrong one.
    """
    rows, columns = grid
    m = len(right)
    n = m // turns
    if rows < 1 or columns < 1:
        raise ValueError(f"grid is {rows}x{columns}; give at least 1 row and 1 column")
    if m == 0 or m % turns or right.shape != (m, m) or below.shape != (m, m):
        raise ValueError(
            f"right is {right.shape} and below {below.shape}; give two equal square matrices"
        )
    if cells is not None and cells.shape != (n, rows * columns):
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
    hole = 0.0
    if 1 < n < rows * columns:
        second = [np.partition(p[:m, :m], m - 2, axis=1)[:, m - 2] for p in pairs]
        hole = float(np.median(np.concatenate(second)))
        hole = hole if np.isfinite(hole) else low
    for padded in pairs:
        np.maximum(padded, floor, out=padded)
        padded[:m, :m] -= hole

    absolute = np.zeros((rows * columns, m + 1), np.float32)
    if cells is not None:
        known = cells[np.isfinite(cells)]
        least = 2 * float(known.min()) - float(known.max()) - 1 if known.size else 0.0
        absolute[:, :m] = np.tile(np.maximum(cells, least).T, turns)
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
    return _Board(toward, absolute, around, rows, columns, n, turns, given)


def _positions(board: _Board, layout: Ints) -> tuple[Ints, Ints]:
    positions = np.full(board.n, -1, np.int64)
    turns = np.zeros(board.n, np.int64)
    cells = np.flatnonzero(layout[:-1] != board.void)
    positions[layout[cells] % board.n] = cells
    turns[layout[cells] % board.n] = layout[cells] // board.n
    return positions, turns


# Small grids: beam search


def beam_search(
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    cells: Floats | None = None,
    given: Mapping[int, int] | None = None,
    width: int = 256,
    top: int = 1,
) -> tuple[Ints, NDArray[np.float64]]:
    """Find the best few arrangements: positions (k, n), objectives (k,), best first, k <= top."""
    board = _board(right, below, grid, cells, given)
    layouts, _ = _beam(board, max(width, top), top)
    positions = np.stack([_positions(board, layout)[0] for layout in layouts])
    scores = [objective(p, np.asarray(right), np.asarray(below), grid, cells) for p in positions]
    return positions, np.array(scores)


def _beam(board: _Board, width: int, top: int) -> tuple[Ints, Floats]:
    """Fill the cells in raster order, keeping the `width` best partial layouts: (k, cells + 1).

    A side still open counts as its best possible neighbour, which makes partial layouts that use
    different sides comparable; the promise is taken back when the side is closed.
    """
    n, size = board.n, len(board.cells)
    hopes = [board.toward[d][:, : n + 1].max(axis=1) for d in (RIGHT, BELOW)]
    fixed = {cell: piece for piece, cell in board.given.items()}
    layouts = np.full((1, size + 1), board.void)
    scores = np.zeros(1, np.float32)
    free = np.ones((1, n + 1), bool)
    free[:, list(board.given)] = False
    holes = np.array([max(0, size - n)])
    for cell in range(size):
        left, above, right, below = board.around[cell, [LEFT, ABOVE, RIGHT, BELOW]]
        gain = scores[:, None] + board.cells[cell]
        for near, direction, hope in ((left, RIGHT, hopes[0]), (above, BELOW, hopes[1])):
            if near < size:
                before = layouts[:, near]
                gain += board.toward[direction][before] - hope[before, None]
        for near, hope in ((right, hopes[0]), (below, hopes[1])):
            if near < size:
                gain += hope
        if cell in fixed:
            gain[:, np.arange(n + 1) != fixed[cell]] = -np.inf
        else:
            free[:, n] = holes > 0
            gain[~free] = -np.inf
        keep = min(width, int(np.isfinite(gain).sum()))
        flat = gain.ravel()
        best = np.argpartition(flat, -keep)[-keep:] if keep < flat.size else np.arange(flat.size)
        state, piece = np.divmod(best, n + 1)
        layouts, scores, free = layouts[state], flat[best], free[state]
        layouts[:, cell] = piece
        free[np.arange(keep), piece] = False
        holes = holes[state] - (piece == n)
    order = np.argsort(-scores, kind="stable")[:top]
    return layouts[order], scores[order]


# Large grids: spanning tree, fill, repair


@dataclass(frozen=True)
class _Segments:
    """Hold groups of pieces that move together: label, row, column, turn (n,) and the members."""

    label: Ints
    row: Ints
    column: Ints
    turn: Ints
    members: dict[int, Ints]


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


def _edges(board: _Board, rivals: Scores) -> NDArray[np.int64]:
    """List best buddies, most certain first: (edges, 4) of piece, piece, direction, turn."""
    n, m = board.n, board.void
    a = np.arange(n)
    found, sures = [], []
    for direction in range(4):
        near = board.toward[direction][:n, :m].argmax(axis=1)
        sure = _certainty(board, rivals, a, near, direction)
        edges = np.stack([a, near % n, np.full(n, direction), near // n], axis=1)
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
    label, row, column, turn = (np.arange(n), *np.zeros((3, n), np.int64))
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
    elif board.turns > 1:
        frames.add((board.columns, board.rows))

    for a, b, direction, spin in _edges(board, rivals).tolist():
        ga, gb = int(label[a]), int(label[b])
        if ga == gb:
            continue
        if gb == anchor or (ga != anchor and len(members[ga]) < len(members[gb])):
            a, b, direction, spin = b, a, (direction + 2 - spin) % 4, -spin % 4
            ga, gb = gb, ga
        moved = members[gb]
        spin = int(turn[a] + spin - turn[b]) % 4
        down, along = _rotate(row[moved] - row[b], column[moved] - column[b], spin)
        step = STEPS[(direction + turn[a]) % 4]
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
        turn[moved] = (turn[moved] + spin) % 4
        members[ga] = np.concatenate([members[ga], moved])
        del members[gb]
    return _Segments(label, row, column, turn, members)


def _rotate(row: Ints, column: Ints, spin: int) -> tuple[Ints, Ints]:
    """Turn offsets by `spin` counter-clockwise quarter turns."""
    for _ in range(spin % 4):
        row, column = -column, row
    return row, column


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


def _with_given(board: _Board, layout: Ints) -> Ints:
    layout[list(board.given.values())] = list(board.given)
    return layout


def _translations(board: _Board, parts: _Segments, group: int) -> list[Ints]:
    """Lay one segment at every place of the frame, else void: layouts (cells + 1,).

    Turned only if it fits no other way; with given pieces it stays where it is.
    """
    moved = parts.members[group]
    layouts: list[Ints] = []
    for spin in range(board.turns):
        down, along = _rotate(parts.row[moved], parts.column[moved], spin)
        height, width = 1, 1
        if not board.given:
            down, along = down - down.min(), along - along.min()
            height, width = (board.rows - int(down.max()), board.columns - int(along.max()))
        for r in range(height):
            for c in range(width):
                layout = np.full(len(board.cells) + 1, board.void)
                where = (down + r) * board.columns + along + c
                layout[where] = (parts.turn[moved] + spin) % 4 * board.n + moved
                layouts.append(_with_given(board, layout))
        if layouts:
            break
    return layouts


def _put(
    board: _Board, layout: Ints, used: Bools, parts: _Segments, candidate: int, cell: int
) -> Ints:
    """Place a candidate with its whole segment, or alone where that does not fit: cells filled."""
    piece = candidate % board.n
    spin = (candidate // board.n - int(parts.turn[piece])) % 4
    moved = parts.members[int(parts.label[piece])]
    if len(moved) > 1 and not used[moved].any():
        down, along = _rotate(
            parts.row[moved] - parts.row[piece], parts.column[moved] - parts.column[piece], spin
        )
        down, along = down + cell // board.columns, along + cell % board.columns
        inside = (down >= 0) & (down < board.rows) & (along >= 0) & (along < board.columns)
        if inside.all():
            where = down * board.columns + along
            if (layout[where] == board.void).all():
                layout[where] = (parts.turn[moved] + spin) % 4 * board.n + moved
                used[moved] = True
                return where
    layout[cell] = candidate
    used[piece] = True
    return np.array([cell])


def _fill(
    board: _Board, layout: Ints, parts: _Segments, rng: np.random.Generator | None = None
) -> Ints:
    """Fill empty cells, the one whose best candidate is clearest first; segments come whole."""
    n, m, size = board.n, board.void, len(board.cells)
    layout = layout.copy()
    used = np.zeros(n, bool)
    used[layout[layout < m] % n] = True
    free = np.flatnonzero(~np.tile(used, board.turns))
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

    empty = layout[:-1] == m
    near = (layout[board.around] != m).any(axis=1)
    start = np.flatnonzero(empty & near) if near.any() else np.flatnonzero(empty)
    left = n - int(used.sum())
    if left and len(start):
        offer(start)
    while heap and left:
        _, cell, version, candidate = heapq.heappop(heap)
        if version != stamp[cell] or layout[cell] != m:
            continue
        if used[candidate % n]:
            offer(np.array([cell]))
            continue
        filled = _put(board, layout, used, parts, candidate, cell)
        left -= len(filled)
        if left * board.turns < len(free) // 2:
            free = free[~used[free % n]]
        touched = board.around[filled].ravel()
        touched = touched[layout[touched] == m]
        touched = np.unique(touched[touched < size])
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
    label, row, column, turn = np.zeros((4, board.n), np.int64)
    label[:] = size + np.arange(board.n)  # pieces not placed stay single
    cells = np.flatnonzero(layout[:-1] != board.void)
    pieces = layout[cells] % board.n
    label[pieces] = labels[cells]
    row[pieces], column[pieces] = np.divmod(cells, board.columns)
    turn[pieces] = layout[cells] // board.n
    order = np.argsort(label, kind="stable")
    groups, starts = np.unique(label[order], return_index=True)
    members = dict(zip(groups.tolist(), np.split(order, starts[1:]), strict=True))
    return _Segments(label, row, column, turn, members)


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
    free = np.flatnonzero(~np.tile(used, board.turns))
    turned = board.local(layout, where, free).reshape(len(where), board.turns, -1)
    lines, columns = linear_sum_assignment(turned.max(axis=1), maximize=True)
    spin = turned[lines, :, columns].argmax(axis=1)
    layout[where[lines]] = spin * n + free[columns]
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


def _repair(
    board: _Board, layout: Ints, rivals: Scores, rng: np.random.Generator, rounds: int
) -> Ints:
    """Empty a part, refill it, keep what scores better; many small windows, now and then all.

    What is refilled keeps the segments held together by certain pairs; how certain is drawn
    afresh each time, so that a wrong but confident join is broken up sooner or later.
    """
    size = len(board.cells)
    movable = np.ones(size + 1, bool)
    movable[[*board.given.values(), size]] = False
    layout, value = _polish(board, layout, rivals, movable)
    row, column = np.divmod(np.arange(size + 1), board.columns)
    improved = 0
    for k in range(rounds):
        if k - improved > max(rounds // 3, LOCAL):
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
            refilled = _fill(board, start, parts, rng if k else None)
            trial, better = _polish(board, refilled, rivals, among)
            if better > value + 1e-6:
                layout, value, improved = trial, better, k
    return layout
