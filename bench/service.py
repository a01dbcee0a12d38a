"""The service under load: `puzlm bench --service`.

The real command is started in a process of its own, and clients talk HTTP to it.

    load      solved puzzles/s and how long a client waits at 1, 8 and 32 clients, each against as
              many plain calls of Solver.solve, one by one, in turn with it
    overload  more clients at once than the queue holds: some are sent away with the deliberate 503
    storm     many requests of many kinds, a tenth of them malformed

and three things must hold: no 5xx but 503, no growth of memory beyond 10 % over the storm (after a
warm-up of the same mixture), and every good request answered as the plain solver answers it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from bench import timing as bench
from bench.requests import Asked, bad_requests, good_requests, solve_request
from bench.timing import Record, Report
from puzlm.errors import PuzlmError
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

GROWTH = 1.10  # of the server's memory over the storm
PATIENCE = 120.0  # seconds: of a client for its answer, of us for the server's start


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    clients: tuple[int, ...] = (1, 8, 32)
    puzzles: int = 64
    """Of each round of the load; 3 x 3, 48 pixels a piece."""
    rounds: int = 3
    overload: int = 192
    """Clients at once; the queue holds 128 puzzles."""
    warm_up: int = 1000
    requests: int = 10_000
    storm_clients: int = 32


QUICK = Settings((1, 4), 8, 1, 0, 60, 200, 8)


def run(*, quick: bool, report: Report, settings: Settings | None = None) -> Record:
    """Measure the service; `quick` only sees that it runs."""
    s = settings or (QUICK if quick else Settings())
    found: Record = {**bench.begin(quick, report), "settings": s.__dict__}
    solver = Solver.from_pretrained()
    with serving() as server:
        found["load"] = load(server, solver, s, report)
        found["overload"] = overload(server, solver, s, report) if s.overload else None
        found["storm"] = storm(server, solver, s, report)
    found["server_exit_code"] = server.process.returncode
    found["checks"] = checks(found)
    for name, passed in found["checks"].items():
        report(f"check      {'ok    ' if passed else 'FAILED'} {name}")
    return found


def checks(found: Record) -> dict[str, bool]:
    """What must hold whatever the machine."""
    runs = [found["storm"], *([found["overload"]] if found["overload"] else [])]
    statuses = Counter[str]()
    for part in runs:
        statuses.update(part["statuses"])
    memory = found["storm"]["memory"]
    return {
        "no 5xx but 503": not any(k.startswith("5") and k != "503" for k in statuses),
        "no request without an answer": sum(part["failed"] for part in runs) == 0,
        "every good request answered as the plain solver answers": all(
            not part["wrong"] for part in runs
        )
        and all(part["wrong"] == 0 for part in found["load"]["clients"].values()),
        "every malformed request refused with its 4xx": not found["storm"]["not_refused"],
        f"memory grows by less than {GROWTH - 1:.0%}": memory is None or memory["growth"] < GROWTH,
        "Ctrl-C ends it with exit code 0": found["server_exit_code"] == 0,
    }


# ---- the parts ------------------------------------------------------------------------------


def load(server: Server, solver: Solver, s: Settings, report: Report) -> Record:
    """Puzzles/s of the service at several numbers of clients, in turn with plain calls."""
    puzzles = [Puzzle.from_image(c, 3, seed=i) for i, c in enumerate(bench.crops(8, 144, 5))]
    asked = [solve_request(p, {}, solver.solve(p).positions.tolist()) for p in puzzles]
    one_round = list(islice(cycle(range(len(puzzles))), s.puzzles))
    ask(server, [asked[i] for i in one_round[:8]], 8)  # warm
    record: Record = {"grid": [3, 3], "piece": 48, "solver": "auto", "clients": {}}
    for clients in s.clients:
        plain, service, waits, wrong = [], [], [], 0
        worked = [0.0, 0.0]  # processor seconds, which other work on the machine disturbs little
        for _ in range(s.rounds):
            start, begun = time.perf_counter(), time.process_time()
            for i in one_round:
                solver.solve(puzzles[i])
            plain.append(time.perf_counter() - start)
            worked[0] += time.process_time() - begun
            start, begun = time.perf_counter(), server.worked()
            answers = ask(server, [asked[i] for i in one_round], clients)
            service.append(time.perf_counter() - start)
            worked[1] += server.worked() - begun
            waits += [answer.seconds for answer in answers]
            wrong += sum(not answer.right for answer in answers)
        times = {"plain": bench.spread(plain), "service": bench.spread(service)}
        p50, p99 = (round(1e3 * float(q), 1) for q in np.quantile(waits, [0.5, 0.99]))
        here = {
            "puzzles_per_second": round(s.puzzles / times["service"]["median"], 2),
            "plain_puzzles_per_second": round(s.puzzles / times["plain"]["median"], 2),
            "ratio": bench.ratio(times, "plain", "service", None),
            "p50_ms": p50,
            "p99_ms": p99,
            "wrong": wrong,
            "seconds": times,
            "processor_ms_per_puzzle": {
                name: round(1e3 * value / s.rounds / s.puzzles, 1)
                for name, value in zip(("plain", "service"), worked, strict=True)
            },
        }
        record["clients"][str(clients)] = here
        report(
            f"load       {clients:2d} clients: {here['puzzles_per_second']} puzzles/s, "
            f"{here['ratio']['median']}x plain one-by-one calls "
            f"({here['plain_puzzles_per_second']}/s); p50 {p50:.0f} ms, p99 {p99:.0f} ms; "
            f"processor ms a puzzle {here['processor_ms_per_puzzle']}"
        )
    return record


def overload(server: Server, solver: Solver, s: Settings, report: Report) -> Record:
    """More clients at once than may wait: everyone gets an answer or a 503 with Retry-After."""
    puzzle = Puzzle.from_image(bench.crops(1, 144, 6)[0], 3)
    asked = solve_request(puzzle, {}, solver.solve(puzzle).positions.tolist())
    answers = ask(server, [asked] * s.overload, s.overload)
    counts = Counter(str(answer.status) for answer in answers)
    served = [answer for answer in answers if answer.status != 503]
    record = {
        "clients": s.overload,
        "statuses": dict(sorted(counts.items())),
        "failed": sum(answer.status == 0 for answer in answers),
        "wrong": sum(not answer.right for answer in served),
        "without_retry_after": sum(a.status == 503 and not a.retry for a in answers),
    }
    report(f"overload   {s.overload} clients at once: {record['statuses']}")
    return record


def storm(server: Server, solver: Solver, s: Settings, report: Report) -> Record:
    """Requests of many kinds, every tenth malformed, after a warm-up with the same mixture."""
    good, bad = good_requests(solver), bad_requests()
    picks = np.random.default_rng(0).integers(0, len(good), max(s.requests, s.warm_up))
    mixture = [
        bad[i // 10 % len(bad)] if i % 10 == 9 else good[pick] for i, pick in enumerate(picks)
    ]
    ask(server, mixture[: s.warm_up], s.storm_clients)
    series = [server.memory()]
    answers: list[Answer] = []
    steps = np.linspace(0, s.requests, 11).astype(int).tolist()
    start = time.perf_counter()
    for low, high in zip(steps, steps[1:], strict=False):
        answers += ask(server, mixture[low:high], s.storm_clients)
        series.append(server.memory())
    seconds = time.perf_counter() - start
    sent = mixture[: s.requests]
    statuses = Counter(str(answer.status) for answer in answers if answer.status)
    waits = [1e3 * a.seconds for a in answers]
    known = [value for value in series if value is not None]
    pairs = list(zip(sent, answers, strict=True))
    record: Record = {
        "requests": len(sent),
        "malformed": sum(asked.expected is None for asked in sent),
        "seconds": round(seconds, 1),
        "requests_per_second": round(len(sent) / seconds, 1),
        "p50_ms": round(float(np.quantile(waits, 0.5)), 1),
        "p99_ms": round(float(np.quantile(waits, 0.99)), 1),
        "statuses": dict(sorted(statuses.items())),
        "kinds": dict(sorted(Counter(asked.name for asked in sent).items())),
        "failed": sum(a.status == 0 for asked, a in pairs if not asked.hangs_up),
        "wrong": dict(
            Counter(asked.name for asked, a in pairs if asked.expected is not None and not a.right)
        ),
        "not_refused": dict(
            Counter(
                f"{asked.name}: {a.status}"
                for asked, a in pairs
                if asked.expected is None and not a.right
            )
        ),
        "memory": None
        if not known
        else {
            "mb": [round(value, 1) for value in known],
            "growth": round(known[-1] / known[0], 4),
        },
    }
    report(
        f"storm      {len(sent)} requests, {record['malformed']} malformed, "
        f"{s.storm_clients} clients: {record['requests_per_second']}/s, {record['statuses']}"
    )
    if known:
        report(
            f"           memory {known[0]:.0f} MB after {s.warm_up} to warm up, "
            f"{known[-1]:.0f} MB at the end: {record['memory']['growth']}x"
        )
    for kind in ("wrong", "not_refused"):
        if record[kind]:
            report(f"           {kind.replace('_', ' ')}: {record[kind]}")
    return record


# ---- the server -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """The service in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int

    def worked(self) -> float:
        """Seconds of processor time so far; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float | None:
        """Resident memory in MB; None where the system does not say."""
        try:
            text = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        lines = [line for line in text.splitlines() if line.startswith("VmRSS:")]
        return int(lines[0].split()[1]) / 1e3 if lines else None


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Start `puzlm web` on a free port and end it as Ctrl-C does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "puzlm", "web", "--port", str(port)],
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        )
        try:
            _wait(process, port, said)
            yield Server(process, port)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, said: Any) -> None:
    """Until the server answers."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        line = HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(line), contextlib.suppress(OSError, HTTPException):
            line.request("GET", "/healthz")
            if line.getresponse().status == 200:
                return
        time.sleep(0.1)
    said.seek(0)
    raise PuzlmError(f"bench: the service did not start: {said.read()[-400:].decode().strip()}")


