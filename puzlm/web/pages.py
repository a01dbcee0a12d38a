"""The page and its files, served from memory."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

STATIC = Path(__file__).parent / "static"


def mount(app: FastAPI) -> None:
    """Serve the page from memory: no path of a request ever reaches the disk."""
    files: dict[str, tuple[bytes, str, str]] = {}
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            kind = {".webp": "image/webp", ".js": "text/javascript"}.get(path.suffix)
            kind = kind or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
            files[path.relative_to(STATIC).as_posix()] = data, kind, tag
    app.state.static = files

    def send(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404)
        data, kind, tag = files[name]
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        if kind.startswith("text/"):
            kind += "; charset=utf-8"
        return Response(data, media_type=kind, headers=headers)

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return send("index.html", request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return send("docs.html", request)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon(request: Request) -> Response:
        return send("icon.svg", request)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        return send(name, request)
