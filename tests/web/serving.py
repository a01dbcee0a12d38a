"""What the tests of the page and the service share."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI

from bench.requests import png
from puzlm.errors import PuzzleError
from puzlm.solver import Solution, Solver

SAMPLE = Path(__file__).parents[2] / "puzlm" / "web" / "static" / "samples" / "shore.webp"
RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 255, (48, 48, 3), np.uint8)
GOOD = png(NOISE)
Files = list[tuple[str, tuple[str, bytes, str]]]


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Run an app on a free port of this machine; gives its address."""
    config = uvicorn.Config(app, port=0, log_level="error", ws="none", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for _ in range(300):
            if server.started:
                break
            time.sleep(0.05)
        assert server.started
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


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


class Slow:
    """A stand-in for Solver whose answers wait for a signal."""

    def __init__(self, solver: Solver) -> None:
        self.tokenizer, self.sides, self.reader, self.card = solver.tokenizer, None, None, {}
        self.solver, self.decoding = "auto", "valid"
        self.go, self.calls = threading.Event(), []

    def solve_many(self, puzzles, *, given):
        self.calls.append(len(puzzles))
        assert self.go.wait(60)
        if any(p.pieces.max() == 0 for p in puzzles):
            raise PuzzleError("a black puzzle")
        return [
            Solution(
                np.arange(len(p.pieces)), np.ones(len(p.pieces)), p.grid, "slow", 0.1, p.pieces
            )
            for p in puzzles
        ]
