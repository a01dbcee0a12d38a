"""Turn evidence about pairs and cells into positions. Knows no pixels and no models.

`positions[i]` is the raster cell (row * columns + column) of piece `i`, -1 when it is not placed.
Maximised is the sum of the pair scores of adjacent placed pieces plus the sum of the cell scores
of the placed pieces.

- up to about 5x5: beam search over the cells, from several corners (`beam_search`);
- up to about 10x10: what such beams and a spanning tree agree on, joined (`consensus.py`);
- larger: the spanning tree, filled best first (`repair.py`);
- all: repaired, for a bounded number of rounds (`repair.py`).

Pieces that may be turned or flipped are several candidates each; `board.py` says which.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from puzlm.pieces.poses import STRAIGHT, Poses
from puzlm.solving.search.board import (
    STEPS,
    Floats,
    Ints,
    _Board,
    _board,
    _positions,
    _rivals,
    _with_given,
    beam,
)

SMALL_GRID = 30  # cells; up to here a beam of the default width is near exact and fast
BUDGET = 2400  # cells; beyond, fewer rounds, each costing more, keep the time bounded


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
    width: int = 256,
    rounds: int = 330,
    hole: float | None = None,
) -> Ints:
    """Find positions (n,) of high objective from pair scores (n, n) and cell scores (n, cells).

    right[i, j] is the score that j sits directly right of i, below[i, j] directly below; higher
    is better, -inf never. With fewer pieces than cells, holes are left (see `_board` for what a
    hole is worth); with more, the worst fitting pieces get -1. `given` maps pieces to fixed cells.
    """
    board = _board(right, below, grid, cells, given, hole=hole)
    return _positions(board, _search(board, seed, width, rounds))[0]


def joined(
    right: Floats, below: Floats, grid: tuple[int, int], poses: Poses = STRAIGHT
) -> tuple[Ints, Ints]:
    """A first arrangement from the spanning tree alone, in milliseconds: positions, poses (n,)."""
    from puzlm.solving.search.repair import _movable, _polish, _tree_layout

    board = _board(right, below, grid, None, None, poses, hole=0.0)
    rivals = _rivals(board)
    layout = _polish(board, _tree_layout(board, rivals), rivals, _movable(board))[0]
    return _positions(board, layout)


def repaired(
    positions: Ints,
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    cells: Floats,
    seed: int = 0,
    rounds: int = 110,
) -> Ints:
    """Repair a whole arrangement after evidence about cells was added: positions (n,)."""
    from puzlm.solving.search.repair import _repair

    board = _board(right, below, grid, cells, None)
    layout = np.append(np.argsort(positions), board.void)
    found = _repair(board, layout, _rivals(board), np.random.default_rng(seed), rounds)
    return _positions(board, found)[0]


def assemble_posed(
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    poses: Poses,
    given: Mapping[int, int] | None = None,
    seed: int = 0,
    rounds: int = 330,
    hole: float | None = None,
    cells: Floats | None = None,
) -> tuple[Ints, Ints]:
    """Find positions (n,) and poses (n,) from scores (kn, kn) of all pieces in k poses.

    Candidate k * n + i is piece i in poses[k]. `cells`, (n, cells) or (kn, cells), scores them in
    cells. `given` pieces lie as they are. Without both the picture as a whole may come out in any
    pose that fits the grid: the pieces cannot tell.
    """
    board = _board(right, below, grid, cells, given, poses, hole)
    return _positions(board, _search(board, seed, 256, rounds))


def _search(board: _Board, seed: int, width: int, rounds: int) -> Ints:
    # Late: scipy is a third of a cold start, and the beam search of a small grid needs none.
    from puzlm.solving.search.consensus import _join
    from puzlm.solving.search.repair import _reassign, _repair, _tree_layout

    size = len(board.cells)
    rivals = _rivals(board)
    if len(board.poses) == 1 and size <= SMALL_GRID:
        layouts = list(_beams(board, width, 1, _starts(board)))
        rounds = rounds * max(0, size - 9) // 40  # little is left to repair: 3x3 only polishes
    else:
        rounds = rounds * BUDGET // max(size, BUDGET)
        layouts = [_tree_layout(board, rivals)]
        if board.small:
            layouts += [found[0] for found in _each_beam(board, width // 2, 4)]
        if board.cells.any():
            empty = _with_given(board, np.full(size + 1, board.void))
            layouts.append(_reassign(board, empty, np.flatnonzero(empty[:-1] == board.void)))
        if board.small:
            layouts = [_join(board, layouts, rivals, np.random.default_rng(seed))]
            rounds //= 3  # little is left to repair
    repaired = [
        _repair(board, layout, rivals, np.random.default_rng(seed), rounds) for layout in layouts
    ]
    return max(repaired, key=board.value)


# Small grids: beam search


def beam_search(
    right: Floats,
    below: Floats,
    grid: tuple[int, int],
    cells: Floats | None = None,
    given: Mapping[int, int] | None = None,
    width: int = 256,
    top: int = 1,
    hole: float | None = None,
    kinds: Ints | None = None,
) -> tuple[Ints, NDArray[np.float64]]:
    """Find the best few arrangements: positions (k, n), objectives (k,), best first, k <= top.

    No two of them differ only by an exchange of equal pieces.
    """
    board = _board(right, below, grid, cells, given, hole=hole, kinds=kinds)
    layouts = _beams(board, max(width, top), top, _starts(board))
    positions = np.stack([_positions(board, layout)[0] for layout in layouts])
    scores = [objective(p, np.asarray(right), np.asarray(below), grid, cells) for p in positions]
    return positions, np.array(scores)


def _starts(board: _Board) -> int:
    """Say how many orders are worth their time: what one misses from 5x5 on, another finds."""
    return 2 if len(board.cells) <= 9 else 8


def _beams(board: _Board, width: int, top: int, starts: int) -> Ints:
    """Find the best few layouts of several beams: (k, cells + 1), k <= top, best first."""
    found = [layouts[:top] for layouts in _each_beam(board, width, starts)]
    layouts = np.unique(np.concatenate(found), axis=0)
    order = np.argsort([-board.value(layout) for layout in layouts], kind="stable")[:top]
    best: Ints = layouts[order]
    return best


def _each_beam(board: _Board, width: int, starts: int) -> list[Ints]:
    """Beam search from several corners, along rows and along columns: each (k, cells + 1).

    A beam that begins where the picture says little (sky) loses the truth before it gets to the
    part that says much; from the other corner it does not.
    """
    along = np.arange(len(board.cells)).reshape(board.rows, board.columns)
    ways = [
        lines[:: 1 - 2 * up, :: 1 - 2 * back].ravel()
        for lines in (along, along.T)
        for up, back in ((0, 0), (1, 1), (1, 0), (0, 1))
    ]
    empty = _with_given(board, np.full(len(board.cells) + 1, board.void))
    return [beam(board, empty, way[empty[way] == board.void], width) for way in ways[:starts]]


__all__ = [
    "SMALL_GRID",
    "STEPS",
    "assemble",
    "assemble_posed",
    "beam_search",
    "objective",
    "repaired",
]
