"""Training against the clock, for one row of an ablation.

Every row gets the same training time, so what counts is how much is learned in it. The learning
rate follows the elapsed share of the time, so that every row ends its schedule. Start-up (building,
first kernels) is not counted.

Imports torch, transformers, numpy, Pillow and scipy only: it runs where nothing else is installed.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from puzlm.models.backbones import Seq2Seq
from puzlm.puzzle import parse_grid
from puzlm.tokenizer.piece_tokenizer import FIRST_SYMBOL, PieceTokenizer
from puzlm.training.corpus import neighbour_slots
from puzlm.training.loop import Batch, Recorded, optimiser_of, set_rate
from puzlm.training.objective import Objective
from puzlm.training.recipes import Recipe
from puzlm.training.run_files import TrainingError

SYNC_EVERY = 25  # steps between two looks at the loss, which wait for the device
CURVE_EVERY = 250  # steps between two points of the learning curve


def schedule(step: int, share: float, peak: float, warmup: int) -> float:
    """Linear warm-up in steps, and a cosine over the elapsed share down to a fiftieth."""
    return (
        peak
        * min(1.0, (step + 1) / max(1, warmup))
        * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, share))))
    )


class Draws:
    """Training batches from a library's tokens, shuffled before they are sorted.

    Without lexicographic order the input order is what a sentence keeps, so it must say nothing.
    With `one_order` a puzzle comes in the same random order each time, as if written down once.
    """

    def __init__(
        self,
        tokens: Tensor,
        tokenizer: PieceTokenizer,
        recipe: Recipe,
        device: str,
        one_order: bool = False,
    ) -> None:
        self.tokens, self.tokenizer, self.device = tokens, tokenizer, device
        self.grid, self.t = parse_grid(recipe.cut.grid), recipe.train
        shape = (self.t.batch, self.tokens.shape[1])
        self.rows = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self.cells = torch.zeros(shape, dtype=torch.int64, device=device)
        self.count = torch.tensor(float(math.prod(shape)), device=device)
        rng = np.random.default_rng((self.t.seed, 7))
        self.orders = rng.random(tuple(tokens.shape[:2])).argsort(1) if one_order else None

    def turn(self, step: int) -> None:
        """Choose the puzzles of a step, and the order in which their pieces come."""
        rng = np.random.default_rng((self.t.seed, step))
        rows = rng.integers(0, len(self.tokens), len(self.rows))
        if self.orders is None:
            cells = rng.random(tuple(self.cells.shape)).argsort(1)
        else:
            cells = self.orders[rows]
        self.rows.copy_(torch.from_numpy(rows))
        self.cells.copy_(torch.from_numpy(cells))

    def batch(self) -> dict[str, Tensor]:
        """Sentences of the chosen puzzles with every answer, as Objective wants them."""
        symbols = self.tokens[self.rows[:, None], self.cells].long()
        ids, order = self.tokenizer.sentences(symbols)
        truth = self.cells.gather(1, order)
        here = torch.ones_like(truth, dtype=torch.bool)
        right, below = neighbour_slots(truth, here, self.grid)
        return {
            "ids": ids,
            "order": truth,
            "present": here,
            "right": right,
            "below": below,
            "count": self.count,
        }


class Step:
    """One training step; on a GPU recorded once and then replayed as a whole.

    A small model's step is hundreds of short kernels: launched one by one they leave the card idle
    most of the time. What cannot be recorded runs kernel by kernel, and its row says so.
    """

    def __init__(self, objective: Objective, draws: Draws, recipe: Recipe, device: str) -> None:
        self.objective, self.draws, self.t, self.device = objective, draws, recipe.train, device
        self.weights = [p for p in objective.parameters() if p.requires_grad]
        cuda = "cuda" in device
        self.optimiser = optimiser_of(self.weights, self.t, device, cuda)
        self.half = torch.autocast("cuda", torch.bfloat16, enabled=cuda and objective.fast is None)
        self.facts = torch.zeros(3)
        self.recorded = False
        self.work: Callable[[Batch], Tensor] = self._work
        if cuda:
            self.draws.turn(0)
            for way in ("compiled", "plain") if count_compiled(objective) else ("plain",):
                try:
                    with masks_as_outside():
                        self.work = Recorded(self._work, {}, self.weights, self.optimiser)
                    self.recorded = True
                    break
                except RuntimeError as error:
                    warnings.warn(f"the {way} step is not recorded: {error}", stacklevel=2)
                    self.optimiser.zero_grad()
                    wait(device)
                    _plain(list(objective.modules()))
            wait(device)

    def __call__(self, step: int, lr: float) -> Tensor:
        """Do one step; (cross-entropy, teacher-forced accuracy, head loss) of its batch."""
        self.draws.turn(step)
        set_rate(self.optimiser, lr)
        torch.manual_seed(self.t.seed * 1_000_003 + step)  # dropout, if any
        self.facts = self.work({})
        return self.facts

    def _work(self, _: Batch) -> Tensor:
        with torch.no_grad():
            batch = self.draws.batch()
        with self.half:
            loss, facts = self.objective(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.t.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        noted: Tensor = facts
        return noted


@contextmanager
def masks_as_outside() -> Iterator[None]:
    """Let the library draw the masks of a recorded step as it draws them in any other.

    When it sees a recording it masks for padding, which no sentence here has; layers compiled
    without masks would then be compiled again, and a compiler cannot run there. Tensors that it
    would look into, which waits for the device, are left unseen all the time.
    """
    from transformers import masking_utils

    kept = masking_utils.is_tracing
    masking_utils.is_tracing = lambda tensor=None: tensor is not None
    try:
        yield
    finally:
        masking_utils.is_tracing = kept


@contextmanager
def aside(device: str) -> Iterator[None]:
    """Work on a stream of its own, as all that comes before a recording should."""
    if "cuda" not in device:
        yield
        return
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


LAYERS = (
    "BartEncoderLayer",
    "BartDecoderLayer",
    "PegasusEncoderLayer",
    "PegasusDecoderLayer",
    "T5Block",
    "_Block",
)


@contextmanager
def compiled_layers(
    objective: Objective, draws: Draws, device: str, backend: str = "inductor"
) -> Iterator[None]:
    """Compile a library's layers one by one, for the length of a block.

    A layer as the library writes it is many short kernels; compiled it is a few. Layers of one kind
    share their code, so this takes seconds, not minutes. Where it fails, training goes on without.
    """
    layers = [m for m in objective.model.modules() if type(m).__name__ in LAYERS]
    torch._dynamo.reset()
    for layer in layers:
        layer.compile(dynamic=False, backend=backend)
    try:
        draws.turn(0)
        half = torch.autocast("cuda", torch.bfloat16, enabled="cuda" in device)
        with masks_as_outside(), aside(device), half:
            objective(draws.batch())[0].backward()
        wait(device)
    except Exception as error:  # whatever a compiler may raise
        warnings.warn(f"layers are not compiled: {error}", stacklevel=2)
        _plain(layers)
    objective.zero_grad()
    try:
        yield
    finally:
        _plain(layers)


def count_compiled(model: nn.Module) -> int:
    """Number of layers that run compiled now."""
    return sum(m._compiled_call_impl is not None for m in model.modules())


def _plain(layers: list[nn.Module]) -> None:
    for layer in layers:
        layer._compiled_call_impl = None


def train_for(
    objective: Objective, draws: Draws, recipe: Recipe, device: str, seconds: float, steps: int = 0
) -> dict[str, Any]:
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
    return {
        "seconds": round(spent, 2),
        "warm_seconds": round(warm_seconds, 2),
        "steps": step,
        "puzzles_seen": step * t.batch,
        "recorded": one.recorded,
        "loss": cross,
        "head_loss": extra,
        "teacher_forced": 100 * right,
        "curve": curve,
    }


@torch.no_grad()
def start_from_sides(model: Seq2Seq, draws: Draws, steps: int) -> dict[str, Any]:
    """Start the symbol embeddings from those of a side model trained on the same puzzles."""
    from puzlm.training.train_sides import fit

    tokenizer, seed = draws.tokenizer, draws.t.seed
    rows = len(draws.tokens)

    def batch(step: int) -> Tensor:
        chosen = np.random.default_rng((seed, step, 3)).integers(0, rows, 512)
        return draws.tokens[torch.from_numpy(chosen).to(draws.device)].long()

    last: dict[str, Any] = {}
    began = time.monotonic()
    with torch.enable_grad():
        sides = fit(
            tokenizer,
            batch,
            draws.grid,
            steps=steps,
            seed=seed,
            device=draws.device,
            report=last.update,
        )
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


def wait(device: str) -> None:
    """Wait until the device has done all it was given."""
    if "cuda" in device:
        torch.cuda.synchronize()
