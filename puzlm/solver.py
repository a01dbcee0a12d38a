"""One door: Solver.from_pretrained(name_or_path).solve(pieces) -> Solution.

`auto` gathers all evidence there is about a puzzle and searches one objective:

    sum over pieces of log p(cell)  +  sum over touching pairs of their fit

The encoder-decoder knows where pieces belong; the pixels, and for grids that it cannot read the
side model, know what touches. The Solution says what was used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm import checkpoints
from puzlm.decoding import METHODS, Decoded, Reader, decode
from puzlm.errors import ModelError, PuzzleError, SettingsError, nearest
from puzlm.images import Pixels
from puzlm.puzzle import Grid, Positions, Puzzle, assemble, draw, guess_grid, parse_grid
from puzlm.tokenizer import PieceTokenizer, side_symbols

Floats = NDArray[np.float64]
Given = Mapping[int, int]

BACKENDS = ("auto", "torch", "onnx")
SOLVERS = ("auto", "seq2seq", "bigram", "classic", "random")
BATCH = {"valid": 64, "greedy": 64, "beam": 16, "assign": 16}  # puzzles read at once
WIDTH = 16  # hypotheses of the decoder's beam when `auto` asks for marginals
TOP = 32  # arrangements whose scores make up the confidence of `auto`

# Weights of `auto`, chosen on photos-val and art-val: docs/results.md, "Choosing the weights". The
# pixel scores are log-ratios to the second best, so where borders are worn they fade by themselves.
FUSION = {"cells": 1.0, "pixels": 1.0, "sides": 0.5, "temperature": 1.0}


@dataclass(frozen=True)
class Solution:
    """An answer: positions[i] is the cell of piece i (-1: not placed), confidences[i] in [0, 1]."""

    positions: Positions
    confidences: Floats
    grid: Grid
    solver: str
    seconds: float
    pieces: Pixels = field(repr=False)
    alternatives: tuple[Positions, ...] = ()
    order: tuple[int, ...] = ()
    """Pieces in the order in which they were placed."""
    turns: tuple[int, ...] = ()
    """Quarter turns counter-clockwise that set each piece upright; empty: all lay upright."""

    @property
    def image(self) -> Pixels:
        """The assembled picture."""
        return assemble(self._upright, self.positions, self.grid)

    def drawn(self, truth: Positions | None = None) -> Pixels:
        """The assembled picture, wrong pieces framed in red when the truth is known."""
        return draw(self._upright, self.positions, self.grid, truth)

    @property
    def _upright(self) -> Pixels:
        if not self.turns:
            return self.pieces
        return np.stack([np.rot90(p, t) for p, t in zip(self.pieces, self.turns, strict=True)])

    def as_dict(self) -> dict[str, Any]:
        """What `puzlm solve --json` prints."""
        return {
            "positions": self.positions.tolist(),
            "confidences": [round(float(c), 4) for c in self.confidences],
            "grid": list(self.grid),
            "solver": self.solver,
            "seconds": round(self.seconds, 4),
            "unplaced": np.flatnonzero(self.positions < 0).tolist(),
            **({"turns": list(self.turns)} if self.turns else {}),
        }


class Solver:
    """Solve puzzles with one model; see `from_pretrained`."""

    def __init__(
        self,
        tokenizer: PieceTokenizer | None = None,
        reader: Reader | None = None,
        sides: Any = None,
        card: Mapping[str, Any] | None = None,
        *,
        solver: str = "auto",
        decoding: str = "valid",
        rotations: bool = False,
    ) -> None:
        if solver not in SOLVERS:
            raise SettingsError(f"solver '{solver}' is unknown; {nearest(solver, SOLVERS)}")
        if decoding not in METHODS:
            raise SettingsError(f"decode '{decoding}' is unknown; {nearest(decoding, METHODS)}")
        self.tokenizer, self.reader, self.sides = tokenizer, reader, sides
        self.card = dict(card or {})
        if rotations and solver != "classic":
            raise SettingsError(f"rotations: only the classic solver turns pieces, not '{solver}'")
        self.solver, self.decoding, self.rotations = solver, decoding, rotations
        self.fusion = {**FUSION, **self.card.get("fusion", {})}

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path | None = None,
        *,
        solver: str = "auto",
        decoding: str = "valid",
        backend: str = "auto",
        device: str = "cpu",
    ) -> Solver:
        """Load a model from the box by name, or from a folder; None takes the default model.

        `backend` is 'torch', 'onnx' (no torch needed) or 'auto' (ONNX when it is there).
        """
        if solver in ("classic", "random"):
            return cls(solver=solver, decoding=decoding)
        folder = checkpoints.find(name_or_path)
        tokenizer = PieceTokenizer.from_pretrained(folder)
        if backend not in BACKENDS:
            raise SettingsError(f"backend '{backend}' is unknown; {nearest(backend, BACKENDS)}")
        if backend == "auto":
            ready = (folder / "onnx.json").is_file() and find_spec("onnxruntime") is not None
            backend = "onnx" if ready and device == "cpu" else "torch"
        has_sides = (folder / "sides.json").is_file()
        if solver == "bigram" and not has_sides:
            raise ModelError(f"{folder}: has no side model (sides.json)")
        reader: Reader | None = None
        sides: Any = None
        if backend == "onnx":
            from puzlm.export import NumpySides, OnnxReader

            reader = OnnxReader(folder) if solver != "bigram" else None
            sides = NumpySides(folder) if has_sides else None
        else:
            from puzlm.backbones import Seq2Seq, TorchReader
            from puzlm.bigram import SideModel

            if solver != "bigram":
                reader = TorchReader(Seq2Seq.from_pretrained(folder).to(device))
            sides = SideModel.from_pretrained(folder) if has_sides else None
        return cls(
            tokenizer, reader, sides, checkpoints.card(folder), solver=solver, decoding=decoding
        )

    # ---- the door ---------------------------------------------------------------------------

    def solve(
        self,
        x: Puzzle | Pixels | Sequence[Pixels] | str | Path,
        grid: Grid | int | str | None = None,
        *,
        given: Given | None = None,
    ) -> Solution:
        """Solve a Puzzle, a shuffled picture, a list of pieces, or a path to a picture or folder.

        `given` fixes pieces in cells: {piece: cell}.
        """
        return self.solve_many([as_puzzle(x, grid)], given=None if given is None else [given])[0]

    def solve_many(
        self, puzzles: Iterable[Puzzle], *, given: Sequence[Given] | None = None
    ) -> list[Solution]:
        """Solve many puzzles, reading those of one grid together."""
        puzzles = list(puzzles)
        if given is None:  # a protocol may give pieces away, the centre say
            given = [p.settings.get("given") or {} for p in puzzles]
        fixed = [_check_given(g, p) for g, p in zip(given, puzzles, strict=True)]
        if self.solver in ("classic", "random"):
            return [self._alone(p, g) for p, g in zip(puzzles, fixed, strict=True)]
        if self.solver == "bigram":
            return [
                self._combine(p, g, None, ("sides",)) for p, g in zip(puzzles, fixed, strict=True)
            ]
        if self.solver == "seq2seq":
            for puzzle in puzzles:
                self._check_reads(puzzle)
        answers: list[Any] = [None] * len(puzzles)
        readable = [i for i, p in enumerate(puzzles) if self._reads(p)]
        for group in _by_size(puzzles, readable, BATCH[self._method]):
            start = time.perf_counter()
            some = [puzzles[i] for i in group]
            read = self._read(some, [fixed[i] for i in group])
            each = (time.perf_counter() - start) / len(group)
            for number, i in enumerate(group):
                answers[i] = (read[number], each)
        solutions = []
        for puzzle, answer, g in zip(puzzles, answers, fixed, strict=True):
            if self.solver == "seq2seq":
                found, seconds = answer
                solutions.append(Solution(
                    found.cells, found.confidence, puzzle.grid, f"seq2seq ({self.decoding})",
                    seconds, puzzle.pieces, found.alternatives, found.order,
                ))  # fmt: skip
            else:
                solutions.append(self._combine(puzzle, g, answer, ("cells", "sides", "pixels")))
        return solutions

    @property
    def _method(self) -> str:
        """How the decoder is run: `auto` needs the marginals of a beam."""
        return self.decoding if self.solver == "seq2seq" else "beam"

    # ---- evidence ---------------------------------------------------------------------------

    def _reads(self, puzzle: Puzzle) -> bool:
        """Whether the encoder-decoder was trained for such a puzzle."""
        if self.reader is None or self.tokenizer is None or len(puzzle.pieces) > puzzle.cells:
            return False
        known = self.card.get("grids")
        if known is not None:
            return f"{puzzle.grid[0]}x{puzzle.grid[1]}" in known
        return puzzle.cells <= self.tokenizer.settings.max_cells

    def _check_reads(self, puzzle: Puzzle) -> None:
        if not self._reads(puzzle):
            known = ", ".join(self.card.get("grids", [])) or "smaller ones"
            raise PuzzleError(
                f"{len(puzzle.pieces)} pieces for a {puzzle.grid[0]}x{puzzle.grid[1]} grid: this "
                f"model was trained for {known}; use --solver auto, or a model for this grid"
            )

    def _read(self, puzzles: list[Puzzle], given: list[dict[int, int]]) -> list[_Read]:
        """Run the encoder-decoder over puzzles with one number of cells and of pieces."""
        assert self.tokenizer is not None and self.reader is not None
        text = self.tokenizer(puzzles)
        slots = len(puzzles[0].pieces)
        order = text["order"][:, :slots]
        slot_given = [
            {int(np.flatnonzero(row == piece)[0]): cell for piece, cell in g.items()}
            for row, g in zip(order, given, strict=True)
        ]
        found = decode(
            self.reader, text["input_ids"], slots=slots, grid=puzzles[0].grid,
            first_cell=self.tokenizer.cell_token_id(0), attention_mask=text["attention_mask"],
            method=self._method, width=WIDTH, given=slot_given,
            temperature=float(self.card.get("temperature", 1.0)),
        )  # fmt: skip
        return [_by_piece(found, order[row], row) for row in range(len(puzzles))]

    def _combine(
        self, puzzle: Puzzle, given: dict[int, int], read: tuple[_Read, float] | None,
        use: tuple[str, ...],
    ) -> Solution:  # fmt: skip
        """Add the evidence up and search for the best arrangement."""
        from puzlm import assembly, classic

        start = time.perf_counter()
        n, w = len(puzzle.pieces), self.fusion
        right, below = np.zeros((n, n)), np.zeros((n, n))
        used: list[str] = []
        if self.sides is not None and "sides" in use and n > 1 and read is None:
            assert self.tokenizer is not None
            pair = self.sides.scores(
                side_symbols(self.tokenizer.encode(puzzle.pieces), self.tokenizer)
            )
            right, below = w["sides"] * pair[0], w["sides"] * pair[1]
            used.append("side model")
        if "pixels" in use and n > 1:
            costs = classic.mgc(puzzle.pieces)
            right = right + w["pixels"] * classic.scores(costs[0])
            below = below + w["pixels"] * classic.scores(costs[1])
            used.append("pixels")
        cells = None
        if read is not None:
            assert read[0].marginals is not None
            cells = w["cells"] * np.log(read[0].marginals + 1e-4)
            used.append("seq2seq")
        np.fill_diagonal(right, -np.inf)
        np.fill_diagonal(below, -np.inf)
        if puzzle.cells <= assembly.SMALL_GRID:
            found, scores = assembly.beam_search(right, below, puzzle.grid, cells, given, top=TOP)
            heat = w["temperature"] if read is not None else 1.0  # fitted with the marginals in
            share = np.exp((scores - scores[0]) / heat)
            share /= share.sum()
            sure = np.minimum(((found == found[0]) * share[:, None]).sum(0), 1.0)
            others = tuple(found[1:6])
        else:
            found = assembly.assemble(right, below, puzzle.grid, cells, given)[None]
            sure = pair_confidence(found[0], right, below, puzzle.grid)
            others = ()
        name = {"bigram": "bigram"}.get(self.solver, f"auto ({' + '.join(reversed(used))})")
        seconds = time.perf_counter() - start + (read[1] if read else 0.0)
        order = read[0].order if read else tuple(np.argsort(-sure, kind="stable").tolist())
        return Solution(found[0], sure, puzzle.grid, name, seconds, puzzle.pieces, others, order)

    def _alone(self, puzzle: Puzzle, given: dict[int, int]) -> Solution:
        """Solve with pixels only, or at random (the floor)."""
        start = time.perf_counter()
        n, turns = len(puzzle.pieces), ()
        if self.solver == "random":
            free = [c for c in range(puzzle.cells) if c not in given.values()]
            rng = np.random.default_rng(int(puzzle.pieces.sum(dtype=np.int64)) % 2**32)
            cells = iter(rng.permutation(free).tolist() + [-1] * n)
            positions = np.array(
                [given[i] if i in given else next(cells) for i in range(n)], np.int64
            )
            sure = np.full(n, 1 / puzzle.cells)
        else:
            from puzlm import classic

            try:
                found = classic.solve(
                    puzzle.pieces, puzzle.grid, given=given, rotations=self.rotations
                )
            except ValueError as error:
                raise PuzzleError(str(error)) from error
            positions, sure = found.positions, np.clip(found.confidence, 0, 1)
            turns = tuple(found.turns.tolist()) if self.rotations else ()
        order = tuple(np.argsort(-sure, kind="stable").tolist())
        return Solution(positions, sure, puzzle.grid, self.solver, time.perf_counter() - start,
                        puzzle.pieces, (), order, turns)  # fmt: skip


@dataclass(frozen=True)
class _Read:
    """What the encoder-decoder said of one puzzle, by input piece."""

    cells: Positions
    confidence: Floats
    marginals: Floats | None
    alternatives: tuple[Positions, ...]
    order: tuple[int, ...]


def _by_piece(found: Decoded, order: NDArray[np.int64], row: int) -> _Read:
    """Turn slots of the sentence back into input pieces."""
    slot_of = np.argsort(order)
    others: Any = [] if found.alternatives is None else found.alternatives[row, 1:6]
    return _Read(
        found.cells[row][slot_of], found.confidence[row][slot_of],
        None if found.marginals is None else found.marginals[row][slot_of],
        tuple(o[slot_of] for o in others), tuple(order.tolist()),
    )  # fmt: skip


def pair_confidence(positions: Positions, right: Any, below: Any, grid: Grid) -> Floats:
    """Share of a piece's neighbours that are its own first choice or it theirs."""
    total, good = np.zeros(len(positions)), np.zeros(len(positions))
    at = {int(c): i for i, c in enumerate(positions) if c >= 0}
    for cell, i in at.items():
        for scores, other, inside in ((right, cell + 1, (cell + 1) % grid[1]),
                                      (below, cell + grid[1], True)):  # fmt: skip
            j = at.get(other)
            if j is None or not inside:
                continue
            fits = 0.5 * (int(scores[i].argmax() == j) + int(scores[:, j].argmax() == i))
            for piece in (i, j):
                total[piece] += 1
                good[piece] += fits
    return np.where(positions >= 0, good / np.maximum(total, 1), 0.0)


