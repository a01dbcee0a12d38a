"""PuzLM: solve square jigsaw puzzles by reading them.

>>> from puzlm import Puzzle, Solver
>>> solution = Solver.from_pretrained().solve("shuffled.png", grid=3)
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from puzlm.errors import PuzlmError
    from puzlm.puzzle import Puzzle
    from puzlm.solver import Solution, Solver
    from puzlm.tokenizer.piece_tokenizer import PieceTokenizer

__version__ = "0.1.0"
SAMPLES = Path(__file__).parent / "samples"
"""Two photos to try things on."""
__all__ = ["SAMPLES", "PieceTokenizer", "Puzzle", "PuzlmError", "Solution", "Solver"]

_HOME = {
    "PieceTokenizer": "tokenizer.piece_tokenizer",
    "Puzzle": "puzzle",
    "PuzlmError": "errors",
    "Solution": "solver",
    "Solver": "solver",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `puzlm --help` must not load torch."""
    if name in _HOME:
        return getattr(import_module(f"puzlm.{_HOME[name]}"), name)
    raise AttributeError(f"module 'puzlm' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List the public names before they are imported, too."""
    return sorted({*globals(), *__all__})
