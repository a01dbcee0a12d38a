"""Draw the figures of docs/results.md: strips of solved puzzles, and plots from result files.

The strips show the photos of puzlm/samples only. `make_results.py` calls this.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from puzlm.files import write_bytes
from puzlm.harness import figures
from puzlm.harness.protocols import PROTOCOLS, Protocol, make_puzzle
from puzlm.images import read_image
from puzlm.plots import learning_curves
from puzlm.puzzle import Puzzle, assemble, draw
from puzlm.solver import load_solver

ROOT = Path(__file__).parents[1]
RUNS, PICTURES = ROOT / "docs" / "runs", ROOT / "docs" / "pictures"
HEIGHT = 190  # px of a panel
LARGEST = 90_000  # bytes of a strip
MANY = 100  # cells; above that only the classic solver is asked, and wrong pieces are tinted
TINT = np.array([220, 30, 30])


def plots(results: dict) -> None:
    """Draw calibration, learning curves, generalisation and cost, as far as there are files."""
    from tools.make_results import ordered, protocols

    panels = {}
    for protocol in protocols(results):
        rows = ordered(results, protocol)
        shown = {
            s: calibration(r)
            for s, r in rows
            if s in ("seq2seq", "auto", "vision") and r.get("ece") is not None
        }
        if "auto" in shown:
            panels[protocol] = shown
    if panels:
        title = f"Confidence on test images (bins of {figures.FEW} pieces or more)"
        figures.reliability_panels(panels, PICTURES / "reliability.png", title)
        with Image.open(PICTURES / "reliability.png") as picture:  # few colours, many panels
            small = picture.convert("RGB").quantize(64)
        small.save(PICTURES / "reliability.png", optimize=True)
    # Of models that place pieces: a frame is found for a whole board, or not.
    if logs := [x for x in sorted(RUNS.glob("*.metrics.jsonl")) if '_both"' not in x.read_text()]:
        learning_curves(logs, PICTURES / "learning.png")
    for name, figure in (
        ("generalisation", figures.generalisation),
        ("costs", figures.time_against_pieces),
    ):
        if (RUNS / f"{name}.json").is_file():
            figure(json.loads((RUNS / f"{name}.json").read_text()), PICTURES / f"{name}.png")


def calibration(result: dict, resamples: int = 500) -> dict:
    """Bins of stated confidence with 95 % intervals of the share right, bootstrapped by puzzle.

    Pieces of one puzzle are right or wrong together, so puzzles are drawn, not pieces.
    """
    count = len(result["reliability"])
    pieces, right = (np.zeros((len(result["outcomes"]), count)) for _ in range(2))
    for number, r in enumerate(result["outcomes"]):
        given = {int(piece) for piece in r.get("given", {})}
        for piece, sure in enumerate(r["confidences"] or []):
            if piece not in given:
                which = min(int(sure * count), count - 1)
                pieces[number, which] += 1
                right[number, which] += r["positions"][piece] == r["truth"][piece]
    rng = np.random.default_rng(0)
    draws = rng.multinomial(len(pieces), np.full(len(pieces), 1 / len(pieces)), size=resamples)
    with np.errstate(invalid="ignore"):
        shares = (draws @ right) / (draws @ pieces)
    bins = []
    for which, old in enumerate(result["reliability"]):
        seen = shares[~np.isnan(shares[:, which]), which]
        low, high = np.percentile(seen, [2.5, 97.5]) if len(seen) else (0.0, 0.0)
        bins.append(
            {
                "confidence": old["confidence"],
                "accuracy": old["accuracy"],
                "count": old["count"],
                "low": float(low),
                "high": float(high),
            }
        )
    return {"ece": result["ece"], "bins": bins}


def strips() -> None:
    """Write one strip a protocol: shuffled, what the solvers made of it, the truth."""
    solvers = {name: load_solver(name) for name in ("classic", "auto")}
    photos = [read_image(p) for p in sorted((ROOT / "puzlm" / "samples").glob("*.jpg"))]
    for number, (name, protocol) in enumerate(PROTOCOLS.items()):
        puzzle = make_puzzle(protocol, _fitting(protocol, photos[number % len(photos)]), number)
        many = puzzle.cells > MANY
        lying = np.arange(len(puzzle.pieces))
        panels = [("shuffled", assemble(_spaced(puzzle), lying, puzzle.grid))]
        for solver, solve in solvers.items():
            if solver == "auto" and many:
                continue
            (answer,) = solve([Puzzle(puzzle.pieces, puzzle.grid, settings=puzzle.settings)])
            right = int((answer.positions == puzzle.truth).sum())
            panels.append(
                (
                    f"{solver}: {right} of {len(puzzle.pieces)} right",
                    _marked(puzzle, answer.positions, many),
                )
            )
        panels.append(("truth", assemble(_spaced(puzzle), puzzle.truth, puzzle.grid)))
        write_bytes(PICTURES / f"{name}.jpg", _jpeg(_strip(panels)))
        print(f"{name}: {', '.join(text for text, _ in panels[1:-1])}", flush=True)


def _fitting(protocol: Protocol, photo: np.ndarray) -> np.ndarray:
    """Scale a photo for the sets that take images as they are, so that it gives their grid."""
    if protocol.resize:
        return photo
    height, width = (n * protocol.cell for n in protocol.grid)
    return np.asarray(Image.fromarray(photo).resize((width, height), Image.Resampling.LANCZOS))


def _spaced(puzzle: Puzzle) -> np.ndarray:
    """Pieces with a white margin as wide as what was cut off, so that the gap is seen."""
    cell = puzzle.settings.get("cell", puzzle.pieces.shape[1])
    before = max(0, cell - puzzle.pieces.shape[1]) // 2
    after = max(0, cell - puzzle.pieces.shape[1]) - before
    sides = (before, after)
    return np.pad(puzzle.pieces, ((0, 0), sides, sides, (0, 0)), constant_values=255)


def _marked(puzzle: Puzzle, positions: np.ndarray, many: bool) -> np.ndarray:
    """The answer with its wrong pieces framed, or tinted where frames would be too fine."""
    pieces = _spaced(puzzle)
    if not many:
        return draw(pieces, positions, puzzle.grid, puzzle.truth)
    wrong = positions != puzzle.truth
    pieces[wrong] = (0.5 * pieces[wrong] + 0.5 * TINT).astype(np.uint8)
    return assemble(pieces, positions, puzzle.grid)


def _strip(panels: list[tuple[str, np.ndarray]], space: int = 10, line: int = 20) -> Image.Image:
    pictures = []
    for _, pixels in panels:
        width = round(pixels.shape[1] * HEIGHT / pixels.shape[0])
        pictures.append(Image.fromarray(pixels).resize((width, HEIGHT), Image.Resampling.LANCZOS))
    total = sum(p.width + space for p in pictures) - space
    strip = Image.new("RGB", (total, HEIGHT + line), "white")
    pen, font, left = ImageDraw.Draw(strip), ImageFont.load_default(12), 0
    for (text, _), picture in zip(panels, pictures, strict=True):
        strip.paste(picture, (left, 0))
        pen.text((left, HEIGHT + 3), text, fill="black", font=font)
        left += picture.width + space
    return strip


def _jpeg(picture: Image.Image) -> bytes:
    for quality in (88, 80, 70, 55):
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality, optimize=True)
        if buffer.tell() <= LARGEST:
            break
    return buffer.getvalue()
