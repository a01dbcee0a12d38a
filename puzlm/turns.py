"""Processes that share a folder and a device: locks that end with the process that holds them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from puzlm.errors import SettingsError

PAUSE = 0.05  # seconds between two tries for a place on the device


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Turns:
    """Who may do what, among processes that share `folder`; without a folder, one process all.

    A lock is a file that its holder keeps locked, so that of a killed process nothing stays behind.
    """

    def __init__(self, folder: Path | None = None, places: int = 1) -> None:
        self.folder, self.places = folder, places
        if folder is not None:
            try:
                import fcntl  # noqa: F401  (POSIX only)
            except ImportError as error:
                raise SettingsError("--share needs a system with file locks") from error
            (folder / "locks").mkdir(parents=True, exist_ok=True)

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
        return (self.folder / "locks" / name).open("ab")


def _lock(file: IO[bytes], wait: bool) -> bool:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
