"""What the worker processes do: `Pictures` decodes and draws, `Puzzles` reads and solves.

Their methods are called by name through workers.py; a Refused goes to the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from puzlm.puzzle import Grid, Puzzle
from puzlm.web import gif, intake
from puzlm.web.answers import Limits

if TYPE_CHECKING:
    from puzlm.solver import Solver

Kind = tuple[str, str, bool]  # solver, decoding, whether pieces may be turned
SHOWN = 960  # pixels of the longer side of a picture that goes to the page


class Pictures:
    """Bytes of clients -> puzzles. No model is loaded: such a process starts in a moment."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.animation = gif.draw

    def about(self) -> None:
        """Say that it is ready."""

    def puzzle(
        self,
        pieces: list[intake.File],
        archive: bytes | None,
        picture: intake.File | None,
        grid: Grid | None,
        pixels: int,
        whole: intake.File | None = None,
    ) -> Puzzle:
        """Make a puzzle of what was sent; with a picture of the `whole` in its settings."""
        puzzle = intake.read_puzzle(pieces, archive, picture, grid, self.limits, pixels=pixels)
        if whole is not None:
            shown = intake.Budget(self.limits.pixels).pixels(whole[1], whole[0])
            puzzle.settings["reference"] = intake.fit_inside(shown, SHOWN)
        return puzzle

    def cut(self, picture: intake.File, grid: Grid, how: dict[str, Any]) -> Puzzle:
        """Cut a picture into pieces and shuffle them."""
        whole = intake.Budget(self.limits.pixels).pixels(picture[1], picture[0])
        return Puzzle.from_image(intake.fit_inside(whole, SHOWN), grid, **how)


class Puzzles:
    """The models: symbols, solutions, and what the machine reads."""

    def __init__(self, model: str | None, options: dict[str, Any]) -> None:
        from puzlm.errors import ModelError
        from puzlm.solver import Solver
        from puzlm.web.reading import Glass

        self.base = Solver.from_pretrained(model, **options)
        if self.base.tokenizer is None:
            raise ModelError(
                f"model '{model or self.base.solver}': the page shows what a language model "
                "reads, and there is none in it (tokenizer.json)"
            )
        self.glass = Glass(self.base.tokenizer, self.base.sides)
        self.how = {"name_or_path": model, **options}
        self.kinds: dict[Kind, Solver] = {(self.base.solver, self.base.decoding, False): self.base}

    def about(self) -> dict[str, Any]:
        """Describe the model."""
        assert self.base.tokenizer is not None
        settings = self.base.tokenizer.settings
        return {
            "name": str(self.base.card.get("name", "model")),
            "grids": [str(grid) for grid in self.base.card.get("grids", [])],
            "granularity": settings.granularity,
            "vocab_size": settings.vocab_size,
            "border": settings.border_length,
            "patch": settings.patch,
            "solver": self.base.solver,
            "decoding": self.base.decoding,
        }

    def show(self, puzzle: Puzzle) -> dict[str, Any]:
        """Everything the page needs of a puzzle: see answers.Pieces."""
        from puzlm.web.reading import data_url

        names = puzzle.names or tuple(f"piece {i}" for i in range(len(puzzle.pieces)))
        return {
            "grid": list(puzzle.grid),
            "pieces": [data_url(piece) for piece in puzzle.pieces],
            "names": list(names),
            "truth": None if puzzle.truth is None else puzzle.truth.tolist(),
            "size": list(puzzle.pieces.shape[1:3]),
            "symbols": self.glass.symbols(puzzle.pieces).tolist(),
            "settings": puzzle.settings,
        }

    def solve(
        self, puzzle: Puzzle, kind: Kind, given: dict[int, int], symbols: bool
    ) -> dict[str, Any]:
        """Find the cell of every piece: see answers.Solved."""
        if kind not in self.kinds:
            self.kinds[kind] = self._variant(*kind)
        whole = puzzle.settings.pop("reference", None)
        solution = self.kinds[kind].solve(puzzle, given=given, reference=whole)
        return {
            "positions": solution.positions.tolist(),
            "order": [int(i) for i in solution.order],
            "confidences": np.clip(solution.confidences, 0, 1).round(4).tolist(),
            "alternatives": [p.tolist() for p in solution.alternatives],
            "grid": list(solution.grid),
            "solver": solution.solver,
            "seconds": round(solution.seconds, 4),
            "complete": not solution.used.early,
            "read": solution.used.solver in ("seq2seq", "symbols")
            or bool({"seq2seq", "reader"} & {*solution.used.evidence}),
            "clear": solution.used.clear,
            "turns": list(solution.turns),
            "mirrored": list(solution.mirrored),
            # Reading the pieces once more takes a tenth of solving them.
            "symbols": self.glass.symbols(puzzle.pieces).tolist() if symbols else None,
        }

    def _variant(self, solver: str, decoding: str, rotations: bool) -> Solver:
        """Another way to solve with the same models."""
        if not rotations:
            return self.base.variant(solver=solver, decoding=decoding)
        from puzlm.solver import Solver

        return Solver.from_pretrained(
            **self.how, solver=solver, decoding=decoding, rotations=rotations
        )

    def read(self, question: Any) -> Any:
        """Show what the machine reads of one piece."""
        return self.glass.read(question)


__all__ = ["Pictures", "Puzzles"]
