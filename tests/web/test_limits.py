"""The service under load: sizes, times, the queue, and who waits for whom."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
from PIL import Image
from serving import GOOD, NOISE, SAMPLE, Slow, refused, running

from bench.requests import png
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver
from puzlm.web.answers import Limits
from puzlm.web.app import create_app
from puzlm.web.batching import Batcher


def test_body_size_while_streaming(solver):
    with running(create_app(solver=Slow(solver), limits=Limits(body=2**20))) as address:
        refused(httpx.post(f"{address}/api/solve", files={"zip": bytes(2**20)}), 413, "too_large")
        sent = 0

        def endless():
            nonlocal sent
            yield b'--x\r\nContent-Disposition: form-data; name="zip"; filename="z"\r\n\r\n'
            for _ in range(400):  # 100 MB, without a Content-Length
                sent += 2**18
                yield bytes(2**18)

        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        try:
            answer = httpx.post(f"{address}/api/solve", content=endless(), headers=headers)
            refused(answer, 413, "too_large")
        except httpx.TransportError:
            pass  # the server hung up on us, which is as good
        assert sent < 50 * 2**20
        long = (b"[" * 2**18 for _ in range(40))  # JSON, without a Content-Length
        headers = {"Content-Type": "application/json"}
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(f"{address}/api/read", content=long, headers=headers)
            refused(answer, 413, "too_large")
        answer = httpx.post(f"{address}/api/read", content=b"[" * 500_000, headers=headers)
        refused(answer, 400, "bad_request")
        assert httpx.get(f"{address}/healthz").status_code == 200


def test_slow_client_is_sent_away_and_blocks_nobody(solver):
    with running(create_app(solver=Slow(solver), limits=Limits(upload_s=1.5))) as address:
        host, port = address[7:].split(":")
        with socket.create_connection((host, int(port))) as line:
            line.sendall(
                b"POST /api/solve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
            )
            start = time.perf_counter()
            assert httpx.get(f"{address}/healthz").status_code == 200
            assert time.perf_counter() - start < 1.2
            line.settimeout(20)
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 408") and b"too_slow" in answer


def test_503_when_full_and_bad_puzzles_spoil_no_others(solver):
    slow = Slow(solver)
    limits = Limits(queue=3)
    black, noise = png(np.zeros_like(NOISE)), GOOD
    with running(create_app(solver=slow, limits=limits)) as address, ThreadPoolExecutor(8) as pool:

        def send(data, pieces=4):
            files = [("pieces", data)] * pieces
            return httpx.post(f"{address}/api/solve", files=files, timeout=60)

        first = pool.submit(send, noise, 9)
        while not slow.calls:
            time.sleep(0.02)
        rest = [pool.submit(send, data) for data in (noise, black, noise)]
        while httpx.get(f"{address}/healthz").json()["waiting"] < 3:
            time.sleep(0.02)
        late = send(noise)
        refused(late, 503, "busy")
        assert int(late.headers["retry-after"]) > 0
        slow.go.set()
        answers = [first.result(), *(r.result() for r in rest)]
        assert [r.status_code for r in answers] == [200, 200, 422, 200]
        assert slow.calls[1] == 3  # the three that waited were solved in one call


def test_a_client_that_hangs_up_leaves_the_queue(solver):
    slow = Slow(solver)
    with (
        running(create_app(solver=slow, limits=Limits(queue=3))) as address,
        ThreadPoolExecutor(4) as pool,
    ):

        def send(seconds, count=4):
            return httpx.post(
                f"{address}/api/solve", files=[("pieces", GOOD)] * count, timeout=seconds
            )

        def waiting(count):
            for _ in range(500):
                if httpx.get(f"{address}/healthz").json()["waiting"] == count:
                    return
                time.sleep(0.02)
            raise AssertionError(f"never {count} in the queue")

        first = pool.submit(send, 60, 9)
        while not slow.calls:
            time.sleep(0.02)
        gone = [pool.submit(send, 1.0) for _ in range(3)]
        waiting(3)
        for one in gone:
            assert isinstance(one.exception(), httpx.ReadTimeout)
        waiting(0)  # they hold no places any more
        last = pool.submit(send, 60)
        waiting(1)
        slow.go.set()
        assert [first.result().status_code, last.result().status_code] == [200, 200]
        assert slow.calls == [1, 1]  # nobody solved the three


def test_small_puzzles_overtake_and_large_ones_come_in_the_end():
    """Large ones take 20 ms each. A late small one comes before most of them; and of many small
    ones in a row not all come before a large one that was there first."""
    go, order = threading.Event(), []

    def solve_many(kind, puzzles, given):
        assert go.wait(60)
        for puzzle in puzzles:
            time.sleep(0.02 if puzzle.cells > 9 else 0)
            order.append(puzzle.cells)
        return [None] * len(puzzles)

    batcher = Batcher(solve_many, waiting=500)

    def send(cells):
        side = round(cells**0.5)
        return batcher.submit(
            ("x", "y"), Puzzle(np.zeros((cells, 2, 2, 3), np.uint8), (side, side)), {}
        )

    go.set()
    for cells in (100, 4) * 6:  # until it knows how long they take
        send(cells).result(60)
    go.clear()
    first = send(16)
    while batcher.waiting:
        time.sleep(0.01)
    order.clear()
    jobs = [first, *(send(100) for _ in range(60)), send(4)]
    go.set()
    for job in jobs:
        job.result(60)
    assert order.index(4) < 50 and order.count(100) == 60

    order.clear()
    large = send(100)
    stop = time.monotonic() + 30
    while not large.done() and time.monotonic() < stop:
        send(4).result(60)
    batcher.close()
    assert 100 in order


def test_time_limit(solver):
    slow = Slow(solver)
    with running(create_app(solver=slow, limits=Limits(solve_s=0.5))) as address:
        answer = httpx.post(f"{address}/api/solve", files=[("pieces", GOOD)] * 4)
        refused(answer, 503, "busy")
        slow.go.set()


def test_right_answer_to_the_right_client(client, solver):
    picture = np.asarray(Image.open(SAMPLE).convert("RGB").resize((180, 180)))
    puzzles = [Puzzle.from_image(picture, (2, 3, 4)[k % 3], seed=k) for k in range(24)]

    def send(puzzle):
        files = [("pieces", png(piece)) for piece in puzzle.pieces]
        kind = "bigram" if puzzle.cells == 9 else "classic"
        return client.post("/api/solve", files=files, data={"solver": kind}).json()

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(send, puzzles))
    alone = {
        k: Solver(solver.tokenizer, None, solver.sides, solver=k) for k in ("bigram", "classic")
    }
    for puzzle, answer in zip(puzzles, answers, strict=True):
        expected = alone["bigram" if puzzle.cells == 9 else "classic"].solve(puzzle)
        assert answer["positions"] == expected.positions.tolist()
    right = [a["positions"] == p.truth.tolist() for a, p in zip(answers, puzzles, strict=True)]
    assert np.mean(right) > 0.8
