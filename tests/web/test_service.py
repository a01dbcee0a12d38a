"""The service: answers, limits, bad input, batching, headers; against a real server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from serving import SAMPLE, piece_files, png, running

from puzlm.errors import PuzzleError
from puzlm.puzzle import Puzzle
from puzlm.solver import Solution, Solver
from puzlm.web.answers import Limits
from puzlm.web.app import create_app
from puzlm.web.batching import Batcher
from puzlm.web.guard import HEADERS

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 255, (48, 48, 3), np.uint8)


def refused(answer: httpx.Response, status: int, code: str) -> str:
    """Check the one shape of errors; gives the message."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == {"code", "message"}
    assert body["error"]["code"] == code, body
    message = body["error"]["message"]
    assert message and "\n" not in message and "Traceback" not in message
    return message


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


# ---- answers ----------------------------------------------------------------------------------


def test_health_models_samples(client):
    assert client.get("/healthz").json()["status"] == "ok"
    about = client.get("/api/models").json()
    assert about["models"][0]["grids"] == ["3x3"] and "auto" in about["solvers"]
    for sample in client.get("/api/samples").json()["samples"]:
        picture = client.get(sample["url"])
        assert picture.headers["content-type"] == "image/webp" and len(picture.content) < 60_000
        assert Image.open(io.BytesIO(picture.content)).size == (720, 720)


def test_make_is_the_library(client, make):
    answer = make("town", grid="3x4", gap=0.1, missing=2, seed=5)
    picture = np.asarray(Image.open(SAMPLE.with_name("town.webp")).convert("RGB"))
    same = Puzzle.from_image(picture, "3x4", gap=0.1, missing=2, seed=5)
    assert answer["truth"] == same.truth.tolist() and answer["grid"] == [3, 4]
    first = np.asarray(Image.open(io.BytesIO(piece_files(answer)[0][1][1])))
    assert np.array_equal(first, same.pieces[0])
    uploaded = client.post("/api/make", files={"picture": SAMPLE.read_bytes()}, data={"grid": "2"})
    assert uploaded.json()["truth"] == Puzzle.from_image(picture, 2).truth.tolist()


