"""Training, read from top to bottom: data, loop; objective.py judges, starts.py builds the model.

    recipe -> album on the device -> every step: draw, cut, tokenise, sort -> encoder-decoder

Every random number of a step comes from (seed, step), so a run can be killed at any moment and goes
on from its last checkpoint with the very losses it would have had. `torchrun` runs the same recipe
on several GPUs: each process works on its share of the same global batch.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puzlm.devices import pick_device
from puzlm.errors import SettingsError
from puzlm.files import write_bytes
from puzlm.images import cores, iter_images
from puzlm.metrics import absolute, perfect
from puzlm.models import pretrained as checkpoints
from puzlm.models.backbones import Seq2Seq, TorchReader
from puzlm.models.decoding import decode
from puzlm.puzzle import Grid, Puzzle, parse_grid
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.tokenizer.token_files import TokenFiles
from puzlm.training.corpus import Album, Bounds, cut_batch, draw_batch, neighbour_slots
from puzlm.training.fast import kernels
from puzlm.training.fast.kernels_cut import cut, patches, room
from puzlm.training.fast.split_book import HalfBook, in_pairs, matrix_books
from puzlm.training.loop import Batch, loop
from puzlm.training.objective import Objective
from puzlm.training.recipes import Recipe
from puzlm.training.run_files import begun, check_settings
from puzlm.training.starts import build_model
from puzlm.training.tricks import PLAIN, PROVEN, Tricks

# ---- data -----------------------------------------------------------------------------------


class Pages:
    """Batches of sentences with their answers, drawn by step."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PieceTokenizer,
        device: str,
        album: Album | None = None,
        compiled: bool = False,
        tricks: Tricks = PLAIN,
    ) -> None:
        self.recipe, self.device = recipe, device
        self.tokenizer = tokenizer.on(device)
        if tricks.tokens != "float32":
            books, whole = self.tokenizer.codebooks_, len(tokenizer.settings.whole)
            quick = matrix_books(books[:whole], tricks.tokens)
            self.tokenizer.codebooks_ = [*quick, *books[whole:]]
        self.grid: Grid = parse_grid(recipe.cut.grid)
        self.album = album
        if album is not None and tricks.cut:
            self.album = album.with_words()
        self.cut_by_kernel = tricks.cut
        self.book: HalfBook | None = None
        first = self.tokenizer.codebooks_[0]
        direct = tricks.cut and tricks.patches and in_pairs(tokenizer.settings)
        if direct and isinstance(first, HalfBook):
            self.book = HalfBook(first, planar=True)
        self.tokens: TokenFiles | None = None
        self.shuffled = not tokenizer.settings.lexicographic
        if recipe.data.tokens:
            self.tokens = TokenFiles([recipe.data.tokens], tokenizer)
            if self.tokens.grid != self.grid:
                raise SettingsError(
                    f"{recipe.data.tokens}: puzzles of {self.tokens.grid[0]}x{self.tokens.grid[1]},"
                    f" but cut.grid is {recipe.cut.grid}"
                )
        else:
            assert album is not None
            self.sizes = album.sizes.cpu().numpy()
        # Compiled apart: cut pieces that are written down once are read at full speed, while a
        # cut fused into the reading of patches is done pixel by pixel.
        wrap: Callable[..., Any] = torch.compile if compiled else (lambda work: work)
        self.cut, self.encode = wrap(self._cut), wrap(self._encode)
        self.write: Callable[..., Batch] = wrap(self._write)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The batch of one step; each of `world` processes gets its share of the same puzzles."""
        parts = [part.to(self.device, non_blocking=True) for part in self.draw(step, rank, world)]
        return self.read(parts)

    def draw(self, step: int, rank: int = 0, world: int = 1) -> list[Tensor]:
        """What the batch of one step is made from: the count of pieces, then the puzzles' arrays.

        In pinned memory for a GPU: other copies would wait for the step before them.
        """
        t, cut = self.recipe.train, self.recipe.cut
        mine = slice(rank * t.batch // world, (rank + 1) * t.batch // world)
        sizes = self.sizes if self.tokens is None else np.full((len(self.tokens), 2), 4096)
        draw = draw_batch(sizes, t.batch, cut, (t.seed, step))
        arrays: list[NDArray[Any]] = [a[mine] for a in vars(draw).values()]
        if self.tokens is not None:
            rows, where = np.unique(draw.image[mine], return_inverse=True)
            arrays[:5] = [self.tokens[rows][where].astype(np.int64)]
        if self.shuffled:  # unsorted pieces must not come in the order of their cells
            rng = np.random.default_rng((t.seed, step, 2))
            arrays.append(rng.random(draw.present.shape).argsort(1)[mine])
        # The same number on every process: the mean is over all pieces of the global batch.
        count = torch.tensor(float(draw.present.sum()) / world, dtype=torch.float32)
        parts = [count, *(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)]
        return [part.pin_memory() for part in parts] if "cuda" in self.device else parts

    def read(self, parts: list[Tensor]) -> Batch:
        """Cut, tokenise and sort what was drawn."""
        count, *parts = parts
        if self.tokens is not None:
            return {**self._write(*parts), "count": count}
        symbols = self.encode(self.cut(*parts[:5]))
        symbols = symbols.view(*parts[5].shape, *symbols.shape[1:])
        return {**self.write(symbols, *parts[5:]), "count": count}

    def _cut(
        self, image: Tensor, piece: Tensor, corner: Tensor, flip: Tensor, tint: Tensor
    ) -> Tensor:
        assert self.album is not None
        s = self.tokenizer.settings
        side, depth = s.side, s.depth
        if self.cut_by_kernel:
            a = self.album
            parts = a.words, a.offsets, a.sizes, image, piece, corner, flip, tint
            if self.book is not None:
                rows: Tensor = patches(*parts, s.granularity, s.patch_side, s.clockwise)
                return rows
            made: Tensor = cut(*parts, side, depth)
            return made[..., :3]
        pieces = cut_batch(self.album, image, piece, corner, flip, tint, side=side)
        return pieces.view(-1, side, side, 3).byte()

    def _encode(self, pieces: Tensor) -> Tensor:
        if self.book is not None:  # rows of patches already
            return self.book.assign(pieces).view(-1, self.tokenizer.settings.border_length, 1)
        symbols: Tensor = self.tokenizer.encode_canonical(pieces.float())
        return symbols

    def _write(self, symbols: Tensor, present: Tensor, turn: Tensor | None = None) -> Batch:
        """Sort and join, with every answer a training puzzle has."""
        if turn is None:
            ids, order = self.tokenizer.sentences(symbols, present)
        else:
            rows = torch.arange(len(turn), device=turn.device)[:, None]
            ids, order = self.tokenizer.sentences(symbols[rows, turn], present[rows, turn])
            order = turn.gather(1, order)
        right, below = neighbour_slots(order, present, self.grid)
        return {
            "ids": ids,
            "order": order,
            "present": present.gather(1, order),
            "right": right,
            "below": below,
        }


def fit_tokenizer(recipe: Recipe, album: Album, device: str) -> PieceTokenizer:
    """Fit the recipe's tokenizer on pieces of the kind it will read."""
    pieces = fitting_pieces(recipe, album, recipe.tokenizer.side, device)
    tokenizer = PieceTokenizer(recipe.tokenizer)
    return tokenizer.fit_canonical(pieces, seed=recipe.train.seed, device=device)


