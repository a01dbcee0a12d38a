"""What a solver is asked and what it answers: as_puzzle takes anything, Solution says all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puzlm.errors import ModelError, PuzzleError
from puzlm.images import Pixels, to_rgb, write_image
from puzlm.pieces.equal_pieces import exchanged, kinds_of
from puzlm.pieces.poses import laid
from puzlm.pieces.repair import equal_sizes, unequal
from puzlm.puzzle import Grid, Positions, Puzzle, assemble, draw, open_grid, parse_grid

Floats = NDArray[np.float64]
Given = Mapping[int, int]


@dataclass(frozen=True)
class Used:
    """What gave an answer, as data. The sentence for people is made of it and never read back.

    >>> str(Used("auto", ("seq2seq", "reader", "pixels"), model="puzlm-3x3", looks=6))
    'auto (seq2seq puzlm-3x3 + reader + pixels, 6 looks)'
    >>> str(Used("seq2seq", decoding="valid", model="puzlm-3x3"))
    'seq2seq (valid, puzlm-3x3)'
    """

    solver: str
    evidence: tuple[str, ...] = ()
    """Kinds of evidence that were joined, and repairs of the pieces, as the sentence names them."""
    model: str = ""
    """The language model that read, where the box chose it."""
    decoding: str = ""
    """How a language model alone was decoded."""
    looks: int = 1
    clear: bool = False
    """Whether borders left no doubt, so that no large model was asked."""
    early: bool = False
    """Whether the search was ended before all pieces were laid or mended."""
    note: str = ""
    """Which way up a picture of turned pieces lies, and how that was found."""

    def __str__(self) -> str:
        read = f"seq2seq {self.model}".rstrip()
        parts = [" + ".join(read if kind == "seq2seq" else kind for kind in self.evidence)]
        if self.decoding:
            parts = [self.decoding, self.model]
        parts += [f"{self.looks} looks"] if self.looks > 1 else []
        parts += ["clear"] if self.clear else []
        parts += ["ended early"] if self.early else []
        told = ", ".join(filter(None, parts))
        return (
            self.solver + (f" ({told})" if told else "") + (f" ({self.note})" if self.note else "")
        )


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """An answer: positions[i] is the cell of piece i (-1: not placed), confidences[i] in [0, 1]."""

    positions: Positions
    confidences: Floats
    grid: Grid
    used: Used
    seconds: float
    pieces: Pixels = field(repr=False)
    alternatives: tuple[Positions, ...] = ()
    order: tuple[int, ...] = ()
    """Pieces in the order in which they were placed."""
    poses: tuple[int, ...] = ()
    """Poses (pieces/poses.py) that set each piece upright; empty: all lay upright."""
    upright: float = 1.0
    """How sure it is that the picture as a whole lies upright; no confidence is higher."""
    starts: Grid = (1, 1)
    """At how many rows and columns the picture may begin: more than one where it wraps around."""
    overlap: Grid = (0, 0)
    """By how many pixels neighbouring tiles show the same, down and along."""
    strangers: tuple[int, ...] = ()
    """Pieces left out because they seem to be of another picture."""
    tried: tuple[tuple[Grid, float], ...] = ()
    """Where nobody named the grid: those tried and how well each was filled, best first."""

    @property
    def turns(self) -> tuple[int, ...]:
        """Quarter turns counter-clockwise that set each piece upright, after any flip."""
        return tuple(pose % 4 for pose in self.poses)

    @property
    def mirrored(self) -> tuple[int, ...]:
        """Pieces that are to be flipped from left to right before they are turned."""
        return tuple(piece for piece, pose in enumerate(self.poses) if pose >= 4)

    @property
    def solver(self) -> str:
        """How the answer was found, in words."""
        return str(self.used)

    @property
    def array(self) -> Pixels:
        """The assembled picture as pixels (height, width, 3)."""
        return assemble(self.upright_pieces, self.positions, self.grid, self.overlap)

    @property
    def image(self) -> Image.Image:
        """The assembled picture as a Pillow picture."""
        return Image.fromarray(self.array)

    def save(self, path: str | Path) -> None:
        """Write the assembled picture."""
        write_image(path, self.array)

    def show(self) -> None:
        """Open the assembled picture in the viewer of this machine."""
        self.image.show()

    def _repr_png_(self) -> bytes:
        """The assembled picture in a notebook."""
        file = io.BytesIO()
        self.image.save(file, "PNG")
        return file.getvalue()

    def __repr__(self) -> str:
        placed = int((self.positions >= 0).sum())
        sure = self.confidences[self.positions >= 0].mean() if placed else 0.0
        return (
            f"Solution({grid_name(self.grid)}, {placed} of {len(self.pieces)} pieces placed, "
            f"{sure:.0%} sure, by {self.solver})"
        )

    def drawn(self, truth: Positions | None = None) -> Pixels:
        """The assembled picture, wrong pieces framed in red when the truth is known."""
        if truth is None:
            return self.array
        fair = self.fair(truth)
        return draw(self.upright_pieces, self.positions, self.grid, fair)

    def fair(self, truth: Positions) -> Positions:
        """The truth with equal pieces exchanged as here, since nobody can tell them apart."""
        return exchanged(truth, self.positions, kinds_of(self.pieces))

    @property
    def upright_pieces(self) -> Pixels:
        """The pieces in the poses in which they are laid."""
        if not self.poses:
            return self.pieces
        return np.stack([laid(p, pose) for p, pose in zip(self.pieces, self.poses, strict=True)])

    @property
    def joined(self) -> Floats:
        """Confidences apart from which way up the whole lies and where it begins: (n,)."""
        whole = self.upright / (self.starts[0] * self.starts[1])
        return np.minimum(self.confidences / whole, 1.0)

    @property
    def expected_wrong(self) -> float:
        """How many of the placed pieces are wrong, as far as the confidences tell."""
        return float((1 - self.confidences[self.positions >= 0]).sum())

    def as_dict(self) -> dict[str, Any]:
        """What `puzlm solve --json` prints."""
        return {
            "positions": self.positions.tolist(),
            "confidences": [round(float(c), 4) for c in self.confidences],
            "grid": list(self.grid),
            "solver": self.solver,
            "seconds": round(self.seconds, 4),
            "unplaced": np.flatnonzero(self.positions < 0).tolist(),
            "expected_wrong": round(self.expected_wrong, 2),
            **({"overlap": list(self.overlap)} if any(self.overlap) else {}),
            **({"starts": list(self.starts)} if self.starts != (1, 1) else {}),
            **({"strangers": list(self.strangers)} if self.strangers else {}),
            **(
                {"turns": list(self.turns), "upright": round(self.upright, 4)} if self.poses else {}
            ),
            **({"mirrored": list(self.mirrored)} if self.mirrored else {}),
        }


def as_puzzle(x: Any, grid: Grid | int | str | None = None) -> Puzzle:
    """Take whatever a person has and make a Puzzle of it."""
    if isinstance(x, Puzzle):
        if grid is not None and parse_grid(grid) != x.grid:
            raise PuzzleError(f"the puzzle has a {grid_name(x.grid)} grid, not {grid}")
        return x
    if isinstance(x, str | Path):
        return Puzzle.load(x, grid)
    if isinstance(x, Image.Image) or isinstance(x, np.ndarray) and x.ndim == 3:
        if grid is None:
            raise PuzzleError("a shuffled picture needs its grid, for example grid=3")
        return Puzzle.from_shuffled(x, grid)
    pieces = [to_rgb(p) if isinstance(p, Image.Image) else np.asarray(p) for p in x]
    if not pieces:
        raise PuzzleError("no pieces: a puzzle needs at least one")
    if any(p.ndim != 3 or p.shape[2] != 3 or p.dtype != np.uint8 or p.size == 0 for p in pieces):
        raise PuzzleError("every piece must be a picture: (height, width, 3) of uint8")
    one_size = equal_sizes(pieces)
    if one_size is None:
        raise PuzzleError(unequal(pieces, [f"piece {i}" for i in range(len(pieces))]))
    if grid is None:
        return Puzzle(one_size, open_grid(len(pieces)), settings={"open": True})
    return Puzzle(one_size, parse_grid(grid))


def check_given(given: Given, puzzle: Puzzle) -> dict[int, int]:
    """Given pieces as plain numbers, or an error that says which of them cannot be."""
    fixed = {int(piece): int(cell) for piece, cell in given.items()}
    for piece, cell in fixed.items():
        if not 0 <= piece < len(puzzle.pieces):
            raise PuzzleError(
                f"given piece {piece}: there are pieces 0 to {len(puzzle.pieces) - 1}"
            )
        if not 0 <= cell < puzzle.cells:
            raise PuzzleError(f"given cell {cell}: there are cells 0 to {puzzle.cells - 1}")
    if len(set(fixed.values())) != len(fixed):
        raise PuzzleError("two given pieces lie in the same cell")
    return fixed


def checked(found: Solution, puzzle: Puzzle, given: Given, repeats: bool = False) -> Solution:
    """The same answer if it is an arrangement of the puzzle's pieces, else an error.

    Every answer passes here, whatever the weights of a model are. Only the paper's greedy decoding
    `repeats` cells.
    """
    at, sure, n = np.asarray(found.positions), np.asarray(found.confidences), len(puzzle.pieces)
    placed = at[at != -1] if at.shape == (n,) and at.dtype.kind == "i" else None
    whole = (
        placed is not None
        and ((placed >= 0) & (placed < puzzle.cells)).all()
        and (found.used.early or len(placed) == min(n, puzzle.cells))
        and (repeats or len(set(placed.tolist())) == len(placed))
        and all(at[piece] == cell for piece, cell in given.items())
    )
    if not whole or sure.shape != (n,) or not ((sure >= 0) & (sure <= 1)).all():
        raise ModelError(
            f"solver '{found.solver}': its answer is no arrangement of the {n} pieces; "
            "the model's weights are damaged"
        )
    return found


def at_random(puzzle: Puzzle, given: Given) -> Positions:
    """Positions by chance, the same for the same pieces: the floor of every comparison."""
    free = [c for c in range(puzzle.cells) if c not in given.values()]
    rng = np.random.default_rng(int(puzzle.pieces.sum(dtype=np.int64)) % 2**32)
    n = len(puzzle.pieces)
    cells = iter(rng.permutation(free).tolist() + [-1] * n)
    return np.array([given[i] if i in given else next(cells) for i in range(n)], np.int64)


def grid_name(grid: Grid) -> str:
    """The name of a grid, say '3x3'."""
    return f"{grid[0]}x{grid[1]}"