@pytest.mark.parametrize("how", ["pieces", "zip", "saved", "picture"])
def test_solve_pieces_zip_and_picture(client, make, tmp_path, how):
    puzzle = make("poster", grid=3, seed=3)
    files, data = piece_files(puzzle), {"grid": "3"}
    arrays = np.stack([np.asarray(Image.open(io.BytesIO(f[1][1]))) for f in files])
    truth = puzzle["truth"]
    if how == "zip":  # natural order: piece 2 before piece 10
        entries = {f"box/piece_{i + 2}.png": f[1][1] for i, f in enumerate(files)}
        entries["__MACOSX/._piece_2.png"] = entries["notes.txt"] = b"?"
        files, data = {"zip": zipped(entries)}, {}
    elif how == "saved":
        Puzzle(arrays, (3, 3), np.array(truth)).save(tmp_path / "p")
        entries = {f.name: f.read_bytes() for f in (tmp_path / "p").iterdir()}
        files, data = {"zip": zipped(entries)}, {}
    elif how == "picture":
        order = np.arange(9).reshape(3, 3)
        sheet = np.concatenate([np.concatenate(list(arrays[row]), 1) for row in order])
        files = {"picture": png(sheet)}
    answer = client.post("/api/solve", files=files, data={**data, "symbols": "1"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["positions"] == truth
    assert sorted(found["order"]) == list(range(9)) and found["solver"].startswith("auto")
    assert all(0 <= c <= 1 for c in found["confidences"]) and found["seconds"] > 0
    assert all(sorted(p) == list(range(9)) for p in found["alternatives"])
    assert np.array(found["symbols"]).shape == (9, 16, 4)
    opened = client.post("/api/open", files=files, data=data).json()
    assert opened["grid"] == [3, 3] and len(opened["pieces"]) == 9
    assert opened["truth"] == (truth if how == "saved" else None)
    assert opened["symbols"] == found["symbols"]


def test_given_placements_are_kept(client, make):
    puzzle = make("shore", grid=3, seed=3)
    wrong = {"0": puzzle["truth"][1], "4": puzzle["truth"][7]}
    answer = client.post(
        "/api/solve", files=piece_files(puzzle), data={"grid": "3", "given": json.dumps(wrong)}
    ).json()
    assert answer["positions"][0] == wrong["0"] and answer["positions"][4] == wrong["4"]
    assert sorted(answer["positions"]) == list(range(9)) and answer["symbols"] is None


@pytest.mark.parametrize("kind", ["seq2seq", "bigram", "classic", "random"])
def test_other_solvers(client, make, kind):
    puzzle = make("shore", grid=3, seed=8)
    answer = client.post("/api/solve", files=piece_files(puzzle), data={"solver": kind}).json()
    assert answer["solver"].startswith(kind) and sorted(answer["positions"]) == list(range(9))


def test_read_from_symbols_alone(client, make):
    puzzle = make("shore", grid=3, seed=3)
    at = {cell: piece for piece, cell in enumerate(puzzle["truth"])}
    around = {"top": at[1], "right": at[5], "bottom": at[7], "left": at[3]}
    question = {"symbols": puzzle["symbols"], "piece": at[4], "neighbours": around}
    reading = client.post("/api/read", json=question).json()
    assert len(reading["text"].split()) == 16 and len(reading["walk"]) == 16
    assert reading["picture"].startswith("data:image/png;base64,")
    assert len(json.dumps(reading)) < 60_000
    true = [p["closeness"][0] for side in reading["sides"] for p in side["positions"]]
    assert [side["rank"] for side in reading["sides"]] == [1, 1, 1, 1]
    question["neighbours"] = {"top": at[8], "right": at[0], "bottom": at[2], "left": at[6]}
    reading = client.post("/api/read", json=question).json()
    false = [p["closeness"][0] for side in reading["sides"] for p in side["positions"]]
    assert np.mean(true) > 0.95 > 0.8 > np.mean(false)
    refused(client.post("/api/read", json={**question, "piece": 9}), 422, "bad_piece")
    question["symbols"][0][0][0] = 1536
    refused(client.post("/api/read", json=question), 422, "bad_symbols")
    refused(client.post("/api/read", content=b"{"), 422, "bad_json")


def test_gif(client, make):
    puzzle = make("mandala", grid="2x3", missing=1)
    fields = {"grid": "2x3", "positions": json.dumps(puzzle["truth"]), "order": "[4,3,2,1,0]"}
    answer = client.post("/api/gif", files=piece_files(puzzle), data=fields)
    assert answer.headers["content-type"] == "image/gif"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.n_frames > 3 and max(image.size) <= 640
    fields["order"] = "[0]"
    refused(client.post("/api/gif", files=piece_files(puzzle), data=fields), 422, "bad_field")


# ---- bad input --------------------------------------------------------------------------------


def header_bomb() -> bytes:
    """A PNG whose header promises 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


GOOD = png(NOISE)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 422, "bad_image"),
        (b"no picture", 422, "bad_image"),
        (GOOD[: len(GOOD) // 2], 422, "bad_image"),
        (EPS, 422, "bad_image"),
        pytest.param(header_bomb(), 413, "too_many_pixels", id="bomb"),
        (zipped({"a.png": GOOD}), 422, "bad_image"),
    ],
)
@pytest.mark.parametrize("path", ["make", "solve", "open"])
def test_bad_pictures(client, path, data, status, code):
    answer = client.post(
        f"/api/{path}", files={"picture": ("../../x.png", data)}, data={"grid": "3"}
    )
    assert ".." not in refused(answer, status, code)


@pytest.mark.parametrize(
    ("files", "fields", "status", "code"),
    [
        ([("pieces", GOOD)] * 9, {"grid": "nine"}, 422, "unusable"),
        ([("pieces", GOOD)] * 9, {"grid": "2"}, 422, "bad_grid"),
        ([("pieces", GOOD)] * 7, {}, 422, "unusable"),
        ([("pieces", GOOD)] * 9, {"grid": "99x99"}, 413, "too_many_pieces"),
        ([("pieces", GOOD)] * 9, {"grid": "9" * 5000}, 422, "bad_grid"),
        ([("pieces", GOOD)] * 450, {}, 413, "too_many_pieces"),
        ([("pieces", GOOD)] * 3 + [("pieces", png(NOISE[:40]))], {}, 422, "unequal_pieces"),
        ([("pieces", GOOD)] * 4, {"solver": "magic"}, 422, "bad_field"),
        ([("pieces", GOOD)] * 4, {"decode": "bean"}, 422, "bad_field"),
        ([("pieces", GOOD)] * 4, {"solver": "seq2seq"}, 422, "unusable"),
        ([("pieces", GOOD)] * 4, {"given": "{"}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"given": "[1]"}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"given": '{"0": 4}'}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"given": '{"0": 1, "1": 1}'}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"given": "[" * 50_000}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"path": "/etc/passwd"}, 422, "unknown_field"),
        ([("pieces", GOOD), ("zip", GOOD)], {}, 422, "no_pieces"),
        ([("picture", GOOD)], {}, 422, "bad_grid"),
        ([("zip", GOOD)], {}, 422, "bad_zip"),
        ([("zip", zipped({"a.txt": b"a"}))], {}, 422, "bad_zip"),
        ([("zip", zipped({"a.png": GOOD})[:-30])], {}, 422, "bad_zip"),
        ([("zip", zipped({"a.png": GOOD}, zipfile.ZIP_LZMA))], {}, 422, "bad_zip"),
        ([("zip", zipped({f"{i}.png": b"" for i in range(500)}))], {}, 413, "too_many_pieces"),
        ([("zip", zipped({f"{i}.txt": b"" for i in range(2000)}))], {}, 413, "zip_bomb"),
        ([("zip", zipped({"a.png": bytes(70 << 20)}))], {}, 413, "zip_bomb"),
    ],
)
def test_bad_puzzles(client, files, fields, status, code):
    refused(client.post("/api/solve", files=files, data=fields), status, code)


def test_zip_that_lies_about_its_size(client):
    data = bytearray(zipped({"a.png": bytes(70 << 20)}))
    for mark, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = data.index(mark) + offset
        data[at : at + 4] = struct.pack("<I", 100)
    answer = client.post("/api/solve", files={"zip": bytes(data)})
    assert answer.status_code in (413, 422)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"sample": "nowhere"}, "unknown_sample"),
        ({"sample": "../index"}, "unknown_sample"),
        ({}, "no_picture"),
        ({"sample": "shore", "gap": "2"}, "bad_field"),
        ({"sample": "shore", "gap": "nan"}, "bad_field"),
        ({"sample": "shore", "seed": "-1"}, "bad_field"),
        ({"sample": "shore", "seed": "1.5"}, "bad_field"),
        ({"sample": "shore", "missing": "9"}, "unusable"),
    ],
)
def test_bad_making(client, fields, code):
    files = {name: (None, value) for name, value in fields.items()} or {"grid": (None, "3")}
    refused(client.post("/api/make", files=files), 422, code)


def test_other_ways_to_be_wrong(client):
    refused(client.post("/api/solve", json={}), 415, "not_a_form")
    refused(client.get("/api/solve"), 405, "not_allowed")
    refused(client.get("/nowhere"), 404, "not_found")
    refused(client.get("/static/../app.py"), 404, "not_found")
    refused(client.get("/static/%2e%2e/app.py"), 404, "not_found")
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    refused(client.post("/api/solve", content=b"--y\r\nrubbish", headers=headers), 400, "bad_form")
    headers = {"Content-Type": "multipart/form-data"}
    refused(client.post("/api/solve", content=b"abc", headers=headers), 400, "bad_form")


IMAGES = []
for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM"):
    held = io.BytesIO()
    Image.fromarray(NOISE).save(held, kind)
    IMAGES.append(held.getvalue())


@st.composite
def broken_images(draw):
    data = bytearray(draw(st.sampled_from(IMAGES)))
    for _ in range(draw(st.integers(1, 6))):
        data[draw(st.integers(0, min(len(data) - 1, 400)))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.one_of(broken_images(), st.binary(max_size=300)))
def test_any_bytes_get_200_or_4xx(client, data):
    answer = client.post(
        "/api/solve", files={"picture": data}, data={"grid": "2", "solver": "classic"}
    )
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text


# ---- limits -----------------------------------------------------------------------------------


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


def test_a_form_cut_short_is_no_puzzle_with_missing_pieces(client, make):
    """Nine pieces of which the body ends within the sixth: five pieces must not be solved."""
    request = httpx.Request("POST", "http://x/", files=piece_files(make()), data={"grid": "3"})
    body = request.read()
    headers = {"Content-Type": request.headers["content-type"]}
    for share in (0.6, 0.999):
        cut = body[: int(len(body) * share)]
        refused(client.post("/api/solve", content=cut, headers=headers), 400, "bad_form")
    assert client.post("/api/solve", content=body, headers=headers).status_code == 200


def test_a_client_that_hangs_up_leaves_the_queue(solver):
    slow = Slow(solver)
    with running(create_app(solver=slow, limits=Limits(queue=3))) as address, \
            ThreadPoolExecutor(4) as pool:  # fmt: skip

        def send(seconds, count=4):
            return httpx.post(f"{address}/api/solve", files=[("pieces", GOOD)] * count,
                              timeout=seconds)  # fmt: skip

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


# ---- safety -----------------------------------------------------------------------------------


def test_headers_everywhere(client):
    for path in ("/", "/docs", "/static/app.js", "/healthz", "/nowhere", "/openapi.json"):
        answer = client.get(path, headers={"Origin": "https://elsewhere.example"})
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers or "uvicorn" in answer.headers["server"]
    policy = client.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy and "http" not in policy
    assert client.get("/api/samples").headers["cache-control"] == "no-store"
    tag = client.get("/static/app.js").headers["etag"]
    assert client.get("/static/app.js", headers={"If-None-Match": tag}).status_code == 304


def test_page_loads_nothing_from_elsewhere(client):
    for name in ("index.html", "docs.html", "style.css", "app.js", "board.js", "reading.js"):
        text = client.get(f"/static/{name}").text
        assert "https://" not in text and "//cdn" not in text
        assert "<script>" not in text and "style=" not in text and "onclick" not in text


def test_other_sites_and_hosts(client, solver):
    answer = client.post(
        "/api/make", files={"grid": (None, "3")}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    refused(answer, 403, "cross_site")
    with running(create_app(solver=Slow(solver), hosts=["127.0.0.1", "localhost"])) as address:
        assert httpx.get(f"{address}/healthz").status_code == 200
        rebound = httpx.get(f"{address}/healthz", headers={"Host": "evil.example:8000"})
        refused(rebound, 421, "wrong_host")


def test_no_file_is_left_behind(client, make, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    noise = RNG.integers(0, 255, (1100, 1100, 3), np.uint8)  # over 1 MB: spooled to disk
    fields = {"grid": "2", "solver": "classic"}
    assert client.post("/api/solve", files={"picture": png(noise)}, data=fields).status_code == 200
    refused(client.post("/api/solve", files={"zip": bytes(3 << 20)}), 422, "bad_zip")
    refused(client.post("/api/solve", files={"x": bytes(3 << 20)}), 422, "unknown_field")
    assert list(tmp_path.iterdir()) == []


def test_an_error_inside_says_nothing_of_it(solver):
    broken = Slow(solver)
    broken.solve_many = lambda *a, **k: 1 / 0
    with running(create_app(solver=broken)) as address:
        answer = httpx.post(f"{address}/api/solve", files=[("pieces", GOOD)] * 4)
    assert "division" not in refused(answer, 500, "internal")
    assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_ctrl_c_finishes_answers_in_flight(tmp_path, make):
    puzzle = make("shore", grid=3, seed=3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = f"from puzlm.web.app import serve; serve(port={port})"
    root = Path(__file__).parents[2]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(root),
    }
    process = subprocess.Popen([sys.executable, "-c", code], env=env, cwd=tmp_path,
                               stderr=subprocess.PIPE)  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                httpx.get(f"{address}/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        with ThreadPoolExecutor(3) as pool:
            files = piece_files(puzzle)
            sent = [pool.submit(httpx.post, f"{address}/api/solve", files=files, timeout=60)
                    for _ in range(3)]  # fmt: skip
            time.sleep(0.6)
            process.send_signal(signal.SIGINT)
            assert [s.result().json()["positions"] for s in sent] == [puzzle["truth"]] * 3
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert b"Traceback" not in errors
    finally:
        process.kill()
        process.wait()
