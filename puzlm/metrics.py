"""How right an answer is. Pure functions of positions; see puzzle.py for the convention.

With missing pieces only those present are scored, as the paper does. This file needs numpy alone:
`puzlm export-benchmark` copies it beside the puzzles as their scorer; there it is a command, too:

    python score.py ANSWERS.json        # {"0": [3, 0, ...], "1": {"positions": ..., "turns": ...}}
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
MEASURES = ("absolute", "perfect", "neighbour")


def absolute(positions: ArrayLike, truth: ArrayLike) -> float:
    """Share of the pieces that lie in their true cell."""
    got, want = np.asarray(positions), np.asarray(truth)
    return float(np.mean(got == want))


def perfect(positions: ArrayLike, truth: ArrayLike) -> float:
    """1.0 when every piece lies in its true cell, else 0.0."""
    return float(np.array_equal(np.asarray(positions), np.asarray(truth)))


def neighbour(positions: ArrayLike, truth: ArrayLike, columns: int) -> float:
    """Share of the truly touching pairs of present pieces that touch the same way in the answer.

    1.0 when no two present pieces touch. A piece of another picture (truth -1) touches none.
    """
    got, want = np.asarray(positions), np.asarray(truth)
    piece_at = {int(cell): piece for piece, cell in enumerate(want) if cell >= 0}
    right = total = 0
    for cell, first in piece_at.items():
        steps = [(0, 1)] * ((cell + 1) % columns != 0) + [(1, 0)]
        for down, across in steps:
            second = piece_at.get(cell + down * columns + across)
            if second is None:
                continue
            total += 1
            if got[first] < 0 or got[second] < 0:
                continue
            rows = got[second] // columns - got[first] // columns
            columns_apart = got[second] % columns - got[first] % columns
            right += int(rows == down and columns_apart == across)
    return right / total if total else 1.0


def measures(
    positions: ArrayLike, truth: ArrayLike, columns: int, given: Collection[int] = ()
) -> dict[str, float]:
    """All measures of one answer; given pieces lie where they belong and are not scored."""
    got = np.array(positions)
    want = np.asarray(truth)
    free = [piece for piece in range(len(got)) if piece not in given]
    got[list(given)] = want[list(given)]
    return {
        "absolute": absolute(got[free], want[free]),
        "perfect": perfect(got[free], want[free]),
        "neighbour": neighbour(got, want, columns),
    }


def upright(
    positions: ArrayLike,
    turns: ArrayLike,
    truth: ArrayLike,
    true_turns: ArrayLike,
    grid: tuple[int, int],
) -> NDArray[np.int64]:
    """Positions (n,) in the picture set upright, -1 for pieces that lie turned in it.

    Pieces of unknown orientation cannot say which way up the picture is, so it is turned as a
    whole to where most pieces are right.
    """
    at = np.asarray(positions)
    rows, columns = grid
    wrong = (np.asarray(turns) - np.asarray(true_turns)) % 4
    best = np.full(len(at), -1)
    for whole in range(0, 4, 1 if rows == columns else 2):
        cells = np.rot90(np.arange(rows * columns).reshape(rows, columns), whole).ravel()
        place = np.append(np.argsort(cells), -1)  # the cell that each cell goes to; -1 stays
        trial = np.where((wrong + whole) % 4 == 0, place[at], -1)
        if (trial == truth).sum() > (best == truth).sum() or whole == 0:
            best = trial
    return best


def joints(
    positions: ArrayLike, truth: ArrayLike, columns: int, kinds: ArrayLike
) -> NDArray[np.int64]:
    """True joints that an answer has right, where equal pieces may change places: (joints, 3).

    Each row is (first piece, second piece, 1 or 0 for right). A joint of two equal pieces says
    nothing and is left out. `kinds[i]` is the same number for all pieces that equal piece i.
    """
    got, want, kind = (np.asarray(x) for x in (positions, truth, kinds))
    lies = {int(cell): piece for piece, cell in enumerate(got) if cell >= 0}
    belongs = {int(cell): piece for piece, cell in enumerate(want) if cell >= 0}
    single = np.bincount(kind)[kind] == 1
    rows = []
    for cell, first in belongs.items():
        for down, across in [(0, 1)] * ((cell + 1) % columns != 0) + [(1, 0)]:
            second = belongs.get(cell + down * columns + across)
            if second is None or kind[first] == kind[second]:
                continue
            # Look from a piece of which there is one only: where it lies is no matter of choice.
            sign = 1 if single[first] else -1
            here, there = (first, second)[::sign]
            right = False
            if got[here] >= 0:
                row, column = divmod(int(got[here]), columns)
                inside = 0 <= column + sign * across < columns
                beside = (row + sign * down) * columns + column + sign * across
                other = lies.get(beside) if inside else None
                right = other is not None and bool(kind[other] == kind[there])
            rows.append((first, second, int(right)))
    return np.array(rows, np.int64).reshape(-1, 3)


@dataclass(frozen=True)
class Interval:
    """A mean in percent with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"

    def as_dict(self) -> dict[str, float]:
        """Give value, low and high in percent, rounded to two places."""
        return {k: round(v, 2) for k, v in vars(self).items()}


