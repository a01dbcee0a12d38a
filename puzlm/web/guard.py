"""The door: host names, other sites, the token; sizes and times of bodies; how many at once."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puzlm.web.answers import Busy, Limits, Refused
from puzlm.web.watch import Metrics, record

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
JSON_BODY = 2 * 2**20  # bytes; symbols of 1,000 pieces are about half a MB
LOG = logging.getLogger("puzlm.web")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "puzlm_token"


def problem(refused: Refused) -> JSONResponse:
    """The one shape of every error."""
    body = {"error": {"code": refused.code, "message": refused.detail}}
    headers = dict(refused.headers or {})
    if refused.status_code == 503:
        headers.setdefault("Retry-After", "2")
    return JSONResponse(body, refused.status_code, headers)


@dataclass(frozen=True)
class Door:
    """Who is let in."""

    names: frozenset[str] = frozenset()
    """Host names that are answered to, beside those of loopback and any plain address."""
    token: str | None = None
    """What every request must bring, but those of /healthz."""

    def refuse_host(self, host: str) -> Refused | None:
        """Refuse a name that is not ours: a page of another site may have been given our address.

        That trick (DNS rebinding) needs a name, so plain addresses are always let in.
        """
        name = _host(host).lower()
        if name in LOOPBACK or name in self.names or _is_address(name):
            return None
        return Refused(
            421, "wrong_host", "This service does not answer to that host name (see --host-name)."
        )

    def refuse_site(self, headers: Headers) -> Refused | None:
        """Refuse what a page of another site sends through a visitor's browser."""
        site = headers.get("sec-fetch-site")
        origin = headers.get("origin")
        if site is not None:
            foreign = site not in ("same-origin", "none")
        else:  # an old browser; programs send neither
            foreign = origin is not None and urlsplit(origin).netloc != headers.get("host", "")
        if foreign:
            return Refused(403, "cross_site", "Requests from other sites are not answered.")
        return None

    def knows(self, headers: Headers) -> bool:
        """Whether a request brings the token, as a header or as the cookie of the page."""
        kind, _, brought = headers.get("authorization", "").partition(" ")
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            cookies.clear()
        cookie = cookies[COOKIE].value if COOKIE in cookies else ""
        return self._same(brought if kind.lower() == "bearer" else "") or self._same(cookie)

    def _same(self, brought: str) -> bool:
        return hmac.compare_digest(brought.encode(), (self.token or "").encode())

    def enter(self, scope: Scope) -> Response | None:
        """Take the token from the page's address, once, and keep it as a cookie."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if scope["path"] != "/" or not self._same(query.get("token", [""])[0]):
            return None
        answer = RedirectResponse("/", 303)  # a path: it cannot lead to another host
        answer.set_cookie(COOKIE, self.token or "", httponly=True, samesite="strict")
        return answer


@dataclass
class _Visit:
    """One request under way."""

    scope: Scope
    start: float
    status: int = 0
    taken: int = 0
    sent: int = 0
    code: str = ""
    task: asyncio.Task[None] | None = field(default_factory=asyncio.current_task)

    @property
    def client(self) -> str:
        return self.scope["client"][0] if self.scope.get("client") else ""


class Guard:
    """ASGI middleware; needs no thread and no buffer of its own."""

    def __init__(self, limits: Limits, door: Door, metrics: Metrics) -> None:
        self.limits, self.door, self.metrics = limits, door, metrics
        self._visits: dict[int, _Visit] = {}
        self._each: Counter[str] = Counter()
        self._closing = False

    @property
    def under_way(self) -> int:
        """Requests under way."""
        return len(self._visits)

    @property
    def held(self) -> int:
        """Bytes of bodies that are held for them."""
        return sum(visit.taken for visit in self._visits.values())

    def around(self, app: ASGIApp) -> Callable[[Scope, Receive, Send], object]:
        """Put it around an app."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await self._guard(app, scope, receive, send)
            else:
                await app(scope, receive, send)

        return guarded

    def end(self) -> None:
        """Answer 503 to all that is still under way: the grace time is over."""
        self._closing = True
        for visit in list(self._visits.values()):
            if visit.task is not None:
                visit.task.cancel()

    async def _guard(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        visit = _Visit(scope, time.perf_counter())

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if scope["path"].startswith("/api/"):
                    headers["Cache-Control"] = "no-store"
            visit.sent += len(message.get("body", b""))
            await send(message)

        async def refuse(refused: Refused) -> None:
            visit.code = refused.code
            if not visit.status:
                await problem(refused)(scope, receive, tell)

        answer = self._refuse(scope)
        self._visits[id(visit)] = visit
        self._each[visit.client] += 1
        try:
            if isinstance(answer, Refused):
                await refuse(answer)
            elif answer is not None:
                await answer(scope, receive, tell)
            else:
                await app(scope, self._counted(visit, receive), tell)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            await refuse(Busy("the service is shutting down", 5))
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            await refuse(Refused(500, "internal", "Something went wrong inside; it was logged."))
        finally:
            del self._visits[id(visit)]
            self._each[visit.client] -= 1
            if not self._each[visit.client]:
                del self._each[visit.client]
            self._tell(visit)

    def _tell(self, visit: _Visit) -> None:
        seconds, scope = time.perf_counter() - visit.start, visit.scope
        self.metrics.answered(scope["path"], visit.status, seconds)
        record(
            client=visit.client,
            method=scope["method"],
            path=scope["path"][:200],  # without its query, which may hold the token
            status=visit.status,
            ms=round(1e3 * seconds, 1),
            bytes_in=visit.taken,
            bytes_out=visit.sent,
            **({"code": visit.code} if visit.code else {}),
        )

    def _allowed(self, headers: Headers) -> int:
        """Bytes that a body of this kind may have."""
        form = headers.get("content-type", "").lower().startswith("multipart/")
        return self.limits.body if form else min(self.limits.body, JSON_BODY)

    def _refuse(self, scope: Scope) -> Refused | Response | None:
        """What can be answered on the head alone."""
        headers, post = Headers(scope=scope), scope["method"] == "POST"
        if refused := self.door.refuse_host(headers.get("host", "")):
            return refused
        if post and (refused := self.door.refuse_site(headers)):
            return refused
        if self.door.token and scope["path"] != "/healthz" and not self.door.knows(headers):
            return self.door.enter(scope) or Refused(
                401,
                "no_token",
                "Send the token: 'Authorization: Bearer TOKEN', or open /?token=TOKEN.",
                **{"WWW-Authenticate": "Bearer"},
            )
        length = headers.get("content-length", "0")
        allowed = self._allowed(headers)
        if not length.isdecimal() or len(length) > 18 or int(length) > allowed:
            return _too_large(allowed)
        if not post:
            return None
        if self._closing or len(self._visits) >= self.limits.requests:
            return Busy("too many requests are under way; try again in a moment")
        client = scope["client"][0] if scope.get("client") else ""
        if self._each[client] >= self.limits.each:
            return Refused(
                429,
                "too_many",
                f"At most {self.limits.each} requests at once from one address.",
                **{"Retry-After": "2"},
            )
        return None

    def _counted(self, visit: _Visit, receive: Receive) -> Receive:
        """Pass the body on, piece by piece, until it is too long or too late."""
        allowed = self._allowed(Headers(scope=visit.scope))
        deadline, more = asyncio.get_running_loop().time() + self.limits.upload_s, True

        async def counted() -> Message:
            nonlocal more
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
                visit.taken += len(message.get("body", b""))
                more = message.get("more_body", False)
                if visit.taken > allowed:
                    raise _too_large(allowed)
                if self.held > self.limits.held:
                    raise Busy("too much is being sent at once; try again in a moment")
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


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
