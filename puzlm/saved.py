"""Saved models: NAME.json holds the settings, NAME.safetensors the weights. torch comes late."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from puzlm.errors import ModelError
from puzlm.images import write_bytes
from puzlm.tokenizer import read_json, read_safetensors, settings_from

if TYPE_CHECKING:
    import torch

    Model = TypeVar("Model", bound=torch.nn.Module)


def save(
    folder: str | Path,
    name: str,
    settings: Any,
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype | None = None,
) -> None:
    """Write settings (a dataclass) and tensors; without `dtype` each as it is."""
    from safetensors.torch import save as packed

    parts = {k: t.detach().to(dtype or t.dtype).cpu().contiguous() for k, t in tensors.items()}
    write_bytes(Path(folder) / f"{name}.safetensors", packed(parts))
    record = json.dumps({"version": 1, **asdict(settings)}, indent=1) + "\n"
    write_bytes(Path(folder) / f"{name}.json", record.encode())


def save_half(model: Any, folder: str | Path, name: str) -> None:
    """Write a model, which has `settings`, in half precision."""
    import torch

    save(folder, name, model.settings, dict(model.named_parameters()), torch.float16)


def load(kind: type[Model], settings: type[Any], folder: str | Path, name: str) -> Model:
    """Read a model of the kind, made from settings; nothing in the files is executed."""
    import torch

    folder = Path(folder)
    model = kind(read_settings(settings, folder / f"{name}.json"))
    arrays = read_safetensors(folder / f"{name}.safetensors")
    own = dict(model.named_parameters())
    if {k: tuple(p.shape) for k, p in own.items()} != {k: a.shape for k, a in arrays.items()}:
        raise ModelError(f"{folder}: {name}.safetensors does not fit {name}.json")
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(torch.as_tensor(arrays[key]))
    return model.eval()


def read_settings(kind: type[Any], path: Path) -> Any:
    """Settings of a saved model, or of a tokenizer."""
    record = read_json(path)
    record.pop("version", None)
    record = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
    return settings_from(kind, record, str(path.parent))
