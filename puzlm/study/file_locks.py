"""Processes that share a folder and a device: locks that end with the process that holds them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from puzlm.errors import SettingsError

PAUSE = 0.05  # seconds between two tries for a place on the device


class Turns:
    """Who may do what, among processes that share `folder`; without a folder, one process all.

    A lock is a small file in locks/ that its holder keeps locked: when a process is killed, what it
    held is free again. All processes of a folder must ask for the same number of `places`.
    """

    def __init__(self, folder: Path | None = None, places: int = 1) -> None:
        self.folder, self.places = folder, places

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Hold the lock of this name; wait while another process does."""
        with ExitStack() as stack:
            if self.folder is not None:
                _lock(stack.enter_context(self._file(name)), wait=True)
            yield

    @contextmanager
    def claiming(self, name: str) -> Iterator[bool]:
        """Hold the lock of this name if it is free; says whether it was."""
        with ExitStack() as stack:
            yield self.folder is None or _lock(stack.enter_context(self._file(name)), wait=False)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Hold one of the places on the device."""
        with ExitStack() as stack:
            if self.folder is not None:
                files = [stack.enter_context(self._file(f"place {n}")) for n in range(self.places)]
                while not any(_lock(file, wait=False) for file in files):
                    time.sleep(PAUSE)
            yield

    def _file(self, name: str) -> IO[bytes]:
        assert self.folder is not None
        # Hashed, because a row may be called what no file may be.
        path = self.folder / "locks" / hashlib.sha256(name.encode()).hexdigest()[:16]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("ab")
        except OSError as error:
            raise SettingsError(f"{path.parent}: cannot be written ({error.strerror})") from error


def _lock(file: IO[bytes], wait: bool) -> bool:
    try:
        import fcntl
    except ImportError as error:
        raise SettingsError("--share does not work on Windows, which has no such locks") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        raise SettingsError(f"{file.name}: no locks on this disk ({error.strerror})") from error
    return True
