"""Files in and out: plain ones only when reading, whole or not at all when writing.

JSON and TOML of strangers are read here and nowhere else. Whatever is in them, a value or one line
comes out: nesting without end, numbers of 5,000 digits, pipes and devices included.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from puzlm.errors import PuzlmError

try:
    import fcntl
except ImportError:  # Windows: what killed runs left behind stays there
    fcntl = None  # type: ignore[assignment]

MARK = ".puzlm-part"  # the end of every temporary name
YOUNG = 60.0  # seconds; a younger temporary file may not be locked yet
WHOLE = 2**63  # whole numbers stay below it: numpy and torch hold no larger ones

# ---- reading --------------------------------------------------------------------------------


def read_bytes(path: str | Path, error: type[PuzlmError] = PuzlmError) -> bytes:
    """Read a plain file. A pipe or device is refused: reading it may never end."""
    # Without this flag the opening of a pipe waits for somebody who writes into it.
    at_once = getattr(os, "O_NONBLOCK", 0)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise error(f"{path}: is no plain file but a pipe or device")
            return file.read()
    except FileNotFoundError as cause:
        raise error(f"{path}: no such file") from cause
    except IsADirectoryError as cause:
        raise error(f"{path}: is a folder, a file is needed here") from cause
    except OSError as cause:
        raise error(f"{path}: cannot be read ({cause.strerror})") from cause


def parse_json(data: str | bytes, where: str | Path, error: type[PuzlmError] = PuzlmError) -> Any:
    """Read JSON, or say in one line that begins with `where` why not."""
    try:
        return json.loads(data, parse_int=_whole)
    except RecursionError as cause:
        raise error(f"{where}: damaged (nested too deeply)") from cause
    except ValueError as cause:
        raise error(f"{where}: damaged ({cause})") from cause


def read_json(path: str | Path, error: type[PuzlmError] = PuzlmError) -> dict[str, Any]:
    """Read a JSON file of names and values."""
    return as_record(parse_json(read_bytes(path, error), path, error), path, error)


def read_lines(path: Path, error: type[PuzlmError] = PuzlmError) -> list[dict[str, Any]]:
    """Tables of a file of JSON lines; one that a killed run cut short is left out."""
    found = []
    for line in read_bytes(path, error).splitlines():
        with contextlib.suppress(PuzlmError):
            found.append(as_record(parse_json(line, path), path))
    return found


def as_record(
    value: Any, where: str | Path, error: type[PuzlmError] = PuzlmError
) -> dict[str, Any]:
    """A table of names and values, or an error."""
    if not isinstance(value, dict):
        raise error(f"{where}: damaged (no names and values in it)")
    return value


def parse_toml(
    text: str, where: str | Path, error: type[PuzlmError] = PuzlmError
) -> dict[str, Any]:
    """Read TOML, or say in one line that begins with `where` why not."""
    try:
        record = tomllib.loads(text)
        _check_numbers(record)
        return record
    except RecursionError as cause:
        raise error(f"{where}: not a readable TOML file (nested too deeply)") from cause
    except ValueError as cause:
        raise error(f"{where}: not a readable TOML file ({cause})") from cause


def read_toml(path: str | Path, error: type[PuzlmError] = PuzlmError) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return parse_toml(read_bytes(path, error).decode(), path, error)
    except UnicodeDecodeError as cause:
        raise error(f"{path}: not a readable TOML file ({cause})") from cause


def _whole(digits: str) -> int:
    """A whole number of JSON that 64 bits hold."""
    if len(digits) > 20 or not -WHOLE <= (value := int(digits)) < WHOLE:
        raise ValueError(f"a number of {len(digits)} digits, more than 64 bits hold")
    return value


def _check_numbers(value: Any) -> None:
    """The same for what was read from TOML."""
    if type(value) is int:
        _whole(str(value))
    parts = value.values() if isinstance(value, dict) else value
    for part in parts if isinstance(value, dict | list) else ():
        _check_numbers(part)


# ---- writing --------------------------------------------------------------------------------


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    write_all({Path(path): data})


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write several files whole, or none of them."""
    path = Path()
    try:
        with ExitStack() as stack:
            written: dict[Path, Path] = {}
            for path, data in files.items():
                if path.is_dir():
                    raise PuzlmError(f"{path}: is a folder, a file name is needed here")
                written[path] = stack.enter_context(temporary(path))
                written[path].write_bytes(data)
            for path, part in written.items():
                os.replace(part, path)
    except OSError as error:
        raise PuzlmError(f"{path}: cannot be written ({error.strerror or error})") from error


@contextmanager
def temporary(path: Path, folder: bool = False) -> Iterator[Path]:
    """A temporary file or folder beside a path, to be renamed to it; gone at the end if it was not.

    The lock on it ends with this process, however that ends. So the next run can tell what a
    killed one left behind, and sweeps it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    prefix = f".{path.name[:40]}."  # few letters: all of a long name and more would be too many
    if folder:
        part = Path(tempfile.mkdtemp(MARK, prefix, path.parent))
        handle = os.open(part, os.O_RDONLY) if fcntl else None
    else:
        handle, name = tempfile.mkstemp(MARK, prefix, path.parent)
        part = Path(name)
    try:
        if handle is not None and fcntl:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # They are made private; results should be as all other files.
        part.chmod((0o777 if folder else 0o666) & ~_umask())
        yield part
    finally:
        if handle is not None:
            os.close(handle)
        shutil.rmtree(part, ignore_errors=True) if folder else part.unlink(missing_ok=True)


_swept: set[Path] = set()  # folders in which this process has looked


def sweep(folder: Path) -> None:
    """Remove what killed runs left in a folder; once a process, since folders may be large."""
    if fcntl is None or folder in _swept:
        return
    _swept.add(folder)
    with contextlib.suppress(OSError):
        for part in folder.glob(f".*{MARK}"):
            with contextlib.suppress(OSError):
                if time.time() - part.lstat().st_mtime < YOUNG or part.is_symlink():
                    continue
                handle = os.open(part, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error: in use
                    shutil.rmtree(part) if part.is_dir() else part.unlink()
                finally:
                    os.close(handle)


def _umask() -> int:
    """Read the process's umask."""
    value = os.umask(0)
    os.umask(value)
    return value
