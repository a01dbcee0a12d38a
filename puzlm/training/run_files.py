"""The files of one training run: its settings, two checkpoints, metrics.jsonl.

settings.json                      the recipe; a run that goes on must have the same
checkpoint.safetensors             weights, optimiser, averages, the number of steps
checkpoint.previous.safetensors    the one before, for the day on which the first is damaged
metrics.jsonl                      a line for every record of the log
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from puzlm.errors import PuzlmError
from puzlm.files import read_json, read_lines, temporary, write_bytes

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
# What may be another when a run goes on: nothing that a step of training computes. More steps are
# a longer run, whose learning rates are others from there on.
FREE = {"train.device", "train.steps", "train.log_every", "train.save_every", "data.val"}
FREE |= {"train.eval_every", "train.eval_puzzles", "train.eval_gaps"}


class TrainingError(PuzlmError):
    """Training cannot go on."""


# ---- settings -------------------------------------------------------------------------------


def begun(folder: Path) -> bool:
    """Whether there is a run to go on with."""
    return any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS))


def check_settings(folder: Path, recipe: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun with other settings."""
    path = folder / "settings.json"
    if not begun(folder) or not path.exists():
        return
    before, now = _flat(read_json(path)), _flat(json.loads(json.dumps(recipe)))
    # A setting that came with a newer version has no value in an older file.
    changed = [k for k in before if k in now and k not in FREE and before[k] != now[k]]
    if changed:
        key = changed[0]
        raise TrainingError(
            f"{folder}: was begun with {key} {before[key]}, not {now[key]}; give the old value, "
            "or another folder"
        )


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section.key."""
    return {
        f"{name}.{key}": value
        for name, part in record.items()
        for key, value in (part.items() if isinstance(part, Mapping) else {"": part}.items())
    }


# ---- checkpoints ----------------------------------------------------------------------------


def save(
    folder: Path,
    step: int,
    objective: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: list[Tensor] | None,
) -> None:
    """Write everything that training goes on from, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {f"weight.{n}": p.detach() for n, p in objective.named_parameters()}
    for number, group in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{key}": value for key, value in group.items()}
    tensors |= {f"average.{number}": mean for number, mean in enumerate(average or [])}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    path = folder / CHECKPOINT
    try:
        with temporary(path) as part:
            save_file(tensors, part, {"step": str(step), "sha256": _digest(tensors)})
            if path.exists():
                os.replace(path, folder / PREVIOUS)
            os.replace(part, path)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TrainingError(
            f"{path}: step {step} cannot be saved ({reason}); the same command goes on from the "
            "checkpoint before it"
        ) from error


def resume(
    folder: Path,
    objective: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: list[Tensor] | None,
    say: Callable[[str], None],
) -> int:
    """Read the newest checkpoint that is whole, if there is any; returns the steps done."""
    for name in (CHECKPOINT, PREVIOUS):
        if not (folder / name).exists():
            continue
        try:
            step, tensors = _read(folder / name)
        except TrainingError as error:
            if name == PREVIOUS or not (folder / PREVIOUS).exists():
                raise
            say(f"{error}: going on from {PREVIOUS}")
            if int(os.environ.get("RANK", 0)) == 0:  # or it would take the place of the good one
                (folder / name).unlink()
            continue
        try:
            _put_back(tensors, objective, optimiser, average)
        except (KeyError, RuntimeError, ValueError) as error:
            raise TrainingError(
                f"{folder / name}: is of another model than the recipe's; choose another folder"
            ) from error
        return step
    return 0


def _read(path: Path) -> tuple[int, dict[str, Tensor]]:
    """Steps done and tensors of a checkpoint, if they are those that were saved."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            names: list[str] = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        # Older checkpoints have no digest.
        if facts.get("sha256", "") not in ("", _digest(tensors)):
            raise ValueError("its tensors are not those that were saved")
        return int(facts["step"]), tensors
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise TrainingError(f"{path}: damaged ({error})") from error


def _put_back(
    tensors: dict[str, Tensor],
    objective: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: list[Tensor] | None,
) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    with torch.no_grad():
        for name, parameter in objective.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
        for number, mean in enumerate(average or []):
            mean.copy_(tensors[f"average.{number}"])
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of all tensors with their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# ---- the log --------------------------------------------------------------------------------


def trim_log(path: Path, step: int) -> None:
    """Drop the lines of metrics.jsonl after the checkpoint: they will be written again."""
    lines = read_lines(path, TrainingError) if path.exists() else []
    kept = [x for x in lines if isinstance(x.get("step"), int) and x["step"] <= step]
    write_bytes(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
