"""What the service answers, as pydantic models: the OpenAPI document is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

SuperToken = list[list[int]]  # (b, symbols a position)


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    body: int = 32 * 2**20
    """Bytes of a request's body."""
    pixels: int = 40_000_000
    """Pixels of all pictures of a request together."""
    pieces: int = 1000
    """Pieces, and cells of a grid."""
    unzipped: int = 64 * 2**20
    """Bytes of a zip file's entries, unpacked."""
    queue: int = 128
    """Puzzles of a kind (small, large) that may wait for a process."""
    requests: int = 256
    """Requests that may be under way at once."""
    each: int = 64
    """Of these, from one client address."""
    held: int = 512 * 2**20
    """Bytes of all bodies under way together; no body is ever written to disk."""
    connections: int = 1000
    """Open connections; fewer where the system allows fewer files."""
    header_s: float = 10.0
    """Seconds in which the head of a request must have arrived."""
    upload_s: float = 60.0
    """Seconds in which its body must have arrived."""
    idle_s: float = 15.0
    """Seconds that an answered connection stays open without another request."""
    write_s: float = 60.0
    """Seconds in which a client must have taken its answer."""
    decode_s: float = 10.0
    """Seconds that the pictures of a request may take to decode."""
    search_s: float = 60.0
    """Seconds of one search, which then gives the best arrangement so far."""
    solve_s: float = 120.0
    """Seconds after which a waiting client is sent away."""
    grace_s: float = 20.0
    """Seconds from SIGTERM or Ctrl-C to the end."""


class Refused(HTTPException):
    """A request that gets a 4xx or 503: a code for machines and one sentence for people."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(status, message, headers or None)
        self.code = code


class Busy(Refused):
    """503: come back later."""

    def __init__(self, message: str, seconds: int = 2) -> None:
        super().__init__(503, "busy", message, **{"Retry-After": str(seconds)})


class Error(BaseModel):
    """What went wrong."""

    code: str
    message: str


class Problem(BaseModel):
    """Body of every 4xx and 5xx."""

    error: Error


class Health(BaseModel):
    """The service is up."""

    status: str
    model: str
    waiting: int


class Model(BaseModel):
    """A model and what it reads."""

    name: str
    default: bool
    grids: list[str]
    granularity: int
    vocab_size: int
    border: int
    patch: str


class Models(BaseModel):
    """Models, solvers and decoders to choose from, and the limits."""

    models: list[Model]
    solvers: list[str]
    decode: list[str]
    limits: dict[str, float]


class Sample(BaseModel):
    """A picture that comes with the page."""

    name: str
    title: str
    url: str


class Samples(BaseModel):
    """The pictures that come with the page."""

    samples: list[Sample]


class Pieces(BaseModel):
    """A puzzle: pieces as PNG data URLs in input order, and the true cells when known."""

    grid: list[int]
    pieces: list[str]
    names: list[str]
    truth: list[int] | None
    size: list[int]
    """Height and width of a piece in pixels."""
    symbols: list[SuperToken]
    settings: dict[str, Any]


class Solved(BaseModel):
    """An answer: positions[i] is the cell of piece i, -1 where it has none."""

    positions: list[int]
    confidences: list[float]
    order: list[int]
    alternatives: list[list[int]]
    grid: list[int]
    solver: str
    seconds: float
    complete: bool
    """False: time was up, and this is the best arrangement so far."""
    read: bool
    """Whether a language model read the pieces for this answer."""
    clear: bool = False
    """Whether edges left no doubt, so that no large model was asked."""
    turns: list[int] = []
    """Quarter turns counter-clockwise that set each piece upright; empty: all lay upright."""
    mirrored: list[int] = []
    """Pieces that are to be flipped from left to right before they are turned."""
    symbols: list[SuperToken] | None = None
    """The super-token of every piece, when asked for."""


class Question(BaseModel):
    """Ask how one piece is read; only symbols are needed, no picture."""

    symbols: Annotated[list[SuperToken], Field(min_length=1, max_length=1000)]
    piece: Annotated[int, Field(ge=0)]
    neighbours: dict[str, int] = Field(
        default_factory=dict, description="Piece lying at 'top', 'right', 'bottom' and 'left'."
    )


class Position(BaseModel):
    """Two border positions that touch: one symbol a layer on each side of the seam."""

    own: list[int]
    other: list[int]
    closeness: list[float]
    """Share of the codebook that is farther from our symbol than theirs is; 1: the same."""


class Side(BaseModel):
    """One side of the piece and what it meets."""

    side: str
    symbols: list[list[int]]
    strip: str
    """PNG of what the symbols of this side say, the seam below."""
    neighbour: int | None = None
    other_strip: str | None = None
    """PNG of what the neighbour's symbols say, the seam above."""
    positions: list[Position] = []
    rank: int | None = None
    """Place of this neighbour among all candidates of the side model, 1: its first choice."""
    share: float | None = None
    """How sure the side model is of this neighbour, among all candidates."""


class Reading(BaseModel):
    """What the machine reads of one piece."""

    piece: int
    text: str
    picture: str
    granularity: int
    layers: list[str]
    parts: int = 0
    """Further symbols a strip, parts of splits, which are not shown."""
    walk: list[list[int]]
    """(side, place) of every symbol of the super-token, in reading order."""
    sides: list[Side]
    candidates: int
