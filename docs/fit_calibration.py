"""Fit the numbers of puzlm/calibration.py on validation puzzles, and measure what they do.

    python docs/fit_calibration.py gather DATA OUT.jsonl MINUTES [FIRST [NAME...]]
    python docs/fit_calibration.py fit docs/runs/calibration-val.json OUT.jsonl...
    python docs/fit_calibration.py test docs/results docs/runs/calibration-test.json [FRESH.json...]
    python docs/fit_calibration.py apply docs/results/*.json
    python docs/fit_calibration.py check DATA PUZZLES docs/results/*.json

DATA holds photos-val.tar, art-val.tar, kaggle/valid.csv, and in large/ photos of 756 x 560 pixels
or more that are of none of the classic sets (for `check`: the test images). `gather` asks every
solver for its raw confidences, a few puzzles of every setting in turn, until the time is up. `fit`
prints the table FITTED of calibration.py. For results files that hold raw confidences, `test` tells
what calibrating does, `apply` calibrates in place, `check` compares that with fresh answers.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from puzlm import calibration
from puzlm.calibration import Floats
from puzlm.evaluate import _calibration, evaluate
from puzlm.images import Pixels, iter_images, write_bytes
from puzlm.protocols import PROTOCOLS, Protocol, make_puzzle, read_data
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver, load_solver

SEED = 100  # of the permutations; those of the protocols have 0
SIDES = ("vision-pairs", "bigram", "classic")
MODELS = ("auto", "seq2seq", "vision")
LARGE = ("auto", "vision-pairs", "classic")


@dataclass(frozen=True)
class Setting:
    """Puzzles of one kind: how they are cut, from what, how many a turn, whom to ask."""

    rules: Protocol
    data: str
    many: int
    solvers: tuple[str, ...] = MODELS + SIDES
    given: int = 0
    every: int = 1  # turns

    @property
    def name(self) -> str:
        return f"{self.rules.name}, {self.data}"


def cut(side: int, gap: float, missing: int = 0, more: str = "", **rules: Any) -> Protocol:
    """Rules of a square grid with gaps of a share of a piece."""
    cell = 288 // side
    piece = round(cell / (1 + gap))
    name = f"{side}x{side}, gap {gap:.3g}" + (f", {missing} missing" if missing else "") + more
    return Protocol(name, (side, side), *[cell * side] * 3, cell, piece, cell - piece,
                    missing=missing, seed=SEED, **rules)  # fmt: skip


def settings() -> Iterator[Setting]:
    """All kinds of puzzles, those with more doubt more often."""
    both = ("photos", "art")
    for data in both:
        for gap, many in ((0, 3), (1 / 8, 3), (1 / 4, 8), (1 / 3, 10), (1 / 2, 12)):
            yield Setting(cut(3, gap), data, many)
        for name, many in (("cfn", 10), ("fcvit", 8)):
            yield Setting(replace(PROTOCOLS[f"imagenet-3x3-{name}"], seed=SEED), data, many)
        yield Setting(cut(3, 0, 3), data, 8)
        yield Setting(cut(3, 1 / 4, 2), data, 6)
        yield Setting(cut(3, 1 / 2, more=", centre given", scored="non-centre"), data, 10)
        yield Setting(cut(5, 1 / 8), data, 4)
        yield Setting(cut(4, 1 / 8), data, 4, ("auto", *SIDES))
        for name in ("imagenet-lsej-10x10-2", "imagenet-lsej-10x10-5"):
            yield Setting(replace(PROTOCOLS[name], seed=SEED), data, 2, LARGE, every=2)
    yield Setting(cut(3, 0, 1), "photos", 4)
    yield Setting(cut(3, 0, 2), "photos", 8)
    yield Setting(cut(3, 1 / 2, 1), "art", 6)
    yield Setting(cut(3, 1 / 2, more=", 3 given"), "photos", 6, given=3)
    yield Setting(cut(5, 0), "photos", 2)
    yield Setting(cut(5, 1 / 4), "art", 4)
    yield Setting(cut(5, 1 / 2), "photos", 3)
    yield Setting(cut(5, 1 / 8, 3), "photos", 3)
    yield Setting(cut(5, 1 / 8, more=", centre given", scored="non-centre"), "art", 4)
    yield Setting(cut(5, 1 / 4, more=", centre given", scored="non-centre"), "photos", 3)
    yield Setting(cut(4, 0), "photos", 2, ("auto", *SIDES))
    yield Setting(cut(4, 1 / 3), "photos", 4, ("auto", *SIDES))
    yield Setting(cut(4, 1 / 8, 2), "photos", 3, ("auto", *SIDES))
    whole = replace(PROTOCOLS["classic-mcgill-540"], seed=SEED)
    yield Setting(whole, "large", 1, LARGE, every=2)
    yield Setting(PROTOCOLS["kaggle-3x3"], "ready", 10)


# ---- gathering --------------------------------------------------------------------------------


def read(data: str) -> dict[str, list[Pixels]]:
    """All validation images, by kind."""
    found = {kind: list(iter_images([Path(f"{data}/{kind}-val.tar")], None))
             for kind in ("photos", "art")}  # fmt: skip
    found["large"] = []
    for image in iter_images([Path(f"{data}/large")], None):
        high, wide = (560, 756) if image.shape[0] < image.shape[1] else (756, 560)
        if image.shape[0] >= high and image.shape[1] >= wide:
            top, left = (image.shape[0] - high) // 2, (image.shape[1] - wide) // 2
            found["large"].append(image[top : top + high, left : left + wide])
    return found


def puzzles(setting: Setting, data: str, images: list[Pixels], first: int) -> Iterator:
    """Yield (index, puzzle) for ever, from image number `first` on."""
    if setting.data == "ready":
        yield from islice(cycle(read_data(f"{data}/kaggle/valid.csv", setting.rules)), first, None)
    for step in count(first):
        index = step % len(images)
        puzzle = make_puzzle(setting.rules, images[index], step)
        if setting.given:
            puzzle.settings["given"] = {i: int(puzzle.truth[i]) for i in range(setting.given)}
        yield index, puzzle


class Once:
    """A ViT that two solvers ask the same: what it said last need not be computed again."""

    def __init__(self, model: Any) -> None:
        self.model, self.settings = model, model.settings
        self.pieces: list[Pixels] = []
        self.said: Any = None

    def read(self, pieces: list[Pixels], grid: str) -> Any:
        same = len(pieces) == len(self.pieces)
        if not (same and all(a is b for a, b in zip(pieces, self.pieces, strict=True))):
            self.pieces, self.said = pieces, self.model.read(pieces, grid)
        return self.said


def gather(data: str, out: str, minutes: str, first: str = "0", *only: str) -> None:
    """Ask the solvers, a few puzzles of every setting in turn; each answer is a line of `out`.

    `first` is where in the images to begin, `only` takes settings with these words in their names.
    """
    images = read(data)
    solvers = {name: Solver.from_pretrained(solver=name) for name in (*MODELS, *SIDES)}
    solvers["auto"]._vision = solvers["vision"]._vision = Once(solvers["vision"].vision)
    for solver in solvers.values():
        solver.raw = True
    every = [
        (s, puzzles(s, data, images.get(s.data, []), int(first) + 61 * i))
        for i, s in enumerate(settings())
        if not only or any(word in s.name for word in only)
    ]
    began = time.monotonic()
    with Path(out).open("w", encoding="utf-8") as file:
        for turn in count():
            for number, (setting, source) in enumerate(every):
                if (turn + number) % setting.every:
                    continue
                some = list(islice(source, setting.many))
                for name in setting.solvers:
                    # The solvers of sides are quick to fit: every other puzzle is enough.
                    asked = some[:: 2 if name in SIDES else 1]
                    for record in answers(solvers[name], name, asked):
                        file.write(json.dumps({"setting": setting.name, **record}) + "\n")
                file.flush()
            print(turn, round(time.monotonic() - began), "s", flush=True)
            if time.monotonic() - began > 60 * float(minutes):
                break


def answers(solver: Solver, name: str, asked: list[tuple[int, Puzzle]]) -> Iterator[dict]:
    """What a solver says of puzzles, in the words of a results file."""
    given = [puzzle.settings.get("given", {}) for _, puzzle in asked]
    hidden = [replace(p, truth=None, settings={}) for _, p in asked]
    found = solver.solve_many(hidden, given=given)
    for (index, puzzle), solution, fixed in zip(asked, found, given, strict=True):
        yield {
            "image": index, "asked": name, "solver": solution.solver, "grid": [*puzzle.grid],
            "given": {str(k): v for k, v in fixed.items()}, "truth": puzzle.truth.tolist(),
            "positions": solution.positions.tolist(),
            "confidences": [round(float(c), 5) for c in solution.confidences],
        }  # fmt: skip


# ---- fitting ----------------------------------------------------------------------------------

# What each kind of answer is judged by. Tried on the validation puzzles and left out, because they
# changed the loss on the other half by less than its noise or for the worse: the share of pieces
# below a half, the mean over the pieces beside it, products of own with missing, given and cells.
SMALL = ("one", "own", "others", "least", "missing", "given", "cells")
JUDGED_BY = dict.fromkeys(
    ("auto", "auto sides", "seq2seq", "vision", "bigram", "classic", "vision-pairs"), SMALL
) | dict.fromkeys(("pairs large", "classic large"), ("one", "own", "others"))
RISING = ("own", "others", "least")  # never count against a piece
PRIOR = 0.2  # puzzles that speak for the raw confidence as it is (weights in standard units)


def pieces_of(record: dict) -> tuple[dict[str, Floats], Floats, Floats]:
    """Features, rightness and raw confidence of the pieces of one answer that are scored."""
    given = {int(piece): cell for piece, cell in (record.get("given") or {}).items()}
    raw, at = np.array(record["confidences"]), np.array(record["positions"])
    found = calibration.features(raw, tuple(record["grid"]), given)
    free = np.array([i not in given for i in range(len(raw))]) & (at >= 0)
    right = (at == np.array(record["truth"])).astype(float)
    return {name: x[free] for name, x in found.items()}, right[free], raw[free]


def fit_one(sets: dict[str, list[tuple]], names: Sequence[str]) -> calibration.Numbers:
    """Fit one kind of answer; settings count by the root of their puzzles, whatever their grid."""
    x, y, weight = [], [], []
    for rows in sets.values():
        x += [np.stack([told[name] for name in names], 1) for told, _, _ in rows]
        y += [right for _, right, _ in rows]
        pieces = sum(len(right) for _, right, _ in rows)
        weight += [np.full(len(right), len(rows) ** 0.5 / pieces) for _, right, _ in rows]
    told, right, share = np.concatenate(x), np.concatenate(y), np.concatenate(weight)
    share /= share.sum()
    middle, spread = told.mean(0), told.std(0)
    middle[0], spread[0] = 0.0, 1.0  # "one"
    constant = spread < 1e-9
    spread[constant] = 1.0
    z = (told - middle) / spread

    plain = np.array([float(name == "own") for name in names]) * spread
    penalty = PRIOR / sum(map(len, sets.values()))

    def loss(w: Floats) -> tuple[float, Floats]:
        odds = z @ w
        missed = share * (1 / (1 + np.exp(-odds)) - right)
        value = (share * (np.logaddexp(0, odds) - right * odds)).sum()
        off = np.append(0, (w - plain)[1:])
        return value + penalty * off @ off, z.T @ missed + 2 * penalty * off

    bounds = [(0, None) if name in RISING else (None, None) for name in names]
    w = minimize(loss, plain, jac=True, bounds=bounds, method="L-BFGS-B").x / spread
    w[0] -= w[1:] @ middle[1:]
    return {name: (round(float(w[i]), 3), round(float(told[:, i].min()), 3),
                   round(float(told[:, i].max()), 3))
            for i, name in enumerate(names) if not constant[i] or name == "one"}  # fmt: skip


def ece(sure: Floats, right: Floats) -> float:
    """Expected calibration error, as in a results file."""
    record = {"confidences": sure.tolist(), "positions": right.tolist(), "truth": [1.0] * len(sure)}
    return float(_calibration([record])["ece"])


def load(files: Sequence[str]) -> dict[str, dict[str, list[dict]]]:
    """Answers by kind and setting."""
    found: dict[str, dict[str, list[dict]]] = {}
    for file in files:
        for line in Path(file).read_text().splitlines():
            record = json.loads(line)
            cells = record["grid"][0] * record["grid"][1]
            kind = calibration.kind(record["solver"], cells)
            name = record["setting"] + (f", {record['asked']}" if kind == "pairs large" else "")
            found.setdefault(kind, {}).setdefault(name, []).append(record)
    return {kind: dict(sorted(sets.items())) for kind, sets in sorted(found.items())}


def halves(sets: dict[str, list[dict]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """ECE before and after by setting, each half of the images judged by the other's numbers."""
    before: dict[str, list[Floats]] = {}
    for half in (0, 1):
        other = {k: [pieces_of(r) for r in v if r["image"] % 2 != half] for k, v in sets.items()}
        numbers = fit_one({k: v for k, v in other.items() if v}, names)
        for name, records in sets.items():
            for r in (r for r in records if r["image"] % 2 == half):
                told, right, raw = pieces_of(r)
                sure = calibration.judged(told, numbers)
                before.setdefault(name, []).append(np.stack([raw, sure, right]))
    table = {}
    for name, parts in before.items():
        raw, sure, right = np.concatenate(parts, 1)
        loss = -np.where(right > 0, np.log(sure), np.log(1 - sure)).mean()
        table[name] = {"puzzles": len(parts), "right": right.mean(), "before": ece(raw, right),
                       "after": ece(sure, right), "loss": loss}  # fmt: skip
    return {k: {m: x if isinstance(x, int) else round(float(x), 4) for m, x in v.items()}
            for k, v in table.items()}  # fmt: skip


