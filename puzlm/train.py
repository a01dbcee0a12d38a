"""Training, read from top to bottom: data, objective, loop; starts.py builds the model.

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
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm import checkpoints, kernels
from puzlm.backbones import Seq2Seq, TorchReader
from puzlm.corpus import Album, Bounds, CutSettings, cut_batch, draw_batch, neighbour_slots
from puzlm.decoding import decode
from puzlm.devices import pick_device
from puzlm.errors import SettingsError
from puzlm.fast import bart, compiled
from puzlm.images import cores, iter_images, write_bytes
from puzlm.kernels_cut import cut
from puzlm.loop import Batch, TrainingError, loop
from puzlm.metrics import absolute, perfect
from puzlm.puzzle import Grid, Puzzle, parse_grid
from puzlm.settings import Recipe
from puzlm.split_book import SplitBook
from puzlm.starts import build_model
from puzlm.tokenizer import BOS, PieceTokenizer
from puzlm.tokens import TokenFiles
from puzlm.tricks import PLAIN, PROVEN, Tricks

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
            books = self.tokenizer.codebooks_
            self.tokenizer.codebooks_ = [SplitBook(book, tricks.tokens) for book in books]
        self.grid: Grid = parse_grid(recipe.cut.grid)
        self.album = album
        if album is not None and tricks.cut:
            self.album = album.with_words()
        self.cut_by_kernel = tricks.cut
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
        side, depth = self.tokenizer.settings.side, self.tokenizer.settings.depth
        if self.cut_by_kernel:
            a = self.album
            made: Tensor = cut(
                a.words, a.offsets, a.sizes, image, piece, corner, flip, tint, side, depth
            )
            return made[..., :3]
        pieces = cut_batch(self.album, image, piece, corner, flip, tint, side=side)
        return pieces.view(-1, side, side, 3).byte()

    def _encode(self, pieces: Tensor) -> Tensor:
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
    tokenizer = PieceTokenizer(recipe.tokenizer)
    side, pieces = recipe.tokenizer.side, []
    sizes = album.sizes.cpu().numpy()
    for part in range(0, recipe.train.fit_puzzles, 256):
        draw = draw_batch(sizes, 256, recipe.cut, (recipe.train.seed, part, 1))
        parts = [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in vars(draw).values()]
        cut = cut_batch(album, *parts[:-1], side=side)
        pieces.append(cut.view(-1, side, side, 3).byte())
    return tokenizer.fit_canonical(torch.cat(pieces), seed=recipe.train.seed, device=device)


# ---- objective -----------------------------------------------------------------------------


class Heads(nn.Module):
    """Training-only heads on the pooled encoder states: right of me, below me, my cell."""

    def __init__(self, d_model: int, cells: int) -> None:
        super().__init__()
        self.right = nn.Linear(d_model, 2 * d_model)
        self.below = nn.Linear(d_model, 2 * d_model)
        self.none = nn.Parameter(torch.zeros(2, d_model))
        self.cell = nn.Linear(d_model, cells)

    def forward(self, pooled: Tensor, padded: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, slots, d) -> two (batch, slots, slots + 1) and one (batch, slots, cells)."""
        found = []
        for linear, none in zip((self.right, self.below), self.none, strict=True):
            query, key = _in_dtype(linear, pooled).chunk(2, -1)
            answers = key.shape[1] + 1
            # Empty keys up to a multiple of 8: shorter rows keep the matrix units out.
            none = none.to(key).expand(len(key), 1, -1)
            key = F.pad(torch.cat([key, none], 1), (0, 0, 0, -answers % 8))
            scores = query @ key.transpose(1, 2) / key.shape[-1] ** 0.5
            found.append(scores[..., :answers])
        return found[0], found[1], _in_dtype(self.cell, pooled, padded)


def _in_dtype(linear: nn.Linear, x: Tensor, padded: bool = False) -> Tensor:
    """Apply a layer in the dtype of x, its weights staying in float32.

    Padded: with empty rows up to a multiple of 8, whose answers are cut off again.
    """
    weight, bias = linear.weight.to(x.dtype), linear.bias.to(x.dtype)
    if not padded:
        return F.linear(x, weight, bias)
    more = -len(bias) % 8
    return F.linear(x, F.pad(weight, (0, 0, 0, more)), F.pad(bias, (0, more)))[..., : len(bias)]


