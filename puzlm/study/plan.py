"""A plan of ablations, read and checked: a base recipe, and rows that change some settings.

A plan is a TOML file: [plan] says how long, [base] is a recipe, every [[kinds]] is a kind of puzzle
to train and examine on, every [[rows]] changes some settings, every [[sweeps]] makes a row of each
of its values. ablate.py runs it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from puzlm.errors import PuzlmError, SettingsError, nearest
from puzlm.puzzle import parse_grid
from puzlm.sections import section
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, TokenizerSettings
from puzlm.training.recipes import Recipe, read_toml

STARTS = ("", "sides")


@dataclass(frozen=True)
class Row:
    """One change to the base recipe."""

    name: str
    """One of a kind, without slashes: a kept model lies in a folder of this name."""
    group: str = "rows"
    """What the row is compared within: one figure or table of the report."""
    x: Any = None
    """Where the row stands in its group; a number for a curve, a label for bars."""
    set: tuple[str, ...] = ()
    """Settings as for `puzlm train --set`, e.g. "tokenizer.granularity=3"."""
    seeds: tuple[int, ...] = ()
    """Seeds of this row; empty takes the plan's."""
    learned: dict[str, Any] = field(default_factory=dict)
    """Settings of a learned tokenizer (kind, tokens, vocab_size, width, ...) instead of patches."""
    start: str = ""
    """'sides' starts the embeddings from a side model that is trained first."""
    one_order: bool = False
    """The pieces of a training puzzle come in one random order for ever, not in a new one each time
    the puzzle is drawn. With lexicographic order this changes nothing."""
    decode: tuple[str, ...] = ()
    """Ways of decoding to examine; empty takes the plan's."""
    seconds: float = 0.0
    """Training time of this row; 0 takes the plan's. Compare rows of one time only."""
    puzzles: int = 0
    """Training puzzles of this row; 0 takes the plan's. More time needs more of them: what is seen
    more than five times is learned by heart."""
    keep: bool = False
    """Save the trained model below models/ of the output folder."""
    note: str = ""


@dataclass(frozen=True)
class PlanSettings:
    """What all rows share."""

    seconds: float = 30.0
    """Training time of a row, start-up not counted."""
    steps: int = 0
    """Train so many steps instead; 0 goes by the clock."""
    seeds: tuple[int, ...] = (0,)
    puzzles: int = 65_536
    """Training puzzles that are tokenised beforehand, over all kinds."""
    decode: tuple[str, ...] = ("valid",)
    few: int = 250
    """Exam puzzles for the slow ways of decoding."""
    side_steps: int = 1500
    """Training steps of a side model for start = 'sides'."""
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """A plan file, read and checked."""

    plan: PlanSettings
    kinds: tuple[Any, ...]
    rows: tuple[Row, ...]
    base: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan; settings, models and tokenizers of all rows are checked before any runs."""
        from puzlm.study.trial import Kind

        path, record = Path(path), read_toml(path, "plan")
        known = ("plan", "base", "kinds", "rows", "sweeps")
        for key in record:
            if key not in known:
                raise SettingsError(f"{path}: unknown key '{key}'; {nearest(key, known)}")
        settings = section(PlanSettings, record.get("plan", {}), f"{path}: [plan]")
        kinds = [
            section(Kind, *one) for one in _tables(record, "kinds", path, ("name", "train", "val"))
        ]
        rows = [section(Row, *one) for one in _tables(record, "rows", path, ("name",))]
        for one in _tables(record, "sweeps", path, ("group", "key", "values")):
            rows += _sweep(*one)
        base = record.get("base", {})
        if not isinstance(base, dict):
            raise SettingsError(f"{path}: 'base' is a section: write [base.train] and so on")
        made = cls(settings, tuple(kinds), tuple(rows), base)
        if not kinds or not rows:
            raise SettingsError(f"{path}: needs at least one [[kinds]] and one row")
        made._check(str(path))
        return made

    def _check(self, where: str) -> None:
        """Refuse what would go wrong later, when a row runs."""
        _check_settings(self.plan, f"{where}: [plan]")
        for kind in self.kinds:
            _check_kind(kind, f"{where}: kind {kind.name!r}")
        for what, members in (("kind", self.kinds), ("row", self.rows)):
            names = [one.name for one in members]
            for name in names:
                if names.count(name) > 1:
                    raise SettingsError(
                        f"{where}: {what} {name!r}: there are two {what}s of this name"
                    )
        for row in self.rows:
            here = f"{where}: row {row.name!r}"
            _check_row(row, here)
            try:
                recipe = self.recipe(row, 0)
                _check_recipe(recipe, tokenizer_settings(row, recipe))
            except PuzlmError as error:
                raise SettingsError(f"{here}: {error}") from error
            if set(row.decode or self.plan.decode) == {"head"} and not recipe.train.heads:
                raise SettingsError(f"{here}: decode 'head' needs train.heads above 0")

    def recipe(self, row: Row, seed: int) -> Recipe:
        """The base recipe with a row's changes."""
        recipe = Recipe.from_overrides(list(row.set), deepcopy(self.base), "base")
        return recipe.with_train(seed=seed)

    def seeds(self, row: Row) -> tuple[int, ...]:
        """Seeds of a row."""
        return row.seeds or self.plan.seeds

    def settings(self, row: Row, seed: int) -> dict[str, Any]:
        """Everything that decides a row's result; a row with the same is done."""
        recipe = self.recipe(row, seed).as_dict()
        recipe.pop("data")
        shared = {
            "seconds": row.seconds or self.plan.seconds,
            "steps": self.plan.steps,
            "puzzles": row.puzzles or self.plan.puzzles,
            "decode": list(row.decode or self.plan.decode),
            "few": self.plan.few,
        }
        if row.start:
            shared |= {"start": row.start, "side_steps": self.plan.side_steps}
        if row.one_order:
            shared["one_order"] = True
        if row.learned:
            shared["learned"] = row.learned
        kinds = [asdict(kind) for kind in self.kinds]
        made: dict[str, Any] = json.loads(json.dumps({**shared, "kinds": kinds, "recipe": recipe}))
        return made


# ---- checks ---------------------------------------------------------------------------------


def _check_settings(settings: PlanSettings, where: str) -> None:
    if not 0 < settings.seconds < math.inf:
        raise SettingsError(f"{where}: seconds {settings.seconds:g}: must be a number above 0")
    _check_least(settings, where, steps=0, puzzles=1, few=1, side_steps=1)
    if not settings.seeds or not settings.decode:
        missing = "decode" if settings.seeds else "seeds"
        raise SettingsError(f"{where}: {missing} = []: needs at least one")
    _check_seeds(settings.seeds, where)
    _check_ways(settings.decode, where)


def _check_kind(kind: Any, where: str) -> None:
    if not kind.name or not kind.train or not kind.val:
        raise SettingsError(f"{where}: name, train and val must not be empty")
    _check_least(kind, where, limit=0, puzzles=1)
    if not 0 <= kind.gap < 1:
        raise SettingsError(
            f"{where}: gap {kind.gap:g}: a fraction of the piece, from 0 to below 1"
        )


def _check_row(row: Row, where: str) -> None:
    # Kept models lie in a folder of this name, and its lines are printed.
    if not row.name or not row.name.isprintable() or set(row.name) & {"/", "\\"}:
        raise SettingsError(f"{where}: a name is printable text without / and \\, and not empty")
    _check_least(row, where, seconds=0, puzzles=0)
    _check_seeds(row.seeds, where)
    _check_ways(row.decode, where)
    if row.start not in STARTS:
        raise SettingsError(f"{where}: start '{row.start}'; {nearest(row.start, STARTS)}")


def _check_recipe(recipe: Recipe, reading: TokenizerSettings) -> None:
    """Settle the model's shape as training would, which only begins after minutes of reading."""
    from puzlm.models.backbones import ModelSettings

    ModelSettings.of_recipe(recipe.model, PieceTokenizer(reading))
    cells = math.prod(parse_grid(recipe.cut.grid))
    if reading.max_cells < cells:
        raise SettingsError(f"tokenizer.max_cells must be at least {cells} for {recipe.cut.grid}")


def _check_least(made: Any, where: str, **least: int) -> None:
    for name, value in least.items():
        if not value <= (got := getattr(made, name)) < math.inf:
            raise SettingsError(f"{where}: {name} {got:g}: must be a number from {value} on")


def _check_seeds(seeds: Sequence[int], where: str) -> None:
    if len(set(seeds)) < len(seeds) or any(seed < 0 for seed in seeds):
        raise SettingsError(f"{where}: seeds {list(seeds)}: must be from 0 on, each once")


def _check_ways(ways: Sequence[str], where: str) -> None:
    from puzlm.study.exam import DECODINGS

    for way in ways:
        if way not in DECODINGS:
            raise SettingsError(f"{where}: decode '{way}'; {nearest(way, DECODINGS)}")


# ---- tables of the file -----------------------------------------------------------------------


def _tables(
    record: dict[str, Any], key: str, path: Path, needed: Sequence[str]
) -> list[tuple[Any, str]]:
    """All [[key]] of a file, and what to call them; each must have the needed keys."""
    found = record.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise SettingsError(f"{path}: '{key}' are tables: write [[{key}]]")
    tables = [(one, f"{path}: [[{key}]] number {n}") for n, one in enumerate(found, 1)]
    for one, where in tables:
        for name in needed:
            if name not in one:
                raise SettingsError(f"{where}: {name} is missing")
    return tables


def _sweep(record: dict[str, Any], where: str) -> list[Row]:
    """A row for each of `values` of the setting `key`, named GROUP-VALUE."""
    rest = {k: v for k, v in record.items() if k not in ("key", "values", "deciding")}
    for name in ("values", "deciding", "set"):
        if not isinstance(record.get(name, []), list):
            raise SettingsError(f"{where}: {name} = {record[name]!r} must be a list")
    rows = []
    for value in record["values"]:
        text = value if isinstance(value, str) else json.dumps(value)
        own = {
            "name": f"{record['group']}-{text.replace('/', '-')}",  # a value may be a path
            "x": value,
            "set": [*record.get("set", []), f"{record['key']}={text}"],
        }
        if value in record.get("deciding", []):
            own["seeds"] = [0, 1]
        rows.append(section(Row, rest | own, where))
    return rows


def tokenizer_settings(row: Row, recipe: Recipe) -> Any:
    """Settings of a row's tokenizer, learned or not."""
    if not row.learned:
        return recipe.tokenizer
    from puzlm.study.learned_tokenizers import LearnedSettings

    s = recipe.tokenizer
    shared = {"max_cells": s.max_cells, "lexicographic": s.lexicographic, "separator": s.separator}
    made: LearnedSettings = section(LearnedSettings, shared | row.learned, "learned")
    return made
