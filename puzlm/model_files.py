"""Saved models: NAME.json holds the settings, NAME.safetensors the weights. torch comes late."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from puzlm import manifest
from puzlm.errors import ModelError
from puzlm.files import as_record, parse_json, write_bytes
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

    manifest.drop(Path(folder))
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
    """Read a settings file of a model folder, or say what is wrong with it."""
    return as_record(parse_json(_bytes(path), path, ModelError), path, ModelError)


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read tensors from a safetensors file; anything else (a pickle, say) is refused."""
    return read_weights(path).arrays()


@dataclass(frozen=True)
class Weights:
    """A safetensors file that was read: what its header says of each tensor, and all its bytes."""

    path: Path
    entries: dict[str, Any]
    start: int
    """The byte at which the tensors begin; a header's offsets count from there."""
    data: bytes = field(repr=False)

    def array(self, name: str) -> NDArray[Any]:
        """One tensor as it is stored, read-only."""
        entry = self.entries[name]
        first, end = entry["data_offsets"]
        body = memoryview(self.data)[self.start + first : self.start + end]
        return np.frombuffer(body, DTYPES[entry["dtype"]]).reshape(entry["shape"])

    def scale(self) -> np.float32:
        """The factor of a pairwise model's scores, exp(sharpness)."""
        if self.entries.get("sharpness", {}).get("shape") != []:
            raise ModelError(f"{self.path}: has no number 'sharpness'")
        with np.errstate(over="ignore"):
            found = np.float32(np.exp(self.array("sharpness").astype(np.float32)))
        if not np.isfinite(found):
            raise ModelError(f"{self.path}: damaged (its sharpness is out of range)")
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All tensors, each a copy of its own."""
        return {name: self.array(name).copy() for name in self.entries}


def read_weights(path: Path) -> Weights:
    """Read a safetensors file whole, and refuse one whose tensors are not all finite numbers.

    The format is a length, a JSON header and plain bytes: read here with numpy, so that solving
    needs no further package, and nothing in the file can be executed.
    """
    data = _bytes(path)
    try:
        size = int.from_bytes(data[:8], "little")
        if size > len(data) - 8:
            raise ValueError("no header")
        entries = as_record(parse_json(data[8 : 8 + size], path), path)
        entries.pop("__metadata__", None)
        weights = Weights(path, entries, 8 + size, data)
        for name, entry in entries.items():
            start, end = entry["data_offsets"]
            if not 0 <= start <= end <= len(data) - 8 - size:
                raise ValueError(f"{name} lies outside the file")
            if not _finite(weights.array(name)):
                raise ValueError(f"{name} holds values that are no finite numbers")
        return weights
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error


def _finite(array: NDArray[Any]) -> bool:
    """Whether all values are finite: np.isfinite, but a third of its time for half precision."""
    if array.dtype != np.float16:
        return bool(np.isfinite(array).all())
    exponent = 0x7C00  # all its bits are set in infinities and NaN, and in nothing else
    return not bool(((array.view(np.uint16) & exponent) == exponent).any())


def _bytes(path: Path) -> bytes:
    if not path.exists():
        raise ModelError(f"{path.parent}: {path.name} is missing")
    return manifest.read(path)