# ---- the clients ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a client got: status 0 when the line broke."""

    status: int
    right: bool
    seconds: float
    retry: bool = False


def ask(server: Server, requests: Sequence[Asked], clients: int) -> list[Answer]:
    """Send requests over as many lines as there are clients; each takes the next when done."""
    answers: list[Any] = [None] * len(requests)
    numbers = iter(range(len(requests)))
    lock = threading.Lock()

    def client() -> None:
        line = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            answers[number] = _ask(line, requests[number])
        line.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    _each(threads, threading.Thread.start)
    _each(threads, threading.Thread.join)
    return answers


def _each(threads: list[threading.Thread], call: Callable[[threading.Thread], None]) -> None:
    for thread in threads:
        call(thread)


def _ask(line: HTTPConnection, asked: Asked) -> Answer:
    start = time.perf_counter()
    try:
        if asked.hangs_up:
            line.close()
            line.connect()
            line.sock.sendall(asked.raw())
            line.close()
            return Answer(0, True, time.perf_counter() - start)
        line.request("POST", asked.path, asked.body, asked.headers)
        got = line.getresponse()
        body = got.read()
    except (OSError, HTTPException):
        line.close()
        return Answer(0, False, time.perf_counter() - start)
    seconds = time.perf_counter() - start
    retry = got.getheader("Retry-After") is not None
    return Answer(got.status, asked.right(got.status, body), seconds, retry)


__all__ = ["QUICK", "Settings", "ask", "checks", "run", "serving"]