class Objective(nn.Module):
    """Cross-entropy on the cells, plus the heads when their weight is above 0."""

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: PieceTokenizer,
        cells: int,
        heads: float,
        fast: torch.dtype | None = None,
        tricks: Tricks = PLAIN,
    ) -> None:
        super().__init__()
        self.model, self.weight, self.fast, self.tricks = model, heads, fast, tricks
        self.heads = Heads(model.settings.d_model, cells) if heads > 0 else None
        self.first_cell, self.cells = tokenizer.cell_token_id(0), cells
        self.b = tokenizer.settings.border_length
        self.separator = tokenizer.settings.separator

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss, and (cross-entropy, teacher-forced accuracy, head loss) for the log."""
        labels = batch["order"] + self.first_cell
        given = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
        if self.fast is not None:
            logits, states = bart(self.model.net, batch["ids"], given, self.fast, self.tricks)
        else:
            states = self.model.encode(batch["ids"])
            logits = self.model(batch["ids"], given, states=states)
        judge = compiled(Objective.judge) if self.tricks.blocks else Objective.judge
        return judge(self, logits, states, batch)

    def judge(self, logits: Tensor, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same from what the model said, and from its encoder states."""
        labels, here = batch["order"] + self.first_cell, batch["present"]
        plain = _mean(logits, labels, here, batch["count"])
        right = ((logits.argmax(-1) == labels) & here).sum() / batch["count"]
        if self.heads is None:
            return plain, torch.stack([plain.detach(), right, plain.detach() * 0])
        pooled = self.pool(states)
        pooled = pooled if self.tricks.heads16 else pooled.float()
        found = self.heads(pooled, self.tricks.padded)
        answers = (batch["right"], batch["below"], batch["order"])
        share = (0.5, 0.5, 1.0)
        losses = [
            k * _mean(x, y, here, batch["count"])
            for k, x, y in zip(share, found, answers, strict=True)
        ]
        extra = torch.stack(losses).sum()
        return plain + self.weight * extra, torch.stack([plain.detach(), right, extra.detach()])

    def pool(self, states: Tensor) -> Tensor:
        """Mean of each piece's states, (batch, slots, d)."""
        if self.separator:
            states = F.pad(states, (0, 0, 0, 1))
        words = states.view(len(states), self.cells, -1, states.shape[-1])
        return words[:, :, : self.b].mean(2)


def _mean(logits: Tensor, answers: Tensor, here: Tensor, count: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, 1).float(), answers.flatten(), reduction="none")
    return (losses * here.flatten()).sum() / count


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

    tokenizer = None
    if recipe.tokenizer_path or (folder / "tokenizer.json").exists():
        given = checkpoints.find(recipe.tokenizer_path) if recipe.tokenizer_path else folder
        tokenizer = PieceTokenizer.from_pretrained(given)
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
    if rank == 0:
        tokenizer.save_pretrained(folder)
        write_bytes(folder / "settings.json", json.dumps(recipe.as_dict(), indent=1).encode())
    fast = t.fast and device.startswith("cuda") and recipe.model.backbone == "bart"
    tricks = tricks_for(device, album) if fast else PLAIN
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
        began=began,
        stop_after=stop_after,
        exam=(lambda: exams.take(model)) if exams else None,
        save_model=lambda: model.save_pretrained(folder),
        report=report,
    )


def tricks_for(device: str, album: Album | None) -> Tricks:
    """What the fast loop can do on a GPU: without the kernels everything the plain way."""
    if not kernels.there(device):
        return PLAIN
    if album is None:  # puzzles that were cut and tokenised before
        return replace(PROVEN, cut=False)
    # The kernel reads pixels of four bytes, beside those of three; half is left to the step.
    words, free = 4 * album.pixels.numel() // 3, torch.cuda.mem_get_info(device)[0]
    return replace(PROVEN, cut=2 * words <= free)


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


__all__ = ["CutSettings", "Objective", "Pages", "TrainingError", "train"]
