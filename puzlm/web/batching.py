"""Micro-batching: many requests, one worker thread, one call of the model for many puzzles.

    request -> submit() -> bounded queue -> worker: up to 64 at once, grouped by kind -> futures

A batch is cut so that it takes about TARGET seconds: where batching pays, the pace per puzzle
falls and batches grow; where it does not, nobody waits for 63 others.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from puzlm.puzzle import Puzzle
from puzlm.solver import Solution
from puzlm.web.answers import Busy

BATCH = 64  # puzzles taken from the queue at once
TARGET = 2.0  # seconds one call of the model should take
PIXELS = 16_000_000  # pixels of one call: bounds the memory of a batch
PATIENCE = 600.0  # seconds after which close() stops waiting

Kind = tuple[str, str]  # solver, decoding
Given = Mapping[int, int]
SolveMany = Callable[[Kind, list[Puzzle], Sequence[Given]], list[Solution]]


@dataclass
class Job:
    """One puzzle that waits for its answer."""

    kind: Kind
    puzzle: Puzzle
    given: Given
    answer: Future[Solution] = field(default_factory=Future)

    @property
    def group(self) -> tuple[int, int, Kind, tuple[int, int]]:
        """Jobs of one group are solved together; small puzzles come first."""
        return self.puzzle.cells, len(self.puzzle.pieces), self.kind, self.puzzle.grid


class Batcher:
    """A bounded queue and the thread that empties it."""

    def __init__(self, solve_many: SolveMany, *, waiting: int = 128, batch: int = BATCH) -> None:
        self._solve_many, self._batch = solve_many, batch
        self._queue: queue.Queue[Job | None] = queue.Queue(waiting)
        self._pace: dict[Kind, float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="puzlm-solver", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Puzzles in the queue now."""
        return self._queue.qsize()

    def submit(self, kind: Kind, puzzle: Puzzle, given: Given) -> Future[Solution]:
        """Put a puzzle into the queue, or refuse at once when it is full."""
        job = Job(kind, puzzle, given)
        if self._closed.is_set():
            raise Busy("the service is shutting down", 5)
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise Busy("too many puzzles are waiting; try again in a moment") from None
        return job.answer

    def close(self) -> None:
        """Answer what is waiting, then end the thread."""
        self._closed.set()
        with contextlib.suppress(queue.Full):  # a full queue is emptied by a running thread
            self._queue.put(None, timeout=PATIENCE)
        self._thread.join(PATIENCE)

    # ---- the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        last = False
        while not last:
            jobs: list[Job] = []
            item = self._queue.get()
            while True:
                if item is None:
                    last = True
                else:
                    jobs.append(item)
                if last or len(jobs) == self._batch:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            groups: dict[object, list[Job]] = {}
            for job in sorted(jobs, key=lambda job: job.group):
                groups.setdefault(job.group, []).append(job)
            for group in groups.values():
                while group:
                    size = self._size(group)
                    self._answer(group[:size])
                    del group[:size]

    def _size(self, group: list[Job]) -> int:
        """How many of a group to solve in one call."""
        pixels = max(1, group[0].puzzle.pieces.size // 3)
        pace = self._pace.get(group[0].kind, 0.25)
        return max(1, min(len(group), int(TARGET / pace), PIXELS // pixels))

    def _answer(self, jobs: list[Job]) -> None:
        jobs = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
        if not jobs:
            return
        start = time.perf_counter()
        try:
            found = self._solve_many(
                jobs[0].kind, [j.puzzle for j in jobs], [j.given for j in jobs]
            )
        except Exception as error:  # whatever it is, it belongs to these clients, not to the thread
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
                return
            for job in jobs:  # one bad puzzle must not spoil the others
                self._alone(job)
            return
        pace = (time.perf_counter() - start) / len(jobs)
        old = self._pace.get(jobs[0].kind, pace)
        self._pace[jobs[0].kind] = max(1e-4, 0.5 * (old + pace))
        for job, solution in zip(jobs, found, strict=True):
            job.answer.set_result(solution)

    def _alone(self, job: Job) -> None:
        try:
            job.answer.set_result(self._solve_many(job.kind, [job.puzzle], [job.given])[0])
        except Exception as error:
            job.answer.set_exception(error)
