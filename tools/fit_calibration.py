"""Fit the numbers of puzlm/solving/calibration.py on validation puzzles, and measure what they do.

    python -m tools.fit_calibration fit docs/runs/calibration-val.json GATHERED.jsonl...
    python -m tools.fit_calibration test RAW results docs/runs/calibration-test.json
    python -m tools.fit_calibration apply results/*.json
    python -m tools.fit_calibration check DATA PUZZLES results/*.json

GATHERED is what docs/gather_calibration.py writes. `fit` prints the table FITTED of calibration.py.
RAW is a folder of results files with raw confidences: `test` tells what calibrating them does,
beside the same files as they are; `apply` calibrates such files in place, `check` compares
with fresh answers to the test images in DATA.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtri

from puzlm.files import write_bytes
from puzlm.harness.evaluate import BINS, _calibration, evaluate
from puzlm.harness.protocols import PROTOCOLS, read_data
from puzlm.harness.results_files import read_results
from puzlm.solution import Used
from puzlm.solver import load_solver
from puzlm.solving import calibration
from puzlm.solving.calibration import Floats

# ---- fitting ----------------------------------------------------------------------------------

# What each kind of answer is judged by. Tried on the validation puzzles and left out, because they
# changed the loss on other images by less than its noise or for the worse: the share of pieces
# below a half, on small grids the mean over the pieces beside it, products of own with missing,
# given and cells.
SMALL = ("one", "own", "others", "least", "missing", "given", "cells")
JUDGED_BY = (
    dict.fromkeys(
        (
            "auto again",
            "auto looks",
            "auto reader",
            "seq2seq",
            "symbols",
            "classic",
        ),
        SMALL,
    )
    | dict.fromkeys(("seq2seq reader", "seq2seq beam", "seq2seq greedy"), SMALL)
    | dict.fromkeys(calibration.SIDES, (*SMALL, "spread"))
    | dict.fromkeys(
        (
            "pairs large",
            "auto framed large",
            "auto reader large",
            "auto windows large",
            "seq2seq reader large",
        ),
        ("one", "own", "near", "others"),
    )
    | {"classic large": ("one", "own", "others", "cells")}
)
RISING = ("own", "near", "others", "least")  # never count against a piece
PRIOR = 0.2  # puzzles that speak for the raw confidence as it is (weights in standard units)
FOLDS = 5


def pieces_of(record: dict) -> tuple[dict[str, Floats], Floats, Floats]:
    """Features, rightness and raw confidence of the pieces of one answer that are scored."""
    given = {int(piece): cell for piece, cell in (record.get("given") or {}).items()}
    raw, at = np.array(record["confidences"]), np.array(record["positions"])
    grid = tuple(record["grid"])
    doubt = calibration.doubt(calibration.kind(used_of(record["solver"]), grid[0] * grid[1]))
    found = calibration.features(raw, grid, given, doubt, at)
    free = np.array([i not in given for i in range(len(raw))]) & (at >= 0)
    right = (at == np.array(record["truth"])).astype(float)
    return {name: x[free] for name, x in found.items()}, right[free], raw[free]


def fit_one(sets: dict[str, list[tuple]], names: Sequence[str]) -> calibration.Numbers:
    """Fit one kind of answer; every puzzle counts alike, whatever its grid.

    Until version 7 settings counted by the root of their puzzles: on images left out that was worse
    for answers after one look and after six, where most settings have a handful of puzzles.
    """
    x, y, weight = [], [], []
    for rows in sets.values():
        x += [np.stack([told[name] for name in names], 1) for told, _, _ in rows]
        y += [right for _, right, _ in rows]
        pieces = sum(len(right) for _, right, _ in rows)
        weight += [np.full(len(right), len(rows) / pieces) for _, right, _ in rows]
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
    return {
        name: (
            round(float(w[i]), 3),
            round(float(told[:, i].min()), 3),
            round(float(told[:, i].max()), 3),
        )
        for i, name in enumerate(names)
        if not constant[i] or name == "one"
    }


def ece(sure: Floats, right: Floats) -> float:
    """Expected calibration error, as in a results file."""
    which = np.minimum((sure * BINS).astype(int), BINS - 1)
    off = np.bincount(which, sure - right, BINS)
    return float(np.abs(off).sum() / len(sure))


def chance(parts: Sequence[tuple[Floats, Floats]], draws: int = 60) -> float:
    """The mean ECE if every confidence of these answers (sure, right) were true.

    Pieces of one answer are right or wrong together, so few puzzles are off by chance. Drawn is
    rightness of the stated probability, correlated within answers as much as it is in truth.
    """
    sure, right = (np.concatenate(x) for x in zip(*parts, strict=True))
    answer = np.repeat(np.arange(len(parts)), [len(x) for x, _ in parts])
    least = ndtri(np.clip(sure, 1e-6, 1 - 1e-6))
    spread = np.bincount(answer, right - sure).std()
    rng = np.random.default_rng(0)

    def drawn(alike: float) -> Floats:
        common = rng.normal(size=len(parts))[answer]
        return alike**0.5 * common + (1 - alike) ** 0.5 * rng.normal(size=len(sure)) < least

    low, high = 0.0, 1.0
    for _ in range(7):
        middle = (low + high) / 2
        got = np.mean([np.bincount(answer, drawn(middle) - sure).std() for _ in range(10)])
        low, high = (middle, high) if got < spread else (low, middle)
    return float(np.mean([ece(sure, drawn(low)) for _ in range(draws)]))


def load(files: Sequence[str]) -> dict[str, dict[str, list[dict]]]:
    """Answers by kind and setting."""
    found: dict[str, dict[str, list[dict]]] = {}
    for file in files:
        for line in Path(file).read_text().splitlines():
            record = json.loads(line)
            cells = record["grid"][0] * record["grid"][1]
            kind = calibration.kind(used_of(record["solver"]), cells)
            name = record["setting"] + (f", {record['asked']}" if kind == "pairs large" else "")
            found.setdefault(kind, {}).setdefault(name, []).append(record)
    return {kind: dict(sorted(sets.items())) for kind, sets in sorted(found.items())}


def folds(sets: dict[str, list[dict]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """ECE before and after by setting; images are judged by numbers fitted without them."""
    parts: dict[str, list[Floats]] = {}
    known = {k: [(r["image"] % FOLDS, pieces_of(r)) for r in v] for k, v in sets.items()}
    for fold in range(FOLDS):
        other = {k: [x for f, x in v if f != fold] for k, v in known.items()}
        numbers = fit_one({k: v for k, v in other.items() if v}, names)
        for name, records in known.items():
            for told, right, raw in (x for f, x in records if f == fold):
                sure = calibration.judged(told, numbers)
                parts.setdefault(name, []).append(np.stack([raw, sure, right]))
    table = {}
    for name, some in sorted(parts.items()):
        raw, sure, right = np.concatenate(some, 1)
        before = np.clip(raw, calibration.DOUBT, 1 - calibration.DOUBT)
        was, loss = (-np.log(np.where(right > 0, x, 1 - x)).mean() for x in (before, sure))
        table[name] = {
            "puzzles": len(some),
            "right": right.mean(),
            "said": sure.mean(),
            "raw": ece(raw, right),
            "ece": ece(sure, right),
            "chance": chance([(x[1], x[2]) for x in some]),
            "raw loss": was,
            "loss": loss,
        }
    return {
        k: {m: x if isinstance(x, int) else round(float(x), 4) for m, x in v.items()}
        for k, v in table.items()
    }


def fit(out: str, *files: str) -> None:
    """Fit every kind of answer; print FITTED and write how well it does on images left out."""
    record: dict[str, Any] = {"version": calibration.VERSION, "kinds": {}}
    record |= {"prior": PRIOR, "split": f"{FOLDS} folds, by image"}
    for kind, sets in load(files).items():
        names = JUDGED_BY.get(kind, ())
        if not names:
            continue
        numbers = fit_one({k: [pieces_of(r) for r in v] for k, v in sets.items()}, names)
        table = folds(sets, names)
        many = [t["puzzles"] ** 0.5 for t in table.values()]
        means = {
            m: round(float(np.average([t[m] for t in table.values()], weights=many)), 4)
            for m in ("raw", "ece", "chance", "raw loss", "loss")
        }
        helps = means["loss"] < means["raw loss"]
        record["kinds"][kind] = {
            "numbers": numbers if helps else {},
            "mean": means,
            "settings": table,
        }
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


def used_of(sentence: str) -> Used:
    """What gave an answer, read from the sentence that results files hold."""
    name, _, told = sentence.partition(" (")
    parts = [part for part in told.removesuffix(")").split(", ") if part]
    looks = [int(part.split()[0]) for part in parts if part.endswith(" looks")]
    clear = "clear" in parts
    parts = [part for part in parts if part != "clear" and not part.endswith(" looks")]
    if name == "seq2seq":
        return Used(name, decoding=parts[0], model=parts[1] if len(parts) > 1 else "")
    kinds = parts[0].split(" + ") if parts else []
    model = next((kind[8:] for kind in kinds if kind.startswith("seq2seq ")), "")
    kinds = ["seq2seq" if kind.startswith("seq2seq ") else kind for kind in kinds]
    return Used(name, tuple(kinds), model, looks=looks[0] if looks else 1, clear=clear)


def anew(result: dict) -> dict:
    """A results file with calibrated confidences in place of the raw ones in it."""
    outcomes = []
    for r in result["outcomes"]:
        if r["confidences"] is not None:
            given = {int(piece): cell for piece, cell in (r.get("given") or {}).items()}
            sure = calibration.calibrated(
                used_of(r["solver"]), r["confidences"], r["positions"], tuple(r["grid"]), given
            )
            r = {**r, "confidences": [round(float(value), 5) for value in sure]}
        outcomes.append(r)
    note = {**result["settings"], "calibration": calibration.VERSION}
    return {**result, "settings": note, **_calibration(outcomes), "outcomes": outcomes}


def is_raw(result: dict) -> bool:
    """Whether a file holds confidences as the models state them."""
    return "calibration" not in result["settings"]


def test(folder: str, now: str, out: str) -> None:
    """Write the ECE of raw results files in `folder`, as those in `now` have it, calibrated."""
    rows = []
    for file in sorted(Path(folder).glob("*.json")):
        old = json.loads(file.read_text())
        if old["solver"] == "random" or not is_raw(old):
            continue
        new, before = anew(old), json.loads((Path(now) / file.name).read_text())["ece"]
        parts = []
        for r in (r for r in new["outcomes"] if r["confidences"]):
            free = [i for i in range(len(r["truth"])) if str(i) not in (r.get("given") or {})]
            right = np.equal(r["positions"], r["truth"]).astype(float)
            parts.append((np.array(r["confidences"])[free], right[free]))
        row = {
            "raw": _calibration(old["outcomes"])["ece"],
            "before": before,
            "after": new["ece"],
            "chance": chance(parts),
        }
        row = {k: round(x, 4) for k, x in row.items()}
        rows.append({"file": file.name, "puzzles": old["puzzles"], **row})
        print("{file:45} {puzzles:5} {before:.3f} {after:.3f} {chance:.3f}".format(**rows[-1]))
    write(out, {"version": calibration.VERSION, "files": rows})


def apply(*files: str) -> None:
    """Write the confidences of results files anew, from the raw ones in them."""
    for file in map(Path, files):
        old = json.loads(file.read_text())
        if old["solver"] == "random" or not is_raw(old):
            print(f"{file}: left as it is, calibrated already or random")
            continue
        write_bytes(file, (json.dumps(anew(old)) + "\n").encode())
        print(f"{file}: written anew")


def check(data: str, many: str, *files: str) -> None:
    """Compare results files, written anew, with fresh answers to their first puzzles."""
    for file in map(Path, files):
        new = anew(read_results(file))
        rules, chosen = PROTOCOLS[new["protocol"]["name"]], new["settings"].get("model")
        solve = load_solver(new["solver"], chosen)
        stored = {r["index"]: r for r in new["outcomes"]}
        source = read_data(Path(data) / new["data"]["name"], rules, None)
        asked = list(islice((pair for pair in source if pair[0] in stored), int(many)))
        fresh = evaluate(solve, rules, asked)["outcomes"]
        same = [
            [r[k] == stored[r["index"]][k] for r in fresh]
            for k in ("digest", "positions", "confidences")
        ]
        print(f"{file.name:45}", *(f"{sum(x)}/{len(x)}" for x in same), flush=True)


COMMANDS = (fit, test, apply, check)
if __name__ == "__main__":
    {command.__name__: command for command in COMMANDS}[sys.argv[1]](*sys.argv[2:])
