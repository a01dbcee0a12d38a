"""What rows of an ablation tell: means over seeds, gains over the base, and what seeds explain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from puzlm.metrics import Interval, bootstrap
from puzlm.puzzle import parse_grid

Line = dict[str, Any]
Score = dict[str, float]  # value, low, high in percent

MINUTE = 60  # seconds; rows of more are compared among themselves, and so are their seeds
LEARNED = 15.0  # points of absolute accuracy on 3x3 that no run at chance (11.1) reaches


def scores(lines: Sequence[Line], kind: str, way: str, measure: str) -> Score | None:
    """Mean over the seeds of one row, and its 95 % interval over puzzles."""
    found = results(lines, kind, way)
    if len(found) < 2:
        return found[0][measure] if found else None
    right = _shares(lines, kind, way)
    return dict(vars(bootstrap(np.mean(right if measure == "absolute" else right == 1, 0))))


def each(lines: Sequence[Line], kind: str, way: str = "valid") -> list[float]:
    """Absolute accuracy of every seed of one row."""
    return [found["absolute"]["value"] for found in results(lines, kind, way)]


def gain(
    lines: Sequence[Line], base: Sequence[Line], kind: str, way: str = "valid", base_way: str = ""
) -> Interval | None:
    """Points of absolute accuracy above the base: the same puzzles and seeds, means over these."""
    lines, base = same_seeds(lines, base)
    if not results(lines, kind, way) or not results(base, kind, base_way or way):
        return None
    one, other = (
        np.mean(_shares(rows, kind, asked), 0)
        for rows, asked in ((lines, way), (base, base_way or way))
    )
    return bootstrap(one - other[: len(one)])  # slow ways see the first puzzles only


def same_seeds(
    lines: Sequence[Line], base: Sequence[Line]
) -> tuple[Sequence[Line], Sequence[Line]]:
    """The runs of two rows whose seeds both have; all of them where none is shared.

    Seeds draw the training puzzles: a row of one seed against the base's mean over two would be
    charged with what the other seed is better.
    """
    lines, base = ([x for x in rows if x["status"] == "done"] for rows in (lines, base))
    both = {x["seed"] for x in lines} & {x["seed"] for x in base}
    if not both:
        return lines, base
    one, other = ([x for x in rows if x["seed"] in both] for rows in (lines, base))
    return one, other


def steady(lines: Sequence[Line], kind: str) -> bool:
    """Whether all seeds of a row left chance level, or none did."""
    return len({value > LEARNED for value in each(lines, kind)}) < 2


def deviation(rows: Iterable[Sequence[Line]], kind: str) -> float:
    """Standard deviation between seeds, pooled over the rows whose seeds all left chance level.

    Rows at chance would make it too small: they all guess.
    """
    groups = [
        values for lines in rows if len(values := each(lines, kind)) > 1 and min(values) > LEARNED
    ]
    freedom = sum(len(values) - 1 for values in groups)
    return math.sqrt(sum(float(np.var(v)) * len(v) for v in groups) / freedom) if freedom else 0.0


def of_time(rows: Iterable[Sequence[Line]], long: bool) -> list[Sequence[Line]]:
    """Rows that were trained for more than a minute, or the others."""
    return [lines for lines in rows if (lines[0]["settings"]["seconds"] > MINUTE) == long]


def seed_noise(lines: Sequence[Line], base: Sequence[Line], between: float) -> float:
    """Points of gain that seeds alone explain: two standard errors of a difference of means."""
    lines, base = same_seeds(lines, base)
    return 2 * between * math.sqrt(1 / len(lines) + 1 / len(base))


def results(lines: Sequence[Line], kind: str, way: str) -> list[Line]:
    """What the done runs of a row have for one kind, by one way of decoding."""
    return [
        x["results"][kind][way]
        for x in lines
        if x["status"] == "done" and way in x["results"].get(kind, {})
    ]


def _shares(lines: Sequence[Line], kind: str, way: str) -> Any:
    """Share of the pieces that are right, (seeds, puzzles)."""
    cells = math.prod(parse_grid(lines[0]["settings"]["recipe"]["cut"]["grid"]))
    return np.array([found["right"] for found in results(lines, kind, way)]) / cells