def fit(out: str, *files: str) -> None:
    """Fit every kind of answer; print FITTED and write how well it does on the other half."""
    record: dict[str, Any] = {"seed": SEED, "version": calibration.VERSION, "kinds": {}}
    record |= {"prior": PRIOR, "split": "images of even and odd number"}
    for kind, sets in load(files).items():
        names = JUDGED_BY.get(kind, ())
        if not names:
            continue
        numbers = fit_one({k: [pieces_of(r) for r in v] for k, v in sets.items()}, names)
        table = halves(sets, names)
        means = {m: round(float(np.mean([t[m] for t in table.values()])), 4)
                 for m in ("before", "after", "loss")}  # fmt: skip
        helps = means["after"] < means["before"]
        record["kinds"][kind] = {
            "numbers": numbers if helps else {}, "mean": means, "settings": table,
        }  # fmt: skip
        if not helps:  # then the raw confidences stay
            continue
        print(f'    "{kind}": {{')
        print("".join(f'        "{name}": {row},\n' for name, row in numbers.items()) + "    },")
    write(out, record)


def write(out: str, record: dict) -> None:
    """Write a record as JSON, what is innermost on one line."""
    text = json.dumps(record, indent=1)
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda m: " ".join(m[0].split()), text)
    write_bytes(Path(out), (text + "\n").encode())


