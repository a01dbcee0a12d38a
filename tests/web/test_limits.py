"""The service under load: sizes, times, the queues, and who waits for whom."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
from PIL import Image
from serving import GOOD, SAMPLE, level, refused, running, waiting

from bench.requests import many_scans, png
from puzlm.images import cores
from puzlm.puzzle import Puzzle
from puzlm.web import staff
from puzlm.web.answers import Limits
from puzlm.web.workers import Job, Plan, Workers

LARGE = 36  # pieces: beyond a small grid


def send(address: str, data: bytes = GOOD, pieces: int = 4, seconds: float = 60) -> httpx.Response:
    """Ask for the solution of a puzzle of equal pieces."""
    return httpx.post(f"{address}/api/solve", files=[("pieces", data)] * pieces, timeout=seconds)


def ask_and_stay(address: str, pieces: int) -> socket.socket:
    """The same over a line that can be closed."""
    request = httpx.Request("POST", address, files=[("pieces", GOOD)] * pieces)
    body = request.read()
    head = f"POST /api/solve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    head += f"Content-Type: {request.headers['content-type']}\r\n\r\n"
    line = socket.create_connection(tuple(address[7:].split(":")))
    line.sendall(head.encode() + body)
    return line


def test_body_size_while_streaming(slow):
    with running(slow.app(limits=Limits(body=2**20))) as address:
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


def test_slow_bodies_end_and_many_of_them_hold_no_memory(slow):
    limits = Limits(upload_s=1.5, held=300_000)
    head = (
        b"POST /api/solve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500000\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        b'Content-Disposition: form-data; name="zip"; filename="z"\r\n\r\n'
    )
    with running(slow.app(limits=limits)) as address, contextlib.ExitStack() as stack:
        where = address[7:].split(":")
        lines = [
            stack.enter_context(socket.create_connection((where[0], int(where[1]))))
            for _ in range(4)
        ]
        for line in lines:
            line.sendall(head + bytes(100_000))
        assert httpx.get(f"{address}/healthz").status_code == 200
        answers = []
        for line in lines:
            line.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                answers.append(line.recv(65536))
        assert sum(b"503" in answer[:20] for answer in answers) >= 1  # beyond what may be held
        assert sum(b"408" in answer[:20] for answer in answers) >= 1
        assert "puzlm_body_bytes 0" in httpx.get(f"{address}/metrics").text


def test_503_when_full_and_bad_puzzles_spoil_no_others(slow):
    limits = Limits(queue=3)
    with running(slow.app(limits=limits)) as address, ThreadPoolExecutor(8) as pool:
        first = [pool.submit(send, address, GOOD, 9) for _ in range(cores())]
        slow.began(cores())
        rest = [pool.submit(send, address, data) for data in (GOOD, level(0), level(1))]
        waiting(address, 3)
        late = send(address)
        refused(late, 503, "busy")
        assert int(late.headers["retry-after"]) > 0
        slow.go()
        answers = [r.result() for r in (*first, *rest)]
        assert [r.status_code for r in answers] == [200] * cores() + [200, 422, 500]
        assert "division" not in refused(answers[-1], 500, "internal")


def test_small_puzzles_do_not_wait_for_large_ones(slow):
    """With every process for large puzzles at work, and more large ones in the queue."""
    with running(slow.app()) as address, ThreadPoolExecutor(8) as pool:
        large = [pool.submit(send, address, GOOD, LARGE) for _ in range(cores() + 2)]
        slow.began(cores())
        assert send(address, level(4)).json()["complete"]
        assert slow.calls("ended") == [4]
        slow.go()
        assert [r.result().status_code for r in large] == [200] * len(large)


def test_short_jobs_overtake_and_no_client_takes_all(tmp_path, slow):
    """Large ones come in the end, and a client with one job does not wait for another's many."""
    plan = Plan("test", "serving:Waiting", {"model": None, "options": {"folder": str(tmp_path)}},
                1, 100, 60.0)  # fmt: skip
    workers = Workers(plan)
    workers.start()

    def job(cells: int, client: str, expected: float = 0.0, old: float = 0.0) -> Job:
        puzzle = Puzzle(np.full((cells, 2, 2, 3), 9, np.uint8), (1, cells))
        made = Job("solve", (puzzle, (), {}, False), client, expected)
        made.since -= old
        workers.submit(made)
        return made

    first = job(2, "a")
    slow.began(1)
    jobs = [job(30, "a", 40.0), job(31, "a", 40.0, old=50.0), job(3, "a"), job(4, "b")]
    slow.go()
    for one in (first, *jobs):
        one.answer.result(60)
    workers.close()
    # None runs when the next is chosen: who waited long enough comes before later short ones.
    assert slow.calls() == [2, 31, 3, 4, 30]


