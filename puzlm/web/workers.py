"""A queue and the processes that empty it. A process that hangs or dies hurts one call only.

    request -> submit() -> bounded queue -> a thread a process -> pipe -> worker.py -> future

Next comes the job of the client with the fewest running; among those the one whose waiting time
and expected time together are the least: short ones overtake, and long ones come in the end. A job
gets a fair part of the time that its client will wait, and the search inside returns what it has
by then. A process that does not answer in that time is killed, and a new one is started.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from puzlm.errors import PuzlmError
from puzlm.web import worker
from puzlm.web.answers import Busy, Refused

START_S = 120.0  # seconds in which a process must be ready; models are loaded in it
STEP_S = 0.2  # seconds between two looks at whether the client of a running job has gone
GONE_S = 3.0  # seconds that a job gets to end after its client has gone
MARGIN_S = 5.0  # of a client's patience, left for what comes before and after the search
LOG = logging.getLogger("puzlm.web")


@dataclass(eq=False)
class Job:
    """One call that waits for its answer."""

    method: str
    arguments: tuple[Any, ...]
    client: str = ""
    expected: float = 0.0
    """Seconds it is thought to take: among jobs that came together the shorter comes first."""
    patience: float = 120.0
    """Seconds from now after which nobody waits for the answer."""
    answer: Future[Any] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)
    gone: float | None = None
    """When its client went."""


@dataclass(frozen=True)
class Plan:
    """How many processes there are, and what a job in them may take."""

    name: str
    engine: str
    options: dict[str, Any]
    processes: int
    waiting: int
    seconds: float
    """Of one job, at most."""
    slack: float = 0.0
    """Seconds beyond that until the process is killed: steps that no deadline ends."""
    nice: int = 0
    slow: tuple[int, str, str] = (503, "busy", "No answer in time; try again later.")
    """What a client is told whose job was killed."""


class Workers:
    """Processes of one kind."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.killed = 0
        """Processes that were killed, or died, while they worked."""
        self._spare: list[_Process] = []  # started, and not yet with a thread
        self._jobs: list[Job] = []
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"puzlm-{plan.name}", daemon=True)
            for _ in range(plan.processes)
        ]

    def start(self, first: bool = True) -> Any:
        """Start; gives what the `first` process says about itself, or raises its error.

        The other processes are started when jobs come.
        """
        if first:
            self._spare.append(_Process(self.plan))
        for thread in self._threads:
            thread.start()
        return self._spare[0].about if first else None

    @property
    def waiting(self) -> int:
        """Jobs in the queue now."""
        return len(self._jobs)

    @property
    def running(self) -> int:
        """Jobs in a process now."""
        return len(self._running)

    def submit(self, job: Job) -> Future[Any]:
        """Put a job into the queue, or refuse at once when it is full."""
        with self._changed:
            if self._closed:
                raise Busy("the service is shutting down", 5)
            if len(self._jobs) >= self.plan.waiting:
                raise Busy("too many puzzles are waiting; try again in a moment")
            self._jobs.append(job)
            self._changed.notify()
        return job.answer

    def drop(self, job: Job) -> None:
        """Forget a job whose client has gone: out of the queue, or told to end."""
        with self._changed:
            if not job.answer.done():
                job.gone = time.monotonic()
            if job in self._jobs:
                self._jobs.remove(job)
                job.answer.cancel()

    def hurry(self) -> None:
        """Take no more jobs, refuse those that wait, and let those that run end soon."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.answer.set_exception(Busy("the service is shutting down", 5))
            self._jobs.clear()
            for job in self._running:
                job.patience = 0.0
            self._changed.notify_all()

    def close(self) -> None:
        """End all processes now."""
        self.hurry()
        for job in list(self._running):
            job.gone = -1e9
        for thread in self._threads:
            thread.join(10)

    # ---- a thread a process -----------------------------------------------------------------

    def _serve(self) -> None:
        process: _Process | None = None
        while job := self._take():
            try:
                if process is None:
                    process = self._spare.pop() if self._spare else _Process(self.plan)
                kind, value = self._answer(process, job)
            except Exception as error:  # the process died, was killed, or could not start
                if process is not None:
                    process.end()
                    process = None
                self.killed += 1
                LOG.warning("%s process ended: %s", self.plan.name, error)
                kind, value = "refused", error if isinstance(error, Refused) else None
            with self._changed:
                self._running.remove(job)
            with contextlib.suppress(InvalidStateError, CancelledError):
                _settle(job.answer, kind, value)
            del job, value  # while the next is waited for, nothing of this is kept
        if process is not None:
            process.end()
        while self._spare:
            self._spare.pop().end()

    def _take(self) -> Job | None:
        """The next job; None when all is done."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            busy = Counter(job.client for job in self._running)
            job = min(self._jobs, key=lambda x: (busy[x.client], x.since + x.expected))
            self._jobs.remove(job)
            job.answer.set_running_or_notify_cancel()  # drop() takes cancelled ones out
            self._running.append(job)
            return job

    def _answer(self, process: _Process, job: Job) -> tuple[str, Any]:
        """Let a process do a job; raises when it takes too long."""
        start = time.monotonic()
        share = (job.since + job.patience - start) / (1 + self.waiting // self.plan.processes)
        seconds = min(self.plan.seconds, max(1.0, share - MARGIN_S))
        process.line.send((job.method, job.arguments, seconds))
        told = False
        while not process.line.poll(STEP_S):
            now = time.monotonic()
            if not told and (job.gone is not None or job.patience == 0.0):
                told = True
                process.line.send(None)
            if now - start > seconds + self.plan.slack:
                raise Refused(*self.plan.slow)
            if job.gone is not None and now - job.gone > GONE_S:
                raise Busy("the client has gone")
        kind, value = process.line.recv()
        return kind, value


class _Process:
    """One worker process and the pipe to it."""

    def __init__(self, plan: Plan) -> None:
        here, there = Pipe()
        paths = [os.environ.get("PYTHONPATH", ""), *sys.path]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            # Each process has a core; more threads than cores only wait for each other.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", worker.__name__, str(plan.nice), str(there.fileno())]
        self.line: Connection = here
        self._child = subprocess.Popen(
            command, env=environment, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
        )
        there.close()
        try:
            here.send((plan.engine, plan.options))
            if not here.poll(START_S):
                raise PuzlmError(f"the {plan.name} process did not start in {START_S:g} s")
            kind, value = here.recv()
        except (EOFError, OSError) as error:
            self.end()
            raise PuzlmError(f"the {plan.name} process ended while it started") from error
        except BaseException:
            self.end()
            raise
        if kind != "done":
            self.end()
            raise PuzlmError(value[2] if kind == "refused" else value)
        self.about = value

    def end(self) -> None:
        """Kill it."""
        self.line.close()
        self._child.kill()
        self._child.wait()


def _settle(answer: Future[Any], kind: str, value: Any) -> None:
    """Give a future what a process answered."""
    if kind == "done":
        answer.set_result(value)
    elif kind == "failed":
        answer.set_exception(RuntimeError(value))
    elif isinstance(value, Refused):
        answer.set_exception(value)
    elif value is None:
        answer.set_exception(Busy("the process that worked on it ended; try again"))
    else:
        answer.set_exception(Refused(*value))
