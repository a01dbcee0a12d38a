"""The HTTP service and its page.

    GET  /  /static/*  /docs        the page, its files, the interface described
    GET  /healthz  /api/models  /api/samples
    POST /api/make   a picture -> shuffled pieces          POST /api/solve  pieces -> positions
    POST /api/open   files -> pieces                       POST /api/read   symbols -> what they say
    POST /api/gif    pieces and positions -> animation

Nothing is kept after the answer, and no name a client sends is ever opened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from puzlm.errors import ModelError, PuzlmError, nearest
from puzlm.models.decoding import METHODS
from puzlm.puzzle import Puzzle
from puzlm.solver import SOLVERS, Given, Solution, Solver
from puzlm.web import answers as a
from puzlm.web import gif, intake, pages
from puzlm.web.archive import label
from puzlm.web.batching import Batcher, Kind
from puzlm.web.guard import LOOPBACK, Guard, problem
from puzlm.web.listening import listen
from puzlm.web.reading import Glass, data_url
from puzlm.web.samples import TITLES

DECODERS = 2  # threads that decode and encode pictures
SHOWN = 960  # pixels of the longer side of a picture that goes to the page

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": a.Problem, "description": text}
    for status, text in {
        400: "The request cannot be read.",
        403: "From another site.",
        408: "Too slow to arrive.",
        413: "Larger than the limits.",
        415: "Of the wrong type.",
        422: "Cannot be used.",
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
    "picture": "One shuffled picture; it needs `grid`.",
}
MAKE_FIELDS = {
    "sample": "Name of a sample, instead of a picture.",
    "grid": "3 or 3x4 (rows x columns).",
    "gap": "Distance between neighbours as a fraction of a piece, 0 to 0.9.",
    "missing": "Number of pieces to leave out.",
    "seed": "A whole number from 0.",
    "jitter": "1: eroded pieces lie anywhere in their cells.",
}
SOLVE_FIELDS = {
    "grid": "3 or 3x4; a square is guessed when left out.",
    "solver": f"One of {', '.join(SOLVERS)}.",
    "decode": f"For seq2seq: one of {', '.join(METHODS)}.",
    "given": 'Fixed placements as JSON {"piece": cell}.',
    "symbols": "1: also give the super-token of every piece, without the parts of splits.",
}
GIF_FIELDS = {
    "grid": "3 or 3x4.",
    "positions": "JSON list: cell of each piece, -1 for none.",
    "order": "JSON list: pieces in the order in which they move.",
}


def create_app(
    model: str | Path | None = None,
    *,
    solver: Solver | None = None,
    limits: a.Limits | None = None,
    hosts: Sequence[str] | None = None,
    **options: Any,
) -> FastAPI:
    """Build the service around one model (or a Solver that is loaded already).

    `hosts` are the host names it answers to (None: any); `options` go to Solver.from_pretrained.
    """
    limits = limits or a.Limits()
    base = solver or Solver.from_pretrained(model, **options)
    tokenizer = base.tokenizer
    if tokenizer is None:
        raise ModelError(
            f"model '{model or base.solver}': the page shows what a language model reads, and "
            "there is none in it (tokenizer.json)"
        )
    glass = Glass(tokenizer, base.sides)
    kinds: dict[Kind, Solver] = {(base.solver, base.decoding): base}

    def solve_many(kind: Kind, puzzles: list[Puzzle], given: Sequence[Given]) -> list[Solution]:
        if kind not in kinds:
            kinds[kind] = base.variant(solver=kind[0], decoding=kind[1])
        return kinds[kind].solve_many(puzzles, given=given)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batcher = Batcher(solve_many, waiting=limits.queue)
        app.state.decoders = anyio.CapacityLimiter(DECODERS)
        yield
        # Requests in flight have been answered by now; what still waits belongs to nobody.
        await anyio.to_thread.run_sync(app.state.batcher.close)

    app = FastAPI(
        title="PuzLM",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        summary="Square jigsaw puzzles, solved by reading their pieces as symbols.",
        responses=ERRORS,
    )
    app.add_middleware(Guard, limits=limits, hosts=hosts)
    _handle_errors(app)
    pages.mount(app)

    async def in_thread(call: Any, *arguments: Any) -> Any:
        done = partial(intake.refusing, partial(call, *arguments))
        return await anyio.to_thread.run_sync(done, limiter=app.state.decoders)

    def shown(puzzle: Puzzle) -> a.Pieces:
        symbols = glass.symbols(puzzle.pieces)
        names = puzzle.names or tuple(f"piece {i}" for i in range(len(puzzle.pieces)))
        return a.Pieces(
            grid=list(puzzle.grid),
            pieces=[data_url(p) for p in puzzle.pieces],
            names=list(names),
            truth=None if puzzle.truth is None else puzzle.truth.tolist(),
            size=list(puzzle.pieces.shape[1:3]),
            symbols=symbols.tolist(),
            settings=puzzle.settings,
        )

    @app.get("/healthz", tags=["service"])
    async def healthz() -> a.Health:
        """Say that the service is up."""
        name = str(base.card.get("name", "model"))
        return a.Health(status="ok", model=name, waiting=app.state.batcher.waiting)

    @app.get("/api/models", tags=["service"])
    async def models() -> a.Models:
        """List the loaded model, the solvers, the decoders and the limits."""
        s = tokenizer.settings
        here = a.Model(
            name=str(base.card.get("name", "model")),
            default=True,
            grids=[str(g) for g in base.card.get("grids", [])],
            granularity=s.granularity,
            vocab_size=s.vocab_size,
            border=s.border_length,
            patch=s.patch,
        )
        allowed: dict[str, float] = {
            "body": limits.body,
            "pixels": limits.pixels,
            "pieces": limits.pieces,
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
            gap = intake.number(form, "gap", 0, 0, 0.9)
            missing = intake.whole(form, "missing", 0, limits.pieces)
            seed = intake.whole(form, "seed", 0, 2**32 - 1)
            jitter = intake.whole(form, "jitter", 0, 1) == 1
            name, picture = intake.text(form, "sample"), await intake.one_file(form, "picture")
        if bool(name) == (picture is not None):
            raise a.Refused(422, "no_picture", "Send either a 'picture' or the name of a 'sample'.")
        if name:
            if name not in TITLES:
                hint = nearest(label(name), TITLES)
                raise a.Refused(422, "unknown_sample", f"Sample '{label(name)}' is unknown; {hint}")
            picture = name, app.state.static[f"samples/{name}.webp"][0]

        def work(named: tuple[str, bytes]) -> a.Pieces:
            whole = intake.Budget(limits.pixels).pixels(named[1], named[0])
            small = intake.fit_inside(whole, SHOWN)
            return shown(
                Puzzle.from_image(
                    small, grid or 3, gap=gap, jitter=jitter, missing=missing, seed=seed
                )
            )

        result: a.Pieces = await in_thread(work, picture)
        return result

    async def take_puzzle(
        request: Request, fields: set[str], pixels: int
    ) -> tuple[Puzzle, FormData]:
        form = await intake.read_form(request, limits, fields, set(PIECE_FILES))
        try:
            grid = intake.refusing(lambda: intake.grid_of(intake.text(form, "grid"), limits))
            files = [f for f in form.getlist("pieces") if isinstance(f, UploadFile)]
            pieces = [(f.filename or f"piece {i}", await f.read()) for i, f in enumerate(files)]
            archive, picture = (
                await intake.one_file(form, "zip"),
                await intake.one_file(form, "picture"),
            )
        finally:
            await form.close()
        zipped = None if archive is None else archive[1]
        work = partial(intake.read_puzzle, pieces, zipped, picture, grid, limits, pixels=pixels)
        return await in_thread(work), form

    @app.post(
        "/api/open",
        tags=["puzzles"],
        openapi_extra=form_schema(PIECE_FILES, {"grid": SOLVE_FIELDS["grid"]}),
    )
    async def open_(request: Request) -> a.Pieces:
        """Read a person's own pieces, and give them back one by one."""
        puzzle, _ = await take_puzzle(request, {"grid"}, SHOWN * SHOWN)
        result: a.Pieces = await in_thread(shown, puzzle)
        return result

    @app.post("/api/solve", tags=["puzzles"], openapi_extra=form_schema(PIECE_FILES, SOLVE_FIELDS))
    async def solve(request: Request) -> a.Solved:
        """Find the cell of every piece."""
        puzzle, form = await take_puzzle(request, set(SOLVE_FIELDS), intake.SOLVE_PIXELS)
        kind = (
            intake.choice(form, "solver", base.solver, SOLVERS),
            intake.choice(form, "decode", base.decoding, METHODS),
        )
        given = intake.given_of(intake.text(form, "given"), puzzle)
        answer = app.state.batcher.submit(kind, puzzle, given)
        solution = await answered(request, answer, limits.solve_s)
        symbols = None  # reading the pieces once more takes a tenth of solving them
        if intake.whole(form, "symbols", 0, 1):
            symbols = (await in_thread(glass.symbols, puzzle.pieces)).tolist()
        return a.Solved(
            positions=solution.positions.tolist(),
            order=[int(i) for i in solution.order],
            confidences=np.clip(solution.confidences, 0, 1).round(4).tolist(),
            alternatives=[p.tolist() for p in solution.alternatives],
            grid=list(solution.grid),
            solver=solution.solver,
            seconds=round(solution.seconds, 4),
            symbols=symbols,
        )

    @app.post("/api/read", tags=["reading"])
    async def read(question: a.Question) -> a.Reading:
        """Show what the machine reads of one piece: its symbols, and how they meet the others'."""
        result: a.Reading = await in_thread(glass.read, question)
        return result

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
        return Response(await in_thread(gif.draw, puzzle, positions, order), media_type="image/gif")

    return app


