"""Train the models of vision.py with the loop, the album and the cuts of the language model."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from puzlm.devices import pick_device
from puzlm.errors import SettingsError, nearest
from puzlm.files import write_bytes
from puzlm.images import cores, iter_images
from puzlm.metrics import absolute, perfect
from puzlm.models import pretrained as checkpoints
from puzlm.models.frame import FrameSettings
from puzlm.models.vision import Block, Edges, EdgeSettings, Vision, VisionSettings
from puzlm.puzzle import Puzzle, parse_grid
from puzlm.sections import section
from puzlm.training.corpus import Album, Bounds, CutSettings, cut_batch, draw_batch
from puzlm.training.fast import bart as fast
from puzlm.training.fast import kernels, kernels_cut
from puzlm.training.loop import Batch, loop
from puzlm.training.recipes import DataSettings, TrainSettings, overridden, read_toml
from puzlm.training.run_files import check_settings
from puzlm.training.train_frame import FrameNet, rolled
from puzlm.training.train_frame import take as take_frames

KINDS = {"vision": VisionSettings, "edges": EdgeSettings, "frame": FrameSettings}
MODELS = {VisionSettings: Vision, EdgeSettings: Edges, FrameSettings: FrameNet}
Net = Vision | Edges | FrameNet


@dataclass(frozen=True)
class VisionRecipe:
    """All settings of one run: the model is `vision`, `edges` or `frame`."""

    model: VisionSettings | EdgeSettings | FrameSettings
    data: DataSettings = field(default_factory=DataSettings)
    cut: CutSettings = field(default_factory=CutSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    grids: tuple[str, ...] = ("3x3",)
    """Grids of the steps, in turn. train.batch counts 3x3 puzzles; larger ones are fewer."""

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] | None = None) -> VisionRecipe:
        """Read a TOML recipe that has a section [vision], [edges] or [frame]."""
        record = overridden(read_toml(path), overrides or [])
        grids = record.pop("grids", ["3x3"])
        if not isinstance(grids, list) or not grids:
            raise SettingsError(f'{path}: grids = {grids!r}: write a list, say ["3x3"]')
        kinds: dict[str, Any] = {"data": DataSettings, "cut": CutSettings, "train": TrainSettings}
        parts: dict[str, Any] = {}
        for name, value in record.items():
            if name not in {**kinds, **KINDS}:
                known = [*kinds, *KINDS, "grids"]
                raise SettingsError(f"{path}: unknown key '{name}'; {nearest(name, known)}")
            if not isinstance(value, dict):
                raise SettingsError(f"{path}: '{name}' is a section: write [{name}]")
            if name in KINDS and "model" in parts:
                raise SettingsError(f"{path}: two models; one of [vision], [edges], [frame]")
            part = section({**kinds, **KINDS}[name], value, f"{path}: [{name}]")
            parts["model" if name in KINDS else name] = part
        if "model" not in parts:
            raise SettingsError(f"{path}: no section [vision], [edges] or [frame]")
        recipe = cls(grids=tuple(str(g) for g in grids), **parts)
        for grid in recipe.grids:
            name = "{}x{}".format(*parse_grid(grid))
            replace(recipe.cut, grid=name)  # says what does not go together
            if isinstance(recipe.model, FrameSettings) and min(parse_grid(grid)) < 2:
                raise SettingsError(f"{path}: {name}: a frame needs two rows and two columns")
        if isinstance(recipe.model, VisionSettings) and not recipe.placed:
            raise SettingsError(f"{path}: vision.grids has no output for {', '.join(recipe.grids)}")
        return recipe

    @property
    def placed(self) -> list[str]:
        """The grids whose cells the ViT knows; of others it learns neighbours alone."""
        grids = dict.fromkeys(parse_grid(grid) for grid in self.grids)
        kept = [
            g for g in grids if not isinstance(self.model, VisionSettings) or self.model.places(g)
        ]
        return ["{}x{}".format(*grid) for grid in kept]

    def as_dict(self) -> dict[str, Any]:
        """Everything, resolved, for the file beside the results."""
        return asdict(self)


def train(
    recipe: VisionRecipe,
    folder: str | Path,
    *,
    stop_after: float = math.inf,
    album: Album | None = None,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a recipe; model, settings and metrics.jsonl end up in `folder`. Resumes."""
    began, folder, t = time.monotonic(), Path(folder), recipe.train
    check_settings(folder, recipe.as_dict())
    device = pick_device(t.device)
    compiled = t.fast and device.startswith("cuda")
    bounds = Bounds.of(recipe.grids, recipe.model.side)
    if album is None:
        limit, threads = recipe.data.limit or None, cores()
        recipe.data.check("train", "val")
        album = Album.read(recipe.data.train, device, limit, threads, bounds)
    album = album.within(bounds)
    model = build(recipe)
    if isinstance(model, Vision) and compiled and kernels.there(device):
        quicken(model)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "settings.json", json.dumps(recipe.as_dict(), indent=1).encode())
    pages = Crops(recipe, album, device, compiled)
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    kinds: dict[Any, Any] = {Vision: Placing, Edges: Matching, FrameNet: Framing}
    objective = kinds[type(model)](model.to(device), t.heads, dtype)
    exams = list(exam_puzzles(recipe))
    return loop(
        t,
        folder,
        objective,
        pages.batch,
        device=device,
        compiled=compiled,
        half=not compiled,
        began=began,
        stop_after=stop_after,
        report=report,
        save_model=lambda: model.save_pretrained(folder),
        exam=(lambda: take(model, exams)) if exams else None,
    )


