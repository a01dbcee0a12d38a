"""Micro-batching: many requests, one worker thread, one call of the model for many puzzles.

    request -> submit() -> bounded queue, a line for each kind of puzzle -> worker -> futures

Next comes the line whose first puzzle has waited longest, counted in the times that one of its
kind takes: a small puzzle does not wait for all the large ones before it, and a large one that has
waited long enough comes before any small one. A turn is cut so that it takes about TARGET seconds:
where batching pays, the pace per puzzle falls and batches grow; where it does not, nobody waits
for 63 others. A puzzle whose client has gone is never solved.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from puzlm.puzzle import Puzzle
from puzlm.solver import Solution
from puzlm.web.answers import Busy

BATCH = 64  # puzzles of one call
TARGET = 0.5  # seconds one call of the model should take
START = 0.1  # seconds a puzzle is thought to take before the first was timed
PIXELS = 16_000_000  # pixels of one call: bounds the memory of a batch
PATIENCE = 600.0  # seconds after which close() stops waiting

Kind = tuple[str, str]  # solver, decoding
Group = tuple[Kind, tuple[int, int], int]  # ..., grid, pieces
Given = Mapping[int, int]
SolveMany = Callable[[Kind, list[Puzzle], Sequence[Given]], list[Solution]]


@dataclass(eq=False)
class Job:
    """One puzzle that waits for its answer."""

    kind: Kind
    puzzle: Puzzle
    given: Given
    answer: Future[Solution] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)

    @property
    def group(self) -> Group:
        """Jobs of one group are solved together."""
        return self.kind, self.puzzle.grid, len(self.puzzle.pieces)

    @property
    def pace(self) -> tuple[Kind, int]:
        """Jobs that take about as long; few of these exist, so their times can be kept."""
        return self.kind, self.puzzle.cells.bit_length()


class Batcher:
    """A bounded queue and the thread that empties it."""

    def __init__(self, solve_many: SolveMany, *, waiting: int = 128, batch: int = BATCH) -> None:
        self._solve_many, self._most, self._batch = solve_many, waiting, batch
        self._lines: dict[Group, deque[Job]] = {}
        self._changed = threading.Condition()
        self._paces: dict[tuple[Kind, int], float] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="puzlm-solver", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Puzzles in the queue now."""
        with self._changed:
            return self._count()

    def submit(self, kind: Kind, puzzle: Puzzle, given: Given) -> Future[Solution]:
        """Put a puzzle into the queue, or refuse at once when it is full.

        Cancel the future to take the puzzle out again.
        """
        job = Job(kind, puzzle, given)
        with self._changed:
            if self._closed:
                raise Busy("the service is shutting down", 5)
            if self._count() >= self._most:
                raise Busy("too many puzzles are waiting; try again in a moment")
            self._lines.setdefault(job.group, deque()).append(job)
            self._changed.notify()
        job.answer.add_done_callback(lambda answer: self._drop(job) if answer.cancelled() else None)
        return job.answer

    def close(self) -> None:
        """Answer what is waiting, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(PATIENCE)

    def _count(self) -> int:
        return sum(map(len, self._lines.values()))

    def _drop(self, job: Job) -> None:
        """Forget a cancelled job at once: it must not hold a place, nor its pictures memory."""
        with self._changed:
            line = self._lines.get(job.group)
            if line is not None and job in line:
                line.remove(job)
                if not line:
                    del self._lines[job.group]

    # ---- the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while jobs := self._take():
            self._answer(jobs)
            del jobs  # while the next are waited for, nothing of these is kept

    def _take(self) -> list[Job]:
        """The jobs of the next turn; none when all is done."""
        with self._changed:
            while not self._lines and not self._closed:
                self._changed.wait()
            if not self._lines:
                return []
            now = time.monotonic()
            line = max(self._lines.values(), key=lambda x: (now - x[0].since) / self._pace(x[0]))
            group = line[0].group
            jobs = [line.popleft() for _ in range(self._size(line))]
            if not line:
                del self._lines[group]
            return jobs

    def _pace(self, job: Job) -> float:
        """Seconds that a puzzle of this kind took lately."""
        return self._paces.get(job.pace, START)

    def _size(self, line: deque[Job]) -> int:
        """How many of a line to solve in one call."""
        pixels = max(1, line[0].puzzle.pieces.size // 3)
        most = int(TARGET / self._pace(line[0]))
        return max(1, min(len(line), self._batch, most, PIXELS // pixels))

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
        old = self._paces.get(jobs[0].pace, pace)
        self._paces[jobs[0].pace] = max(1e-4, 0.5 * (old + pace))
        for job, solution in zip(jobs, found, strict=True):
            job.answer.set_result(solution)

    def _alone(self, job: Job) -> None:
        try:
            job.answer.set_result(self._solve_many(job.kind, [job.puzzle], [job.given])[0])
        except Exception as error:
            job.answer.set_exception(error)