def as_puzzle(x: Any, grid: Grid | int | str | None = None) -> Puzzle:
    """Take whatever a person has and make a Puzzle of it."""
    if isinstance(x, Puzzle):
        return x
    if isinstance(x, str | Path):
        return Puzzle.load(x, grid)
    if isinstance(x, np.ndarray) and x.ndim == 3:
        if grid is None:
            raise PuzzleError("a shuffled picture needs its grid, for example grid=3")
        return Puzzle.from_shuffled(x, grid)
    pieces = [np.asarray(p) for p in x]
    if len({p.shape for p in pieces}) != 1:
        raise PuzzleError("pieces differ in size; all must be equal")
    return Puzzle(
        np.stack(pieces), parse_grid(grid) if grid is not None else guess_grid(len(pieces))
    )


def _check_given(given: Given, puzzle: Puzzle) -> dict[int, int]:
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


def _by_size(puzzles: list[Puzzle], indices: list[int], most: int) -> list[list[int]]:
    """Group puzzles of one grid and number of pieces, at most `most` together."""
    groups: dict[Any, list[int]] = {}
    for i in indices:
        groups.setdefault((puzzles[i].grid, len(puzzles[i].pieces)), []).append(i)
    return [g[k : k + most] for g in groups.values() for k in range(0, len(g), most)]


def load_solver(name: str, model: str | None = None, decoding: str = "valid") -> Any:
    """A function that solves a list of puzzles, by solver name or as `module:function`."""
    if ":" in name:
        from puzlm.evaluate import load_solver_function

        return load_solver_function(name)
    return Solver.from_pretrained(model, solver=name, decoding=decoding).solve_many
