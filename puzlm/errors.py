"""What can go wrong for a user.

PuzlmError (ValueError)     one clear line; the command prints it and exits with code 2
├── ImageError              a file that is not a picture, is cut short, too small or too large
├── PuzzleError             pieces and grid that do not fit together
├── ModelError              a model folder that is incomplete, corrupt or refused
└── SettingsError           a setting that does not exist or has no such value
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PuzlmError(ValueError):
    """Base of every error a user can cause."""


class ImageError(PuzlmError):
    """A picture that cannot be used."""


class PuzzleError(PuzlmError):
    """Pieces and grid that do not fit together."""


class ModelError(PuzlmError):
    """A model or tokenizer folder that cannot be used."""


class SettingsError(PuzlmError):
    """A setting that does not exist or has no such value."""


EXTRAS = {  # which extra of the package brings a module
    "torch": "train",
    "transformers": "train",
    "onnx": "train",
    "fastapi": "web",
    "starlette": "web",
    "uvicorn": "web",
    "multipart": "web",
    "python_multipart": "web",
    "matplotlib": "plots",
    "pillow_heif": "photo",
    "pypdfium2": "photo",
    "ray": "ray",
    "pyarrow": "parquet",
}


def missing(error: ImportError) -> SettingsError:
    """Say which extra brings the module that could not be imported; others are raised again."""
    name = str(error.name).partition(".")[0]
    if name == "bench":
        return SettingsError("puzlm bench measures from a checkout: run it in its folder")
    if name not in EXTRAS:
        raise error
    return SettingsError(f"this needs {name}: pip install 'puzlm[{EXTRAS[name]}]'")


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name is meant, for the end of an error message."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
