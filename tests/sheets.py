"""What the tests of bled colours share: sheets that were compressed after shuffling."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from PIL import Image

from puzlm import Puzzle
from puzlm.puzzle import shuffled


def compressed(puzzle: Puzzle, quality: int = 75) -> Puzzle:
    """The same pieces, saved as one JPEG in the order in which they lie."""
    Image.fromarray(shuffled(puzzle)).save(file := io.BytesIO(), "JPEG", quality=quality)
    again = Puzzle.from_shuffled(np.asarray(Image.open(file)), puzzle.grid)
    return replace(puzzle, pieces=again.pieces)
