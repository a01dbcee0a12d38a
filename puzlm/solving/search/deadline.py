"""A time limit inside a search, which then returns the best arrangement so far.

    with deadline(5.0) as limit:
        solution = solver.solve(puzzle)
    limit.reached  # whether any search was ended early

A search asks `over()` between two steps, and a long one says by `tell()` what it does. Without a
limit it is never over, nobody is told, and no answer changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Limit:
    """When searches end: at a time of the monotonic clock, or when `stopped()` says so."""

    end: float
    stopped: Callable[[], bool]
    report: Callable[[str, float], None]
    reached: bool = False


_LIMIT: ContextVar[Limit | None] = ContextVar("limit", default=None)


@contextmanager
def deadline(
    seconds: float,
    stopped: Callable[[], bool] = lambda: False,
    report: Callable[[str, float], None] = lambda what, share: None,
) -> Iterator[Limit]:
    """End every search inside after `seconds`, or as soon as `stopped()` says so.

    `report` is told what a long search does, and how much of that is done, 0 to 1.
    """
    limit = Limit(time.monotonic() + seconds, stopped, report)
    token = _LIMIT.set(limit)
    try:
        yield limit
    finally:
        _LIMIT.reset(token)


def over() -> bool:
    """Whether the search that asks must end now."""
    limit = _LIMIT.get()
    if limit is None:
        return False
    limit.reached |= time.monotonic() >= limit.end or limit.stopped()
    return limit.reached


def tell(what: str, share: float) -> None:
    """Say what is done here, and how much of it, 0 to 1."""
    limit = _LIMIT.get()
    if limit is not None:
        limit.report(what, share)


def ended_early() -> bool:
    """Whether a search was ended here before it was through."""
    limit = _LIMIT.get()
    return limit is not None and limit.reached


__all__ = ["Limit", "deadline", "ended_early", "over", "tell"]
