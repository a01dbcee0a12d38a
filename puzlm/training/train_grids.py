"""Train the reader of models/reader.py: every grid in one model, one grid a step.

recipe -> album on the device -> every step: draw, cut, damage, tokenise, sort -> reader
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from puzlm.devices import pick_device
from puzlm.errors import SettingsError, nearest
from puzlm.files import write_bytes
from puzlm.images import cores, iter_images
from puzlm.metrics import absolute, perfect
from puzlm.models import pretrained as checkpoints
from puzlm.models.decoding import assigned
from puzlm.models.reader import Layer, Reader, grown, settings_for
from puzlm.models.shapes import TURNS, ReaderSettings
from puzlm.puzzle import Grid, Puzzle, parse_grid
from puzlm.sections import section
from puzlm.tokenizer.piece_tokenizer import PAD, SEP, PieceTokenizer, read_safetensors
from puzlm.training.corpus import TOO_FAR, Album, CutSettings, cut_batch, draw_batch
from puzlm.training.damage import damaged
from puzlm.training.fast import kernels, kernels_cut
from puzlm.training.fast.fast_words import Columns, summed
from puzlm.training.fast.split_book import matrix_books
from puzlm.training.loop import Batch, loop
from puzlm.training.recipes import DataSettings, TrainSettings, overridden, read_toml
from puzlm.training.run_files import check_settings

FINE = 40  # pixels a piece: half of the large grids are cut from images that have as many


@dataclass(frozen=True)
class ReaderRecipe:
    """All settings of one run."""

    data: DataSettings = field(default_factory=DataSettings)
    cut: CutSettings = field(default_factory=CutSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    grids: tuple[str, ...] = ("3x3",)
    """Grids of the steps, drawn at random; 't3x3' has pieces whose turns are not known."""
    exams: tuple[str, ...] = ("3x3",)
    """Grids of the validation puzzles."""
    tokens: int = 163_840
    """Border positions a step: small puzzles are many, large ones few."""
    tokenizer: str = "puzlm"
    """A fitted tokenizer: its folder, or the name of a model in the box."""
    light: float = 0.0
    """Shares of puzzles whose pieces differ in light, are noisy, or were compressed."""
    noise: float = 0.0
    codec: float = 0.0
    reader: dict[str, int] = field(default_factory=dict)
    """Shape of the reader, as in ReaderSettings."""

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] | None = None) -> ReaderRecipe:
        """Read a TOML recipe that has a section [reader]."""
        record = overridden(read_toml(path), overrides or [])
        kinds: dict[str, Any] = {"data": DataSettings, "cut": CutSettings, "train": TrainSettings}
        parts: dict[str, Any] = {}
        for name, value in record.items():
            if name not in cls.__dataclass_fields__:
                known = list(cls.__dataclass_fields__)
                raise SettingsError(f"{path}: unknown key '{name}'; {nearest(name, known)}")
            if name in kinds:
                value = section(kinds[name], value, f"{path}: [{name}]")
            parts[name] = tuple(value) if isinstance(value, list) else value
        recipe = cls(**parts)
        for grid in recipe.grids + recipe.exams:
            parse_grid(grid.removeprefix("t"))
        return recipe

    def as_dict(self) -> dict[str, Any]:
        """Everything, resolved, for the file beside the results."""
        return asdict(self)


class Pages:
    """Batches of sentences with their answers, drawn by step."""

    def __init__(self, recipe: ReaderRecipe, tokenizer: PieceTokenizer, device: str) -> None:
        self.recipe, self.device = recipe, device
        self.tokenizer = tokenizer.on(device)
        self.by_kernel = kernels.there(device)
        if self.by_kernel:
            whole = len(tokenizer.settings.whole)
            books = self.tokenizer.codebooks_
            self.tokenizer.codebooks_ = [*matrix_books(books[:whole], "half"), *books[whole:]]

    def show(self, album: Album) -> None:
        """Cut puzzles from these images from now on."""
        sizes = album.sizes.cpu().numpy()
        self.shown = (album.with_words() if self.by_kernel else album), sizes

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Sentences (n, words, positions, F) of one step and all that is to be said of them."""
        r, seed = self.recipe, (self.recipe.train.seed, step)
        rng = np.random.default_rng((*seed, 5))
        name = r.grids[rng.integers(len(r.grids))]
        turned, grid = name.startswith("t"), parse_grid(name.removeprefix("t"))
        cells, ways = math.prod(grid), TURNS if turned else 1
        n = max(
            1, r.tokens // world // (cells * ways * (self.tokenizer.settings.border_length + 1))
        )
        most = max(1, cells // 3)
        missing = r.cut.missing_share if cells > 2 else 0.0
        size = "{}x{}".format(*grid)
        cut = replace(r.cut, grid=size, missing_share=missing, max_missing=most)
        album, sizes = self.shown
        known = self._fit_for(sizes, grid, rng.random() < 0.5)
        draw = draw_batch(sizes[known], n, cut, (*seed, rank))
        draw = replace(draw, image=known[draw.image])
        parts = [self._there(a) for a in vars(draw).values()]
        finer = 2 if min(grid) == 1 else 1  # a strip's pieces are as high as the picture
        pieces, present = self._cut(album, parts[:5], finer), parts[5]
        pieces = damaged(pieces, cells, (r.light, r.noise, r.codec))
        if turned:
            pieces = torch.stack([pieces.rot90(k, (1, 2)) for k in range(TURNS)], 1).flatten(0, 1)
        symbols = self.tokenizer.encode_canonical(pieces)
        symbols = symbols.view(n, cells, ways, *symbols.shape[1:])
        return {**self.sentences(symbols, present, grid), "grid": torch.empty(grid)}

    def _fit_for(self, sizes: NDArray[np.int64], grid: Grid, fine: bool) -> NDArray[np.int64]:
        """Numbers of the images that puzzles of a grid are cut from.

        Pieces much larger than the tokenizer's would have to be shrunk too far by the cut.
        """
        short = sizes.min(1)
        most = TOO_FAR * self.tokenizer.settings.side * min(grid)
        some = short <= max(most, 1.2 * short.min())
        if fine and max(grid) >= 6:
            clear = some & (sizes >= FINE * np.array(grid)).all(1)
            some = clear if clear.any() else some
        return np.flatnonzero(some)

    def _there(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if "cuda" in self.device:
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def _cut(self, a: Album, parts: list[Tensor], finer: int) -> Tensor:
        """Canonical pieces (n * cells, side, side, 3), cut `finer` times as large and shrunk."""
        side = self.tokenizer.settings.side * finer
        image, piece, corner, flip, tint = parts
        if not self.by_kernel:
            made = cut_batch(a, image, piece, corner, flip, tint, side=side).flatten(0, 1)
            return _shrunk(made, finer)
        # Every piece as a puzzle of its own: the kernel is then the same for all grids.
        cells = corner.shape[1]
        image, piece, flip, tint = (
            x.repeat_interleave(cells, 0) for x in (image, piece, flip, tint)
        )
        corner = corner.flatten(0, 1)[:, None]
        places = a.words, a.offsets, a.sizes
        made = kernels_cut.cut(*places, image, piece, corner, flip, tint, side, 0)
        return _shrunk(made.view(-1, side, side, 4)[..., :3], finer)

    def sentences(self, symbols: Tensor, present: Tensor, grid: Grid) -> Batch:
        """Sort and join: symbols (n, cells, ways, b, F); words of one piece lie together.

        Words of a piece are sorted, too: a sentence does not know how its pieces lay.
        """
        ids, order, turn = self.tokenizer.turned_sentence(symbols, present)
        right, below = neighbours(order, turn, present, grid)
        return {
            "ids": ids,
            "order": order,
            "turn": turn,
            "present": present.gather(1, order),
            "right": right,
            "below": below,
        }


def _shrunk(pieces: Tensor, times: int) -> Tensor:
    """Mean of every square of so many pixels: (n, side, side, 3) -> a smaller side."""
    if times == 1:
        return pieces
    n, side = len(pieces), pieces.shape[1] // times
    return pieces.float().reshape(n, side, times, side, times, 3).mean((2, 4))


def neighbours(order: Tensor, turn: Tensor, present: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Word (n, words) that lies right of, and below, each word; the number of words for none.

    A piece turned by a quarter has its neighbours in the picture that is turned as a whole.
    """
    n, cells, ways = turn.shape
    there = order.device
    slot = torch.empty_like(order).scatter_(
        1, order, torch.arange(cells, device=there).expand(n, -1)
    )
    slot = torch.where(present, slot, cells)
    row, column = order // grid[1], order % grid[1]
    around = []  # slots right of, below, left of and above each slot, (n, cells), or `cells`
    for down, across in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        r, c = row + down, column + across
        inside = (r >= 0) & (r < grid[0]) & (c >= 0) & (c < grid[1])
        cell = torch.where(inside, r * grid[1] + c, 0)
        around.append(torch.where(inside, slot.gather(1, cell), cells))
    # Word of each slot that lies with a certain turn.
    word = torch.empty_like(turn).scatter_(
        2, turn, torch.arange(ways, device=there).expand_as(turn)
    )
    word = F.pad(word, (0, 0, 0, 1))
    found = []
    for first in (0, 1):
        # In a picture turned counter-clockwise, what was below lies right, what was left below.
        other = torch.stack([around[(first + k) % 4] for k in range(ways)], 2).gather(2, turn)
        same = word[torch.arange(n, device=there)[:, None, None], other, turn]
        found.append(torch.where(other < cells, other * ways + same, cells * ways).flatten(1))
    return found[0], found[1]


class Reading(nn.Module):
    """Cross-entropy on what is written, and on all that is said of words before."""

    def __init__(
        self, model: Reader, tokenizer: PieceTokenizer, recipe: ReaderRecipe, dtype: Any
    ) -> None:
        super().__init__()
        self.model, self.dtype, self.tokens = model, dtype, recipe.tokens
        self.columns, self.weight = Columns.of(tokenizer), recipe.train.heads

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss, and (cross-entropy of the cells written, their accuracy, loss of the heads)."""
        ids, order, turn, here = batch["ids"], batch["order"], batch["turn"], batch["present"]
        (n, words), ways = ids.shape[:2], turn.shape[2]
        grid: Any = tuple(batch["grid"].shape)
        table = self.model.symbols
        x = summed(table, ids.flatten(1, 2), self.columns, self.dtype).view(*ids.shape[:3], -1)
        given = order[:, :-1]
        wrong = torch.rand(given.shape, device=given.device) < 0.1
        given = torch.where(wrong, torch.randint_like(given, order.shape[1]), given)
        slots = self._slots(n, words // ways, ids.device).repeat_interleave(ways, 1)
        weights = {k: p.to(self.dtype) for k, p in self.model.named_parameters()}
        inputs = x, grid, slots, given, ways > 1, self.tokens
        placed, right, below, upright, written, turns = functional_call(self.model, weights, inputs)
        every = here.repeat_interleave(ways, 1)
        straight = turn == 0
        first = straight.int().argmax(2)
        label = order.repeat_interleave(ways, 1)
        plain = _mean(written, order, here)
        heads = _mean(placed, label, every & straight.flatten(1))
        heads = heads + 0.5 * (
            _mean(right, batch["right"], every) + _mean(below, batch["below"], every)
        )
        if ways > 1:
            heads = heads + _mean(upright.view(n, -1, ways), first, here)
            plain = plain + _mean(turns, first, here)
        good = ((written.argmax(-1) == order) & here).sum() / here.sum()
        facts = torch.stack([plain.detach(), good, heads.detach()])
        return plain + self.weight * heads, facts

    def _slots(self, n: int, cells: int, device: Any) -> Tensor:
        """Places in the sentence (n, cells): the first ones, or any, so that all of them learn."""
        most = self.model.settings.slots
        first = torch.arange(cells, device=device).expand(n, -1)
        some = torch.rand(n, most, device=device).argsort(1)[:, :cells].sort(1).values
        return torch.where(torch.rand(n, 1, device=device) < 0.5, first, some)


def _mean(logits: Tensor, answers: Tensor, here: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, -2).float(), answers.flatten(), reduction="none")
    return (losses * here.flatten()).sum() / here.sum().clamp_min(1)


def started(tokenizer: PieceTokenizer, folder: Path, shape: dict[str, int]) -> Reader:
    """A reader that begins with what an encoder-decoder for one grid knows.

    Its table of positions is a place in the super-token plus a slot of the sentence.
    """
    arrays = read_safetensors(folder / "model.safetensors")
    model = Reader(settings_for(tokenizer, **shape))
    s = model.settings
    with torch.no_grad():
        table = torch.as_tensor(arrays["model.shared.weight"]).float()
        model.symbols.copy_(table[: s.vocabulary])
        place = torch.as_tensor(arrays["model.encoder.embed_positions.weight"]).float()[2:]
        place = place[: len(place) // s.positions * s.positions].view(-1, s.positions, s.d_model)
        slot = place.mean(1)
        model.slot.copy_(slot.mean(0) + torch.randn_like(model.slot) * slot.std(0))
        model.slot[: len(slot)] = slot
        model.offset.copy_(place.mean(0) - slot.mean(0))
        ends = "model.encoder.layernorm_embedding."
        names = {"begin": ends}
        for number, layer in enumerate([*model.words, *model.sides]):
            base = f"model.encoder.layers.{number}."
            for kind in ("weight", "bias"):
                parts = [arrays[f"{base}self_attn.{x}_proj.{kind}"] for x in "qkv"]
                getattr(layer.qkv, kind).copy_(
                    torch.cat([torch.as_tensor(x).float() for x in parts])
                )
            names_of = {
                "out": "self_attn.out_proj.",
                "up": "fc1.",
                "down": "fc2.",
                "first": "self_attn_layer_norm.",
                "last": "final_layer_norm.",
            }
            for own, theirs in names_of.items():
                _copy(getattr(layer, own), arrays, base + theirs)
        _copy(model.begin, arrays, names["begin"])
    return model


def _copy(module: Any, arrays: dict[str, Any], name: str) -> None:
    for kind in ("weight", "bias"):
        getattr(module, kind).copy_(torch.as_tensor(arrays[name + kind]).float())


def train(
    recipe: ReaderRecipe,
    folder: str | Path,
    *,
    stop_after: float = math.inf,
    album: Album | None = None,
    pages: Pages | None = None,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a recipe; model, tokenizer, settings and metrics.jsonl end up in `folder`. Resumes."""
    began, folder, t = time.monotonic(), Path(folder), recipe.train
    check_settings(folder, recipe.as_dict())
    device = pick_device(t.device)
    torch.manual_seed(t.seed)
    tokenizer = PieceTokenizer.from_pretrained(checkpoints.find(recipe.tokenizer))
    tokenizer = tokenizer.with_cells(recipe.reader.get("slots", ReaderSettings.slots))
    if pages is None:
        pages = Pages(recipe, tokenizer, device)
        if album is None:
            recipe.data.check("train", "val")
            album = Album.read(recipe.data.train, device, recipe.data.limit or None, cores())
        pages.show(album)
    start = checkpoints.find(t.start) if t.start else None
    if start is not None and (start / "reader.json").exists():
        model = Reader.from_pretrained(start).train()
    elif start is not None:
        model = started(tokenizer, start, recipe.reader)
    else:
        model = Reader(settings_for(tokenizer, **recipe.reader))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    write_bytes(folder / "settings.json", json.dumps(recipe.as_dict(), indent=1).encode())
    quick = t.fast and device.startswith("cuda")
    if quick and Layer.quick is None:
        Layer.quick = staticmethod(torch.compile(grown, dynamic=False))
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    objective = Reading(model.to(device), tokenizer, recipe, dtype)
    exams = exams_of(recipe, tokenizer)
    return loop(
        t,
        folder,
        objective,
        pages.batch,
        device=device,
        half=False,
        began=began,
        stop_after=stop_after,
        report=report,
        save_model=lambda: model.save_pretrained(folder),
        exam=(lambda: take(model, exams)) if exams else None,
    )


Exam = tuple[str, Grid, Tensor, list[NDArray[np.int64]]]
"""A name, the grid, words (n, words, positions, F) and the cells of their pieces."""


def exams_of(recipe: ReaderRecipe, tokenizer: PieceTokenizer) -> list[Exam]:
    """Validation puzzles, read once: one set for each grid and gap."""
    if not recipe.data.val:
        return []
    images = list(iter_images(recipe.data.val, recipe.train.eval_puzzles))
    found = []
    for grid in recipe.exams:
        for gap in recipe.train.eval_gaps:
            cuts = [Puzzle.from_image(x, grid, gap=gap, seed=k) for k, x in enumerate(images)]
            text = tokenizer(cuts)
            truth = [
                p.truth[o] for p, o in zip(cuts, text["order"], strict=True) if p.truth is not None
            ]
            ids = words_of(torch.from_numpy(text["input_ids"]), tokenizer)
            found.append((f"{grid}_gap_{gap:g}", cuts[0].grid, ids, truth))
    return found


@torch.no_grad()
def take(model: Reader, exams: list[Exam]) -> dict[str, float]:
    """Absolute and perfect accuracy in percent of one assignment by the scores of cells."""
    scores: dict[str, float] = {}
    there = next(model.parameters()).device
    for name, grid, ids, truths in exams:
        marks = []
        for first in range(0, len(ids), 16):
            part, truth = ids[first : first + 16], truths[first : first + 16]
            slots = torch.arange(part.shape[1], device=there).expand(len(part), -1)
            states, _ = model.encode(model.embed(part.to(there)), grid, slots, False)
            shares = model.placed(states, model.cells(grid)).double().softmax(-1).cpu().numpy()
            chosen = [assigned(share) for share in shares]
            marks += [
                (absolute(c, t), float(perfect(c, t))) for c, t in zip(chosen, truth, strict=True)
            ]
        for kind, value in zip(("absolute", "perfect"), np.mean(marks, 0), strict=True):
            scores[f"{name}_{kind}"] = 100 * float(value)
    return scores


def words_of(ids: Tensor, tokenizer: PieceTokenizer) -> Tensor:
    """Sentences (n, T, F) as words (n, words, positions, F), the last with a separator, too."""
    end = torch.full_like(ids[:, :1], PAD)
    end[..., 0] = SEP
    b = tokenizer.settings.border_length
    return torch.cat([ids, end], 1).view(len(ids), -1, b + 1, ids.shape[-1])
