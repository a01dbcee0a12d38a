"""The service under load: `puzlm bench --service`.

The real command is started in a process of its own, and clients talk HTTP to it.

    load      worn 3x3 puzzles/s at several numbers of clients, in turn with one another and with as
              many plain calls of Solver.solve, one by one
    mixed     how long small puzzles wait while four 20x20 puzzles are being solved
    overload  more clients at once than are let in: some are sent away with a deliberate 503 or 429
    storm     many requests of many kinds, a tenth of them hostile

and these must hold: no 5xx but 503, no lost answer, no growth of memory beyond 10 % over the storm
(of all processes, after a warm-up of the same mixture), every good request answered as the plain
solver answers it, every hostile one refused; with two cores or more, 32 clients get 1.3 times the
puzzles/s of one, and 99 of 100 small puzzles wait less than 3 s while large ones are solved.
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
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from bench import timing as bench
from bench.requests import Asked, bad_requests, good_requests, large_request, solve_request
from bench.timing import Record, Report
from puzlm.errors import PuzlmError
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver

GROWTH = 1.10  # of the server's memory over the storm
GAIN = 1.3  # least puzzles/s at the most clients, times those of one
WAIT_MS = 3000.0  # most that 99 of 100 small puzzles wait while large ones are solved
PATIENCE = 150.0  # seconds: of a client for its answer, of us for the server's start


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    clients: tuple[int, ...] = (1, 8, 32)
    puzzles: int = 64
    """Of each round of the load; 3 x 3, 48 pixels a piece."""
    rounds: int = 3
    large: int = 4
    """20 x 20 puzzles that are solved at the same time, with small ones beside them."""
    small_clients: int = 4
    overload: int = 192
    """Clients at once; 64 are let in from one address."""
    warm_up: int = 1000
    requests: int = 10_000
    storm_clients: int = 32


QUICK = Settings((1, 4), 8, 1, 1, 2, 0, 60, 200, 8)


def run(*, quick: bool, report: Report, settings: Settings | None = None) -> Record:
    """Measure the service; `quick` only sees that it runs."""
    s = settings or (QUICK if quick else Settings())
    found: Record = {**bench.begin(quick, report), "settings": s.__dict__}
    solver = Solver.from_pretrained()
    with serving() as server:
        found["load"] = load(server, solver, s, report)
        found["mixed"] = mixed(server, solver, s, report) if s.large else None
        found["overload"] = overload(server, solver, s, report) if s.overload else None
        found["storm"] = storm(server, solver, s, report)
    found["server_exit_code"] = server.process.returncode
    found["checks"] = checks(found)
    for name, passed in found["checks"].items():
        report(f"check      {'ok    ' if passed else 'FAILED'} {name}")
    return found


def checks(found: Record) -> dict[str, bool]:
    """What must hold on any machine, and what must where there are two cores and nothing else."""
    runs = [found["storm"], *([found["overload"]] if found["overload"] else [])]
    statuses = Counter[str]()
    for part in runs:
        statuses.update(part["statuses"])
    memory, load, mixed = found["storm"]["memory"], found["load"], found["mixed"]
    held = {
        "no 5xx but 503": not any(k.startswith("5") and k != "503" for k in statuses),
        "no request without an answer": sum(part["failed"] for part in runs) == 0,
        "every good request answered as the plain solver answers": all(
            not part["wrong"] for part in runs
        )
        and all(part["wrong"] == 0 for part in load["clients"].values()),
        "every hostile request refused with its 4xx": not found["storm"]["not_refused"],
        f"memory grows by less than {GROWTH - 1:.0%}": memory is None or memory["growth"] < GROWTH,
        "Ctrl-C ends it with exit code 0": found["server_exit_code"] == 0,
    }
    if not found["quick"] and found["machine"]["cores"] > 1:
        most = max(load["clients"], key=int)
        held[f"{most} clients get {GAIN} times the puzzles/s of one"] = load["gain"] >= GAIN
        held[f"small puzzles wait less than {WAIT_MS / 1e3:g} s beside large ones"] = (
            mixed["p99_ms"] < WAIT_MS and mixed["wrong"] == 0
        )
    return held


# ---- the parts ------------------------------------------------------------------------------


def load(server: Server, solver: Solver, s: Settings, report: Report) -> Record:
    """Puzzles/s of the service at several numbers of clients, in turn with plain calls."""
    asked, puzzles = _small(solver)
    one_round = list(islice(cycle(range(len(puzzles))), s.puzzles))
    ask(server, [asked[i] for i in one_round], max(s.clients))  # warm: all processes are started
    times: dict[str, list[float]] = {"plain": [], **{str(n): [] for n in s.clients}}
    waits: dict[str, list[float]] = {str(n): [] for n in s.clients}
    worked, wrong = dict.fromkeys(times, 0.0), dict.fromkeys(waits, 0)
    for _ in range(s.rounds):
        start, begun = time.perf_counter(), time.process_time()
        for i in one_round:
            solver.solve(puzzles[i])
        times["plain"].append(time.perf_counter() - start)
        worked["plain"] += time.process_time() - begun
        for name in waits:
            start, begun = time.perf_counter(), server.worked()
            answers = ask(server, [asked[i] for i in one_round], int(name))
            times[name].append(time.perf_counter() - start)
            worked[name] += server.worked() - begun
            waits[name] += [answer.seconds for answer in answers]
            wrong[name] += sum(not answer.right for answer in answers)
    spreads = {name: bench.spread(values) for name, values in times.items()}
    record: Record = {"grid": [3, 3], "piece": 44, "gap": 0.1, "solver": "auto", "clients": {}}
    first, most = str(s.clients[0]), str(s.clients[-1])
    record["gain_by_round"] = bench.ratio(spreads, first, most, GAIN)
    record["gain"] = record["gain_by_round"]["median"]
    for name in waits:
        p50, p99 = (round(1e3 * float(q), 1) for q in np.quantile(waits[name], [0.5, 0.99]))
        here = {
            "puzzles_per_second": round(s.puzzles / spreads[name]["median"], 2),
            "plain_puzzles_per_second": round(s.puzzles / spreads["plain"]["median"], 2),
            "ratio": bench.ratio(spreads, "plain", name, None),
            "p50_ms": p50,
            "p99_ms": p99,
            "wrong": wrong[name],
            "seconds": spreads[name],
            "processor_ms_per_puzzle": {
                kind: round(1e3 * worked[kind] / s.rounds / s.puzzles, 1)
                for kind in ("plain", name)
            },
        }
        record["clients"][name] = here
        report(
            f"load       {name:>2s} clients: {here['puzzles_per_second']} puzzles/s, "
            f"{here['ratio']['median']}x plain one-by-one calls; p50 {p50:.0f} ms, "
            f"p99 {p99:.0f} ms; processor ms a puzzle {here['processor_ms_per_puzzle']}"
        )
    report(f"load       {most} clients get {record['gain']} times the puzzles/s of {first}")
    return record


def _small(solver: Solver) -> tuple[list[Asked], list[Puzzle]]:
    """Worn 3 x 3 puzzles, asked for and as they are."""
    pictures = bench.crops(8, 144, 5)
    puzzles = [Puzzle.from_image(c, 3, seed=i, gap=0.1) for i, c in enumerate(pictures)]
    return [solve_request(p, {}, solver.solve(p).positions.tolist()) for p in puzzles], puzzles


def mixed(server: Server, solver: Solver, s: Settings, report: Report) -> Record:
    """How long small puzzles wait while large ones are being solved."""
    asked, _ = _small(solver)
    large = [large_request(seed) for seed in range(s.large)]
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.extend(ask(server, large, s.large)))
    thread.start()
    time.sleep(1.0)  # until they are being solved
    answers: list[Answer] = []
    while thread.is_alive():
        answers += ask(server, asked, s.small_clients)
    thread.join()
    p50, p99 = (
        round(1e3 * float(q), 1) for q in np.quantile([a.seconds for a in answers], [0.5, 0.99])
    )
    record = {
        "large": s.large,
        "large_grid": [20, 20],
        "large_seconds": [round(answer.seconds, 1) for answer in found],
        "large_statuses": [answer.status for answer in found],
        "small": len(answers),
        "small_clients": s.small_clients,
        "p50_ms": p50,
        "p99_ms": p99,
        "wrong": sum(not answer.right for answer in answers),
    }
    report(
        f"mixed      {len(answers)} small puzzles beside {s.large} of 20x20 "
        f"({record['large_seconds']} s): p50 {p50:.0f} ms, p99 {p99:.0f} ms"
    )
    return record


def overload(server: Server, solver: Solver, s: Settings, report: Report) -> Record:
    """More clients at once than are let in: everyone gets an answer, or Retry-After."""
    puzzle = Puzzle.from_image(bench.crops(1, 144, 6)[0], 3)
    asked = solve_request(puzzle, {}, solver.solve(puzzle).positions.tolist())
    answers = ask(server, [asked] * s.overload, s.overload)
    counts = Counter(str(answer.status) for answer in answers)
    away = [answer for answer in answers if answer.status in (429, 503)]
    served = [answer for answer in answers if answer.status not in (429, 503)]
    record = {
        "clients": s.overload,
        "statuses": dict(sorted(counts.items())),
        "failed": sum(answer.status == 0 for answer in answers),
        "wrong": sum(not answer.right for answer in served),
        "without_retry_after": sum(not answer.retry for answer in away),
    }
    report(f"overload   {s.overload} clients at once: {record['statuses']}")
    return record


def storm(server: Server, solver: Solver, s: Settings, report: Report) -> Record:
    """Requests of many kinds, every tenth hostile, after a warm-up with the same mixture."""
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
        "hostile": sum(asked.expected is None for asked in sent),
        "seconds": round(seconds, 1),
        "requests_per_second": round(len(sent) / seconds, 1),
        "p50_ms": round(float(np.quantile(waits, 0.5)), 1),
        "p99_ms": round(float(np.quantile(waits, 0.99)), 1),
        "statuses": dict(sorted(statuses.items())),
        "kinds": dict(sorted(Counter(asked.name for asked in sent).items())),
        "failed": sum(a.status == 0 for asked, a in pairs if asked.sends is None),
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
        f"storm      {len(sent)} requests, {record['hostile']} hostile, "
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
        """Seconds of processor time of all its processes so far; 0 where the system is silent."""
        ticks = 0
        for number in self._processes():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float | None:
        """MB of all its processes, what they share counted once; None where nobody says."""
        total = 0
        for number in self._processes():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1e3 if total else None

    def _processes(self) -> list[int]:
        """The service and its workers."""
        found = [self.process.pid]
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        return found


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


MOST_STAYING = 300
STAYING: deque[socket.socket] = deque()  # lines with half a head, which nobody closes


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
        if asked.sends is not None:
            line.close()
            other = socket.create_connection((line.host, line.port))
            other.sendall(asked.sends)
            if asked.stays:
                STAYING.append(other)
                if len(STAYING) > MOST_STAYING:
                    STAYING.popleft().close()
            else:
                other.close()
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
