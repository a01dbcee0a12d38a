"""The training loop: batches in, weights out, killed at any moment and resumed exactly.

Knows no puzzles: it is given an objective, a function from step to batch, and what to do for an
exam. Every random number of a step comes from (seed, step).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from puzlm.training.recipes import TrainSettings
from puzlm.training.run_files import TrainingError, resume, trim_log
from puzlm.training.run_files import save as save_checkpoint

Batch = dict[str, Tensor]


def loop(
    t: TrainSettings,
    folder: Path,
    objective: nn.Module,
    batch_of: Callable[[int, int, int], Batch],
    *,
    device: str,
    save_model: Callable[[], None],
    compiled: bool = False,
    half: bool = True,
    graph: bool = False,
    ahead: bool = False,
    exam: Callable[[], dict[str, float]] | None = None,
    began: float | None = None,
    stop_after: float = math.inf,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Train until t.steps, or save and return after `stop_after` seconds since `began`.

    `objective(batch)` gives the loss and three facts for the log: cross-entropy, accuracy and the
    loss of the heads. `batch_of(step, rank, world)` is this process's share of the global batch.
    On a GPU, `half` computes under autocast, `graph` records the step once and replays it, and
    `ahead` makes the next batch meanwhile.
    Several processes look at the clock every t.log_every steps.
    """
    began = time.monotonic() if began is None else began
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    weights = [p for p in objective.parameters() if p.requires_grad]
    graph = graph and "cuda" in device and world == 1
    optimiser = optimiser_of(weights, t, device, graph)
    average = [p.detach().clone() for p in weights] if t.average else None
    begun_with = [p.detach().clone() for p in weights] if t.keep else []
    step = resume(folder, objective, optimiser, average, lambda said: report({"note": said}))
    log = folder / "metrics.jsonl"
    if rank == 0:
        trim_log(log, step)

    run: Any = objective
    if compiled:
        torch._dynamo.config.cache_size_limit = 64
        run = torch.compile(objective, dynamic=False)
    if world > 1:
        run = nn.parallel.DistributedDataParallel(run, find_unused_parameters=not compiled)

    def note(**line: Any) -> None:
        if rank == 0:
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
            report(line)

    def save() -> None:
        if rank == 0:
            save_checkpoint(folder, step, objective, optimiser, average)

    autocast = torch.autocast("cuda", torch.bfloat16, enabled="cuda" in device and half)

    def learn(batch: Batch) -> Tensor:
        with autocast:
            loss, facts = run(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, t.clip)
        optimiser.step()
        optimiser.zero_grad()
        noted: Tensor = facts
        return noted

    def stopped() -> bool:
        if world == 1 or math.isinf(stop_after):
            return time.monotonic() - began >= stop_after
        # One clock for all: a process that left alone would let the others wait for it for ever.
        # When they meet for the log, because asking makes a GPU wait.
        if step % t.log_every:
            return False
        over = torch.tensor(time.monotonic() - began >= stop_after, device=device)
        torch.distributed.broadcast(over, 0)
        return bool(over)

    replay: Callable[[Batch], Tensor] = learn
    next_one = Ahead(lambda step: batch_of(step, rank, world)) if graph and ahead else None
    first, clock, marks = step, time.monotonic(), {}
    while step < t.steps and not stopped():
        rate = learning_rate(step, t.lr, t.warmup, t.steps)
        set_rate(optimiser, rate)
        torch.manual_seed(t.seed * 1_000_003 + step)  # dropout, if any
        with torch.no_grad():
            batch = next_one.take(step) if next_one else batch_of(step, rank, world)
        if graph and replay is learn:
            replay = Recorded(learn, batch, weights, optimiser)
        facts = replay(batch)
        if next_one and isinstance(replay, Recorded):
            next_one.begin(step + 1, replay)
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
                raise TrainingError(
                    f"the loss is {cross + extra} at step {step}: training diverged; lower "
                    f"train.lr (now {t.lr}) or raise train.warmup, and start from the last "
                    f"checkpoint in {folder}"
                )
            now = time.monotonic()
            speed = (step - first) * t.batch / max(now - clock, 1e-9)
            first, clock = step, now
            note(
                step=step,
                loss=cross,
                heads=extra,
                accuracy=right,
                lr=rate,
                puzzles_per_second=round(speed, 1),
                seconds=round(now - began, 1),
            )
        if exam is not None and (step % t.eval_every == 0 or step == t.steps):
            with _averaged(weights, average):
                marks = exam()
            objective.train()
            note(step=step, **marks)
            first, clock = step, time.monotonic()
        if step % t.save_every == 0:
            save()
    save()
    if rank == 0:
        with _averaged(weights, average), torch.no_grad():
            for weight, old in zip(weights, begun_with, strict=False):
                weight.lerp_(old, t.keep)
            save_model()
    return {"step": step, "done": step >= t.steps, "folder": str(folder), **marks}


