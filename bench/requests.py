"""What the clients of `puzlm bench --service` send: good puzzles of many kinds, and rubbish."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from bench import timing as bench
from puzlm.images import Pixels
from puzlm.puzzle import Puzzle, shuffled
from puzlm.solver import Solver

BOUNDARY = "puzlm-bench-4f1c"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
Files = Sequence[tuple[str, str, bytes]]  # field, file name, content


@dataclass(frozen=True)
class Asked:
    """A request, and what must come back: positions, or (None) a refusal with this status."""

    name: str
    body: bytes
    expected: list[int] | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: FORM)
    path: str = "/api/solve"
    sends: bytes | None = None
    """The client sends this instead, and waits for no answer."""
    stays: bool = False
    """It leaves the line open."""

    def right(self, status: int, body: bytes) -> bool:
        """Whether this is the answer."""
        if status != self.status:
            return False
        try:
            record = json.loads(body)
            if self.expected is None:
                return set(record["error"]) == {"code", "message"}
            return bool(record["positions"] == self.expected)
        except (ValueError, KeyError, TypeError):
            return False


def raw(body: bytes) -> bytes:
    """A request for a solution as it goes over the line."""
    head = [
        "POST /api/solve HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in FORM.items()),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def form(files: Files, fields: Mapping[str, str]) -> bytes:
    """A multipart form."""
    parts = []
    for name, value in fields.items():
        parts.append(f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode())
    for name, file, content in files:
        head = f'Content-Disposition: form-data; name="{name}"; filename="{file}"\r\n\r\n'
        parts.append(head.encode() + content)
    mark = f"--{BOUNDARY}".encode()
    return b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"


def png(pixels: Pixels) -> bytes:
    """A picture as PNG, quickly."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def piece_files(puzzle: Puzzle) -> list[tuple[str, str, bytes]]:
    """The pieces of a puzzle as files of a form."""
    return [("pieces", f"{i}.png", png(piece)) for i, piece in enumerate(puzzle.pieces)]


def solve_request(
    puzzle: Puzzle, fields: Mapping[str, str], expected: list[int], name: str = "auto 3x3"
) -> Asked:
    """Ask for the solution of a puzzle sent as piece files."""
    grid = f"{puzzle.grid[0]}x{puzzle.grid[1]}"
    return Asked(name, form(piece_files(puzzle), {"grid": grid, **fields}), expected)


def good_requests(solver: Solver, each: int = 3) -> list[Asked]:
    """Puzzles of several grids, solvers and ways to send them; `solver` says what is right."""
    plain = {kind: solver.variant(solver=kind) for kind in ("auto", "seq2seq", "bigram", "classic")}
    crops = iter(bench.crops(12 * each, 144, 7))
    found: list[Asked] = []

    def add(kind: str, grid: str, missing: int = 0, gap: float = 0.0) -> None:
        for seed in range(each):
            puzzle = Puzzle.from_image(next(crops), grid, missing=missing, gap=gap, seed=seed)
            answer = plain[kind].solve(puzzle).positions.tolist()
            name = f"{kind} {grid}{' with a hole' if missing else ''}{' eroded' if gap else ''}"
            found.append(solve_request(puzzle, {"solver": kind}, answer, name))

    add("auto", "3x3")
    add("auto", "3x3", missing=1, gap=0.1)
    add("seq2seq", "3x3")
    for kind, grid in (
        ("auto", "2x2"),
        ("auto", "2x3"),
        ("auto", "4x4"),
        ("bigram", "3x3"),
        ("classic", "3x3"),
        ("classic", "3x4"),
    ):
        add(kind, grid)
    for seed in range(each):  # other ways to send a puzzle
        puzzle = Puzzle.from_image(next(crops), "2x3", seed=seed)
        answer = plain["auto"].solve(puzzle).positions.tolist()
        sheet = form([("picture", "sheet.png", png(shuffled(puzzle)))], {"grid": "2x3"})
        found.append(Asked("one shuffled picture", sheet, answer))
        files = {f"piece_{i}.png": file[2] for i, file in enumerate(piece_files(puzzle))}
        packed = form([("zip", "pieces.zip", zipped(files))], {"grid": "2x3"})
        found.append(Asked("zip", packed, answer))
        given = {0: int(puzzle.cells - 1)}
        around = plain["auto"].solve(puzzle, given=given).positions.tolist()
        fields = {"given": json.dumps({str(k): v for k, v in given.items()})}
        found.append(solve_request(puzzle, fields, around, "given piece"))
    return found