# ---- results files ----------------------------------------------------------------------------


def anew(result: dict) -> dict:
    """A results file with calibrated confidences in place of the raw ones in it."""
    outcomes = []
    for r in result["outcomes"]:
        if r["confidences"] is not None:
            given = {int(piece): cell for piece, cell in (r.get("given") or {}).items()}
            sure = calibration.calibrated(
                r["solver"], r["confidences"], r["positions"], tuple(r["grid"]), given
            )
            r = {**r, "confidences": [round(float(value), 5) for value in sure]}
        outcomes.append(r)
    note = {**result["settings"], "calibration": calibration.VERSION}
    return {**result, "settings": note, **_calibration(outcomes), "outcomes": outcomes}


def is_raw(result: dict) -> bool:
    """Whether a file holds confidences as the models state them."""
    return "calibration" not in result["settings"]


def test(folder: str, out: str, *fresh: str) -> None:
    """Write the ECE of all results files before and after, changing none of them.

    `fresh` are new files for those whose raw confidences are not today's.
    """
    rows, runs = [], {Path(file).name: json.loads(Path(file).read_text()) for file in fresh}
    for file in sorted(Path(folder).glob("*.json")):
        old = json.loads(file.read_text())
        if old["solver"] != "random" and is_raw(old):
            new = runs.get(file.name) or anew(old)
            row = {"before": round(old["ece"], 4), "after": round(new["ece"], 4)}
            row = {"file": file.name, "puzzles": old["puzzles"], **row}
            rows.append({**row, "fresh": file.name in runs})
            print("{file:45} {puzzles:5} {before:.3f} {after:.3f}".format(**rows[-1]))
    record = {"version": calibration.VERSION, "files": rows}
    write(out, record)


