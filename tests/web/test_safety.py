"""The service and the world around it: headers, other sites, files, errors, Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from resource import RLIMIT_NOFILE, setrlimit

import httpx
import numpy as np
import pytest
from serving import GOOD, RNG, Slow, level, piece_files, refused, running

from bench.requests import png, zipped
from puzlm.web.answers import Limits
from puzlm.web.guard import HEADERS, Door
from puzlm.web.watch import ACCESS, set_up


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


def test_other_sites(client):
    fields = {"grid": (None, "3"), "sample": (None, "shore")}

    def ask(**headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post("/api/make", files=fields, headers=headers)

    for headers in (
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "https://elsewhere.example"},  # browsers that do not send Sec-Fetch-Site
        {"Origin": "null"},
    ):
        refused(ask(**headers), 403, "cross_site")
    own = str(client.base_url).rstrip("/")
    assert ask(Origin=own).status_code == 200
    assert ask(Sec_Fetch_Site="same-origin", Origin=own).status_code == 200


def test_other_hosts(slow):
    door = Door(names=frozenset({"puzzles.example"}))
    with running(slow.app(door=door)) as address:
        for host in ("evil.example:8000", "localhost.evil.example", "puzzles.example.evil", ""):
            answer = httpx.get(f"{address}/healthz", headers={"Host": host})
            refused(answer, 421, "wrong_host")
        for host in ("127.0.0.1:8000", "LOCALHOST", "[::1]:80", "10.1.2.3", "puzzles.example:80"):
            assert httpx.get(f"{address}/healthz", headers={"Host": host}).status_code == 200
        for path in ("/docs/", "/healthz/", "//evil.example/", "/api/models/"):
            answer = httpx.get(f"{address}{path}", headers={"Host": "puzzles.example"})
            assert answer.status_code == 404 and "location" not in answer.headers


def test_token(slow):
    token = "s3cret0123456789"
    with running(slow.app(door=Door(token=token))) as address:
        assert httpx.get(f"{address}/healthz").status_code == 200
        for path in ("/", "/api/models", "/metrics", "/static/app.js", "/?token=wrong"):
            refused(httpx.get(f"{address}{path}"), 401, "no_token")
        for brought in ("", "Bearer", "Bearer wrong", f"Basic {token}", f"Bearer {token}x"):
            answer = httpx.get(f"{address}/api/models", headers={"Authorization": brought})
            refused(answer, 401, "no_token")
        answer = httpx.get(f"{address}/api/models", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200
        with httpx.Client(base_url=address) as browser:
            first = browser.get("/", params={"token": token})
            assert first.status_code == 303 and first.headers["location"] == "/"
            assert "HttpOnly" in first.headers["set-cookie"]
            assert "SameSite=strict" in first.headers["set-cookie"]
            assert browser.get("/").status_code == 200
            assert browser.get("/api/models").status_code == 200


def test_metrics_and_access_log(slow, tmp_path, monkeypatch):
    path = tmp_path / "access.jsonl"
    monkeypatch.setattr(ACCESS, "handlers", [])
    monkeypatch.setattr(ACCESS, "propagate", True)
    set_up(str(path))
    slow.go()
    with running(slow.app()) as address:
        assert httpx.post(f"{address}/api/solve", files=[("pieces", GOOD)] * 4).status_code == 200
        refused(httpx.post(f"{address}/api/solve?token=hidden"), 415, "not_a_form")
        httpx.get(f"{address}/made/up/{'x' * 500}")
        told = httpx.get(f"{address}/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(x.rsplit(" ", 1) for x in told.text.splitlines() if not x.startswith("#"))
    assert values['puzlm_answers_total{path="/api/solve",status="200"}'] == "1"
    assert values['puzlm_answers_total{path="/api/solve",status="415"}'] == "1"
    assert values['puzlm_answers_total{path="other",status="404"}'] == "1"
    assert values['puzlm_seconds_bucket{path="/api/solve",le="+Inf"}'] == "2"
    assert values['puzlm_waiting{pool="large puzzle"}'] == "0"
    ACCESS.handlers[0].close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 415, 404, 200]
    assert lines[0]["bytes_in"] > 4 * len(GOOD) and lines[0]["ms"] > 0
    assert "hidden" not in path.read_text() and len(lines[2]["path"]) == 200


def test_a_log_does_not_repeat_itself(capsys):
    logger = logging.getLogger("puzlm.web")
    set_up(None)
    try:
        for number in range(5000):
            logger.warning("the same %s", number)
        logger.warning("another")
    finally:
        logger.handlers, logger.propagate = [], True
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "the same 0" in lines[0] and "another" in lines[1]


def test_no_file_is_left_behind(client, make, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    noise = RNG.integers(0, 255, (1100, 1100, 3), np.uint8)  # over 1 MB: spooled to disk
    fields = {"grid": "2", "solver": "classic"}
    assert client.post("/api/solve", files={"picture": png(noise)}, data=fields).status_code == 200
    refused(client.post("/api/solve", files={"zip": bytes(3 << 20)}), 422, "bad_zip")
    refused(client.post("/api/solve", files={"x": bytes(3 << 20)}), 422, "unknown_field")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_no_array_holds(client, make, tmp_path):
    """puzzle.json of a saved puzzle with a cell beyond 64 bits."""
    for cell in (10**30, -(10**30), 2**63, 9):
        record = {"pieces": [f"{i}.png" for i in range(9)], "grid": [3, 3]}
        record["truth"] = [*range(8), cell]
        entries = {f"{i}.png": GOOD for i in range(9)}
        entries["puzzle.json"] = json.dumps(record).encode()
        for path in ("solve", "open"):
            answer = client.post(f"/api/{path}", files={"zip": zipped(entries)})
            refused(answer, 422, "bad_zip")
    given = json.dumps({"0": 10**30})
    answer = client.post("/api/solve", files=[("pieces", GOOD)] * 4, data={"given": given})
    refused(answer, 422, "bad_given")
    question = {"symbols": make()["symbols"], "piece": 10**30}
    refused(client.post("/api/read", json=question), 422, "bad_piece")


def test_half_sent_heads_do_not_stop_others(tmp_path):
    """300 connections with half a head, and 256 files that the service may open."""
    with command(tmp_path, "limits=Limits(header_s=4)", files=256) as (process, address):
        where = tuple(address[7:].split(":"))
        lines = []
        for _ in range(300):
            lines.append(socket.create_connection(where))
            with contextlib.suppress(OSError):
                lines[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
        for _ in range(5):
            assert httpx.get(f"{address}/healthz", timeout=10).status_code == 200
        ended = 0
        for line in lines:  # each was ended: some to make place, the others by the deadline
            line.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(100) == b""
            ended += 1
            line.close()
        assert ended == 300
        told = httpx.get(f"{address}/metrics").text
        assert 'reason="made place"' in told and 'reason="slow head"' in told
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0 and len(errors) < 5000, errors


def test_a_client_that_takes_nothing_is_cut_off(slow):
    with running(slow.app(limits=Limits(write_s=0.5))) as address, socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(tuple(x if "." in x else int(x) for x in address[7:].split(":")))
        ask = b"GET /static/app.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with contextlib.suppress(OSError):
            for _ in range(3000):
                line.sendall(ask)
        for _ in range(300):
            if 'reason="slow to take"' in httpx.get(f"{address}/metrics").text:
                break
            time.sleep(0.05)
        assert 'reason="slow to take"' in httpx.get(f"{address}/metrics").text


@pytest.mark.parametrize(("level_", "status"), [(9, 200), (3, 503)])
def test_sigterm_during_a_long_solve(tmp_path, level_, status):
    """What can end early is answered; what hears nothing gets 503; then the service ends."""
    engine = f'engine="serving:Waiting", folder={str(tmp_path)!r}, limits=Limits(grace_s=6)'
    with command(tmp_path, engine) as (process, address), ThreadPoolExecutor(3) as pool:
        files = [("pieces", level(level_))] * 36
        sent = pool.submit(httpx.post, f"{address}/api/solve", files=files, timeout=60)
        Slow(tmp_path).began(1)
        upload = socket.create_connection(tuple(address[7:].split(":")))  # stays half-sent
        upload.sendall(b"POST /api/solve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n")
        upload.sendall(b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n")
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        answer = sent.result()
        assert answer.status_code == status, answer.text
        if status == 200:
            assert answer.json()["complete"] is False
        upload.settimeout(20)
        assert upload.recv(100).startswith(b"HTTP/1.1 503")
        upload.close()
        _, errors = process.communicate(timeout=30)
        assert b"Traceback" not in errors and len(errors) < 1000, errors
        assert process.returncode in (0, -signal.SIGTERM)


@contextlib.contextmanager
def command(folder, options, files=None):
    """The service in a process of its own: (process, address)."""
    code = (
        "from puzlm.web.answers import Limits; from puzlm.web.serve import serve; "
        f"serve(port=0, ready=lambda a: print(a, flush=True), {options})"
    )
    here = Path(__file__)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here.parents[2], here.parent)))},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=None if files is None else partial(setrlimit, RLIMIT_NOFILE, (files, files)),
    )
    try:
        address = process.stdout.readline().decode().strip()
        assert address, process.stderr.read()
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{address}/healthz")
                break
            time.sleep(0.1)
        yield process, address
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_finishes_answers_in_flight(tmp_path, make):
    puzzle = make("shore", grid=3, seed=3)
    with command(tmp_path, "") as (process, address), ThreadPoolExecutor(3) as pool:
        sent = [
            pool.submit(httpx.post, f"{address}/api/solve", files=piece_files(puzzle), timeout=60)
            for _ in range(2)
        ]
        while "puzlm_requests 3" not in httpx.get(f"{address}/metrics").text:
            if any(one.done() for one in sent):
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        for one in sent:  # what ran was answered, what had not begun may have been refused
            answer = one.result()
            assert answer.status_code == 503 or answer.json()["positions"] == puzzle["truth"]
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert b"Traceback" not in errors
