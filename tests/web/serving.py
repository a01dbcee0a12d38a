"""What the tests of the page and the service share."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from bench.requests import png
from puzlm.errors import PuzzleError
from puzlm.solving.search.deadline import ended_early, over
from puzlm.web.app import create_app
from puzlm.web.serve import Server, listen

SAMPLE = Path(__file__).parents[2] / "puzlm" / "web" / "static" / "samples" / "shore.webp"
RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 255, (48, 48, 3), np.uint8)
GOOD = png(NOISE)
Files = list[tuple[str, tuple[str, bytes, str]]]


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Run an app on a free port of this machine; gives its address."""
    opened = listen("127.0.0.1", 0)
    server = Server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    try:
        for _ in range(300):
            if server.started:
                break
            time.sleep(0.05)
        assert server.started
        yield f"http://127.0.0.1:{opened.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        opened.close()


def piece_files(puzzle: dict) -> Files:
    """The pieces of an answer of /api/make, as files to upload."""
    return [
        ("pieces", (f"{i}.png", base64.b64decode(url.split(",")[1]), "image/png"))
        for i, url in enumerate(puzzle["pieces"])
    ]


def refused(answer: httpx.Response, status: int, code: str) -> str:
    """Check the one shape of errors; gives the message."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == {"code", "message"}
    assert body["error"]["code"] == code, body
    message = body["error"]["message"]
    assert message and "\n" not in message and "Traceback" not in message
    return message


class Waiting:
    """An engine of the worker processes that waits for a signal: a file `go` in its folder.

    It writes the number of pieces of each puzzle it begins to `begun`, of each it ends to `ended`.
    A first piece of one grey level asks for something special: 0 an error of the client, 1 an
    error inside, 2 a process that dies, 3 one that hears no deadline, 4 an answer at once.
    """

    def __init__(self, model: str | None, options: dict[str, Any]) -> None:
        self.folder = Path(options["folder"])

    def about(self) -> dict[str, Any]:
        """As engines.Puzzles does."""
        return dict.fromkeys(("granularity", "vocab_size", "border"), 1) | {
            "name": "waiting",
            "grids": [],
            "patch": "square",
            "solver": "auto",
            "decoding": "valid",
        }

    def solve(self, puzzle, kind, given, symbols) -> dict[str, Any]:
        """Wait, then put every piece where it lies."""
        n, level = len(puzzle.pieces), int(puzzle.pieces[0].max())
        with open(self.folder / "begun", "a") as file:
            file.write(f"{n}\n")
        while level != 4 and not (self.folder / "go").exists() and (level == 3 or not over()):
            time.sleep(0.01)
        if level == 0:
            raise PuzzleError("a black puzzle")
        if level == 1:
            raise ZeroDivisionError("division by zero")
        if level == 2:
            import os

            os._exit(9)
        with open(self.folder / "ended", "a") as file:
            file.write(f"{n}\n")
        return {
            "positions": list(range(n)),
            "order": list(range(n)),
            "confidences": [1.0] * n,
            "alternatives": [],
            "grid": list(puzzle.grid),
            "solver": "waiting",
            "seconds": 0.1,
            "complete": not ended_early(),
            "read": False,
        }


class Slow:
    """A service whose solver waits until it is told to go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def app(self, **options: Any) -> FastAPI:
        """The service."""
        return create_app(engine="serving:Waiting", folder=str(self.folder), **options)

    def go(self) -> None:
        """Let it answer."""
        (self.folder / "go").touch()

    def calls(self, what: str = "begun") -> list[int]:
        """Pieces of the puzzles that it began, or `ended`."""
        path = self.folder / what
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def began(self, count: int) -> None:
        """Wait until it has begun so many."""
        for _ in range(1500):
            if len(self.calls()) >= count:
                return
            time.sleep(0.02)
        raise AssertionError(f"begun: {self.calls()}")


def level(value: int) -> bytes:
    """A piece of one grey level."""
    return png(np.full_like(NOISE, value))


def waiting(address: str, count: int) -> None:
    """Wait until so many puzzles are in the queue."""
    for _ in range(500):
        if httpx.get(f"{address}/healthz").json()["waiting"] == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"never {count} in the queue")