def apply(*files: str) -> None:
    """Write the confidences of results files anew, from the raw ones in them."""
    for file in map(Path, files):
        old = json.loads(file.read_text())
        if old["solver"] == "random" or not is_raw(old):
            print(f"{file}: left as it is")
            continue
        write_bytes(file, (json.dumps(anew(old)) + "\n").encode())
        print(f"{file}: written anew")


def check(data: str, many: str, *files: str) -> None:
    """Compare results files, written anew, with fresh answers to their first puzzles."""
    for file in map(Path, files):
        new = anew(json.loads(file.read_text()))
        rules, chosen = PROTOCOLS[new["protocol"]["name"]], new["settings"].get("model")
        solve = load_solver(new["solver"], chosen)
        stored = {r["index"]: r for r in new["outcomes"]}
        source = read_data(Path(data) / new["data"]["name"], rules, None)
        asked = list(islice((pair for pair in source if pair[0] in stored), int(many)))
        fresh = evaluate(solve, rules, asked)["outcomes"]
        same = [[r[k] == stored[r["index"]][k] for r in fresh]
                for k in ("digest", "positions", "confidences")]  # fmt: skip
        print(f"{file.name:45}", *(f"{sum(x)}/{len(x)}" for x in same), flush=True)


COMMANDS = (gather, fit, test, apply, check)
if __name__ == "__main__":
    {command.__name__: command for command in COMMANDS}[sys.argv[1]](*sys.argv[2:])
