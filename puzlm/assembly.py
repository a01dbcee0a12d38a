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

# Counter-clockwise from the right, so that a quarter turn adds one.
RIGHT, ABOVE, LEFT, BELOW = range(4)
STEPS = np.array([[0, 1], [-1, 0], [0, -1], [1, 0]])  # (row, column) of each direction
SMALL_GRID = 30  # cells; up to here a beam of the default width is near exact and fast
NOISE = 0.3
TREE_CANDIDATES = 8  # neighbours a side offered to the tree; more only adds noise


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
    positions: Ints, right: Floats, below: Floats, grid: tuple[int, int], cells: Floats | None = None
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
    rounds: int = 60,
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
    rounds: int = 60,
) -> tuple[Ints, Ints]:
    """Find positions (n,) and quarter turns (n,) from scores (4n, 4n) of all turned pieces.

    Candidate t * n + i is piece i after t counter-clockwise quarter turns. `given` pieces lie the
    right way up. Without them the picture as a whole may come out turned by 180 degrees (or, on a
    square grid, 90): the pieces cannot tell.
    """
    board = _board(right, below, grid, None, given, turns=4)
    return _positions(board, _search(board, seed, 0, rounds))


def _search(board: _Board, seed: int, beam: int, rounds: int) -> Ints:
    if board.turns == 1 and len(board.cells) <= SMALL_GRID:
        layouts = list(_beam(board, beam, top=1)[0])
    else:
        layouts = [_tree_layout(board)]
        if board.cells.any():
            layouts.append(_cell_layout(board))
    repaired = [_repair(board, layout, np.random.default_rng(seed), rounds) for layout in layouts]
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
    finite = [p[:m, :m][np.isfinite(p[:m, :m])] for p in pairs]
    values = np.concatenate(finite) if m * m < 10_000 else np.concatenate([f[::7] for f in finite])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    floor = low - 2 * (high - low) - 1  # forbidden, yet finite: sums stay comparable
    hole = 0.0
    if n < rows * columns and n > 2:
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


def _tree(board: _Board, least: float = 0.0) -> _Segments:
    """Join pieces by their most certain edges first, without overlap and within the frame.

    Gallagher's constrained Kruskal algorithm; an edge is as certain as its score is above the
    best rival on either of the two sides it joins. The frame joins the collision test: a tree
    that outgrows it is wrong, and cutting it later would keep the wrong half.
    """
    n, turns = board.n, board.turns
    label, row, column, turn = (np.arange(n), *np.zeros((3, n), np.int64))
    members = {i: np.array([i]) for i in range(n)}
    taken = {i: {0} for i in range(n)}  # cells of each group, as row * far + column
    boxes = {i: (0, 0, 0, 0) for i in range(n)}
    far = 1 << 20
    anchor = -1
    if board.given:
        pieces = np.array(list(board.given))
        anchor = int(pieces[0])
        row[pieces], column[pieces] = np.divmod(np.array(list(board.given.values())), board.columns)
        label[pieces] = anchor
        members[anchor] = pieces
        taken[anchor] = set((row[pieces] * far + column[pieces]).tolist())
        boxes[anchor] = (0, 0, board.rows - 1, board.columns - 1)  # so that all stays inside

    frames = {(board.rows, board.columns)}
    if turns > 1 and not board.given:
        frames.add((board.columns, board.rows))
    for a, b, direction, spin in zip(*_edges(board, least), strict=True):
        ga, gb = label[a], label[b]
        if ga == gb:
            continue
        if gb == anchor or (ga != anchor and len(members[ga]) < len(members[gb])):
            a, b, direction, spin = b, a, (direction + 2 - spin) % 4, -spin % 4
            ga, gb = gb, ga
        moved = members[gb]
        spin = (turn[a] + spin - turn[b]) % 4
        down, along = _rotate(row[moved] - row[b], column[moved] - column[b], spin)
        step = STEPS[(direction + turn[a]) % 4]
        down, along = down + row[a] + step[0], along + column[a] + step[1]
        top, left, bottom, end = boxes[ga]
        box = (
            min(top, int(down.min())),
            min(left, int(along.min())),
            max(bottom, int(down.max())),
            max(end, int(along.max())),
        )
        height, width = box[2] - box[0] + 1, box[3] - box[1] + 1
        if not any(height <= rows and width <= columns for rows, columns in frames):
            continue
        keys = (down * far + along).tolist()
        if not taken[ga].isdisjoint(keys):
            continue
        taken[ga].update(keys)
        boxes[ga] = box
        label[moved], row[moved], column[moved] = ga, down, along
        turn[moved] = (turn[moved] + spin) % 4
        members[ga] = np.concatenate([members[ga], moved])
        del members[gb], taken[gb], boxes[gb]
    return _Segments(label, row, column, turn, members)