def bad_requests() -> list[Asked]:
    """What must be refused, with the status that says so."""
    noise = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    piece = png(noise)
    nine: Files = [("pieces", f"{i}.png", piece) for i in range(9)]

    def bad(
        name: str, files: Files, fields: Mapping[str, str] | None = None, status: int = 422
    ) -> Asked:
        return Asked(name, form(files, fields or {}), None, status)

    whole = form(nine, {"grid": "3"})
    return [
        bad("not an image", [("pieces", f"{i}.png", b"this is no cat") for i in range(9)]),
        bad("truncated image", [("picture", "cut.png", piece[: len(piece) // 2])], {"grid": "3"}),
        bad("flipped bytes", [("picture", "x.png", piece[:40] + b"\xff" * 60)], {"grid": "3"}),
        bad("wrong grid", nine, {"grid": "2x2"}),
        bad("grid that is no grid", nine, {"grid": "three"}),
        bad("huge grid", nine, {"grid": "999x999"}, 413),
        bad("pieces of two sizes", [*nine[:8], ("pieces", "9.png", png(noise[:30]))]),
        bad("pixel bomb", [("picture", "bomb.png", pixel_bomb())], {"grid": "3"}, 413),
        bad("zip bomb", [("zip", "b.zip", zipped({"a.png": bytes(70 << 20)}))], status=413),
        bad("damaged zip", [("zip", "b.zip", zipped({"a.png": piece})[:-40])]),
        bad("no pieces at all", [], {"grid": "3"}),
        bad("picture without seams", [("picture", "x.png", piece)]),
        bad("unknown field", nine, {"path": "/etc/passwd"}),
        bad("unknown solver", nine, {"solver": "magic"}),
        bad("bad JSON given", nine, {"given": "{0: 4"}),
        bad("given twice", nine, {"given": '{"0": 4, "1": 4}'}),
        bad("too many pieces", [("pieces", f"{i}.png", b"x") for i in range(1050)], status=413),
        Asked("JSON instead of a form", b"{}", None, 415, {"Content-Type": "application/json"}),
        Asked("form cut short", whole[: len(whole) // 2], None, 400),
        Asked("another boundary", whole, None, 400, {"Content-Type": "multipart/form-data"}),
        Asked("nowhere", b"", None, 404, {}, "/api/nothing"),
        bad("JPEG of many scans", [("picture", "x.jpg", many_scans())], {"grid": "3"}),
        bad("number beyond 64 bits", [("zip", "p.zip", _huge_number(piece))]),
        Asked("from another site", whole, None, 403, {**FORM, "Sec-Fetch-Site": "cross-site"}),
        Asked("from another origin", whole, None, 403, {**FORM, "Origin": "https://x.example"}),
        Asked("to another name", whole, None, 421, {**FORM, "Host": "x.example"}),
        Asked("client hangs up", whole, None, 0, sends=raw(whole)[: len(whole) // 2]),
        Asked("large puzzle, client gone", b"", None, 0, sends=raw(large_request(0).body)),
        Asked("half a head", b"", None, 0, sends=b"POST /api/solve HTTP/1.1\r\nHo", stays=True),
        Asked("half a body", whole, None, 0, sends=raw(whole)[: len(whole) // 2], stays=True),
    ]


def large_request(seed: int) -> Asked:
    """A worn 20 x 20 puzzle; its answer is not compared, as a deadline may end the search."""
    puzzle = Puzzle.from_image(bench.crops(1, 640, 11 + seed)[0], 20, seed=seed, gap=0.1)
    return solve_request(puzzle, {}, [], "auto 20x20")


def _huge_number(piece: bytes) -> bytes:
    """A saved puzzle whose truth has a cell that no array holds."""
    names = [f"{i}.png" for i in range(9)]
    record = {"pieces": names, "grid": [3, 3], "truth": [*range(8), 10**30]}
    return zipped({**dict.fromkeys(names, piece), "puzzle.json": json.dumps(record).encode()})


def zipped(entries: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file in memory."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def many_scans(side: int = 3000, scans: int = 2000) -> bytes:
    """A small JPEG that has a decoder go over all its pixels thousands of times."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 120).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


def pixel_bomb() -> bytes:
    """A PNG whose header promises 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts
