"""One row of an ablation: a token memory, training against the clock, and the exams.

Every row gets the same training time, so what counts is how much is learned in it. Puzzles are cut
and tokenised once, before the clock starts, as the paper does: an expensive tokenizer is not
punished twice, its time is a column of its own. The learning rate follows the elapsed share of the
time, so that every row ends its schedule. Start-up (building, first kernels) is not counted.

Imports torch, transformers, numpy, Pillow and scipy only: it runs where nothing else is installed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puzlm.backbones import Seq2Seq, TorchReader
from puzlm.corpus import Album, CutSettings, Draw, cut_batch, draw_batch, neighbour_slots
from puzlm.decoding import METHODS, Decoded, assign, decode
from puzlm.errors import SettingsError
from puzlm.images import Pixels, iter_images
from puzlm.loop import TrainingError
from puzlm.metrics import absolute, bootstrap, perfect
from puzlm.puzzle import Puzzle, parse_grid
from puzlm.settings import Recipe
from puzlm.tokenizer import FIRST_SYMBOL, PieceTokenizer
from puzlm.train import Objective, build_model

WARM_STEPS = 4  # before the clock starts: kernels are chosen, memory is taken
SYNC_EVERY = 25  # steps between two looks at the loss, which wait for the device
CURVE_EVERY = 250  # steps between two points of the learning curve
EXAM_BATCH = 256  # puzzles read at once
SLOW_DECODINGS = ("beam", "assign", "views-2", "views-8", "fusion", "pixels")
DECODINGS = ("valid", "greedy", "head", *SLOW_DECODINGS)


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

    def __init__(self, kinds: Sequence[Kind], data: str | Path, device: str,
                 lock: Path | None = None) -> None:  # fmt: skip
        self.kinds, self.device, self.lock, root = tuple(kinds), device, lock, Path(data)
        workers = os.cpu_count() or 2
        self.albums = [Album.read([root / t for t in k.train], device, k.limit or None, workers)
                       for k in kinds]  # fmt: skip
        self.images: list[list[Pixels]] = [
            list(iter_images([root / v for v in k.val], k.puzzles)) for k in kinds
        ]
        self._exams: dict[tuple[int, str], list[Puzzle]] = {}
        self._stock: dict[Any, list[Tensor]] = {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the device for oneself, where several processes share it."""
        if self.lock is None:
            yield
            return
        import fcntl

        with self.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
            wait(self.device)

    def exam(self, number: int, grid: str) -> list[Puzzle]:
        """Shuffled puzzles of one kind; the same for every row."""
        if (number, grid) not in self._exams:
            gap = self.kinds[number].gap
            self._exams[number, grid] = [
                Puzzle.from_image(image, grid, gap=gap, seed=seed)
                for seed, image in enumerate(self.images[number])
            ]
        return self._exams[number, grid]

    def pieces(self, number: int, count: int, cut: CutSettings, side: int,
               seed: tuple[int, ...]) -> Tensor:  # fmt: skip
        """Cut canonical training pieces (count, cells, side, side, 3) of one kind."""
        album = self.albums[number]
        plain = replace(cut, gap_share=0.0, missing_share=0.0)
        drawn = draw_batch(album.sizes.cpu().numpy(), count, plain, seed)
        drawn = eroded(drawn, self.kinds[number].gap)
        parts = [torch.from_numpy(np.ascontiguousarray(a)).to(self.device)
                 for a in vars(drawn).values()]  # fmt: skip
        return cut_batch(album, *parts[:-1], side=side)

    def stock(self, puzzles: int, cut: CutSettings, side: int) -> list[Tensor]:
        """Cut so many training puzzles, an equal share of each kind, once for all tokenizers."""
        chunk = 1024 if "cuda" in self.device else 64
        share = max(1, puzzles // len(self.kinds))
        if (puzzles, cut, side) not in self._stock:
            self._stock[puzzles, cut, side] = [
                self.pieces(k, chunk, cut, side, (0, part, k, 2)).byte()
                for k in range(len(self.kinds)) for part in range(0, share, chunk)
            ]  # fmt: skip
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


def make_library(tokenizer: PieceTokenizer, gallery: Gallery, recipe: Recipe,
                 puzzles: int) -> Library:  # fmt: skip
    """Fit a tokenizer on all kinds and tokenise so many training puzzles, an equal share each."""
    device, side, kinds = gallery.device, tokenizer.settings.side, range(len(gallery.kinds))
    sample = max(1, recipe.train.fit_puzzles // len(gallery.kinds))
    with gallery.alone():
        stock = gallery.stock(puzzles, recipe.cut, side)
        shown = [
            gallery.pieces(k, min(256, sample - part), recipe.cut, side, (0, part, k, 1)).byte()
            for k in kinds for part in range(0, sample, 256)
        ]  # fmt: skip
        flat = torch.cat([p.flatten(0, 1) for p in shown])
        wait(device)
        began = time.monotonic()
        tokenizer.fit_canonical(flat, seed=0, device=device)
        wait(device)
        fitted = time.monotonic() - began
        there, parts = tokenizer.on(device), []
        for pieces in stock:
            symbols = there.encode_canonical(pieces.flatten(0, 1))
            parts.append(symbols.view(*pieces.shape[:2], *symbols.shape[1:]).to(torch.int32))
        wait(device)
        spent = time.monotonic() - began - fitted
    tokens = torch.cat(parts)
    facts = {"fit_seconds": round(fitted, 2), "tokenise_ms": 1000 * spent / len(tokens),
             "tokenizer_parameters": tokenizer_parameters(tokenizer)}  # fmt: skip
    facts |= {"learned": tokenizer.report_} if hasattr(tokenizer, "report_") else {}
    return Library(tokenizer, tokens, facts)


def tokenizer_parameters(tokenizer: PieceTokenizer) -> int:
    """Numbers that a tokenizer has learned."""
    if hasattr(tokenizer, "parameters"):
        return int(tokenizer.parameters)
    return sum(a.size for book in tokenizer.codebooks_
               for a in (book.mean, book.components, book.centroids) if a is not None)  # fmt: skip


class Draws:
    """Training batches from a library, shuffled before they are sorted.

    Without lexicographic order the input order is what a sentence keeps, so it must say nothing.
    """

    def __init__(self, library: Library, tokenizer: PieceTokenizer, recipe: Recipe,
                 device: str) -> None:  # fmt: skip
        self.tokens, self.tokenizer, self.device = library.tokens, tokenizer, device
        self.grid, self.t = parse_grid(recipe.cut.grid), recipe.train
        shape = (self.t.batch, self.tokens.shape[1])
        self.rows = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self.cells = torch.zeros(shape, dtype=torch.int64, device=device)
        self.count = torch.tensor(float(math.prod(shape)), device=device)

    def turn(self, step: int) -> None:
        """Choose the puzzles of a step, and the order in which their pieces come."""
        rng = np.random.default_rng((self.t.seed, step))
        self.rows.copy_(torch.from_numpy(rng.integers(0, len(self.tokens), len(self.rows))))
        self.cells.copy_(torch.from_numpy(rng.random(tuple(self.cells.shape)).argsort(1)))

    def batch(self) -> dict[str, Tensor]:
        """Sentences of the chosen puzzles with every answer, as Objective wants them."""
        symbols = self.tokens[self.rows[:, None], self.cells].long()
        ids, order = self.tokenizer.sentences(symbols)
        truth = self.cells.gather(1, order)
        here = torch.ones_like(truth, dtype=torch.bool)
        right, below = neighbour_slots(truth, here, self.grid)
        return {"ids": ids, "order": truth, "present": here, "right": right, "below": below,
                "count": self.count}  # fmt: skip


# ---- training -------------------------------------------------------------------------------


def schedule(step: int, share: float, peak: float, warmup: int) -> float:
    """Linear warm-up in steps, and a cosine over the elapsed share down to a fiftieth."""
    return peak * min(1.0, (step + 1) / max(1, warmup)) * (
        0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
    )  # fmt: skip


class Step:
    """One training step; on a GPU recorded once and then replayed as a whole.

    A small model's step is hundreds of short kernels: launched one by one they leave the card idle
    most of the time. What cannot be recorded runs kernel by kernel, and its row says so.
    """

    def __init__(self, objective: Objective, draws: Draws, recipe: Recipe, device: str) -> None:
        self.objective, self.draws, self.t, self.device = objective, draws, recipe.train, device
        self.weights = [p for p in objective.parameters() if p.requires_grad]
        cuda = "cuda" in device
        self.lr = torch.tensor(self.t.lr, device=device)
        self.optimiser = torch.optim.AdamW(
            self.weights, lr=self.lr, betas=(0.9, 0.98), fused=cuda, capturable=cuda,
            weight_decay=self.t.weight_decay,
        )  # fmt: skip
        self.half = torch.autocast("cuda", torch.bfloat16, enabled=cuda and objective.fast is None)
        self.facts = torch.zeros(3)
        self.graph: Any = None
        self._warm_up(cuda)

    def __call__(self, step: int, lr: float) -> Tensor:
        """Do one step; (cross-entropy, teacher-forced accuracy, head loss) of its batch."""
        self.draws.turn(step)
        self.lr.fill_(lr)
        if self.graph is not None:
            self.graph.replay()
        else:
            torch.manual_seed(self.t.seed * 1_000_003 + step)  # dropout, if any
            self._work()
        return self.facts

    def _work(self) -> None:
        with torch.no_grad():
            batch = self.draws.batch()
        with self.half:
            loss, self.facts = self.objective(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.t.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()

    def _warm_up(self, cuda: bool) -> None:
        """A few steps, so that kernels are chosen and memory is taken; then undo them."""
        first = [p.detach().clone() for p in self.weights]
        wait(self.device)
        stream: Any = torch.cuda.Stream() if cuda else None  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for step in range(WARM_STEPS):
                self(step, self.t.lr)
        wait(self.device)
        if cuda:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    self._work()
                self.graph = graph
            except RuntimeError:
                wait(self.device)
                self.optimiser.zero_grad()
        with torch.no_grad():
            for weight, start in zip(self.weights, first, strict=True):
                weight.copy_(start)
            for state in self.optimiser.state.values():
                for value in state.values():
                    value.zero_()
        wait(self.device)


def train_for(objective: Objective, draws: Draws, recipe: Recipe, device: str, seconds: float,
              steps: int = 0) -> dict[str, Any]:  # fmt: skip
    """Train for so many seconds (or steps, where given); the model ends with its final weights."""
    t = recipe.train
    objective.train()
    clock = time.monotonic()
    one = Step(objective, draws, recipe, device)
    weights = [p.detach() for p in one.weights]
    average = [p.clone() for p in weights] if t.average else None
    began = time.monotonic()
    warm_seconds, step, share, curve = began - clock, 0, 0.0, []
    facts = one.facts
    while share < 1:
        facts = one(step, schedule(step, share, t.lr, t.warmup))
        if average is not None:
            decay = min(t.average, (1 + step) / (10 + step))
            torch._foreach_lerp_(average, weights, 1 - decay)
        step += 1
        if step % SYNC_EVERY == 0:
            now = facts.tolist()
            if not math.isfinite(sum(now)):
                raise TrainingError(
                    f"the loss is no longer a number at step {step}: lower train.lr"
                )
            if step % CURVE_EVERY == 0:
                curve.append([step, *(round(x, 4) for x in now)])
        share = step / steps if steps else (time.monotonic() - began) / seconds
    wait(device)
    cross, right, extra = facts.tolist()
    spent = time.monotonic() - began
    if average is not None:
        with torch.no_grad():
            for weight, mean in zip(one.weights, average, strict=True):
                weight.copy_(mean)
    return {"seconds": round(spent, 2), "warm_seconds": round(warm_seconds, 2), "steps": step,
            "puzzles_seen": step * t.batch, "recorded": one.graph is not None, "loss": cross,
            "head_loss": extra, "teacher_forced": 100 * right, "curve": curve}  # fmt: skip


@torch.no_grad()
def start_from_sides(model: Seq2Seq, draws: Draws, steps: int) -> dict[str, Any]:
    """Start the symbol embeddings from those of a side model trained on the same puzzles."""
    from puzlm.bigram import fit

    tokenizer, seed = draws.tokenizer, draws.t.seed
    rows = len(draws.tokens)

    def batch(step: int) -> Tensor:
        chosen = np.random.default_rng((seed, step, 3)).integers(0, rows, 512)
        return draws.tokens[torch.from_numpy(chosen).to(draws.device)].long()

    last: dict[str, Any] = {}
    began = time.monotonic()
    with torch.enable_grad():
        sides = fit(tokenizer, batch, draws.grid, steps=steps, seed=seed,
                    device=draws.device, report=last.update)  # fmt: skip
    table = sides.embed.weight.detach().float().cpu()
    rng = np.random.default_rng(seed)
    turn = torch.from_numpy(rng.standard_normal((table.shape[1], model.embedding.shape[1])))
    start = (table - table.mean(0)) @ turn.float()
    scale = float(model.embedding.std())
    span = slice(FIRST_SYMBOL, FIRST_SYMBOL + tokenizer.settings.codes)
    model.embedding[span] = (start / start.std() * scale).to(model.embedding)
    spent = round(time.monotonic() - began, 1)
    return {"side_seconds": spent, "side_first_rank": last.get("first_rank")}


@torch.no_grad()
def start_positions(model: Seq2Seq, tokenizer: PieceTokenizer) -> None:
    """Give one-stack models the start of positions that BART gets: slot + place in it."""
    if model.settings.backbone not in ("encoder", "decoder"):
        return
    s, scale = model.settings, 0.02
    table = model.net.positions.weight[: s.max_length]
    place = torch.arange(len(table))
    slot = torch.randn(int(place.max()) // s.slot_length + 1, table.shape[1]) * scale
    inside = torch.randn(s.slot_length, table.shape[1]) * scale
    table.copy_(slot[place // s.slot_length] + inside[place % s.slot_length])


# ---- exams ----------------------------------------------------------------------------------


class OnDevice(PieceTokenizer):
    """A tokenizer that writes sentences as always and finds its symbols on a device."""

    def __init__(self, tokenizer: PieceTokenizer, device: str) -> None:
        self.settings, self.codebooks_ = tokenizer.settings, tokenizer.codebooks_
        self.there, self.device = tokenizer.on(device), device

    def encode(self, pieces: Any) -> Any:
        """Symbols (n, b, F) of numpy pieces of any size."""
        moved = torch.from_numpy(np.ascontiguousarray(pieces)).to(self.device)
        return self.there.encode(moved).cpu().numpy()


def examine(objective: Objective, tokenizer: OnDevice, puzzles: list[Puzzle],
            decodings: Sequence[str], few: int) -> dict[str, Any]:  # fmt: skip
    """Absolute and perfect accuracy of a trained model, by way of decoding.

    The slow ways see the first `few` puzzles only.
    """
    model = objective.model.eval()
    reader, result = TorchReader(model), {}
    quick = [d for d in decodings if d not in SLOW_DECODINGS]
    slow = [d for d in decodings if d in SLOW_DECODINGS]
    for way, some in [(w, puzzles) for w in quick] + [(w, puzzles[:few]) for w in slow]:
        clock = time.monotonic()
        cells = _answers(objective, reader, tokenizer, some, way)
        pairs = [(got, p.truth) for got, p in zip(cells, some, strict=True)
                 if p.truth is not None]  # fmt: skip
        result[way] = {
            "absolute": bootstrap([absolute(*p) for p in pairs]).as_dict(),
            "perfect": bootstrap([perfect(*p) for p in pairs]).as_dict(),
            "puzzles": len(some), "ms": round(1000 * (time.monotonic() - clock) / len(some), 2),
            # Right pieces of each puzzle: rows are compared puzzle by puzzle.
            "right": [int((got == truth).sum()) for got, truth in pairs],
        }  # fmt: skip
    return result


def _answers(objective: Objective, reader: TorchReader, tokenizer: OnDevice,
             puzzles: list[Puzzle], way: str) -> list[NDArray[np.int64]]:  # fmt: skip
    """Cells by piece of every puzzle."""
    if way.startswith("views-"):
        from puzlm.views import SETS, read_views

        found = read_views(reader, tokenizer, puzzles, SETS[int(way[6:])], batch=64)
        return list(found.cells)
    if way in ("fusion", "pixels"):  # marginals and pixels in one objective; pixels alone
        from puzlm.solver import Solver

        solver = Solver(tokenizer, reader, solver="auto" if way == "fusion" else "classic")
        return [s.positions for s in solver.solve_many(puzzles)]
    answers: list[NDArray[np.int64]] = []
    for first in range(0, len(puzzles), EXAM_BATCH):
        part = puzzles[first : first + EXAM_BATCH]
        text = tokenizer(part)
        if way == "head":
            found = _head(objective, text["input_ids"])
        else:
            assert way in METHODS
            found = decode(reader, text["input_ids"], slots=part[0].cells, grid=part[0].grid,
                           first_cell=tokenizer.cell_token_id(0), method=way)  # fmt: skip
        slot_of = np.argsort(text["order"], axis=1)
        answers += [row[slots] for row, slots in zip(found.cells, slot_of, strict=True)]
    return answers


@torch.no_grad()
def _head(objective: Objective, input_ids: NDArray[np.int64]) -> Decoded:
    """What the training-only head on the encoder says: the best assignment of its cells."""
    assert objective.heads is not None
    device = next(objective.parameters()).device
    states = objective.model.encode(torch.from_numpy(input_ids).to(device))
    _, _, cell = objective.heads(objective._pool(states).float())
    share = cell.softmax(-1).double().cpu().numpy()
    return assign(Decoded(share.argmax(-1), share.max(-1), share))


# ---- a row ----------------------------------------------------------------------------------


def run_row(
    recipe: Recipe, library: Library, tokenizer: PieceTokenizer, gallery: Gallery, *,
    seconds: float, steps: int = 0, start: str = "", side_steps: int = 0,
    decodings: Sequence[str] = ("valid",), few: int = 250, keep: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train and examine one row; everything that goes into its line but its name."""
    device = gallery.device
    cells = math.prod(parse_grid(recipe.cut.grid))
    if tokenizer.settings.max_cells < cells:
        raise SettingsError(f"tokenizer.max_cells must be at least {cells} for {recipe.cut.grid}")
    draws = Draws(library, tokenizer, recipe, device)
    model = build_model(recipe, tokenizer)
    facts: dict[str, Any] = {}
    if recipe.train.centroid_start:
        start_positions(model, tokenizer)
    if start == "sides":
        with gallery.alone():
            facts |= start_from_sides(model, draws, side_steps)
    model.to(device)
    fast = recipe.train.fast and "cuda" in device and recipe.model.backbone == "bart"
    torch.manual_seed(recipe.train.seed + 1)
    objective = Objective(model, tokenizer, cells, recipe.train.heads,
                          torch.bfloat16 if fast else None).to(device)  # fmt: skip
    before = model.embedding.detach().clone()
    if "cuda" in device:
        torch.cuda.reset_peak_memory_stats()
    facts |= {"parameters": sum(p.numel() for p in model.parameters()),
              "tokens_per_puzzle": tokenizer.sentence_length(cells), **library.facts}  # fmt: skip
    with gallery.alone():
        facts |= train_for(objective, draws, recipe, device, seconds, steps)
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


def _keep(folder: Path, recipe: Recipe, model: Seq2Seq, tokenizer: PieceTokenizer,
          before: Tensor) -> None:  # fmt: skip
    """Save a row's model, with the embeddings it started from, for `puzlm analyze --model`."""
    import json

    from safetensors.torch import save

    from puzlm.images import write_bytes

    model.save_pretrained(folder, torch.float16)
    tokenizer.save_pretrained(folder)
    write_bytes(folder / "start.safetensors", save({"embedding": before.cpu().contiguous()}))
    write_bytes(folder / "settings.json", json.dumps(recipe.as_dict(), indent=1).encode())


def wait(device: str) -> None:
    """Wait until the device has done all it was given."""
    if "cuda" in device:
        torch.cuda.synchronize()