def fitting_pieces(recipe: Recipe, album: Album, side: int, device: str) -> Tensor:
    """Canonical pieces (n, side, side, 3) of train.fit_puzzles puzzles."""
    pieces, sizes = [], album.sizes.cpu().numpy()
    for part in range(0, recipe.train.fit_puzzles, 256):
        draw = draw_batch(sizes, 256, recipe.cut, (recipe.train.seed, part, 1))
        parts = [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in vars(draw).values()]
        cut = cut_batch(album, *parts[:-1], side=side)
        pieces.append(cut.view(-1, side, side, 3).byte())
    return torch.cat(pieces)


# ---- loop -----------------------------------------------------------------------------------


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    stop_after: float = math.inf,
    album: Album | None = None,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a recipe; the model, its tokenizer, settings and metrics.jsonl end up in `folder`.

    An interrupted run in the same folder is resumed. After `stop_after` seconds it saves and
    returns. `album` holds the training images if they are read already.
    """
    began, folder, t = time.monotonic(), Path(folder), recipe.train
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = pick_device(t.device)
    if t.batch % world:
        raise SettingsError(f"train.batch {t.batch}: must divide by the {world} processes")
    if world > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if "cuda" in device else "gloo")

    check_settings(folder, recipe.as_dict())
    tokenizer, resumed = None, begun(folder)
    if recipe.tokenizer_path or (folder / "tokenizer.json").exists():
        own = resumed or not recipe.tokenizer_path
        tokenizer = PieceTokenizer.from_pretrained(
            folder if own else checkpoints.find(recipe.tokenizer_path)
        )
        if recipe.tokenizer.max_cells > tokenizer.settings.max_cells:  # the symbols do not change
            tokenizer = tokenizer.with_cells(recipe.tokenizer.max_cells)
    elif recipe.data.tokens:
        raise SettingsError(
            "data.tokens: a token file needs the tokenizer that made it; set tokenizer_path"
        )
    settings = recipe.tokenizer if tokenizer is None else tokenizer.settings
    cells = math.prod(parse_grid(recipe.cut.grid))
    if cells > settings.max_cells:
        raise SettingsError(
            f"cut.grid {recipe.cut.grid}: {cells} cells, but tokenizer.max_cells is "
            f"{settings.max_cells}"
        )
    bounds = Bounds.of([recipe.cut.grid], settings.side)
    if album is not None:
        album = album.within(bounds)
    elif not recipe.data.tokens:
        recipe.data.check("train", "val")
        limit, threads = recipe.data.limit or None, cores()
        album = Album.read(recipe.data.train, device, limit, threads, bounds)
    if tokenizer is None:
        assert album is not None
        tokenizer = fit_tokenizer(recipe, album, device)
    elif recipe.tokenizer.patch.startswith(tokenizer.settings.patch + "+"):
        if album is None:
            raise SettingsError("tokenizer.patch: further symbols are fitted on images, not tokens")
        pieces = fitting_pieces(recipe, album, settings.side, device)
        patch = recipe.tokenizer.patch
        tokenizer = tokenizer.with_symbols(patch, pieces, seed=t.seed, device=device)
    if rank == 0:
        tokenizer.save_pretrained(folder)
        write_bytes(folder / "settings.json", json.dumps(recipe.as_dict(), indent=1).encode())
    fast = t.fast and device.startswith("cuda") and recipe.model.backbone == "bart"
    tricks = tricks_for(device, album, t.fp8) if fast else PLAIN
    pages = Pages(recipe, tokenizer, device, album, fast, tricks)
    exams = Exams(recipe, tokenizer)

    model = build_model(recipe, tokenizer).to(device).train()
    torch.manual_seed(t.seed + 1)
    objective = Objective(
        model, tokenizer, cells, t.heads, torch.bfloat16 if fast else None, tricks
    )
    objective.to(device)
    return loop(
        t,
        folder,
        objective,
        pages.batch,
        device=device,
        compiled=fast and not tricks.blocks,
        half=not fast,
        graph=fast and tricks.graph,
        ahead=tricks.ahead,
        began=began,
        stop_after=stop_after,
        exam=(lambda: exams.take(model)) if exams else None,
        save_model=lambda: model.save_pretrained(folder),
        report=report,
    )


def tricks_for(device: str, album: Album | None, fp8: bool = False) -> Tricks:
    """What the fast loop can do on a GPU: without the kernels everything the plain way."""
    if not kernels.there(device):
        return PLAIN
    # Without images, puzzles were cut and tokenised before.
    return replace(PROVEN, cut=album is not None and room(album, device), fp8=fp8)


class Exams:
    """Validation puzzles, tokenised once: one set for each gap of train.eval_gaps."""

    def __init__(self, recipe: Recipe, tokenizer: PieceTokenizer) -> None:
        self.sets: dict[str, tuple[dict[str, Any], list[Puzzle]]] = {}
        self.tokenizer = tokenizer
        if not recipe.data.val:
            return
        images = list(iter_images(recipe.data.val, recipe.train.eval_puzzles))
        for gap in recipe.train.eval_gaps:
            puzzles = [
                Puzzle.from_image(image, recipe.cut.grid, gap=gap, seed=seed)
                for seed, image in enumerate(images)
            ]
            self.sets[f"gap_{gap:g}"] = (tokenizer(puzzles), puzzles)

    def __bool__(self) -> bool:
        return bool(self.sets)

    def take(self, model: Seq2Seq) -> dict[str, float]:
        """Absolute and perfect accuracy in percent of one greedy pass over unused cells."""
        scores: dict[str, float] = {}
        for name, (text, puzzles) in self.sets.items():
            first, cells = self.tokenizer.cell_token_id(0), puzzles[0].cells
            got = decode(
                TorchReader(model),
                text["input_ids"],
                slots=cells,
                grid=puzzles[0].grid,
                first_cell=first,
            )
            truth = np.stack(
                [
                    p.truth[o]
                    for p, o in zip(puzzles, text["order"], strict=True)
                    if p.truth is not None
                ]
            )
            pairs = list(zip(got.cells, truth, strict=True))
            scores[f"{name}_absolute"] = 100 * float(np.mean([absolute(*p) for p in pairs]))
            scores[f"{name}_perfect"] = 100 * float(np.mean([perfect(*p) for p in pairs]))
        return scores
