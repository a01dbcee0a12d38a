"""One row of an ablation: images, a token memory, then training (timed.py) and exams (exam.py).

Puzzles are cut and tokenised once, before the clock starts, as the paper does: an expensive
tokenizer is not punished twice, its time is a column of its own.

Imports torch, transformers, numpy, Pillow and scipy only: it runs where nothing else is installed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from puzlm.errors import SettingsError
from puzlm.files import write_bytes
from puzlm.images import Pixels, cores, fingerprint, iter_images
from puzlm.models.backbones import Seq2Seq
from puzlm.puzzle import Puzzle, parse_grid
from puzlm.study.exam import OnDevice, examine
from puzlm.study.timed import (
    Draws,
    compiled_layers,
    count_compiled,
    start_from_sides,
    start_positions,
    train_for,
    wait,
)
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training.corpus import Album, Bounds, CutSettings, Draw, cut_batch, draw_batch
from puzlm.training.objective import Objective
from puzlm.training.recipes import Recipe
from puzlm.training.starts import build_model

CHUNK = 1024  # puzzles cut at once on a GPU
KEPT_BYTES = 60 * 2**30  # of cut puzzles, on the card of all processes together


@dataclass(frozen=True)
class Kind:
    """One kind of puzzle that every row is trained on and examined with."""

    name: str
    train: tuple[str, ...]
    """Tars or folders, below the data folder."""
    val: tuple[str, ...]
    gap: float = 0.0
    """Gap between pieces as a fraction of the piece, in training and in the exam."""
    limit: int = 0
    """Training images at most; 0 takes all."""
    puzzles: int = 500
    """Exam puzzles at most."""


class Gallery:
    """The images of all kinds, read once for all rows."""

    def __init__(self, kinds: Sequence[Kind], data: str | Path, device: str) -> None:
        self.kinds, self.device, root = tuple(kinds), device, Path(data)
        sources = [[root / name for name in kind.train] for kind in kinds]
        self.prints = [fingerprint(paths) for paths in sources]
        albums = [
            Album.read(paths, device, kind.limit or None, cores())
            for kind, paths in zip(kinds, sources, strict=True)
        ]
        # A million puzzles are cut for each tokenizer: read four bytes at once.
        self.albums = [album.with_words() if "cuda" in device else album for album in albums]
        self.images: list[list[Pixels]] = [
            list(iter_images([root / v for v in k.val], k.puzzles)) for k in kinds
        ]
        # Sixteen taps, each a pass over the memory; compiled they are one, for a million puzzles.
        self._cut: Any = torch.compile(cut_batch, dynamic=False) if "cuda" in device else cut_batch
        self._exams: dict[tuple[int, str], list[Puzzle]] = {}
        self._stock: dict[Any, list[Tensor]] = {}
        self._fitted: dict[tuple[int, Bounds], Album] = {}

    def contents(self) -> list[Any]:
        """What is in here: what a library was made of."""
        return [[asdict(kind), name] for kind, name in zip(self.kinds, self.prints, strict=True)]

    def exam(self, number: int, grid: str) -> list[Puzzle]:
        """Shuffled puzzles of one kind; the same for every row."""
        if (number, grid) not in self._exams:
            gap = self.kinds[number].gap
            self._exams[number, grid] = [
                Puzzle.from_image(image, grid, gap=gap, seed=seed)
                for seed, image in enumerate(self.images[number])
            ]
        return self._exams[number, grid]

    def album(self, number: int, grid: str, side: int) -> Album:
        """Training images of one kind, too large ones shrunk for this grid and side."""
        wanted = number, Bounds.of([grid], side)
        if wanted not in self._fitted:
            fitted = self.albums[number].within(wanted[1])
            new = "cuda" in self.device and fitted is not self.albums[number]
            self._fitted[wanted] = fitted.with_words() if new else fitted
        return self._fitted[wanted]

    def pieces(
        self, number: int, count: int, cut: CutSettings, side: int, seed: tuple[int, ...]
    ) -> Tensor:
        """Cut canonical training pieces (count, cells, side, side, 3) of one kind."""
        album = self.album(number, cut.grid, side)
        plain = replace(cut, gap_share=0.0, missing_share=0.0)
        drawn = draw_batch(album.sizes.cpu().numpy(), count, plain, seed)
        drawn = eroded(drawn, self.kinds[number].gap)
        parts = [
            torch.from_numpy(np.ascontiguousarray(a)).to(self.device) for a in vars(drawn).values()
        ]
        return (self._cut if count == CHUNK else cut_batch)(album, *parts[:-1], side=side)

    def stock(self, puzzles: int, cut: CutSettings, side: int) -> Iterable[Tensor]:
        """Cut so many training puzzles, an equal share of each kind.

        Once for all tokenizers, where they fit into KEPT_BYTES; else anew for each, part by part.
        """
        chunk = CHUNK if "cuda" in self.device else 64
        share = max(1, puzzles // len(self.kinds))
        made = (
            self.pieces(k, chunk, cut, side, (0, part, k, 2)).byte()
            for k in range(len(self.kinds))
            for part in range(0, share, chunk)
        )
        if puzzles * math.prod(parse_grid(cut.grid)) * side * side * 3 > KEPT_BYTES:
            return made
        if (puzzles, cut, side) not in self._stock:
            self._stock[puzzles, cut, side] = list(made)
        return self._stock[puzzles, cut, side]


def eroded(drawn: Draw, gap: float) -> Draw:
    """Shrink the pieces of a draw without gaps to leave this gap between them."""
    cell = drawn.piece
    piece = np.clip(np.rint(cell / (1 + gap)).astype(np.int64), 1, cell)
    return replace(drawn, piece=piece, corner=drawn.corner + ((cell - piece) // 2)[:, None])


# ---- tokens ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Library:
    """A fitted tokenizer and its training puzzles (puzzles, cells, b, F), raster order."""

    tokenizer: PieceTokenizer
    tokens: Tensor
    facts: dict[str, Any]


def make_library(
    tokenizer: PieceTokenizer,
    gallery: Gallery,
    recipe: Recipe,
    puzzles: int,
) -> Library:
    """Fit a tokenizer on all kinds and tokenise so many training puzzles, an equal share each."""
    device, side, kinds = gallery.device, tokenizer.settings.side, range(len(gallery.kinds))
    sample = max(1, recipe.train.fit_puzzles // len(gallery.kinds))
    stock = gallery.stock(puzzles, recipe.cut, side)
    shown = [
        gallery.pieces(k, min(256, sample - part), recipe.cut, side, (0, part, k, 1)).byte()
        for k in kinds
        for part in range(0, sample, 256)
    ]
    flat = torch.cat([p.flatten(0, 1) for p in shown])
    wait(device)
    began = time.monotonic()
    tokenizer.fit_canonical(flat, seed=0, device=device)
    wait(device)
    fitted = time.monotonic() - began
    there, parts, spent = tokenizer.on(device), [], 0.0
    for pieces in stock:
        wait(device)
        clock = time.monotonic()
        symbols = there.encode_canonical(pieces.flatten(0, 1))
        parts.append(symbols.view(*pieces.shape[:2], *symbols.shape[1:]).to(torch.int32))
        wait(device)
        spent += time.monotonic() - clock
    tokens = torch.cat(parts)
    facts = {
        "fit_seconds": round(fitted, 2),
        "tokenise_ms": 1000 * spent / len(tokens),
        "tokenizer_parameters": tokenizer_parameters(tokenizer),
    }
    facts |= {"learned": tokenizer.report_} if hasattr(tokenizer, "report_") else {}
    return Library(tokenizer, tokens, facts)


def tokenizer_parameters(tokenizer: PieceTokenizer) -> int:
    """Numbers that a tokenizer has learned."""
    if hasattr(tokenizer, "parameters"):
        return int(tokenizer.parameters)
    return sum(
        a.size
        for book in tokenizer.codebooks_
        for a in (book.mean, book.components, book.centroids)
        if a is not None
    )


# ---- a row ----------------------------------------------------------------------------------


def run_row(
    recipe: Recipe,
    library: Library,
    tokenizer: PieceTokenizer,
    gallery: Gallery,
    *,
    seconds: float,
    steps: int = 0,
    start: str = "",
    side_steps: int = 0,
    one_order: bool = False,
    decodings: Sequence[str] = ("valid",),
    few: int = 250,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Train and examine one row; everything that goes into its line but its name."""
    device = gallery.device
    cells = math.prod(parse_grid(recipe.cut.grid))
    if tokenizer.settings.max_cells < cells:
        raise SettingsError(f"tokenizer.max_cells must be at least {cells} for {recipe.cut.grid}")
    draws = Draws(library.tokens, tokenizer, recipe, device, one_order)
    model = build_model(recipe, tokenizer)
    facts: dict[str, Any] = {}
    if recipe.train.centroid_start:
        start_positions(model, tokenizer)
    if start == "sides":
        facts |= start_from_sides(model, draws, side_steps)
    model.to(device)
    fast = recipe.train.fast and "cuda" in device and recipe.model.backbone == "bart"
    torch.manual_seed(recipe.train.seed + 1)
    objective = Objective(
        model, tokenizer, cells, recipe.train.heads, torch.bfloat16 if fast else None
    ).to(device)
    before = model.embedding.detach().clone()
    if "cuda" in device:
        torch.cuda.reset_peak_memory_stats()
    facts |= {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_puzzle": tokenizer.sentence_length(cells),
        **library.facts,
    }
    with ExitStack() as stack:
        if "cuda" in device and not fast:
            stack.enter_context(compiled_layers(objective, draws, device))
        facts |= train_for(objective, draws, recipe, device, seconds, steps)
        wait(device)
        facts["compiled"] = count_compiled(model)
    if "cuda" in device:
        facts["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    reading = OnDevice(tokenizer, device)
    ways = [d for d in decodings if d != "head" or objective.heads is not None]
    clock = time.monotonic()
    facts["results"] = {
        kind.name: examine(objective, reading, gallery.exam(number, recipe.cut.grid), ways, few)
        for number, kind in enumerate(gallery.kinds)
    }
    facts["exam_seconds"] = round(time.monotonic() - clock, 1)
    if keep is not None:
        _keep(keep, recipe, model, tokenizer, before)
    return facts


def _keep(
    folder: Path, recipe: Recipe, model: Seq2Seq, tokenizer: PieceTokenizer, before: Tensor
) -> None:
    """Save a row's model, with the embeddings it started from, for `puzlm analyze --model`."""
    from safetensors.torch import save

    model.save_pretrained(folder, torch.float16)
    tokenizer.save_pretrained(folder)
    write_bytes(folder / "start.safetensors", save({"embedding": before.cpu().contiguous()}))
    write_bytes(folder / "settings.json", json.dumps(recipe.as_dict(), indent=1).encode())
