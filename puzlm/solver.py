"""One door: Solver.from_pretrained(name_or_path).solve(pieces) -> Solution.

`auto` gathers all evidence there is about a puzzle and searches one objective:

    sum over pieces of log p(cell)  +  sum over touching pairs of their fit

The reader, one language model for every grid of up to 100 pieces, knows where pieces belong and
what touches what; sides and pixels along the borders know what touches. Nobody is asked who adds
nothing: no reader where sides leave no doubt, and it reads more views only where its first reading
leaves doubt. What scanning, light and compression did to the pieces is undone before anyone looks
(repair.py). Pages of print are put together by their strokes alone (cross_cut.py). The Solution
says what was used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from puzlm import manifest
from puzlm.errors import ModelError, PuzzleError, SettingsError, nearest
from puzlm.images import Pixels
from puzlm.models import pretrained as checkpoints
from puzlm.models.box import (
    VISION,
    Box,
    Language,
    load_edges,
    load_frame,
    load_puzzle_reader,
    load_reader,
    load_sides,
    load_vision,
)
from puzlm.models.decoding import METHODS, WIDTH, Reader, by_slot, decode
from puzlm.pieces.poses import QUARTERS, STRAIGHT, Poses, allowed
from puzlm.pieces.repair import repair
from puzlm.puzzle import Grid, Positions, Puzzle
from puzlm.solution import (
    Floats,
    Given,
    Solution,
    as_puzzle,
    check_given,
    checked,
    grid_name,
)
from puzlm.solving import calibration, grids, upright, windows
from puzlm.solving.cross_cut import by_strokes, is_page
from puzlm.solving.evidence import AGAIN, Evidence, Read, Seen, by_piece, gather, in_doubt
from puzlm.solving.framing import lapped, unframed
from puzlm.solving.fusion import fused, sure_by_sides
from puzlm.solving.plain_answers import (
    by_chance,
    by_joining,
    by_looking,
    by_pixels,
    by_reading,
    is_large,
    sure_turned,
)
from puzlm.solving.reference import by_reference
from puzlm.solving.search.deadline import ended_early
from puzlm.solving.strangers import without_strangers
from puzlm.solving.views import look_again, read_views
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer

SOLVERS = ("auto", "seq2seq", "symbols", "vision", "vision-pairs", "bigram", "classic", "random")
BATCH = {"valid": 64, "greedy": 64, "beam": 16, "assign": 16}  # puzzles read at once
VIEWED = 16  # puzzles that are read together


class Solver:
    """Solve puzzles with one model, or with all that lie in the box; see `from_pretrained`."""

    def __init__(
        self,
        tokenizer: PieceTokenizer | None = None,
        reader: Reader | None = None,
        sides: Any = None,
        card: Mapping[str, Any] | None = None,
        *,
        whole: Any = None,
        edges: Any = None,
        frame: Any = None,
        box: Box | None = None,
        solver: str = "auto",
        decoding: str = "valid",
        rotations: bool = False,
        mirrored: bool = False,
    ) -> None:
        if solver not in SOLVERS:
            raise SettingsError(f"solver '{solver}' is unknown; {nearest(solver, SOLVERS)}")
        if decoding not in METHODS:
            raise SettingsError(f"decode '{decoding}' is unknown; {nearest(decoding, METHODS)}")
        self.reader = reader
        self._tokenizer = tokenizer
        self._sides = sides
        self.card = dict(card or {})
        self._whole, self._edges, self._frame, self.box = whole, edges, frame, box
        for name, asked in (("rotations", rotations), ("mirrored", mirrored)):
            if asked and solver not in ("auto", "classic"):
                raise SettingsError(f"{name}: only the classic solver turns pieces, not '{solver}'")
        self.solver, self.decoding = solver, decoding
        self.rotations, self.mirrored = rotations, mirrored
        self.raw = False  # True: confidences as the models state them, to fit calibration.py
        self.folders: tuple[Path, ...] = ()  # where the models lie
        self.shipped = False  # True: a model of the box, for which calibration.py was fitted

    def __repr__(self) -> str:
        name = self.card.get("name", "no model")
        return f"Solver({self.solver}, {'the box' if self.box else name})"

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path | None = None,
        *,
        solver: str = "auto",
        decoding: str = "valid",
        backend: str = "auto",
        device: str = "cpu",
        rotations: bool = False,
        mirrored: bool = False,
    ) -> Solver:
        """Load a model from the box by name, or from a folder; None takes all that fit a puzzle.

        `backend` is 'torch', 'onnx' (no torch needed) or 'auto' (ONNX when it is there). With
        `rotations` pieces may be turned: classic joins them, and `auto` reads which way is up.
        With `mirrored` they may be flipped, too.
        """
        how = (backend, device)
        box = Box(*how) if name_or_path is None and solver not in ("classic", "random") else None
        if solver in ("classic", "random") or (rotations or mirrored) and box is not None:
            alone = cls(
                box=box,
                solver=solver,
                decoding=decoding,
                rotations=rotations,
                mirrored=mirrored,
            )
            alone.folders = model_folders(solver, name_or_path)
            return alone
        if box is not None and solver == "vision":
            raise ModelError(
                "no ViT is in the box; train one (recipes/vision.toml), name its folder"
            )
        wanted = VISION if box is not None and solver == "vision-pairs" else name_or_path
        folder = checkpoints.find(wanted)
        parts = {
            name
            for name in ("reader", "vision", "edges", "frame", "tokenizer")
            if (folder / f"{name}.json").is_file()
        }
        if parts == {"frame"}:
            raise ModelError(
                f"{folder}: has only a frame network, which solves nothing alone; put "
                "frame.json and frame.safetensors beside an edges.json"
            )
        if parts & {"reader", "vision", "edges"}:
            found = cls(
                card=checkpoints.card(folder),
                whole=load_puzzle_reader(folder, *how) or load_vision(folder, device),
                edges=load_edges(folder, *how),
                solver=solver,
                decoding=decoding,
                rotations=rotations,
                mirrored=mirrored,
                frame=load_frame(folder) if solver == "auto" else None,
            )
        else:
            # Of the box each model is loaded when the first puzzle needs it.
            own = box is None
            found = cls(
                PieceTokenizer.from_pretrained(folder) if own else None,
                load_reader(folder, *how)
                if solver in ("seq2seq", "symbols") or solver == "auto" and own
                else None,
                load_sides(folder, *how) if own else None,
                checkpoints.card(folder),
                box=box,
                solver=solver,
                decoding=decoding,
                rotations=rotations,
                mirrored=mirrored,
            )
        found._check_parts(str(folder))
        found.shipped = checkpoints.shipped(folder)
        found.folders = model_folders(solver, name_or_path)
        return found

    def variant(self, *, solver: str, decoding: str = "valid") -> Solver:
        """Another way to solve with the same models in memory."""
        other = Solver(
            self._tokenizer,
            self.reader,
            self._sides,
            self.card,
            whole=self._whole,
            edges=self._edges,
            frame=self._frame,
            box=self.box,
            solver=solver,
            decoding=decoding,
            rotations=self.rotations,
            mirrored=self.mirrored,
        )
        other.raw, other.shipped, other.folders = self.raw, self.shipped, self.folders
        return other

    def files(self) -> dict[str, str]:
        """SHA-256 of every file that its answers depend on."""
        return files_of(self.folders)

    def _check_parts(self, whose: str) -> None:
        """Say at once what a model cannot do."""
        language = self.reader or self.box  # the box loads those of other grids when needed
        needs: dict[str, tuple[Callable[[], Any], str]] = {  # called: asking loads a network
            "bigram": (lambda: self.sides, "side model (sides.json)"),
            "seq2seq": (lambda: language, "language model (model.json)"),
            "symbols": (lambda: language or self.sides, "language model (model.json)"),
            "vision": (lambda: self.whole, "ViT (vision.json)"),
            "vision-pairs": (lambda: self.edges, "encoder of sides (edges.json)"),
        }
        part, name = needs.get(self.solver, (lambda: True, ""))
        if part() is None:
            raise ModelError(f"{whose}: has no {name}")

    @property
    def tokenizer(self) -> PieceTokenizer | None:
        """The tokenizer, from the box if need be."""
        return self._tokenizer or (self.box.tokenizer if self.box else None)

    @property
    def sides(self) -> Any:
        """The symbolic side model, from the box if need be."""
        return self._sides or (self.box.sides if self.box else None)

    @property
    def whole(self) -> Any:
        """What knows puzzles as a whole: the reader, from the box if need be, or a ViT."""
        return self._whole or (self.box.reader if self.box else None)

    @property
    def edges(self) -> Any:
        """The encoder of sides, from the box if need be."""
        return self._edges or (self.box.edges if self.box else None)

    @property
    def frame(self) -> Any:
        """The network that finds a board's frame, from the box if need be."""
        return self._frame or (self.box.frame if self.box else None)

    # ---- the door ---------------------------------------------------------------------------

    def solve(
        self,
        x: Puzzle | Pixels | Image.Image | Sequence[Pixels | Image.Image] | str | Path,
        grid: Grid | int | str | None = None,
        *,
        given: Given | None = None,
        reference: Pixels | Image.Image | str | Path | None = None,
    ) -> Solution:
        """Solve a Puzzle, a shuffled picture, a list of pieces, or a path to a picture or folder.

        `given` fixes pieces in cells: {piece: cell}. `reference` is a picture of the whole, by
        which the pieces are laid, however they lie.
        """
        if reference is not None:
            return by_reference(self, as_puzzle(x, grid), given or {}, reference)
        return self.solve_many([as_puzzle(x, grid)], given=None if given is None else [given])[0]

    def solve_many(
        self, puzzles: Iterable[Puzzle], *, given: Sequence[Given] | None = None
    ) -> list[Solution]:
        """Solve many puzzles, reading those of one grid together."""
        asked = puzzles = list(puzzles)
        if given is None:  # a protocol may give pieces away, the centre say
            given = [p.settings.get("given") or {} for p in puzzles]
        ways = [self.grids_tried(*one) for one in zip(puzzles, given, strict=True)]
        puzzles = [replace(p, grid=w[0][0]) if w else p for p, w in zip(puzzles, ways, strict=True)]
        fixed = [check_given(g, p) for g, p in zip(given, puzzles, strict=True)]
        found = self.solved(puzzles, fixed)
        if self.solver == "auto":
            found = upright.reposed(self, asked, given, found)
        # What makes a stranger was fitted to the shipped encoder of sides.
        if self.solver == "auto" and self.shipped and self.edges is not None:
            found = without_strangers(self, puzzles, fixed, found)
        if self.solver in ("auto", "classic") and not self.raw:
            found = [f if g else unframed(f) for f, g in zip(found, given, strict=True)]
            found = [lapped(f, p) for f, p in zip(found, puzzles, strict=True)]
        return [
            f if f.tried else replace(f, tried=tuple(w)) for f, w in zip(found, ways, strict=True)
        ]

    def solve_pile(
        self, x: Puzzle | Sequence[Pixels | Image.Image] | str | Path, number: int | None = None
    ) -> list[tuple[Positions, Solution]]:
        """Solve all puzzles of a pile: the numbers of the pieces of each, and its solution.

        `number`: how many puzzles there are; None finds out.
        """
        from puzlm.solving import piles  # late, for scipy's sake: a small puzzle starts without it

        pile = as_puzzle(x)
        poses = self._poses(pile)
        turned = len(poses) > 1
        if turned and poses != QUARTERS:
            raise PuzzleError(
                "several puzzles in one pile: turned pieces must be square, unflipped"
            )
        heaps = piles.split(pile.pieces, self.edges, turned, number)
        puzzles = []
        for heap in heaps:
            own = pile.pieces[heap.pieces]
            settings = {"open": len(own) <= piles.OPEN, "rotations": turned}
            puzzles.append(Puzzle(own, heap.grid, settings=settings))
        return [(h.pieces, s) for h, s in zip(heaps, self.solve_many(puzzles), strict=True)]

    def grids_tried(self, puzzle: Puzzle, given: Given) -> list[tuple[Grid, float]]:
        """Grids tried for a puzzle whose grid nobody named, best first; else none."""
        if not puzzle.settings.get("open") or self.solver == "random":
            return []
        if given:
            if len(puzzle.pieces) == puzzle.cells:
                return []
            raise PuzzleError(grids.UNNAMED)
        return grids.tried(puzzle.pieces, self.edges, self._poses(puzzle))

    def _poses(self, puzzle: Puzzle) -> Poses:
        """How the pieces of a puzzle may lie."""
        heard = puzzle.settings if self.solver in ("auto", "classic") else {}
        height, width = puzzle.pieces.shape[1:3]
        return allowed(
            self.rotations or bool(heard.get("rotations")),
            self.mirrored or bool(heard.get("mirrored")),
            height == width,
        )

    def solved(self, puzzles: list[Puzzle], fixed: list[dict[int, int]]) -> list[Solution]:
        """Solve puzzles whose grids are known."""
        ways = [self._poses(puzzle) for puzzle in puzzles]
        if len(set(ways)) > 1:
            parts = zip(puzzles, fixed, strict=True)
            return [self.solved([puzzle], [given])[0] for puzzle, given in parts]
        if self.solver in ("classic", "random") or ways and ways[0] != STRAIGHT:
            edges = upright.learned_edges(self)
            alone = [
                by_chance(p, g) if self.solver == "random" else self._posed(p, g, ways[0], edges)
                for p, g in zip(puzzles, fixed, strict=True)
            ]
            alone = [self._calibrated(*one) for one in zip(alone, fixed, strict=True)]
            eyes = upright.eyes(self)
            alone = [upright.settled(*one, eyes, ways[0]) for one in zip(alone, fixed, strict=True)]
            return [checked(*one) for one in zip(alone, puzzles, fixed, strict=True)]
        self._check_parts(f"solver '{self.solver}'")
        if self.solver in ("seq2seq", "vision"):
            for puzzle in puzzles:
                self._check_reads(puzzle)
        as_given, gathered = puzzles, [Evidence() for _ in puzzles]
        if self.solver == "auto":
            puzzles = [self._repaired(*one) for one in zip(puzzles, gathered, strict=True)]
            for puzzle, fix, evidence in zip(puzzles, fixed, gathered, strict=True):
                if self.box is not None and is_page(puzzle):
                    evidence.clear = by_strokes(puzzle, fix)
                elif is_large(puzzle):
                    evidence.clear = by_joining(puzzle, fix, STRAIGHT, "auto")
                elif not fix:
                    evidence.clear = sure_by_sides(self, puzzle, evidence)
        if self.solver in ("auto", "symbols", "vision"):
            gather(
                puzzles,
                gathered,
                "seen",
                lambda puzzle, _: self._sees(puzzle) is not None,
                lambda some, _: self._look(some),
                VIEWED,
            )
        if self.solver in ("auto", "seq2seq", "symbols"):
            gather(
                puzzles,
                gathered,
                "seq2seq",
                self._reads,
                lambda some, k: self._read(some, [fixed[i] for i in k]),
                BATCH[self._method],
            )
        found = [self._answer(*one) for one in zip(puzzles, fixed, gathered, strict=True)]
        if self.solver in ("auto", "symbols"):
            found = self._again(puzzles, fixed, gathered, found)
        found = [replace(f, pieces=p.pieces) for f, p in zip(found, as_given, strict=True)]
        found = [self._calibrated(*one) for one in zip(found, fixed, strict=True)]
        repeats = self.solver == "seq2seq" and self.decoding == "greedy"
        return [checked(*one, repeats) for one in zip(found, as_given, fixed, strict=True)]

    def _posed(self, puzzle: Puzzle, given: dict[int, int], poses: Poses, edges: Any) -> Solution:
        """Match pixels; where turned pieces are worn, and leave pixels in doubt, read them."""
        try:
            whole = self._sees(puzzle) if self.solver == "auto" and poses == QUARTERS else None
        except ImportError:  # pixels need neither torch nor onnxruntime
            whole = None
        if not hasattr(whole, "read_turned"):
            return by_pixels(puzzle, given, poses, edges)
        found = by_pixels(puzzle, given, poses)
        return (
            found if sure_turned(found) else upright.by_reading_turned(puzzle, given, whole, edges)
        )

    def _repaired(self, puzzle: Puzzle, evidence: Evidence) -> Puzzle:
        """The puzzle as it was before scanning and compression, where that can be undone."""
        from puzlm.solving import classic

        start = time.perf_counter()
        repaired = repair(puzzle, classic)
        evidence.repairs, evidence.wear = repaired.done, repaired.wear
        evidence.seconds = time.perf_counter() - start
        return repaired.puzzle

    def _calibrated(self, found: Solution, given: dict[int, int]) -> Solution:
        """The same answer, its confidences such as were right so often; not of a foreign model."""
        if ended_early():
            found = replace(found, used=replace(found.used, early=True))
        if self.raw or not (self.shipped or found.used.solver == "classic"):
            return found
        sure = calibration.calibrated(
            found.used, found.confidences, found.positions, found.grid, given
        )
        return replace(found, confidences=sure)

    def _answer(self, puzzle: Puzzle, given: dict[int, int], evidence: Evidence) -> Solution:
        """Turn what was gathered of one puzzle into its solution."""
        if evidence.clear is not None:
            return evidence.clear
        if self.solver == "seq2seq":
            return by_reading(puzzle, evidence, self.decoding)
        if self.solver == "vision":
            return by_looking(puzzle, given, evidence, float(self.card.get("temperature", 1.0)))
        return fused(self, puzzle, given, evidence)

    def _again(
        self,
        puzzles: list[Puzzle],
        fixed: list[dict[int, int]],
        gathered: list[Evidence],
        found: list[Solution],
    ) -> list[Solution]:
        """Look again at puzzles whose answer is in doubt, and read them; then search anew."""
        for first, evidence in zip(found, gathered, strict=True):
            if in_doubt(first, evidence):
                evidence.doubtful, evidence.seconds = True, first.seconds
        gather(
            puzzles,
            gathered,
            "seen",
            lambda _, evidence: evidence.doubtful,
            lambda some, k: look_again(self._look, some, [gathered[i].seen for i in k]),
            VIEWED,
        )
        gather(
            puzzles,
            gathered,
            "seq2seq",
            lambda puzzle, evidence: evidence.doubtful and self._reads_again(puzzle),
            lambda some, k: self._read(some, [fixed[i] for i in k], again=True),
            BATCH[self._method],
        )
        return [
            self._answer(puzzle, given, evidence) if evidence.doubtful else first
            for puzzle, given, evidence, first in zip(puzzles, fixed, gathered, found, strict=True)
        ]

    @property
    def _method(self) -> str:
        """How the decoder is run: `auto` needs the marginals of a beam."""
        return self.decoding if self.solver == "seq2seq" else "beam"

    # ---- evidence ---------------------------------------------------------------------------

    def _language(self, puzzle: Puzzle) -> Language | None:
        """The encoder-decoder that was trained for such a puzzle."""
        if len(puzzle.pieces) > puzzle.cells:
            return None
        grid = grid_name(puzzle.grid)
        if self.reader is not None and self.tokenizer is not None:
            known = self.card.get("grids")
            most = self.tokenizer.settings.max_cells
            if grid in known if known is not None else puzzle.cells <= most:
                return Language(self.tokenizer, self.reader, self.card)
        return self.box.language(grid) if self.box else None

    def _reads(self, puzzle: Puzzle, evidence: Evidence) -> bool:
        """Whether a language model is asked at first; beside the reader only if colours bled."""
        if self.solver == "auto" and evidence.seen is not None and not evidence.bled:
            return False
        if self.solver == "seq2seq" and self._language(puzzle) is None:
            return hasattr(self._sees(puzzle), "write")
        return self._language(puzzle) is not None

    def _reads_again(self, puzzle: Puzzle) -> bool:
        """Whether a language model is asked of a puzzle that leaves the reader in doubt."""
        return grid_name(puzzle.grid) in AGAIN and self._language(puzzle) is not None

    def _sees(self, puzzle: Puzzle) -> Any:
        """What knows puzzles as a whole, if it can tell where pieces of such a one belong."""
        if len(puzzle.pieces) > puzzle.cells or self.whole is None:
            return None
        if self.solver == "symbols" and self._language(puzzle) is not None:
            return None  # which reads six views, and boards as a whole
        return self.whole if self.whole.settings.places(puzzle.grid) else None

    def neighbours(
        self, puzzle: Puzzle, made: tuple[Positions, Floats, Floats]
    ) -> tuple[Floats, Floats] | None:
        """What is read of neighbours in windows of an arrangement, `made`, of too many pieces to be
        read as a whole, with the scores that it was made by; None if nobody can."""
        if self.whole is None or not self.whole.settings.compares(puzzle.grid):
            return None
        return windows.neighbours(self._look, puzzle, *made)

    def _check_reads(self, puzzle: Puzzle) -> None:
        seen = self.solver == "vision"
        language = None if seen else self._language(puzzle)
        if not seen and language is None and self.decoding != "valid":
            raise PuzzleError(
                f"decode '{self.decoding}': the reader of {grid_name(puzzle.grid)} puzzles writes "
                "cells one after the other, each once; leave --decode out"
            )
        if language is None and self._sees(puzzle) is None:
            grids = [] if seen else self._grids()
            grids += [] if self.whole is None else self.whole.settings.known
            raise PuzzleError(
                f"{len(puzzle.pieces)} pieces for a {grid_name(puzzle.grid)} grid: this model was "
                f"trained for {', '.join(grids) or 'smaller ones'}; use --solver auto, or a model "
                "for this grid"
            )

    def _grids(self) -> list[str]:
        """Grids that a language model here was trained for."""
        own = self.card.get("grids", [])
        return sorted({*own, *(self.box.grids() if self.box else ())})

    def _read(
        self, puzzles: list[Puzzle], given: list[dict[int, int]], again: bool = False
    ) -> list[Read]:
        """Run the encoder-decoder over puzzles with one number of cells and of pieces."""
        language = self._language(puzzles[0])
        if language is None:
            pieces = [p.pieces for p in puzzles]
            return [
                Read(cells, sure, shares, tuple(order.tolist()), "puzlm", cells[None][:0], sure[:0])
                for cells, sure, shares, order in self.whole.write(pieces, puzzles[0].grid, given)
            ]
        tokenizer, reader, card = language
        name = str(card.get("name", "")) if self.box is not None else ""
        if self.solver == "symbols" or again:
            seen = read_views(reader, tokenizer, puzzles, width=WIDTH, given=given)
            straight = np.arange(len(puzzles[0].pieces))
            return [by_piece(seen, straight, row, name) for row in range(len(puzzles))]
        text = tokenizer(puzzles)
        slots = len(puzzles[0].pieces)
        order = text["order"][:, :slots]
        found = decode(
            reader,
            text["input_ids"],
            slots=slots,
            grid=puzzles[0].grid,
            first_cell=tokenizer.cell_token_id(0),
            attention_mask=text["attention_mask"],
            method=self._method,
            width=WIDTH,
            given=by_slot(order, given),
            temperature=float(card.get("temperature", 1.0)) if self.solver == "seq2seq" else 1.0,
        )
        return [by_piece(found, order[row], row, name) for row in range(len(puzzles))]

    def _look(self, puzzles: list[Puzzle]) -> list[Seen]:
        """Read puzzles with one number of cells and of pieces as a whole."""
        grid = puzzles[0].grid
        placed, right, below = self.whole.read([p.pieces for p in puzzles], grid)
        return list(
            zip([None] * len(puzzles) if placed is None else placed, right, below, strict=True)
        )


def files_of(folders: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of the files of models, and of what their confidences were fitted by."""
    fitted = {"calibration.py": manifest.digest(Path(calibration.__file__))}
    return manifest.of_folders(folders) | fitted


def model_folders(solver: str, model: str | Path | None) -> tuple[Path, ...]:
    """Folders of the models that a solver may ask: of one, or of all in the box."""
    if solver in ("classic", "random") or ":" in solver:
        return ()
    return tuple(map(checkpoints.find, checkpoints.names() if model is None else [model]))


def load_solver(name: str, model: str | None = None, decoding: str = "valid") -> Any:
    """A function that solves a list of puzzles, by solver name or as `module:function`."""
    if ":" in name:
        from puzlm.harness.evaluate import load_solver_function

        return load_solver_function(name)
    return Solver.from_pretrained(model, solver=name, decoding=decoding).solve_many


__all__ = ["SOLVERS", "Given", "Solution", "Solver", "load_solver"]
