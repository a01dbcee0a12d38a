"""Where a picture begins: a small network that looks at a solved board as a ring.

Where borders are worn, a picture's left edge may fit its right one better than two pieces inside
fit each other. The arrangement then comes out rolled: all neighbours right, every piece in a wrong
cell. No pair of pieces can tell, but the whole can: skies lie above, and what a picture is of lies
in its middle. `Frame` sees the board without its frame and says above which row and left of which
column the frame should be. It rolls with its input, so it cannot know the frame by its place.

This is the network as it is asked, with numpy alone; frame_train.py has its twin that learns.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import ModelError
from puzlm.model_files import read_safetensors, read_settings
from puzlm.sections import at_least
from puzlm.tokenizer.piece_tokenizer import resized

Floats = NDArray[np.float64]
AROUND = [(down, along) for down in (-1, 0, 1) for along in (-1, 0, 1)]


@dataclass(frozen=True)
class FrameSettings:
    """Shape of the network that finds the frame."""

    side: int = 12
    """Pieces are resized to this many pixels."""
    d_model: int = 96
    layers: int = 5

    def __post_init__(self) -> None:
        at_least(1, self, "frame", "side", "d_model", "layers")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight."""
        d = self.d_model
        found: dict[str, tuple[int, ...]] = {
            "embed.weight": (d, 3 * self.side**2),
            "embed.bias": (d,),
        }
        for k in range(self.layers):
            found |= {
                f"norm.{k}.weight": (d,),
                f"norm.{k}.bias": (d,),
                f"look.{k}.weight": (d, 11 * d),
                f"look.{k}.bias": (d,),
                f"out.{k}.weight": (d, d),
                f"out.{k}.bias": (d,),
            }
        found |= {"last.weight": (d,), "last.bias": (d,)}
        for k in range(2):
            found |= {
                f"seam.{k}.weight": (d, 2 * d),
                f"seam.{k}.bias": (d,),
                f"cut.{k}.weight": (1, d),
                f"cut.{k}.bias": (1,),
            }
        return found


class Frame:
    """Find the frame of a board."""

    def __init__(self, settings: FrameSettings, weights: dict[str, NDArray[Any]]) -> None:
        self.settings = settings
        self.weights = {name: w.astype(np.float32) for name, w in weights.items()}

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Frame:
        """Read a saved network."""
        folder = Path(folder)
        settings = read_settings(FrameSettings, folder / "frame.json")
        weights = read_safetensors(folder / "frame.safetensors")
        # The number first: settings that promise a billion layers would take all memory.
        fits = len(weights) == 12 + 6 * settings.layers
        if not fits or {k: w.shape for k, w in weights.items()} != settings.shapes():
            raise ModelError(f"{folder}: frame.safetensors does not fit frame.json")
        return cls(settings, weights)

    def read(self, pieces: NDArray[Any]) -> tuple[Floats, Floats]:
        """Say of pieces as they lie, (rows, columns, high, wide, 3), where the frame should be.

        Log-probabilities that it runs above each row (rows,) and left of each column (columns,).
        """
        rows, columns = pieces.shape[:2]
        small = resized(
            shrunk(pieces.reshape(-1, *pieces.shape[2:]), 2 * self.settings.side),
            self.settings.side,
        )
        x = (small.reshape(rows, columns, -1).astype(np.float32) - 120) / 64
        x = self._linear(x, "embed")
        for k in range(self.settings.layers):
            y = self._norm(x, f"norm.{k}")
            seen = [np.roll(y, step, (0, 1)) for step in AROUND]
            seen += [np.broadcast_to(y.mean(axis, keepdims=True), y.shape) for axis in (0, 1)]
            x = x + self._linear(
                _gelu(self._linear(np.concatenate(seen, -1), f"look.{k}")), f"out.{k}"
            )
        y = self._norm(x, "last")
        found = []
        for axis in (0, 1):
            both = np.concatenate([np.roll(y, 1, axis), y], -1)  # before the seam, and after it
            seam = _gelu(self._linear(both, f"seam.{axis}")).mean(1 - axis)
            logits = self._linear(seam, f"cut.{axis}")[:, 0].astype(np.float64)
            found.append(logits - np.logaddexp.reduce(logits))
        return found[0], found[1]

    def _linear(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        made: NDArray[Any] = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return made

    def _norm(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        made: NDArray[Any] = x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return made


def _gelu(x: NDArray[Any]) -> NDArray[Any]:
    """The approximation by tanh."""
    made: NDArray[Any] = 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))
    return made


def shrunk(pieces: NDArray[Any], most: int) -> NDArray[Any]:
    """Means of whole blocks of pixels, so that no side is twice `most` or longer.

    Training knows small pictures only, and shrinks pieces by two at most: so does what follows.
    """
    high, wide = (max(1, size // most) for size in pieces.shape[1:3])
    if high == wide == 1:
        return pieces
    rows, columns = pieces.shape[1] // high, pieces.shape[2] // wide
    top, left = pieces.shape[1] % high // 2, pieces.shape[2] % wide // 2
    kept = pieces[:, top : top + rows * high, left : left + columns * wide]
    blocks = kept.reshape(len(pieces), rows, high, columns, wide, -1).mean((2, 4))
    made: NDArray[Any] = blocks.round().astype(pieces.dtype)
    return made
