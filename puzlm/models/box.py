"""The shipped models together: each is loaded when a puzzle first needs it.

A solver that was given no model by name asks the box: for a language model of the puzzle's grid,
and for those that see pixels.
"""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from puzlm.devices import check_device
from puzlm.errors import ModelError, SettingsError, missing, nearest
from puzlm.model_files import read_json
from puzlm.models import pretrained as checkpoints
from puzlm.models.decoding import Reader
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, tokenizer_settings

BACKENDS = ("auto", "torch", "onnx")
READER = "puzlm"  # the folder that holds the reader of every grid
VISION = "vision"  # the folder that holds the encoder of sides, and the network for frames


class Language(NamedTuple):
    """A language model with its tokenizer and its card."""

    tokenizer: PieceTokenizer
    reader: Reader
    card: dict[str, Any]


def backend_of(folder: Path, backend: str, device: str) -> str:
    """'torch' or 'onnx': 'auto' takes ONNX when the graphs and the runtime are there."""
    if backend not in BACKENDS:
        raise SettingsError(f"backend '{backend}' is unknown; {nearest(backend, BACKENDS)}")
    check_device(device)
    if backend != "auto":
        return backend
    graphs = (folder / name for name in ("encoder.onnx", "reader.onnx", "edges.onnx"))
    ready = any(graph.is_file() for graph in graphs) and find_spec("onnxruntime") is not None
    return "onnx" if ready and device == "cpu" else "torch"


def load_reader(folder: Path, backend: str, device: str) -> Reader:
    """The encoder-decoder of a folder, whose tokens must be those of its tokenizer."""
    written = read_json(folder / "model.json").get("vocabulary")
    if written != (read := len(PieceTokenizer(tokenizer_settings(folder)))):
        raise ModelError(
            f"{folder}: model.json has {written!r} tokens, tokenizer.json {read}: they do not fit"
        )
    if backend_of(folder, backend, device) == "onnx":
        from puzlm.models.onnx_reader import OnnxReader

        return OnnxReader(folder)
    from puzlm.models.backbones import Seq2Seq, TorchReader

    return TorchReader(Seq2Seq.from_pretrained(folder).to(device))


def load_sides(folder: Path, backend: str, device: str) -> Any:
    """The symbolic side model of a folder; None if it has none."""
    if not (folder / "sides.json").is_file():
        return None
    chosen = backend_of(folder, backend, device)
    if chosen == "onnx" or backend == "auto" and device == "cpu":  # it needs no graph
        from puzlm.models.onnx_reader import NumpySides

        return NumpySides(folder)
    from puzlm.models.side_model import SideModel

    return SideModel.from_pretrained(folder).to(device)


def load_vision(folder: Path, device: str) -> Any:
    """The ViT of a folder; None if it has none. It runs in torch only."""
    if not (folder / "vision.json").is_file():
        return None
    try:
        from puzlm.models.vision import Vision
    except ImportError as error:
        raise missing(error) from error

    return Vision.from_pretrained(folder).to(device)


def load_puzzle_reader(folder: Path, backend: str, device: str) -> Any:
    """The reader of every grid of a folder; None if it has none."""
    if not (folder / "reader.json").is_file():
        return None
    from puzlm.models.onnx_pages import OnnxReader, PuzzleReader

    tokenizer = PieceTokenizer.from_pretrained(folder)
    if backend_of(folder, backend, device) == "onnx":
        return PuzzleReader(tokenizer, OnnxReader(folder))
    from puzlm.models.reader import TorchReader

    return PuzzleReader(tokenizer, TorchReader.from_pretrained(folder, device))


def load_edges(folder: Path, backend: str, device: str) -> Any:
    """The encoder of sides of a folder; None if it has none."""
    if not (folder / "edges.json").is_file():
        return None
    if backend_of(folder, backend, device) == "onnx":
        from puzlm.models.onnx_edges import OnnxEdges

        return OnnxEdges(folder)
    from puzlm.models.vision import Edges

    return Edges.from_pretrained(folder).to(device)


def load_frame(folder: Path) -> Any:
    """The network that finds a board's frame, of a folder; None if it has none."""
    if not (folder / "frame.json").is_file():
        return None
    from puzlm.models.frame import Frame

    return Frame.from_pretrained(folder)


class Box:
    """What lies in the box, by what it is needed for."""

    def __init__(self, backend: str = "auto", device: str = "cpu") -> None:
        check_device(device)  # now: a model may be loaded much later
        self._how = (backend, device)
        self._languages: dict[str, Language | None] = {}

    def language(self, grid: str) -> Language | None:
        """The language model that was trained for a grid, say '5x5'."""
        if grid not in self._languages:
            folder = self.grids().get(grid)
            self._languages[grid] = (
                None
                if folder is None
                else Language(
                    PieceTokenizer.from_pretrained(folder),
                    load_reader(folder, *self._how),
                    checkpoints.card(folder),
                )
            )
        return self._languages[grid]

    def grids(self) -> dict[str, Path]:
        """Folder of the language model for each grid that one was trained for."""
        folders = [checkpoints.find(name) for name in checkpoints.names()]
        return {
            grid: folder
            for folder in folders
            if (folder / "tokenizer.json").is_file()
            for grid in checkpoints.card(folder).get("grids", [])
        }

    @cached_property
    def tokenizer(self) -> PieceTokenizer:
        """The tokenizer of the model that is asked where none is named."""
        return PieceTokenizer.from_pretrained(checkpoints.find())

    @cached_property
    def sides(self) -> Any:
        """The symbolic side model beside it."""
        return load_sides(checkpoints.find(), *self._how)

    @cached_property
    def reader(self) -> Any:
        """The reader of every grid, or None."""
        return load_puzzle_reader(checkpoints.BOX / READER, *self._how)

    @cached_property
    def edges(self) -> Any:
        """The encoder of sides, or None."""
        return load_edges(checkpoints.BOX / VISION, *self._how)

    @cached_property
    def frame(self) -> Any:
        """The network that finds a board's frame, or None."""
        return load_frame(checkpoints.BOX / VISION)