def learning_rate(step: int, peak: float, warmup: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, share))))


def optimiser_of(
    weights: list[nn.Parameter], t: TrainSettings, device: str, graph: bool
) -> torch.optim.AdamW:
    """AdamW; the rate of a step that will be recorded is a tensor, to be changed in place."""
    rate: Any = torch.tensor(t.lr, device=device) if graph else t.lr
    return torch.optim.AdamW(
        weights,
        lr=rate,
        betas=(0.9, 0.98),
        weight_decay=t.weight_decay,
        fused="cuda" in device,
        capturable=graph,
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate, in place where a recorded step reads it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


WARM_ROUNDS = 4  # of a step before it is recorded: kernels are chosen, memory is taken


class Recorded:
    """One training step as a CUDA graph: called with a batch, it copies that in and replays it.

    A step is hundreds of kernels: launched one by one, short ones leave the card idle. Recording
    runs the step a few times for real; weights and optimiser are put back afterwards.
    """

    def __init__(
        self,
        learn: Callable[[Batch], Tensor],
        batch: Batch,
        weights: list[nn.Parameter],
        optimiser: torch.optim.Optimizer,
    ) -> None:
        self.fixed = {name: value.clone() for name, value in batch.items()}
        kept = [weight.detach().clone() for weight in weights]
        states = [optimiser.state.get(weight, {}) for weight in weights]
        before = [{name: value.clone() for name, value in state.items()} for state in states]
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_ROUNDS):
                learn(self.fixed)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        with torch.no_grad():
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)
            for weight, old in zip(weights, before, strict=True):
                for name, now in optimiser.state.get(weight, {}).items():
                    now.copy_(old.get(name, torch.zeros_like(now)))
        torch.cuda.empty_cache()  # the record needs as much again as the rounds, and frees nothing
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = learn(self.fixed)
        self.copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> Tensor:
        for name, place in self.fixed.items():
            place.copy_(batch[name], non_blocking=True)
        self.copied.record()
        self.graph.replay()
        return self.out.clone()


class Ahead:
    """Batches by step; that of the next step is made while the recorded one runs.

    On a stream of its own: what it does fits into the gaps that a step's short kernels leave.
    """

    def __init__(self, batch_of: Callable[[int], Batch]) -> None:
        self.batch_of = batch_of
        self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.made: tuple[int, Batch] | None = None

    def take(self, step: int) -> Batch:
        """The batch of a step, on the current stream."""
        if self.made is None or self.made[0] != step:
            return self.batch_of(step)
        torch.cuda.current_stream().wait_stream(self.stream)
        return self.made[1]

    def begin(self, step: int, replay: Recorded) -> None:
        """Make the batch of a step, once what was made before has been copied away."""
        self.stream.wait_event(replay.copied)
        with torch.cuda.stream(self.stream), torch.no_grad():
            self.made = step, self.batch_of(step)


# ---- averages -------------------------------------------------------------------------------


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
