"""One real server with the shipped model for all tests of the page and the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from serving import Slow, running

from puzlm.solver import Solver
from puzlm.web.app import create_app


@pytest.fixture(scope="session")
def solver() -> Solver:
    return Solver.from_pretrained()


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    return Slow(tmp_path)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with running(create_app()) as address:
        yield address


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def make(client: httpx.Client) -> Callable[..., dict]:
    def call(sample: str = "shore", **fields: object) -> dict:
        data = {"sample": sample, **{k: str(v) for k, v in fields.items()}}
        answer = client.post("/api/make", files={k: (None, v) for k, v in data.items()})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return call
