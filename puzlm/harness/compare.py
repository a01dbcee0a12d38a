"""Results files of one protocol -> one table with paired tests. Knows no solvers, asks nothing."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from puzlm import metrics
from puzlm.errors import PuzlmError
from puzlm.harness.protocols import PROTOCOLS
from puzlm.harness.results_files import read_results
from puzlm.metrics import MEASURES

HEADER = (
    "solver",
    "kind",
    "puzzles",
    *MEASURES,
    "s/puzzle",
    "ECE",
    "absolute - first",
    "perfect: lost/won, p",
    "note",
)


def mcnemar(first: ArrayLike, second: ArrayLike) -> tuple[int, int, float]:
    """Count the puzzles only the first and only the second solved; exact two-sided p-value."""
    a, b = np.asarray(first) > 0.5, np.asarray(second) > 0.5
    only_first, only_second = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    total = only_first + only_second
    tail = sum(math.comb(total, k) for k in range(min(only_first, only_second) + 1))
    return only_first, only_second, min(1.0, 2 * tail / 2**total)


@dataclass(frozen=True)
class Paired:
    """Two solvers on the same puzzles: gains in points with 95 % intervals, and McNemar's test."""

    puzzles: int
    absolute: metrics.Interval
    perfect: metrics.Interval
    lost: int
    won: int
    p: float


def pair(first: dict[str, Any], second: dict[str, Any]) -> Paired | None:
    """Compare the second results with the first on the puzzles both hold; None: there are none."""
    if first["protocol"] != second["protocol"]:
        return None
    known = {(r["index"], r["digest"]): r for r in first["outcomes"]}
    both = [
        (known[key], r) for r in second["outcomes"] if (key := (r["index"], r["digest"])) in known
    ]
    if not both:
        return None
    absolute, perfect = (
        metrics.bootstrap([y[m] - x[m] for x, y in both]) for m in ("absolute", "perfect")
    )
    test = mcnemar([x["perfect"] for x, _ in both], [y["perfect"] for _, y in both])
    return Paired(len(both), absolute, perfect, *test)


@dataclass(frozen=True)
class Comparison:
    """A table of results and published numbers, in percent with 95 % intervals."""

    protocol: str
    rows: tuple[tuple[str, ...], ...]

    def as_text(self) -> str:
        """Align the columns for a terminal."""
        table = [HEADER, *self.rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join([f"protocol {self.protocol}", *(line.rstrip() for line in lines)])

    def as_markdown(self) -> str:
        """Write a Markdown table."""
        rows = [HEADER, ("---",) * len(HEADER), *self.rows]
        cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        return "\n".join("| " + " | ".join(row) + " |" for row in cells)

    def as_csv(self) -> str:
        """Write comma-separated values with a header."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([HEADER, *self.rows])
        return text.getvalue()


def compare(paths: Sequence[str | Path]) -> Comparison:
    """Put results files of one protocol side by side, each tested against the first."""
    if not paths:
        raise PuzlmError("compare needs at least one results file")
    first, rows = read_results(paths[0]), []
    for number, path in enumerate(paths):
        result = read_results(path) if number else first
        if recompressed(result):
            raise PuzlmError(
                f"{path}: its images were compressed again before cutting, or it does not say how "
                f"they were stored; with {result['protocol']['name']} this gives too much away. "
                "Evaluate on original files"
            )
        try:
            name, other = first["protocol"]["name"], result["protocol"]["name"]
            if result["protocol"] == first["protocol"]:
                rows.append(_row(result, first))
                continue
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise PuzlmError(f"{path}: a damaged results file ({error!r})") from error
        what = f"protocol {other}, not {name}" if other != name else f"another form of {name}"
        raise PuzlmError(f"{path}: holds {what}; compare one protocol at a time")
    for known in PROTOCOLS[name].published if name in PROTOCOLS else ():
        numbers = (_number(getattr(known, measure)) for measure in MEASURES)
        note = "; ".join(filter(None, (known.source, known.note)))
        rows.append((known.method, "published", "", *numbers, "", "", "", "", note))
    return Comparison(name, tuple(rows))


def recompressed(result: dict[str, Any]) -> bool:
    """Whether a protocol leaks and its images were, or may have been, compressed before cutting.

    Original photos are JPEG, PNG and the like; WebP is what data sets are stored in afterwards.
    """
    try:
        protocol, stored = result["protocol"]["name"], result["data"].get("stored")
    except (LookupError, TypeError, AttributeError):
        return False  # damaged; the reader says what is wrong
    return protocol in PROTOCOLS and PROTOCOLS[protocol].leaks and (not stored or "WEBP" in stored)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def remarks(result: dict[str, Any]) -> list[str]:
    """What to know beside the numbers of one result: failures, cells taken twice, the scale."""
    notes = [f"{result['failed']} failed"] if result.get("failed") else []
    notes += [f"{result['repeated']} with a cell twice"] if result.get("repeated") else []
    low, high = result["data"].get("scale", [1.0, 1.0])
    if (low, high) != (1.0, 1.0):
        notes.append(f"geometry x {low:.3g}" + (f" to {high:.3g}" if high != low else ""))
    return notes


def _row(result: dict[str, Any], first: dict[str, Any]) -> tuple[str, ...]:
    notes = remarks(result)
    difference = test = ""
    if result is not first and result["data"]["fingerprint"] == first["data"]["fingerprint"]:
        found = pair(first, result)
        assert found is not None
        difference = str(found.absolute)
        test = f"{found.lost}/{found.won}, p = {found.p:.2g}"
    elif result is not first:
        notes.append("other puzzles than the first: no paired test")
    ece = result.get("ece")
    return (
        str(result["solver"]),
        "measured",
        str(result["puzzles"]),
        *(str(metrics.Interval(**result[measure])) for measure in MEASURES),
        f"{result.get('seconds_per_puzzle', 0.0):.3g}",
        "-" if ece is None else f"{ece:.3f}",
        difference,
        test,
        "; ".join(notes),
    )
