"""Training, read from top to bottom: settings, data, model, objective, loop.

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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.backbones import ModelSettings, Seq2Seq, TorchReader
from puzlm.corpus import Album, CutSettings, cut_batch, draw_batch, neighbour_slots
from puzlm.decoding import decode
from puzlm.errors import PuzlmError, SettingsError
from puzlm.images import iter_images, write_bytes
from puzlm.metrics import absolute, perfect
from puzlm.puzzle import Grid, Puzzle, parse_grid
from puzlm.settings import Recipe
from puzlm.tokenizer import BOS, PieceTokenizer, read_safetensors

Batch = dict[str, Tensor]


class TrainingError(PuzlmError):
    """Training cannot go on."""


# ---- data -----------------------------------------------------------------------------------


class Pages:
    """Batches of sentences with their answers, drawn by step."""

    def __init__(self, recipe: Recipe, tokenizer: PieceTokenizer, device: str,
                 album: Album | None = None, compiled: bool = False) -> None:  # fmt: skip
        self.recipe, self.device = recipe, device
        self.tokenizer = tokenizer.on(device)
        self.grid: Grid = parse_grid(recipe.cut.grid)
        self.album, self.tokens = album, None
        if recipe.data.tokens:
            self.tokens = np.load(recipe.data.tokens, mmap_mode="r")
        else:
            assert album is not None
            self.sizes = album.sizes.cpu().numpy()
        self._make: Callable[..., Batch] = torch.compile(self._read) if compiled else self._read

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The batch of one step; each of `world` processes gets its share of the same puzzles."""
        t, cut = self.recipe.train, self.recipe.cut
        mine = slice(rank * t.batch // world, (rank + 1) * t.batch // world)
        sizes = self.sizes if self.tokens is None else np.full((len(self.tokens), 2), 4096)
        draw = draw_batch(sizes, t.batch, cut, (t.seed, step))
        parts = [torch.from_numpy(np.ascontiguousarray(a[mine])).to(self.device, non_blocking=True)
                 for a in vars(draw).values()]  # fmt: skip
        if self.tokens is not None:
            rows = self.tokens[draw.image[mine]].astype(np.int64)
            batch = self._write(torch.from_numpy(rows).to(self.device), parts[-1])
        else:
            batch = self._make(*parts)
        # The same number on every process: the mean is over all pieces of the global batch.
        batch["count"] = torch.tensor(
            float(draw.present.sum()) / world, dtype=torch.float32, device=self.device
        )
        return batch

    def _read(self, image: Tensor, piece: Tensor, corner: Tensor, flip: Tensor, tint: Tensor,
              present: Tensor) -> Batch:  # fmt: skip
        """Cut and tokenise."""
        assert self.album is not None
        side = self.tokenizer.settings.side
        pieces = cut_batch(self.album, image, piece, corner, flip, tint, side=side)
        symbols = self.tokenizer.encode_canonical(pieces.view(-1, side, side, 3))
        return self._write(symbols.view(*present.shape, *symbols.shape[1:]), present)

    def _write(self, symbols: Tensor, present: Tensor) -> Batch:
        """Sort and join, with every answer a training puzzle has."""
        ids, order = self.tokenizer.sentences(symbols, present)
        right, below = neighbour_slots(order, present, self.grid)
        return {"ids": ids, "order": order, "present": present.gather(1, order), "right": right,
                "below": below}  # fmt: skip


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


# ---- model ----------------------------------------------------------------------------------


def build_model(recipe: Recipe, tokenizer: PieceTokenizer) -> Seq2Seq:
    """Build the recipe's backbone for a tokenizer's vocabulary, and start its embeddings."""
    named = ModelSettings.of_size(recipe.model.backbone, recipe.model.size, tokenizer)
    wanted = {k: v for k, v in vars(recipe.model).items() if v and k not in ("size", "backbone")}
    torch.manual_seed(recipe.train.seed)
    model = Seq2Seq(ModelSettings(**{**vars(named), **wanted}))
    if recipe.train.centroid_start:
        start_from_centroids(model, tokenizer, recipe.train.seed)
    if recipe.train.start:
        model.load(read_safetensors(Path(recipe.train.start) / "model.safetensors"))
    return model


@torch.no_grad()
def start_from_centroids(model: Seq2Seq, tokenizer: PieceTokenizer, seed: int) -> None:
    """Let similar symbols start with similar embeddings, and places in a piece with the same.

    The input stays symbols: only the start of training knows what they look like.
    """
    rng = np.random.default_rng(seed)
    scale = float(model.embedding.std())
    for number, book in enumerate(tokenizer.codebooks_):
        c = book.centroids - book.centroids.mean(0)
        c = c / np.sqrt(c.std(0) + 1e-6)  # half-whitened: brightness must not drown the rest
        turn = rng.standard_normal((c.shape[1], model.embedding.shape[1])) / math.sqrt(c.shape[1])
        start = c @ turn
        first = 4 + number * tokenizer.settings.vocab_size
        rows = torch.from_numpy(start / start.std() * scale).to(model.embedding)
        model.embedding[first : first + len(rows)] = rows
    if model.settings.backbone == "bart":
        table = model.net.model.encoder.embed_positions.weight
        b = tokenizer.settings.border_length + tokenizer.settings.separator
        place = torch.arange(len(table) - 2)
        slot = torch.randn(int(place.max()) // b + 1, table.shape[1]) * scale
        inside = torch.randn(b, table.shape[1]) * scale
        table[2:] = slot[place // b] + inside[place % b]


class Heads(nn.Module):
    """Training-only heads on the pooled encoder states: right of me, below me, my cell."""

    def __init__(self, d_model: int, cells: int) -> None:
        super().__init__()
        self.right = nn.Linear(d_model, 2 * d_model)
        self.below = nn.Linear(d_model, 2 * d_model)
        self.none = nn.Parameter(torch.zeros(2, d_model))
        self.cell = nn.Linear(d_model, cells)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, slots, d) -> two (batch, slots, slots + 1) and one (batch, slots, cells)."""
        found = []
        for linear, none in zip((self.right, self.below), self.none, strict=True):
            query, key = linear(pooled).chunk(2, -1)
            key = torch.cat([key, none.to(key).expand(len(key), 1, -1)], 1)
            found.append(query @ key.transpose(1, 2) / key.shape[-1] ** 0.5)
        return found[0], found[1], self.cell(pooled)


class Objective(nn.Module):
    """Cross-entropy on the cells, plus the heads when their weight is above 0."""

    def __init__(self, model: Seq2Seq, tokenizer: PieceTokenizer, cells: int, heads: float,
                 fast: torch.dtype | None = None) -> None:  # fmt: skip
        super().__init__()
        self.model, self.weight, self.fast = model, heads, fast
        self.heads = Heads(model.settings.d_model, cells) if heads > 0 else None
        self.first_cell, self.cells = tokenizer.cell_token_id(0), cells
        self.b = tokenizer.settings.border_length
        self.separator = tokenizer.settings.separator

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss, and (cross-entropy, teacher-forced accuracy, head loss) for the log."""
        labels = batch["order"] + self.first_cell
        given = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
        if self.fast is not None:
            from puzlm.fast import bart

            logits, states = bart(self.model.net, batch["ids"], given, self.fast)
        else:
            states = self.model.encode(batch["ids"])
            logits = self.model(batch["ids"], given, states=states)
        here = batch["present"]
        plain = _mean(logits, labels, here, batch["count"])
        right = ((logits.argmax(-1) == labels) & here).sum() / batch["count"]
        if self.heads is None:
            return plain, torch.stack([plain.detach(), right, plain.detach() * 0])
        found = self.heads(self._pool(states).float())
        answers = (batch["right"], batch["below"], batch["order"])
        share = (0.5, 0.5, 1.0)
        losses = [k * _mean(x, y, here, batch["count"])
                  for k, x, y in zip(share, found, answers, strict=True)]  # fmt: skip
        extra = torch.stack(losses).sum()
        return plain + self.weight * extra, torch.stack([plain.detach(), right, extra.detach()])

    def _pool(self, states: Tensor) -> Tensor:
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
    device = _device(t.device)
    if t.batch % world:
        raise SettingsError(f"train.batch {t.batch}: must divide by the {world} processes")
    if world > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if "cuda" in device else "gloo")

    if album is None and not (recipe.data.tokens and recipe.tokenizer_path):
        album = Album.read(
            recipe.data.train, device, recipe.data.limit or None, os.cpu_count() or 2
        )
    saved = folder / "tokenizer.json"
    if recipe.tokenizer_path or saved.exists():
        tokenizer = PieceTokenizer.from_pretrained(recipe.tokenizer_path or folder)
    else:
        assert album is not None
        tokenizer = fit_tokenizer(recipe, album, device)
    if rank == 0:
        tokenizer.save_pretrained(folder)
        write_bytes(folder / "settings.json", json.dumps(recipe.as_dict(), indent=1).encode())
    fast = t.fast and device.startswith("cuda") and recipe.model.backbone == "bart"
    pages = Pages(recipe, tokenizer, device, album, compiled=fast)
    exams = Exams(recipe, tokenizer)

    model = build_model(recipe, tokenizer).to(device).train()
    cells = pages.grid[0] * pages.grid[1]
    torch.manual_seed(t.seed + 1)
    objective = Objective(model, tokenizer, cells, t.heads, torch.bfloat16 if fast else None)
    objective.to(device)
    weights = [p for p in objective.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=t.lr, betas=(0.9, 0.98), fused="cuda" in device,
                                  weight_decay=t.weight_decay)  # fmt: skip
    average = [p.detach().clone() for p in weights] if t.average else None
    step = _resume(folder / "checkpoint.safetensors", objective, optimiser, average)
    log = _open_log(folder / "metrics.jsonl", step) if rank == 0 else None

    run: Any = objective
    if fast:
        torch._dynamo.config.cache_size_limit = 64
        run = torch.compile(objective)
    if world > 1:
        run = nn.parallel.DistributedDataParallel(run, find_unused_parameters=not fast)

    def note(**line: Any) -> None:
        if log is not None:
            log.write(json.dumps(line) + "\n")
            log.flush()
            report(line)

    def save() -> None:
        if rank == 0:
            _save(folder / "checkpoint.safetensors", step, objective, optimiser, average)

    autocast = torch.autocast("cuda", torch.bfloat16, enabled="cuda" in device and not fast)
    first, clock, exam = step, time.monotonic(), {}
    while step < t.steps and time.monotonic() - began < stop_after:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, t.lr, t.warmup, t.steps)
        torch.manual_seed(t.seed * 1_000_003 + step)  # dropout, if any
        with torch.no_grad():
            batch = pages.batch(step, rank, world)
        with autocast:
            loss, facts = run(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, t.clip)
        optimiser.step()
        optimiser.zero_grad()
        if average is not None:
            decay = min(t.average, (1 + step) / (10 + step))
            torch._foreach_lerp_(average, [p.detach() for p in weights], 1 - decay)
        step += 1
        if step % t.log_every == 0 or step == t.steps:
            if world > 1:
                torch.distributed.all_reduce(
                    facts,
                    torch.distributed.ReduceOp.AVG
                    if "cuda" in device
                    else torch.distributed.ReduceOp.SUM,
                )
                facts = facts if "cuda" in device else facts / world
            cross, right, extra = facts.tolist()
            if not math.isfinite(cross + extra):
                if log is not None:
                    log.close()
                raise TrainingError(
                    f"the loss is {cross + extra} at step {step}: training diverged; lower "
                    f"train.lr (now {t.lr}) or raise train.warmup, and start from the last "
                    f"checkpoint in {folder}"
                )
            now = time.monotonic()
            speed = (step - first) * t.batch / max(now - clock, 1e-9)
            first, clock = step, now
            note(step=step, loss=cross, heads=extra, accuracy=right,
                 lr=optimiser.param_groups[0]["lr"], puzzles_per_second=round(speed, 1),
                 seconds=round(now - began, 1))  # fmt: skip
        if exams and (step % t.eval_every == 0 or step == t.steps):
            with _averaged(weights, average):
                exam = exams.take(model)
            model.train()
            note(step=step, **exam)
            first, clock = step, time.monotonic()
        if step % t.save_every == 0:
            save()
    save()
    if log is not None:
        with _averaged(weights, average):
            model.save_pretrained(folder)
        log.close()
    return {"step": step, "done": step >= t.steps, "folder": str(folder), **exam}