def bootstrap(scores: ArrayLike, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of per-puzzle scores in [0, 1] with a 95 % interval over puzzles, in percent."""
    values: Floats = np.asarray(scores, np.float64)
    if values.size == 0:
        raise ValueError("no scores: at least one puzzle is needed")
    rng = np.random.default_rng(seed)
    means = np.array(
        [values[rng.integers(0, len(values), len(values))].mean() for _ in range(resamples)]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(100 * float(values.mean()), 100 * float(low), 100 * float(high))


def reliability(sure: ArrayLike, right: ArrayLike, bins: int) -> dict[str, Any]:
    """Expected calibration error of confidences in [0, 1], and bins of equal width."""
    confidence, correct = np.asarray(sure, np.float64), np.asarray(right, np.float64)
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    rows, error = [], 0.0
    for number in range(bins):
        inside = which == number
        count = int(inside.sum())
        mean, share = (confidence[inside].mean(), correct[inside].mean()) if count else (0.0, 0.0)
        error += count / len(confidence) * abs(float(mean) - float(share))
        rows.append(
            {
                "low": number / bins,
                "high": (number + 1) / bins,
                "count": count,
                "confidence": float(mean) if count else None,
                "accuracy": float(share) if count else None,
            }
        )
    return {"ece": error, "reliability": rows}


# ---- a benchmark's folder ---------------------------------------------------------------------


def read_benchmark(folder: Path) -> list[dict[str, Any]]:
    """Puzzles of a benchmark's folder with their truths; no file may have changed."""
    record = json.loads((folder / "puzzles.json").read_text(encoding="utf-8"))
    for name, digest in record["files"].items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise ValueError(f"{folder / name}: was changed since the benchmark was written")
    truths = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    return [{**puzzle, **truths[str(puzzle["index"])]} for puzzle in record["puzzles"]]


def score(answers: dict[str, Any], puzzles: Sequence[dict[str, Any]]) -> dict[str, Interval]:
    """Score answers by puzzle number: positions, or a record of positions and turns."""
    rows = []
    for puzzle in puzzles:
        index = str(puzzle["index"])
        if index not in answers:
            raise ValueError(f"puzzle {index}: has no answer")
        answer = answers[index]
        record = answer if isinstance(answer, dict) else {"positions": answer}
        n = len(puzzle["truth"])
        rows_, columns = puzzle["grid"]
        at = np.asarray(record.get("positions"))
        placed = at[at != -1] if at.shape == (n,) and at.dtype.kind == "i" else None
        if placed is None or len(set(placed.tolist())) < len(placed):
            raise ValueError(f"puzzle {index}: {n} different cells are needed (-1: not placed)")
        if ((placed < 0) | (placed >= rows_ * columns)).any():
            raise ValueError(f"puzzle {index}: cells run from 0 to {rows_ * columns - 1}")
        if "turns" in puzzle:
            turns = record.get("turns", [0] * n)
            at = upright(at, turns, puzzle["truth"], puzzle["turns"], (rows_, columns))
        given = [int(piece) for piece in puzzle.get("given", {})]
        rows.append(measures(at, puzzle["truth"], columns, given))
    return {name: bootstrap([row[name] for row in rows]) for name in MEASURES}


if __name__ == "__main__":
    try:
        said = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        for measure, interval in score(said, read_benchmark(Path(__file__).parent)).items():
            print(f"{measure:10} {interval}")
    except (OSError, ValueError, IndexError) as error:
        sys.exit(f"score: {error}")
