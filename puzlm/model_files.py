"""Saved models: NAME.json holds the settings, NAME.safetensors the weights. torch comes late."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import ModelError
from puzlm.images import write_bytes
from puzlm.sections import section

if TYPE_CHECKING:
    import torch

    Model = TypeVar("Model", bound=torch.nn.Module)

DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8}


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
    shape = read_settings(settings, folder / f"{name}.json")
    arrays = read_safetensors(folder / f"{name}.safetensors")
    model = build(kind, shape, arrays, f"{folder}: {name}")
    own = dict(model.named_parameters())
    if {k: tuple(p.shape) for k, p in own.items()} != {k: a.shape for k, a in arrays.items()}:
        raise ModelError(f"{folder}: {name}.safetensors does not fit {name}.json")
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(torch.as_tensor(arrays[key]))
    return model.eval()


def build(kind: type[Model], settings: Any, arrays: dict[str, NDArray[Any]], where: str) -> Model:
    """Make the network that settings ask for, if it can be one that holds these arrays.

    Without memory first: settings that promise a billion weights would take all there is.
    """
    import torch

    layers = max([v for k, v in vars(settings).items() if k.endswith("layers")], default=0)
    held = sum(array.size for array in arrays.values())
    fits = layers <= len(arrays)
    try:
        if fits:
            with torch.device("meta"):
                fits = sum(p.numel() for p in kind(settings).parameters()) <= held
        if fits:
            return kind(settings)
    except (ValueError, TypeError, ArithmeticError, RuntimeError, LookupError) as error:
        raise ModelError(f"{where}.json: no model can have this shape ({error})") from error
    raise ModelError(f"{where}.safetensors does not fit {where.rsplit(' ', 1)[-1]}.json")


def read_settings(kind: type[Any], path: Path) -> Any:
    """Settings of a saved model, or of a tokenizer."""
    record = read_json(path)
    record.pop("version", None)
    return section(kind, record, f"{path.parent}: {path.name}")


def read_json(path: Path) -> dict[str, Any]:
    """Read a settings file, or say what is wrong with it."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {path.name} is missing") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: damaged ({error})") from error
    if not isinstance(record, dict):
        raise ModelError(f"{path}: damaged (no settings in it)")
    return record


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read tensors from a safetensors file; anything else (a pickle, say) is refused.

    The format is a length, a JSON header and plain bytes: read here with numpy, so that solving
    needs no further package, and nothing in the file can be executed.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {path.name} is missing") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        size = int.from_bytes(data[:8], "little")
        if size > len(data) - 8:
            raise ValueError("no header")
        header, body = json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :]
        header.pop("__metadata__", None)
        arrays: dict[str, NDArray[Any]] = {}
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            if not 0 <= start <= end <= len(body):
                raise ValueError(f"{name} lies outside the file")
            array = np.frombuffer(body[start:end], DTYPES[entry["dtype"]])
            arrays[name] = array.reshape(entry["shape"]).copy()
        return arrays
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error
