"""The processes of the service: some for pictures, some for small puzzles, some for large ones.

Small puzzles and large ones never wait for each other: each kind has its own processes, and those
of the large ones give way to all others (nice).
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from puzlm.images import cores
from puzlm.puzzle import Puzzle
from puzlm.solving.search.assembly import SMALL_GRID
from puzlm.web.answers import Busy, Limits, Refused
from puzlm.web.workers import Job, Plan, Workers

PUZZLES = "puzlm.web.engines:Puzzles"
SPARE = 2  # more processes for pictures than cores: a costly picture must not hold up the others
SLACK_S = 30.0  # seconds of a solution that no deadline ends: models, costs, one last step
CELL_S = 0.1  # seconds a cell of a large puzzle is thought to take


class Staff:
    """All worker processes of one service."""

    def __init__(
        self, model: str | None, limits: Limits, engine: str = PUZZLES, **options: Any
    ) -> None:
        self.limits = limits
        how = {"model": model, "options": options}
        self.pictures = Workers(
            Plan(
                "picture",
                "puzlm.web.engines:Pictures",
                {"limits": limits},
                cores() + SPARE,
                limits.requests,
                limits.decode_s,
                nice=5,
                slow=(422, "costly_image", f"Takes more than {limits.decode_s:g} s to decode."),
            )
        )
        self.small = Workers(
            Plan("puzzle", engine, how, cores(), limits.queue, limits.search_s, SLACK_S)
        )
        self.large = Workers(
            Plan("large puzzle", engine, how, cores(), limits.queue, limits.search_s, SLACK_S, 10)
        )
        self.all = (self.pictures, self.small, self.large)
        self.about: dict[str, Any] = self.small.start()
        self.pictures.start()
        self.large.start(first=False)

    async def decode(self, request: Request, method: str, *arguments: Any) -> Any:
        """Let a process for pictures do something."""
        return await self._done(request, self.pictures, Job(method, arguments))

    async def ask(self, request: Request, method: str, *arguments: Any) -> Any:
        """Let a process that has the models do something short."""
        return await self._done(request, self.small, Job(method, arguments))

    async def solve(self, request: Request, puzzle: Puzzle, *arguments: Any) -> dict[str, Any]:
        """Solve a puzzle."""
        large = puzzle.cells > SMALL_GRID
        job = Job("solve", (puzzle, *arguments), expected=CELL_S * puzzle.cells if large else 0.0)
        result: dict[str, Any] = await self._done(request, self.large if large else self.small, job)
        return result

    async def _done(self, request: Request, workers: Workers, job: Job) -> Any:
        """Wait for a job; a client that hangs up or waits too long takes it away."""

        async def hung_up() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        job.client = request.client.host if request.client else ""
        job.patience = self.limits.solve_s
        answer = asyncio.wrap_future(workers.submit(job))
        gone = asyncio.ensure_future(hung_up())
        both: set[asyncio.Future[Any]] = {answer, gone}
        try:
            await asyncio.wait(
                both, timeout=self.limits.solve_s, return_when=asyncio.FIRST_COMPLETED
            )
            if answer.done():
                return answer.result()
            if gone.done():
                raise Refused(400, "hung_up", "The client did not wait for the answer.")
            raise Busy(f"no answer within {self.limits.solve_s:g} s; try again later", 10)
        finally:
            gone.cancel()
            workers.drop(job)
            answer.cancel()

    def hurry(self) -> None:
        """Take nothing new, refuse what waits, end soon what runs."""
        for workers in self.all:
            workers.hurry()

    def close(self) -> None:
        """End all processes."""
        for workers in self.all:
            workers.close()


__all__ = ["PUZZLES", "Staff"]