def build(recipe: VisionRecipe) -> Net:
    """A fresh model, or the one of train.start, which must have the recipe's shape.

    A ViT may have outputs that the one it starts from has not.
    """
    torch.manual_seed(recipe.train.seed)
    shape, start = recipe.model, recipe.train.start
    kind: Any = MODELS[type(shape)]
    model: Net = kind(shape)
    if start:
        old: Net = kind.from_pretrained(checkpoints.find(start))
        same = vars(old.settings).keys() - {"grids", "waves"}
        shapes = {name: weight.shape for name, weight in model.named_parameters()}
        kept = all(shapes.get(name) == weight.shape for name, weight in old.named_parameters())
        if not kept or any(getattr(old.settings, k) != getattr(shape, k) for k in same):
            raise SettingsError(f"train.start {start}: a model of another shape than the recipe's")
        model.load_state_dict(old.state_dict(), strict=False)
    return model.train()


def quicken(model: nn.Module) -> None:
    """Let a model learn with the kernels' attention, wherever that suits."""
    for part in model.modules():
        if isinstance(part, Block):
            part.attention = fast.attended


class Crops:
    """Batches of pieces in raster order: ViT and sides cannot tell, so nothing is shuffled."""

    def __init__(self, recipe: VisionRecipe, album: Album, device: str, compiled: bool) -> None:
        self.recipe, self.device = recipe, device
        self.sizes = album.sizes.cpu().numpy()
        self.by_kernel = compiled and kernels.there(device) and kernels_cut.room(album, device)
        self.album = album.with_words() if self.by_kernel else album
        self._plain: Any = torch.compile(cut_batch, dynamic=False) if compiled else cut_batch

    def batch(self, step: int, rank: int, world: int) -> Batch:
        """Pieces (n, cells, side, side, 3), which are there, and the grid of one step."""
        r = self.recipe
        grid = parse_grid(r.grids[step % len(r.grids)])
        n = max(1, r.train.batch * 9 // math.prod(grid) // (8 * world)) * 8 * world
        mine = slice(rank * n // world, (rank + 1) * n // world)
        cut = replace(r.cut, grid="{}x{}".format(*grid))
        draw = draw_batch(self.sizes, n, cut, (r.train.seed, step))
        *parts, present = (
            torch.from_numpy(np.ascontiguousarray(a[mine])).to(self.device, non_blocking=True)
            for a in vars(draw).values()
        )
        pieces = self._cut(parts, r.model.side)
        # The grid travels as a shape: a compiled step must know it without asking the device.
        made = {"pieces": pieces, "present": present, "grid": torch.empty(grid)}
        if isinstance(r.model, FrameSettings):
            boards = rolled(n, grid, np.random.default_rng((r.train.seed, step, 1)))
            for name, array in zip(("layout", "frame"), boards, strict=True):
                made[name] = torch.from_numpy(array[mine]).to(self.device, non_blocking=True)
        return made

    def _cut(self, parts: list[Tensor], side: int) -> Tensor:
        a = self.album
        made: Tensor
        if not self.by_kernel:
            made = self._plain(a, *parts, side=side)
            return made
        made = kernels_cut.cut(a.words, a.offsets, a.sizes, *parts, side, 0)
        return made.view(*parts[2].shape[:2], side, side, 4)[..., :3].contiguous()


class _Objective(nn.Module):
    """A model, asked in another precision than its weights are kept in."""

    model: Any

    def __init__(self, model: Net, heads: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.weight, self.dtype = model, heads, dtype

    def ask(self, *inputs: Any) -> Any:
        weights = {k: p.to(self.dtype) for k, p in self.model.named_parameters()}
        return functional_call(self.model, weights, inputs)


class Placing(_Objective):
    """Cross-entropy on the cell of every piece, plus those on its neighbours.

    On a grid without an output neighbours are all there is to learn: their loss stands for that of
    the cells, and what is right of a piece for its cell.
    """

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss, and (cross-entropy, accuracy, loss of the heads)."""
        pieces, here = batch["pieces"], batch["present"]
        rows, columns = batch["grid"].shape
        cells, right, below = self.ask(pieces, here, f"{rows}x{columns}")
        own = torch.arange(rows * columns, device=here.device)
        absent = torch.full_like(own, len(own))
        lies_right = torch.where(own % columns < columns - 1, own + 1, absent)
        lies_below = torch.where(own < len(own) - columns, own + columns, absent)
        near = [_where_there(lies, here) for lies in (lies_right, lies_below)]
        extra = 0.5 * (_mean(right, near[0], here) + _mean(below, near[1], here))
        if cells is None:
            plain, first, answers = extra, right, near[0]
        else:
            first, answers = cells, own.expand_as(here)
            plain = _mean(cells, answers, here)
        good = ((first.argmax(-1) == answers) & here).sum() / here.sum()
        return plain + self.weight * extra, torch.stack([plain.detach(), good, extra.detach()])


def _where_there(cell: Tensor, here: Tensor) -> Tensor:
    """The neighbour's number, or 'none' where it is missing or outside."""
    there = F.pad(here, (0, 1))[:, cell]
    return torch.where(there, cell, here.shape[1])


def _mean(logits: Tensor, answers: Tensor, here: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, 1).float(), answers.flatten(), reduction="none")
    return (losses * here.flatten()).sum() / here.sum()


class Matching(_Objective):
    """Tell the true neighbour of a side from all others of its puzzle, and of the batch.

    The puzzle's own sides are what it will have to choose from; the batch's are more of them.
    """

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss, and (cross-entropy in the puzzle, first rank there, cross-entropy in the batch)."""
        pieces = batch["pieces"]
        rows, columns = batch["grid"].shape
        vectors = self.ask(pieces.flatten(0, 1))
        vectors = vectors.view(len(pieces), rows, columns, 4, -1)
        scale = self.model.sharpness.exp()
        inner = outer = good = torch.zeros((), device=pieces.device)
        number = torch.arange(rows * columns, device=pieces.device).view(rows, columns)
        for a, b, i, j in (
            (vectors[..., 1, :], vectors[..., 3, :], number[:, :-1], number[:, 1:]),
            (vectors[..., 2, :], vectors[..., 0, :], number[:-1], number[1:]),
        ):
            a, b, i, j = a.flatten(1, 2), b.flatten(1, 2), i.flatten(), j.flatten()
            logits = a @ b.transpose(1, 2) * scale
            logits = logits - 1e4 * torch.eye(rows * columns, device=pieces.device)
            down, up = logits[:, i], logits.transpose(1, 2)[:, j]
            inner = inner + 0.25 * (_choose(down, j) + _choose(up, i))
            good = good + 0.5 * (down.argmax(-1) == j).float().mean()
            flat = a[:, i].flatten(0, 1) @ b[:, j].flatten(0, 1).T * scale
            answer = torch.arange(len(flat), device=pieces.device)
            outer = outer + 0.25 * (F.cross_entropy(flat, answer) + F.cross_entropy(flat.T, answer))
        return inner + self.weight * outer, torch.stack([inner.detach(), good, outer.detach()])


class Framing(_Objective):
    """Cross-entropy on the row and the column of the frame."""

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss, and (cross-entropy, share of frames found, nothing)."""
        pieces, layout, frame = batch["pieces"], batch["layout"], batch["frame"]
        board = pieces[torch.arange(len(pieces), device=pieces.device)[:, None], layout]
        found = self.ask(board.view(len(pieces), *batch["grid"].shape, *pieces.shape[2:]))
        loss = sum(F.cross_entropy(x.float(), frame[:, k]) for k, x in enumerate(found))
        loss = torch.as_tensor(loss)
        right = torch.stack([x.argmax(-1) == frame[:, k] for k, x in enumerate(found)])
        share = right.all(0).float().mean()
        return loss, torch.stack([loss.detach(), share, torch.zeros_like(share)])


def _choose(logits: Tensor, answers: Tensor) -> Tensor:
    n = len(logits)
    return F.cross_entropy(logits.flatten(0, 1), answers.repeat(n))


def exam_puzzles(recipe: VisionRecipe) -> Iterator[tuple[str, list[Puzzle]]]:
    """Validation puzzles: one set for each grid and gap."""
    if not recipe.data.val:
        return
    images = list(iter_images(recipe.data.val, recipe.train.eval_puzzles))
    for grid in recipe.placed:
        for gap in recipe.train.eval_gaps:
            cuts = [Puzzle.from_image(im, grid, gap=gap, seed=n) for n, im in enumerate(images)]
            yield f"{grid}_gap_{gap:g}", cuts


@torch.no_grad()
def take(model: Any, exams: list[tuple[str, list[Puzzle]]]) -> dict[str, float]:
    """Absolute and perfect accuracy of one assignment; first rank of true neighbours for Edges."""
    from puzlm.models.decoding import assigned

    if isinstance(model, FrameNet):
        return take_frames(model, exams)
    scores: dict[str, float] = {}
    for name, puzzles in exams:
        found: list[tuple[float, ...]] = []
        for part in range(0, len(puzzles), 50):
            some = puzzles[part : part + 50]
            if isinstance(model, Edges):
                found += [_first_rank(model, p) for p in some]
                continue
            shares = np.exp(model.read([p.pieces for p in some], some[0].grid)[0])
            for puzzle, share in zip(some, shares, strict=True):
                assert puzzle.truth is not None
                chosen = assigned(share)
                found.append((absolute(chosen, puzzle.truth), float(perfect(chosen, puzzle.truth))))
        kinds = ("first_rank",) if isinstance(model, Edges) else ("absolute", "perfect")
        for kind, value in zip(kinds, np.atleast_2d(np.mean(found, 0)).ravel(), strict=True):
            scores[f"{name}_{kind}"] = 100 * float(value)
    return scores


def _first_rank(model: Edges, puzzle: Puzzle) -> tuple[float]:
    """Share of true neighbours that score best of all."""
    assert puzzle.truth is not None
    rows, columns = puzzle.grid
    board = np.argsort(puzzle.truth).reshape(rows, columns)  # piece in each cell
    right, below = model.scores(puzzle.pieces)
    hits = np.concatenate(
        [
            (right[board[:, :-1]].argmax(-1) == board[:, 1:]).ravel(),
            (below[board[:-1]].argmax(-1) == board[1:]).ravel(),
        ]
    )
    return (float(hits.mean()),)
