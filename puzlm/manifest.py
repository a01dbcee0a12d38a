"""manifest.json: the SHA-256 of every file of a shipped model folder, compared on load.

A folder of one's own has none, and needs none. Who writes into a folder that has one removes it:
its files are no longer those that were shipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from puzlm import files
from puzlm.errors import ModelError

NAME = "manifest.json"
NO_PART = (NAME, "README.md")  # files that no answer depends on
BOX = Path(__file__).parent / "models"  # the shipped folders: each of them has a manifest


def read(path: Path) -> bytes:
    """Bytes of a file of a model folder, if they are those of its manifest."""
    data = files.read_bytes(path, ModelError)
    manifest = path.parent / NAME
    if not manifest.exists():
        if path.resolve().parent.parent == BOX:
            raise ModelError(f"{path.parent}: {NAME} is missing; install puzlm again")
        return data
    listed = files.read_json(manifest, ModelError).get("files")
    wanted = listed.get(path.name) if isinstance(listed, dict) else None
    if wanted != hashlib.sha256(data).hexdigest():
        raise ModelError(
            f"{path}: is not the file that {NAME} names; it is damaged or was exchanged "
            "(install puzlm again, or copy the folder anew)"
        )
    return data


def write(folder: Path) -> None:
    """Make the manifest of a folder that ships."""
    record: dict[str, Any] = {"version": 1, "files": digests(folder)}
    files.write_bytes(folder / NAME, (json.dumps(record, indent=1) + "\n").encode())


def drop(folder: Path) -> None:
    """Remove the manifest of a folder that is written into."""
    (folder / NAME).unlink(missing_ok=True)


def of_folders(folders: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of the files of several folders, by FOLDER/FILE."""
    return {f"{f.name}/{name}": value for f in folders for name, value in digests(f).items()}


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder that an answer may depend on."""
    parts = sorted(p for p in folder.iterdir() if p.is_file() and p.name not in NO_PART)
    return {p.name: digest(p) for p in parts if not p.name.startswith(".")}


def digest(path: Path) -> str:
    """SHA-256 of a file; read once as long as its size and time stay."""
    facts = path.stat()
    return _digest(path.resolve(), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, time: int) -> str:
    return hashlib.sha256(files.read_bytes(path, ModelError)).hexdigest()
