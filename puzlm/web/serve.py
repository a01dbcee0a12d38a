"""`puzlm web`: the socket, connections within limits of number and time, and the end.

uvicorn gives every connection all the time it wants until its request has begun. Here the head of
a request has a deadline, as has the taking of the answer, and if there are too many connections,
the one that has been idle the longest makes place for the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from puzlm.errors import SettingsError
from puzlm.web import watch
from puzlm.web.answers import Limits
from puzlm.web.app import create_app
from puzlm.web.guard import LOOPBACK, Door

BACKLOG = 64  # clients that may wait to be let in; asyncio lets in as many at a time
RESERVE = 64  # file descriptors for all but connections: pipes, models, logs
LAST_S = 2.0  # of the grace time, kept for sending the last answers


class Server(uvicorn.Server):
    """A uvicorn server that keeps to the limits of an app of `create_app`."""

    def __init__(self, app: FastAPI, proxies: Sequence[str] = (), **options: Any) -> None:
        self.app, self.limits = app, app.state.limits
        kind = type("Connection", (_Connection,), {"server_": self, "waiting": {}})
        most = _files() - RESERVE - BACKLOG
        self.most = max(8, min(self.limits.connections, most))
        settings = uvicorn.Config(
            app,
            http=kind,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            timeout_keep_alive=self.limits.idle_s,
            timeout_graceful_shutdown=self.limits.grace_s,
            **options,
        )
        super().__init__(settings)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is under way, in the grace time; the rest is answered 503."""
        loop, guard = asyncio.get_running_loop(), self.app.state.guard
        self.app.state.staff.hurry()
        last = loop.call_later(max(0.0, self.limits.grace_s - LAST_S), guard.end)
        for connection in list(self.server_state.connections):
            if not connection.busy:  # type: ignore[union-attr]
                connection.transport.abort()
        await super().shutdown(sockets)
        last.cancel()


class _Connection(H11Protocol):
    """One connection."""

    server_: Server
    waiting: dict[_Connection, None]
    """Connections without a request, those that are so for longest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        if len(self.connections) > self.server_.most:
            if not self.waiting:
                self._end("full")
                return
            next(iter(self.waiting))._end("made place")
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._taking):
            if timer is not None:
                timer.cancel()
        self.waiting.pop(self, None)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._took()
        self.waiting.pop(self, None)  # to the end of the line
        self._look(idle=True)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            seconds = self.server_.limits.write_s
            self._taking = self.loop.call_later(seconds, self._end, "slow to take")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._took()

    def _took(self) -> None:
        """End that deadline once all has been taken: taking it drop by drop wins no time."""
        if self._taking is not None and not self.busy and not self.flow.write_paused:
            self._taking.cancel()
            self._taking = None

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self, idle: bool = False) -> None:
        """Start or end the deadline of a request's head."""
        if self.transport.is_closing():
            return
        if self.busy:
            self.waiting.pop(self, None)
            if self._head is not None:
                self._head.cancel()
                self._head = None
            return
        self.waiting.setdefault(self)
        if self._head is None and not idle:  # of an idle one uvicorn keeps the time
            self._head = self.loop.call_later(self.server_.limits.header_s, self._end, "slow head")

    def _end(self, reason: str) -> None:
        self.server_.app.state.metrics.events[reason] += 1
        self.waiting.pop(self, None)
        self.transport.abort()


def _files() -> int:
    """Files that this process may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 16
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 16 if soft == resource.RLIM_INFINITY else soft


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise SettingsError(f"--port {port}: must be from 0 (any that is free) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"--host {host}: no address of this machine ({why})") from error
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise SettingsError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror}); "
            "choose another, or --port 0 for any that is free"
        ) from error
    return opened


def serve(
    host: str = "127.0.0.1",
    port: int = 8000,
    model: str | Path | None = None,
    *,
    limits: Limits | None = None,
    names: Sequence[str] = (),
    token: str | None = None,
    proxies: Sequence[str] = (),
    access_log: str | None = None,
    ready: Callable[[str], None] = lambda address: None,
    **options: Any,
) -> None:
    """Run the service until Ctrl-C or SIGTERM, which finish the answers in flight.

    `ready` is called with the page's address as soon as it can be opened.
    """
    try:
        watch.set_up(access_log)
    except OSError as error:
        raise SettingsError(
            f"--access-log {access_log}: cannot be written ({error.strerror})"
        ) from error
    if token is not None and not (token.isascii() and token.isalnum() and len(token) >= 16):
        raise SettingsError("--token: must be 16 or more letters and digits")
    opened = listen(host, port)
    with opened:
        door = Door(frozenset(name.lower() for name in names), token)
        app = create_app(model, limits=limits, door=door, **options)
        where = f"http://{f'[{host}]' if ':' in host else host}:{opened.getsockname()[1]}"
        ready(where + (f"/?token={token}" if token else ""))
        with contextlib.suppress(KeyboardInterrupt):
            Server(app, proxies).run(sockets=[opened])


__all__ = ["LOOPBACK", "Server", "listen", "serve"]
