"""What the service tells of itself: counters for Prometheus, an access log, and a quiet log."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from logging.handlers import RotatingFileHandler
from typing import Any

ACCESS = logging.getLogger("puzlm.access")
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)  # seconds
REPEAT_S = 60.0  # a message that was logged is only counted for so long
KNOWN = 1000  # different messages that are remembered
LOG_BYTES = 50 * 2**20  # of an access log, until it is put aside; three of them are kept
PATHS = {f"/api/{name}" for name in ("make", "open", "solve", "read", "gif", "models", "samples")}
PATHS |= {"/", "/docs", "/healthz", "/metrics", "/openapi.json"}


class Metrics:
    """Counters of one service, as Prometheus reads them."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.events: Counter[str] = Counter()
        """Connections that were ended, by reason."""
        self.seconds: dict[str, list[int]] = {}
        self.total: Counter[str] = Counter()

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        path = path if path in PATHS else "/static" if path.startswith("/static/") else "other"
        self.answers[path, status] += 1
        counts = self.seconds.setdefault(path, [0] * (len(BOUNDS) + 1))
        counts[bisect_left(BOUNDS, seconds)] += 1
        self.total[path] += seconds  # type: ignore[assignment]

    def text(self, staff: Any, guard: Any) -> str:
        """Everything in Prometheus' text format."""
        lines: list[str] = []

        def tell(name: str, kind: str, about: str, rows: list[tuple[str, float]]) -> None:
            lines.extend([f"# HELP puzlm_{name} {about}", f"# TYPE puzlm_{name} {kind}"])
            lines.extend(f"puzlm_{name}{labels} {value:g}" for labels, value in rows)

        answers = sorted(self.answers.items())
        tell(
            "answers_total",
            "counter",
            "Answers by path and status.",
            [(f'{{path="{path}",status="{status}"}}', n) for (path, status), n in answers],
        )
        rows: list[tuple[str, float]] = []
        for path, counts in sorted(self.seconds.items()):
            below = 0
            for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
                below += count
                rows.append((f'_bucket{{path="{path}",le="{bound}"}}', below))
            rows.append((f'_sum{{path="{path}"}}', self.total[path]))
            rows.append((f'_count{{path="{path}"}}', below))
        tell("seconds", "histogram", "Time from a request's head to its answer.", rows)
        events = [(f'{{reason="{name}"}}', float(n)) for name, n in sorted(self.events.items())]
        tell("connections_ended_total", "counter", "Connections ended by the service.", events)
        pools = [(f'{{pool="{w.plan.name}"}}', w) for w in staff.all]
        tell("waiting", "gauge", "Jobs in a queue.", [(k, w.waiting) for k, w in pools])
        tell("running", "gauge", "Jobs in a process.", [(k, w.running) for k, w in pools])
        tell(
            "processes_lost_total",
            "counter",
            "Processes that were killed, or died, at work.",
            [(k, w.killed) for k, w in pools],
        )
        tell("requests", "gauge", "Requests under way.", [("", guard.under_way)])
        tell("body_bytes", "gauge", "Bytes of their bodies.", [("", guard.held)])
        return "\n".join([*lines, ""])


def record(**facts: Any) -> None:
    """Write one line of JSON to the access log."""
    if ACCESS.handlers:
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e3):03}Z"
        ACCESS.info(json.dumps({"time": stamp, **facts}))


class Once(logging.Filter):
    """Lets a message pass once a minute, and then says how often it came meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[Any, ...], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, entry: logging.LogRecord) -> bool:
        """Whether to write it."""
        kind = entry.exc_info[0] if entry.exc_info else None
        key = entry.name, entry.levelno, str(entry.msg)[:200], kind
        now = time.monotonic()
        with self._lock:
            since, more = self._seen.get(key, (-REPEAT_S, 0))
            if now - since < REPEAT_S:
                self._seen[key] = since, more + 1
                return False
            if len(self._seen) >= KNOWN:
                self._seen.clear()
            self._seen[key] = now, 0
        if more:
            entry.msg = f"{entry.getMessage()} (and {more} times more since the last such line)"
            entry.args = ()
        return True


def set_up(access_log: str | None) -> None:
    """Send warnings to the standard error output, each once a minute, and open the access log."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(Once())
    for name in ("uvicorn", "asyncio", "puzlm.web"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
    if access_log is not None:
        out: logging.Handler = (
            logging.StreamHandler(sys.stdout)
            if access_log == "-"
            else RotatingFileHandler(access_log, maxBytes=LOG_BYTES, backupCount=3, delay=False)
        )
        ACCESS.handlers, ACCESS.propagate = [out], False
        ACCESS.setLevel(logging.INFO)


__all__ = ["Metrics", "Once", "record", "set_up"]