def _edges(board: _Board, least: float) -> tuple[list[int], list[int], list[int], list[int]]:
    """List tree edges, the most certain first: piece a, piece b, direction, relative turn of b."""
    n, m = board.n, board.void
    kept = min(TREE_CANDIDATES, m)
    best, rival, candidates = [], [], []
    for direction in range(4):
        scores = board.toward[direction][:n, :m]
        near = np.argpartition(scores, m - kept, axis=1)[:, m - kept :]
        tops = np.sort(np.take_along_axis(scores, near, axis=1), axis=1)
        best.append(tops[:, -1])
        rival.append(tops[:, -2] if kept > 1 else np.zeros(n, np.float32))
        candidates.append(near)
    bests, rivals = np.stack(best), np.stack(rival)
    found = []
    for direction in range(4):
        a = np.repeat(np.arange(n), kept)
        near = candidates[direction].ravel()
        b, spin = near % n, near // n
        score = board.toward[direction][a, near]
        back = (direction + 2 - spin) % 4  # the side of b that touches, in its own frame
        other_a = np.where(score < bests[direction, a], bests[direction, a], rivals[direction, a])
        other_b = np.where(score < bests[back, b], bests[back, b], rivals[back, b])
        margin = score - np.maximum(other_a, other_b)
        keep = margin > least
        found.append((margin[keep], a[keep], b[keep], np.full(keep.sum(), direction), spin[keep]))
    margin, a, b, towards, spins = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(-margin, kind="stable")
    return a[order].tolist(), b[order].tolist(), towards[order].tolist(), spins[order].tolist()


def _rotate(row: Ints, column: Ints, spin: int) -> tuple[Ints, Ints]:
    """Turn offsets by `spin` counter-clockwise quarter turns."""
    for _ in range(spin % 4):
        row, column = -column, row
    return row, column