def learning_rate(step: int, peak: float, warmup: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, share))))


class Exams:
    """Validation puzzles, tokenised once: one set for each gap of train.eval_gaps."""

    def __init__(self, recipe: Recipe, tokenizer: PieceTokenizer) -> None:
        self.sets: dict[str, tuple[dict[str, Any], list[Puzzle]]] = {}
        self.tokenizer = tokenizer
        if not recipe.data.val:
            return
        images = list(iter_images(recipe.data.val, recipe.train.eval_puzzles))
        for gap in recipe.train.eval_gaps:
            puzzles = [Puzzle.from_image(image, recipe.cut.grid, gap=gap, seed=seed)
                       for seed, image in enumerate(images)]  # fmt: skip
            self.sets[f"gap_{gap:g}"] = (tokenizer(puzzles), puzzles)

    def __bool__(self) -> bool:
        return bool(self.sets)

    def take(self, model: Seq2Seq) -> dict[str, float]:
        """Absolute and perfect accuracy in percent of one greedy pass over unused cells."""
        scores: dict[str, float] = {}
        for name, (text, puzzles) in self.sets.items():
            first, cells = self.tokenizer.cell_token_id(0), puzzles[0].cells
            got = decode(
                TorchReader(model), text["input_ids"], slots=cells, grid=puzzles[0].grid,
                first_cell=first,
            )  # fmt: skip
            truth = np.stack([p.truth[o] for p, o in zip(puzzles, text["order"], strict=True)
                              if p.truth is not None])  # fmt: skip
            pairs = list(zip(got.cells, truth, strict=True))
            scores[f"{name}_absolute"] = 100 * float(np.mean([absolute(*p) for p in pairs]))
            scores[f"{name}_perfect"] = 100 * float(np.mean([perfect(*p) for p in pairs]))
        return scores


