"""How a long search is followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Watch:
    """Be told what is done and how much of it, 0 to 1; say whether to end early."""

    report: Callable[[str, float], None] = lambda what, share: None
    stop: Callable[[], bool] = lambda: False
