"""One worker process: it makes an engine, then answers calls until its pipe is closed.

    parent -> worker   (engine, options), then calls (method, arguments, seconds), or None: stop
    worker -> parent   (kind, value): "done", "refused" (a sentence for the client), "failed"

A call runs under a deadline of `seconds`; None ends the searches of the call that runs.
Started by workers.py: `python -m puzlm.web.worker NICE DESCRIPTOR`.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from puzlm.errors import PuzlmError
from puzlm.solving.search.deadline import deadline

Call = tuple[str, tuple[Any, ...], float]


def main() -> None:
    """Serve one pipe."""
    # Ctrl-C and a supervisor's SIGTERM reach the whole group: the parent decides when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(int(sys.argv[1]))
    line = Connection(int(sys.argv[2]))
    calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
    stop = threading.Event()
    name, options = line.recv()
    threading.Thread(target=_listen, args=(line, calls, stop), daemon=True).start()
    answer, engine = _attempt(_make, (name, options), 1e9, stop)
    line.send((answer, engine.about() if answer == "done" else engine))
    while answer == "done":
        method, arguments, seconds = calls.get()
        line.send(_attempt(getattr(engine, method), arguments, seconds, stop))


def _listen(line: Connection, calls: queue.SimpleQueue[Call], stop: threading.Event) -> None:
    """Take what the parent sends; when it is gone, end at once, whatever is being done."""
    try:
        while True:
            call = line.recv()
            if call is None:
                stop.set()
            else:
                stop.clear()  # a stop that came too late was of the call before
                calls.put(call)
    except (EOFError, OSError):
        os._exit(0)


def _make(name: str, options: dict[str, Any]) -> Any:
    """Make the engine 'module:Class'."""
    module, _, kind = name.partition(":")
    return getattr(import_module(module), kind)(**options)


def _attempt(
    work: Any, arguments: tuple[Any, ...], seconds: float, stop: threading.Event
) -> tuple[str, Any]:
    """Call it, and turn whatever happens into a message."""
    from puzlm.web.answers import Refused
    from puzlm.web.intake import one_line

    try:
        with deadline(seconds, stop.is_set):
            return "done", work(*arguments)
    except Refused as error:
        return "refused", (error.status_code, error.code, error.detail)
    except PuzlmError as error:
        return "refused", (422, "unusable", one_line(str(error)))
    except Exception:  # whatever it is, it belongs to this client, not to the process
        return "failed", traceback.format_exc()


if __name__ == "__main__":
    main()