# ---- checkpoints ----------------------------------------------------------------------------


def _device(name: str) -> str:
    if name != "auto":
        return name
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}"


class _averaged:
    """Put the averaged weights in place for the length of a block."""

    def __init__(self, weights: list[nn.Parameter], average: list[Tensor] | None) -> None:
        self.weights, self.average = weights, average

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, mean in zip(self.weights, self.average or [], strict=False):
            kept = weight.detach().clone()
            weight.copy_(mean)
            mean.copy_(kept)


def _save(path: Path, step: int, objective: Objective, optimiser: torch.optim.Optimizer,
          average: list[Tensor] | None) -> None:  # fmt: skip
    """Write everything that training goes on from, whole or not at all."""
    from safetensors.torch import save_file

    tensors = {f"weight.{n}": p.detach() for n, p in objective.named_parameters()}
    for number, group in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{key}": value for key, value in group.items()}
    tensors |= {f"average.{number}": mean for number, mean in enumerate(average or [])}
    temporary = path.with_suffix(".part")
    save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, {"step": str(step)})
    os.replace(temporary, path)


def _resume(path: Path, objective: Objective, optimiser: torch.optim.Optimizer,
            average: list[Tensor] | None) -> int:  # fmt: skip
    """Read a checkpoint back, if there is one; returns the number of steps done."""
    if not path.exists():
        return 0
    from safetensors import safe_open

    with safe_open(path, "pt") as file, torch.no_grad():
        step = int(file.metadata()["step"])
        for name, parameter in objective.named_parameters():
            parameter.copy_(file.get_tensor(f"weight.{name}"))
        state: dict[int, dict[str, Tensor]] = {}
        names: list[str] = list(file.keys())
        for key in names:
            if key.startswith("optimiser."):
                _, index, name = key.split(".", 2)
                state.setdefault(int(index), {})[name] = file.get_tensor(key)
        optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
        for number, mean in enumerate(average or []):
            mean.copy_(file.get_tensor(f"average.{number}"))
    return step


def _open_log(path: Path, step: int) -> Any:
    """Open metrics.jsonl for appending; lines after the checkpoint will be written again."""
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if line.startswith("{") and json.loads(line)["step"] <= step]
    write_bytes(path, "".join(line + "\n" for line in kept).encode())
    return path.open("a")


__all__ = ["CutSettings", "Objective", "Pages", "TrainingError", "build_model", "train"]
