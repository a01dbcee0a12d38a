"""What the tests of the page and the service share."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI
from PIL import Image

SAMPLE = Path(__file__).parents[2] / "puzlm" / "web" / "static" / "samples" / "shore.webp"
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


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def piece_files(puzzle: dict) -> Files:
    """The pieces of an answer of /api/make, as files to upload."""
    return [
        ("pieces", (f"{i}.png", base64.b64decode(url.split(",")[1]), "image/png"))
        for i, url in enumerate(puzzle["pieces"])
    ]
