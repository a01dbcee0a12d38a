"""The HTTP service and its page.

    GET  /  /static/*  /docs        the page, its files, the interface described
    GET  /healthz  /metrics  /api/models  /api/samples
    POST /api/make   a picture -> shuffled pieces          POST /api/solve  pieces -> positions
    POST /api/open   files -> pieces                       POST /api/read   symbols -> what they say
    POST /api/gif    pieces and positions -> animation

Nothing is kept after the answer, and no name a client sends is ever opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse

from puzlm.errors import PuzlmError, nearest
from puzlm.models.decoding import METHODS
from puzlm.puzzle import Puzzle
from puzlm.solver import SOLVERS
from puzlm.web import answers as a
from puzlm.web import gif, intake, pages
from puzlm.web.archive import label
from puzlm.web.engines import SHOWN
from puzlm.web.guard import Door, Guard, problem
from puzlm.web.samples import TITLES
from puzlm.web.staff import PUZZLES, Staff
from puzlm.web.watch import Metrics

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": a.Problem, "description": text}
    for status, text in {
        400: "The request cannot be read.",
        401: "Without the token.",
        403: "From another site.",
        408: "Too slow to arrive.",
        413: "Larger than the limits.",
        415: "Of the wrong type.",
        421: "To a host name that is not served.",
        422: "Cannot be used.",
        429: "Too many at once from one address; see Retry-After.",
        503: "Busy; see Retry-After.",
    }.items()
}


def form_schema(files: dict[str, str], fields: dict[str, str]) -> dict[str, Any]:
    """Describe a multipart form for OpenAPI."""
    binary = {"type": "string", "format": "binary"}
    shape: dict[str, Any] = {
        name: {
            **({"type": "array", "items": binary} if name == "pieces" else binary),
            "description": text,
        }
        for name, text in files.items()
    }
    shape |= {name: {"type": "string", "description": text} for name, text in fields.items()}
    return {
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": {"schema": {"type": "object", "properties": shape}}},
        }
    }


PIECE_FILES = {
    "pieces": "Piece files, all of one size; input piece i is the i-th of them.",
    "zip": "A zip of piece files, in natural order of their names.",
    "picture": "One shuffled picture; without `grid` its seams say it.",
}
SOLVE_FILES = PIECE_FILES | {"reference": "A picture of the whole: box lid, print, original file."}
MAKE_FIELDS = {
    "sample": "Name of a sample, instead of a picture.",
    "grid": "3 or 3x4 (rows x columns).",
    "gap": "Distance between neighbours as a fraction of a piece, 0 to 0.9.",
    "missing": "Number of pieces to leave out.",
    "seed": "A whole number from 0.",
    "jitter": "1: eroded pieces lie anywhere in their cells.",
}
SOLVE_FIELDS = {
    "grid": "3 or 3x4; found when left out.",
    "solver": f"One of {', '.join(SOLVERS)}.",
    "decode": f"For seq2seq: one of {', '.join(METHODS)}.",
    "rotations": "1: each piece may be turned, by half turns if they are not square.",
    "given": 'Fixed placements as JSON {"piece": cell}.',
    "symbols": "1: also give the super-token of every piece, without the parts of splits.",
}
GIF_FIELDS = {
    "grid": "3 or 3x4.",
    "positions": "JSON list: cell of each piece, -1 for none.",
    "order": "JSON list: pieces in the order in which they move.",
    "turns": "JSON list: quarter turns counter-clockwise of each piece; none when left out.",
    "mirrored": "JSON list: pieces that are flipped from left to right before.",
}


def create_app(
    model: str | Path | None = None,
    *,
    limits: a.Limits | None = None,
    door: Door | None = None,
    engine: str = PUZZLES,
    **options: Any,
) -> FastAPI:
    """Build the service around one model, and start its processes.

    `door` says who is let in; `engine` names the class that solves in the worker processes;
    `options` go to Solver.from_pretrained.
    """
    limits = limits or a.Limits()
    staff = Staff(None if model is None else str(model), limits, engine, **options)
    about = staff.about
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        # Requests in flight have been answered by now; what still runs belongs to nobody.
        await anyio.to_thread.run_sync(staff.close)

    app = FastAPI(
        title="PuzLM",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # such a redirect would go to the host that the request names
        summary="Square jigsaw puzzles, solved by reading their pieces as symbols.",
        responses=ERRORS,
    )
    app.state.staff, app.state.metrics, app.state.limits = staff, metrics, limits
    app.state.guard = Guard(limits, door or Door(), metrics)
    app.add_middleware(app.state.guard.around)
    _handle_errors(app)
    pages.mount(app)

    @app.get("/healthz", tags=["service"])
    async def healthz() -> a.Health:
        """Say that the service is up."""
        waiting = sum(workers.waiting for workers in staff.all)
        return a.Health(status="ok", model=about["name"], waiting=waiting)

    @app.get("/metrics", tags=["service"], response_class=PlainTextResponse)
    async def measures() -> PlainTextResponse:
        """Say how much was asked, answered and refused, in the text format of Prometheus."""
        text = metrics.text(staff, app.state.guard)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @app.get("/api/models", tags=["service"])
    async def models() -> a.Models:
        """List the loaded model, the solvers, the decoders and the limits."""
        here = a.Model(default=True, **{k: about[k] for k in a.Model.model_fields if k in about})
        allowed: dict[str, float] = {
            "body": limits.body,
            "pixels": limits.pixels,
            "pieces": limits.pieces,
            "seconds": limits.solve_s,
        }
        return a.Models(models=[here], solvers=list(SOLVERS), decode=list(METHODS), limits=allowed)

    @app.get("/api/samples", tags=["puzzles"])
    async def samples() -> a.Samples:
        """List the sample pictures."""
        return a.Samples(
            samples=[
                a.Sample(name=name, title=title, url=f"/static/samples/{name}.webp")
                for name, title in TITLES.items()
            ]
        )

    @app.post(
        "/api/make",
        tags=["puzzles"],
        openapi_extra=form_schema({"picture": "The picture to cut."}, MAKE_FIELDS),
    )
    async def make(request: Request) -> a.Pieces:
        """Cut a picture into pieces and shuffle them."""
        async with contextlib.AsyncExitStack() as stack:
            form = await intake.read_form(request, limits, set(MAKE_FIELDS), {"picture"})
            stack.push_async_callback(form.close)
            grid = intake.refusing(lambda: intake.grid_of(intake.text(form, "grid", "3"), limits))
            how = {
                "gap": intake.number(form, "gap", 0, 0, 0.9),
                "missing": intake.whole(form, "missing", 0, limits.pieces),
                "seed": intake.whole(form, "seed", 0, 2**32 - 1),
                "jitter": intake.whole(form, "jitter", 0, 1) == 1,
            }
            name, picture = intake.text(form, "sample"), await intake.one_file(form, "picture")
        if bool(name) == (picture is not None):
            raise a.Refused(422, "no_picture", "Send either a 'picture' or the name of a 'sample'.")
        if name:
            if name not in TITLES:
                hint = nearest(label(name), TITLES)
                raise a.Refused(422, "unknown_sample", f"Sample '{label(name)}' is unknown; {hint}")
            picture = name, app.state.static[f"samples/{name}.webp"][0]
        puzzle = await staff.decode(request, "cut", picture, grid or (3, 3), how)
        return a.Pieces(**await staff.ask(request, "show", puzzle))

    async def take_puzzle(
        request: Request, fields: set[str], pixels: int, files: dict[str, str] = PIECE_FILES
    ) -> tuple[Puzzle, FormData]:
        form = await intake.read_form(request, limits, fields, set(files))
        try:
            grid = intake.refusing(lambda: intake.grid_of(intake.text(form, "grid"), limits))
            sent = [f for f in form.getlist("pieces") if isinstance(f, UploadFile)]
            pieces = [(f.filename or f"piece {i}", await f.read()) for i, f in enumerate(sent)]
            archive, picture = (
                await intake.one_file(form, "zip"),
                await intake.one_file(form, "picture"),
            )
            whole = await intake.one_file(form, "reference")
        finally:
            await form.close()
        zipped = None if archive is None else archive[1]
        puzzle = await staff.decode(request, "puzzle", pieces, zipped, picture, grid, pixels, whole)
        return puzzle, form

    @app.post(
        "/api/open",
        tags=["puzzles"],
        openapi_extra=form_schema(PIECE_FILES, {"grid": SOLVE_FIELDS["grid"]}),
    )
    async def open_(request: Request) -> a.Pieces:
        """Read a person's own pieces, and give them back one by one."""
        puzzle, _ = await take_puzzle(request, {"grid"}, SHOWN * SHOWN)
        return a.Pieces(**await staff.ask(request, "show", puzzle))

    @app.post("/api/solve", tags=["puzzles"], openapi_extra=form_schema(SOLVE_FILES, SOLVE_FIELDS))
    async def solve(request: Request) -> a.Solved:
        """Find the cell of every piece."""
        puzzle, form = await take_puzzle(
            request, set(SOLVE_FIELDS), intake.SOLVE_PIXELS, SOLVE_FILES
        )
        kind = (
            intake.choice(form, "solver", about["solver"], SOLVERS),
            intake.choice(form, "decode", about["decoding"], METHODS),
            intake.whole(form, "rotations", 0, 1) == 1,
        )
        given = intake.given_of(intake.text(form, "given"), puzzle)
        symbols = intake.whole(form, "symbols", 0, 1) == 1
        return a.Solved(**await staff.solve(request, puzzle, kind, given, symbols))

    @app.post("/api/read", tags=["reading"])
    async def read(request: Request, question: a.Question) -> a.Reading:
        """Show what the machine reads of one piece: its symbols, and how they meet the others'."""
        reading: a.Reading = await staff.ask(request, "read", question)
        return reading

    @app.post(
        "/api/gif",
        tags=["puzzles"],
        response_class=Response,
        responses={200: {"content": {"image/gif": {}}, "description": "The animation."}},
        openapi_extra=form_schema(PIECE_FILES, GIF_FIELDS),
    )
    async def animation(request: Request) -> Response:
        """Draw the pieces moving to their places."""
        puzzle, form = await take_puzzle(request, set(GIF_FIELDS), gif.PIXELS)
        positions = intake.numbers(form, "positions", len(puzzle.pieces), -1, puzzle.cells - 1)
        order = intake.numbers(form, "order", len(puzzle.pieces), 0, len(puzzle.pieces) - 1)
        poses = [0] * len(order)
        if intake.text(form, "turns"):
            poses = intake.numbers(form, "turns", len(order), 0, 3)
        if intake.text(form, "mirrored"):
            for piece in intake.numbers(form, "mirrored", None, 0, len(order) - 1):
                poses[piece] = poses[piece] % 4 + 4
        drawn = await staff.decode(request, "animation", puzzle, positions, order, poses)
        return Response(drawn, media_type="image/gif")

    return app


def _handle_errors(app: FastAPI) -> None:
    """Give every error the same shape."""

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, a.Refused):
            return problem(error)
        code = {400: "bad_request", 404: "not_found", 405: "not_allowed"}.get(
            error.status_code, "refused"
        )
        told = {
            404: "There is nothing at this address.",
            405: "This address does not take that method.",
        }
        message = told.get(error.status_code, intake.one_line(str(error.detail)))
        return problem(a.Refused(error.status_code, code, message, **(error.headers or {})))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:6])
        message = intake.one_line(f"{where or 'body'}: {first['msg']}")[:200]
        return problem(a.Refused(422, "bad_json", message))

    @app.exception_handler(PuzlmError)
    async def unusable(request: Request, error: PuzlmError) -> JSONResponse:
        return problem(a.Refused(422, "unusable", intake.one_line(str(error))))


__all__ = ["create_app"]