async def answered(request: Request, answer: Future[Solution], seconds: float) -> Solution:
    """Wait for the solver; a client that hangs up or waits too long leaves the queue."""

    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    solved, gone = asyncio.wrap_future(answer), asyncio.ensure_future(hung_up())
    both: set[asyncio.Future[Any]] = {solved, gone}
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if solved.done():
            return solved.result()
        if gone.done():
            raise a.Refused(400, "hung_up", "The client did not wait for the answer.")
        raise a.Busy(f"no answer within {seconds:g} s; try again later", 10)
    finally:
        gone.cancel()
        solved.cancel()  # takes the puzzle out of the queue if it is still there


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


def serve(
    host: str = "127.0.0.1",
    port: int = 8000,
    model: str | Path | None = None,
    *,
    limits: a.Limits | None = None,
    ready: Callable[[str], None] = lambda address: None,
    **options: Any,
) -> None:
    """Run the service until Ctrl-C, which finishes the answers in flight.

    `ready` is called with the page's address as soon as it can be opened.
    """
    import uvicorn

    app = create_app(model, limits=limits, hosts=LOOPBACK if host in LOOPBACK else None, **options)
    opened = listen(host, port)
    ready(f"http://{f'[{host}]' if ':' in host else host}:{opened.getsockname()[1]}")
    settings = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=60,
        ws="none",
    )
    with opened, contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run(sockets=[opened])


__all__ = ["create_app", "serve"]
