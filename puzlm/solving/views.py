"""Several looks at one puzzle: mirrored, turned or in another light, read again, and averaged.

A puzzle that is mirrored as a whole is another sentence with the same answer, mirrored, and one
that is a little darker is another sentence with the same answer. Reading such views and averaging
what is said, cell by cell and piece by piece, costs as many readings as there are views. A model
that was trained on mirrored pictures (cut.flip) can use MIRRORED and LIT, which averages out how
patches happen to be rounded to symbols; ALL is for one that also knows pictures on their side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import PuzzleError, SettingsError
from puzlm.images import Pixels
from puzlm.models.decoding import WIDTH, Decoded, Reader, assign, by_slot, decode
from puzlm.puzzle import Grid, Puzzle
from puzlm.solving.evidence import UNSEEN, Seen
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """Mirror left and right first, then turn counter-clockwise by quarters; a factor of light."""

    mirror: bool = False
    turns: int = 0
    light: float = 1.0

    def _apply(self, a: NDArray[Any], down: int, across: int) -> NDArray[Any]:
        if self.mirror:
            a = np.flip(a, across)
        return np.rot90(a, self.turns, (down, across))

    def pieces(self, pieces: Pixels) -> Pixels:
        """Pieces (n, height, width, 3) as this view shows them."""
        shown = self._apply(pieces, 1, 2)
        if self.light != 1:
            shown = np.minimum(np.rint(shown * np.float32(self.light)), 255).astype(np.uint8)
        return np.ascontiguousarray(shown)

    def cells(self, grid: Grid) -> Ints:
        """The cell of the puzzle that each cell of the view shows, (cells,).

        >>> View(mirror=True).cells((2, 2))
        array([1, 0, 3, 2])
        """
        shown = self._apply(np.arange(grid[0] * grid[1]).reshape(grid), 0, 1)
        return np.ascontiguousarray(shown).reshape(-1)


UPRIGHT = (View(),)
MIRRORED = (View(), View(mirror=True))
LIT = tuple(View(mirror, light=light) for light in (1.0, 0.88, 1.1) for mirror in (False, True))
ALL = tuple(View(mirror, turns) for mirror in (False, True) for turns in range(4))
SETS = {1: UPRIGHT, 2: MIRRORED, 6: LIT, 8: ALL}
SHOWN = 16  # views that are read together


def look_again(
    look: Callable[[list[Puzzle]], list[Seen]],
    puzzles: Sequence[Puzzle],
    first: Sequence[Any],
    views: Sequence[View] = LIT[1:],
) -> list[Seen]:
    """The mean of what was read first, of the puzzles as they are, and of further views."""
    looks = [[seen] for seen in first]
    asked = [(view, i) for i in range(len(puzzles)) for view in views]
    for start in range(0, len(asked), SHOWN):
        part = asked[start : start + SHOWN]
        said = look([Puzzle(v.pieces(puzzles[i].pieces), puzzles[i].grid) for v, i in part])
        for (view, i), seen in zip(part, said, strict=True):
            looks[i].append(straightened(view, seen, puzzles[i].grid))
    found = []
    for every in looks:
        cells, right, below = zip(*every, strict=True)
        known = None if cells[0] is None else np.mean(cells, 0)
        found.append((known, np.mean(right, 0), np.mean(below, 0)))
    return found


def straightened(view: View, seen: Seen, grid: Grid) -> Seen:
    """What was read of a view that is not turned, as if it had said it of the puzzle itself."""
    cells, right, below = seen
    if cells is not None:
        cells = cells[:, view.cells(grid).argsort()]
    # Who lies right of a piece in the mirror lies left of it in the picture.
    return cells, right.T if view.mirror else right, below


def read_views(
    reader: Reader,
    tokenizer: PieceTokenizer,
    puzzles: Sequence[Puzzle],
    views: Sequence[View] = LIT,
    *,
    width: int = WIDTH,
    temperature: float = 1.0,
    batch: int = 16,
    given: Sequence[Mapping[int, int]] | None = None,
) -> Decoded:
    """Read every view and average: cells and marginals by input piece, not by slot.

    All puzzles must have one grid and one number of pieces; `batch` are read at once. Cells are
    the assignment with the largest product of averaged marginals; alternatives are all boards that
    a view's beam held, and their scores what all views together say of each (`together`). `given`
    fixes pieces in cells.
    """
    if not views or not puzzles:
        raise SettingsError("views: at least one view and one puzzle are needed")
    grid, count = puzzles[0].grid, len(puzzles[0].pieces)
    if any(p.grid != grid or len(p.pieces) != count for p in puzzles):
        raise PuzzleError("views: puzzles of one grid and one number of pieces only")
    if grid[0] != grid[1] and any(v.turns % 2 for v in views):
        raise PuzzleError(f"views: a {grid[0]}x{grid[1]} puzzle cannot be turned by a quarter")
    total: Floats = np.zeros((len(puzzles), count, grid[0] * grid[1]))
    beams: list[list[tuple[Ints, Floats]]] = [[] for _ in puzzles]
    fixed = given or [{}] * len(puzzles)
    for view in views:
        shown = view.cells(grid)
        there = shown.argsort()  # where the view shows each cell of the puzzle
        for first in range(0, len(puzzles), batch):
            part = puzzles[first : first + batch]
            text = tokenizer([Puzzle(view.pieces(p.pieces), grid) for p in part])
            moved = [
                {piece: int(there[cell]) for piece, cell in g.items()}
                for g in fixed[first : first + batch]
            ]
            found = decode(
                reader,
                text["input_ids"],
                slots=count,
                grid=grid,
                first_cell=tokenizer.cell_token_id(0),
                attention_mask=text["attention_mask"],
                method="beam",
                width=max(2, width),
                temperature=temperature,
                given=by_slot(text["order"][:, :count], moved),
            )
            assert found.marginals is not None and found.alternatives is not None
            assert found.scores is not None
            rows = np.arange(first, first + len(part))[:, None, None]
            order = text["order"][:, :count, None]
            total[rows, order, shown[None, None]] += found.marginals
            for row, slots in enumerate(order[..., 0].argsort(1)):
                boards = shown[found.alternatives[row][:, slots]]
                beams[first + row].append((boards, found.scores[row]))
    average = total / len(views)
    cells, sure = average.argmax(-1), average.max(-1)
    boards, scores = together(beams)
    return assign(Decoded(cells, sure, np.minimum(average, 1.0), boards, scores))


def together(beams: Sequence[Sequence[tuple[Ints, Floats]]]) -> tuple[Ints, Floats]:
    """Boards (puzzles, k, n) that any view's beam held, and the mean over the views of the
    log-probability of each (puzzles, k), best first; -inf fills up.

    `beams` has the boards (width, n) and log-probabilities (width,) of every view of each puzzle.
    """
    found: list[list[tuple[float, tuple[int, ...]]]] = []
    for views in beams:
        said: dict[tuple[int, ...], dict[int, float]] = {}
        last = []
        for view, (boards, scores) in enumerate(views):
            there = np.isfinite(scores)  # the others fill up a beam that is wider than the choice
            last.append(float(scores[there].min()) - UNSEEN)
            for board, score in zip(boards[there].tolist(), scores[there].tolist(), strict=True):
                said.setdefault(tuple(board), {})[view] = score
        means = [
            (float(np.mean([of.get(view, least) for view, least in enumerate(last)])), board)
            for board, of in said.items()
        ]
        found.append(sorted(means, key=lambda mean: (-mean[0], mean[1])))
    most, n = max(map(len, found)), len(found[0][0][1])
    boards, scores = np.zeros((len(found), most, n), np.int64), np.full((len(found), most), -np.inf)
    for row, means in enumerate(found):
        boards[row, : len(means)] = [board for _, board in means]
        scores[row, : len(means)] = [mean for mean, _ in means]
    return boards, scores