def test_work_of_clients_who_have_gone_is_dropped(slow):
    with running(slow.app(limits=Limits(queue=3))) as address:
        first = [ask_and_stay(address, 9) for _ in range(cores())]
        slow.began(cores())
        gone = [ask_and_stay(address, 4) for _ in range(3)]
        waiting(address, 3)
        for line in (*gone, *first):
            line.close()
        waiting(address, 0)  # they hold no places any more
        last = send(address, level(4))  # nor processes: nobody said "go"
        assert last.status_code == 200
        assert slow.calls().count(4) == 1


def test_a_deadline_gives_the_best_so_far_and_a_deaf_process_is_killed(slow, monkeypatch):
    monkeypatch.setattr(staff, "SLACK_S", 0.5)
    with running(slow.app(limits=Limits(search_s=0.3))) as address:
        answer = send(address, GOOD, LARGE)
        assert answer.status_code == 200 and answer.json()["complete"] is False
        killed = send(address, level(3))
        refused(killed, 503, "busy")
        assert int(killed.headers["retry-after"]) > 0
        refused(send(address, level(2)), 503, "busy")  # a process that dies by itself
        assert send(address, level(4)).json()["complete"] is True
        lost = [x for x in httpx.get(f"{address}/metrics").text.splitlines() if "lost" in x]
        assert 'puzlm_processes_lost_total{pool="puzzle"} 2' in lost


def test_a_client_waits_no_longer_than_said(slow):
    with running(slow.app(limits=Limits(solve_s=0.5))) as address:
        refused(send(address), 503, "busy")


def test_at_most_so_many_from_one_address(slow):
    with running(slow.app(limits=Limits(each=3))) as address, ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(send, address) for _ in range(3)]
        slow.began(1)
        for _ in range(300):
            if "puzlm_requests 4" in httpx.get(f"{address}/metrics").text:
                break
            time.sleep(0.02)
        late = send(address)
        refused(late, 429, "too_many")
        assert int(late.headers["retry-after"]) > 0
        assert httpx.get(f"{address}/healthz").status_code == 200
        slow.go()
        assert [s.result().status_code for s in sent] == [200] * 3


def test_costly_pictures_are_refused_or_their_decoder_is_killed(slow):
    bomb = many_scans(side=400)
    assert len(bomb) < 200_000
    huge = np.zeros((5000, 5000, 3), np.uint8)
    with running(slow.app(limits=Limits(decode_s=0.02))) as address:
        files = {"picture": ("a.jpg", bomb), "grid": (None, "3")}
        for path in ("make", "solve", "open"):
            answer = httpx.post(f"{address}/api/{path}", files=files)
            assert "scans" in refused(answer, 422, "bad_image")
        files["picture"] = ("a.png", png(huge))
        refused(httpx.post(f"{address}/api/solve", files=files, timeout=60), 422, "costly_image")
        slow.go()
        assert send(address).status_code == 200


def test_right_answer_to_the_right_client(client, solver):
    picture = np.asarray(Image.open(SAMPLE).convert("RGB").resize((180, 180)))
    puzzles = [Puzzle.from_image(picture, (2, 3, 4)[k % 3], seed=k) for k in range(24)]

    def ask(puzzle):
        files = [("pieces", png(piece)) for piece in puzzle.pieces]
        kind = "bigram" if puzzle.cells == 9 else "classic"
        return client.post("/api/solve", files=files, data={"solver": kind}).json()

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, puzzles))
    alone = {kind: solver.variant(solver=kind) for kind in ("bigram", "classic")}
    for puzzle, answer in zip(puzzles, answers, strict=True):
        expected = alone["bigram" if puzzle.cells == 9 else "classic"].solve(puzzle)
        assert answer["positions"] == expected.positions.tolist()
    right = [a["positions"] == p.truth.tolist() for a, p in zip(answers, puzzles, strict=True)]
    assert np.mean(right) > 0.8