def _put(
    board: _Board, layout: Ints, used: NDArray[np.bool_], parts: _Segments, candidate: int, cell: int
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
        if (
            min(down.min(), along.min()) >= 0
            and down.max() < board.rows
            and along.max() < board.columns
        ):
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


def _tree_layout(board: _Board) -> Ints:
    parts = _tree(board)
    anchor = int(parts.label[next(iter(board.given))]) if board.given else -1
    largest = max(parts.members, key=lambda g: (g == anchor, len(parts.members[g])))
    start = _translations(board, parts, largest, still=bool(board.given))
    return _fill(board, start[len(start) // 2], parts)


def _cell_layout(board: _Board) -> Ints:
    layout = np.full(len(board.cells) + 1, board.void)
    for piece, cell in board.given.items():
        layout[cell] = piece
    return _reassign(board, layout, np.flatnonzero(layout[:-1] == board.void))


def _translations(board: _Board, parts: _Segments, group: int, still: bool = False) -> Ints:
    """Lay one segment at every place of the frame (and every turn): (places, cells + 1)."""
    moved = parts.members[group]
    layouts = []
    for spin in range(1 if still else board.turns):
        down, along = _rotate(parts.row[moved], parts.column[moved], spin)
        candidates = (parts.turn[moved] + spin) % 4 * board.n + moved
        if not still:
            down, along = down - down.min(), along - along.min()
        spare = (0, 0) if still else (board.rows - down.max() - 1, board.columns - along.max() - 1)
        for r in range(spare[0] + 1):
            for c in range(spare[1] + 1):
                layout = np.full(len(board.cells) + 1, board.void)
                layout[(down + r) * board.columns + along + c] = candidates
                layouts.append(layout)
    return np.stack(layouts)


def _rivals(board: _Board) -> Scores:
    """Find the best and second-best score of every side: (4, m + 1, 2)."""
    m = board.void
    tops = np.zeros((4, m + 1, 2), np.float32)
    for direction in range(4):
        tops[direction, :m] = np.partition(board.toward[direction][:m, :m], m - 2, axis=1)[:, : m - 3 : -1]
    return tops


def _certainty(board: _Board, rivals: Scores, layout: Ints, direction: int) -> Scores:
    """Measure by how much each cell's pair beats the best rival on either side: (cells,)."""
    own, near = layout[:-1], layout[board.around[:, direction]]
    score = board.toward[direction][own, near]
    result = np.full(len(own), np.inf, np.float32)
    for tops in (rivals[direction][own], rivals[(direction + 2) % 4][near]):
        result = np.minimum(result, score - np.where(score < tops[:, 0], tops[:, 0], tops[:, 1]))
    return np.where((own == board.void) | (near == board.void), -np.inf, result)


def _regions(
    board: _Board, layout: Ints, sure: list[Scores], least: float, among: NDArray[np.bool_]
) -> _Segments:
    """Split a layout into the segments held together by pairs more certain than `least`."""
    size = len(board.cells)
    own = layout[:-1]
    links = []
    for direction, certain in zip((RIGHT, BELOW), sure, strict=True):
        hold = np.flatnonzero((certain > least) & among[:-1] & among[board.around[:, direction]])
        links.append(np.stack([hold, board.around[hold, direction]]))
    first, second = np.concatenate(links, axis=1)
    graph = coo_matrix((np.ones(len(first)), (first, second)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1]
    cells = np.flatnonzero(own != board.void)
    pieces = own[cells] % board.n
    label, row, column, turn = np.zeros((4, board.n), np.int64)
    spare = np.setdiff1d(np.arange(board.n), pieces)
    label[pieces] = labels[cells]
    label[spare] = size + np.arange(len(spare))
    row[pieces], column[pieces] = np.divmod(cells, board.columns)
    turn[pieces] = own[cells] // board.n
    order = np.argsort(label, kind="stable")
    groups, starts = np.unique(label[order], return_index=True)
    members = dict(zip(groups.tolist(), np.split(order, starts[1:]), strict=True))
    return _Segments(label, row, column, turn, members)


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


def _polish(board: _Board, layout: Ints, among: NDArray[np.bool_]) -> Ints:
    """Reassign sets of cells that do not touch until nothing improves."""
    where = np.flatnonzero(among[:-1])
    row, column = np.divmod(where, board.columns)
    value = board.value(layout)
    for modulus, slope in ((2, 1), (3, 1), (3, -1), (2, 1)):
        for rest in range(modulus):
            cells = where[(row + slope * column) % modulus == rest]
            if len(cells) > 1:
                trial = _reassign(board, layout, cells)
                if (gain := board.value(trial)) > value + 1e-6:
                    layout, value = trial, gain
    return layout


LOCAL = 10
def _repair(board: _Board, layout: Ints, rng: np.random.Generator, rounds: int) -> Ints:
    if rounds == 0 or board.n < 3: return layout
    size = len(board.cells)
    rivals = _rivals(board)
    movable = np.ones(size + 1, bool)
    movable[list(board.given.values())] = False
    movable[-1] = False
    layout = _polish(board, layout, movable)
    value = board.value(layout)
    row, column = np.divmod(np.arange(size + 1), board.columns)
    for k in range(rounds):
        sure = [_certainty(board, rivals, layout, d) for d in (RIGHT, BELOW)]
        every = np.concatenate(sure)
        broken = np.zeros(size + 1, bool)
        for direction, certain in zip((RIGHT, BELOW), sure, strict=True):
            near = board.around[:, direction]
            weak = np.flatnonzero((certain <= 0) & (near < size))
            broken[weak] = True
            broken[near[weak]] = True
        broken &= movable
        if not broken.any():
            break
        every = every[every > 0]
        least = float(np.quantile(every, rng.uniform(0, 0.6))) if len(every) and k > 0 else 0.0
        if k % (LOCAL + 1) != 0:
            centre = rng.choice(np.flatnonzero(broken))
            h, w = rng.integers(1, 5, 2)
            among = (abs(row - row[centre]) <= h) & (abs(column - column[centre]) <= w) & movable
            if rng.random() < 0.5:
                wide = broken.copy()
                wide[:-1] |= broken[board.around].any(axis=1)
                among &= wide
            parts = _regions(board, layout, sure, least, among)
            starts = [np.where(among, board.void, layout)]
        else:
            among = movable
            parts = _regions(board, layout, sure, least, among)
            groups = sorted(parts.members, key=lambda g: -len(parts.members[g]))
            pick = 0 if k == 0 else min(rng.geometric(0.5) - 1, len(groups) - 1)
            starts = _translations(board, parts, groups[pick], still=bool(board.given))
            if len(starts) > 4:
                starts = starts[rng.choice(len(starts), 4, replace=False)]
        for start in starts:
            trial = _polish(board, _fill(board, start, parts, rng if k else None), among)
            if (gain := board.value(trial)) > value + 1e-6:
                layout, value = trial, gain
    return layout
