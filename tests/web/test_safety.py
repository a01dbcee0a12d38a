"""The service and the world around it: headers, other sites, files, errors, Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
from serving import GOOD, RNG, Slow, piece_files, refused, running

from bench.requests import png
from puzlm.web.app import create_app
from puzlm.web.guard import HEADERS


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
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, stderr=subprocess.PIPE
    )
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
            sent = [
                pool.submit(httpx.post, f"{address}/api/solve", files=files, timeout=60)
                for _ in range(3)
            ]
            time.sleep(0.6)
            process.send_signal(signal.SIGINT)
            assert [s.result().json()["positions"] for s in sent] == [puzzle["truth"]] * 3
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert b"Traceback" not in errors
    finally:
        process.kill()
        process.wait()
