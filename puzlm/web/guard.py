"""The door: body size and time while the body streams in, same-origin only, security headers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puzlm.web.answers import Busy, Limits, Refused

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
JSON_BODY = 2 * 2**20  # bytes; symbols of 400 pieces are about 150 kB
LOG = logging.getLogger("puzlm.web")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def problem(refused: Refused) -> JSONResponse:
    """The one shape of every error."""
    body = {"error": {"code": refused.code, "message": refused.detail}}
    return JSONResponse(body, refused.status_code, refused.headers)


class Guard:
    """ASGI middleware; needs no thread and no buffer of its own."""

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Sequence[str] | None = None) -> None:
        self.app, self.limits, self.hosts = app, limits, hosts
        self.uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        begun = False

        async def guarded_send(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if scope["path"].startswith("/api/"):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        refused = self._refuse(scope)
        if refused is not None:
            await problem(refused)(scope, receive, guarded_send)
            return
        self.uploads += 1
        try:
            await self.app(scope, self._counted(scope, receive), guarded_send)
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            if not begun:
                inside = Refused(500, "internal", "Something went wrong inside; it was logged.")
                await problem(inside)(scope, receive, guarded_send)
        finally:
            self.uploads -= 1

    def _allowed(self, headers: Headers) -> int:
        """Bytes that a body of this kind may have."""
        form = headers.get("content-type", "").lower().startswith("multipart/")
        return self.limits.body if form else min(self.limits.body, JSON_BODY)

    def _refuse(self, scope: Scope) -> Refused | None:
        """What can be refused on the headers alone."""
        headers = Headers(scope=scope)
        if self.hosts is not None and _host(headers.get("host", "")) not in self.hosts:
            return Refused(421, "wrong_host", "This service does not answer to that host name.")
        origin = headers.get("sec-fetch-site", "none")  # browsers send it, programs do not
        if scope["method"] == "POST" and origin not in ("same-origin", "none"):
            return Refused(403, "cross_site", "Requests from other sites are not answered.")
        length = headers.get("content-length", "0")
        allowed = self._allowed(headers)
        if not length.isdecimal() or len(length) > 18 or int(length) > allowed:
            return _too_large(allowed)
        if self.uploads >= self.limits.requests:
            return Busy("too many requests are under way; try again in a moment")
        return None

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        """Pass the body on, piece by piece, until it is too long or too late."""
        allowed = self._allowed(Headers(scope=scope))
        clock = asyncio.get_running_loop().time
        deadline, size, more = clock() + self.limits.upload_s, 0, True

        async def counted() -> Message:
            nonlocal size, more
            if not more:  # after the body, this waits for the client to hang up
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise Refused(
                    408,
                    "too_slow",
                    f"The request took longer than {self.limits.upload_s:g} s to arrive.",
                    Connection="close",
                ) from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
                if size > allowed:
                    raise _too_large(allowed)
            return message

        return counted


def _too_large(allowed: int) -> Refused:
    # Without "close" the server would read the rest, to throw it away.
    return Refused(
        413,
        "too_large",
        f"The request is larger than the {allowed >> 20} MB allowed.",
        Connection="close",
    )


def _host(value: str) -> str:
    """Host name of a Host header, without its port."""
    if value.startswith("["):
        return value[1:].split("]")[0]
    return value.rsplit(":", 1)[0] if value.count(":") == 1 else value
