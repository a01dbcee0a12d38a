"""A plan of ablations, read and checked: a base recipe, and rows that change some settings.

A plan is a TOML file: [plan] says how long, [base] is a recipe, every [[kinds]] is a kind of puzzle
to train and examine on, every [[rows]] changes some settings, every [[sweeps]] makes a row of each
of its values. ablate.py runs it.
"""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from puzlm.errors import PuzlmError, SettingsError, nearest
from puzlm.puzzle import parse_grid
from puzlm.settings import Recipe, read_toml, section
from puzlm.tokenizer import PieceTokenizer, TokenizerSettings

STARTS = ("", "sides")


@dataclass(frozen=True)
class Row:
    """One change to the base recipe."""

    name: str
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
        from puzlm.exam import DECODINGS
        from puzlm.trial import Kind

        path, record = Path(path), read_toml(path, "plan")
        known = ("plan", "base", "kinds", "rows", "sweeps")
        for key in record:
            if key not in known:
                raise SettingsError(f"{path}: unknown key '{key}'; {nearest(key, known)}")
        settings = section(PlanSettings, record.get("plan", {}), f"{path}: [plan]")
        kinds = tuple(section(Kind, *one) for one in _tables(record, "kinds", path))
        rows = [section(Row, *one) for one in _tables(record, "rows", path)]
        for one in _tables(record, "sweeps", path):
            rows += _sweep(*one)
        base = record.get("base", {})
        if not isinstance(base, dict):
            raise SettingsError(f"{path}: 'base' is a section: write [base.train] and so on")
        made = cls(settings, kinds, tuple(rows), base)
        if not kinds or not rows:
            raise SettingsError(f"{path}: needs at least one [[kinds]] and one row")
        names = [row.name for row in rows]
        for row in rows:
            where = f"{path}: row '{row.name}'"
            if names.count(row.name) > 1:
                raise SettingsError(f"{where}: there are two rows of this name")
            if row.start not in STARTS:
                raise SettingsError(f"{where}: start '{row.start}'; {nearest(row.start, STARTS)}")
            for key in ("seconds", "puzzles"):
                if (value := getattr(row, key)) < 0:
                    raise SettingsError(f"{where}: {key} {value:g}: must not be below 0")
            for way in (*row.decode, *settings.decode):
                if way not in DECODINGS:
                    raise SettingsError(f"{where}: decode '{way}'; {nearest(way, DECODINGS)}")
            try:
                recipe = made.recipe(row, 0)
                _check_recipe(recipe, tokenizer_settings(row, recipe))
            except PuzlmError as error:
                raise SettingsError(f"{where}: {error}") from error
        return made

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
        if row.learned:
            shared["learned"] = row.learned
        kinds = [asdict(kind) for kind in self.kinds]
        made: dict[str, Any] = json.loads(json.dumps({**shared, "kinds": kinds, "recipe": recipe}))
        return made


def _check_recipe(recipe: Recipe, reading: TokenizerSettings) -> None:
    """Settle the model's shape as training would, which only begins after minutes of reading."""
    from puzlm.backbones import ModelSettings

    shape = ("encoder_layers", "decoder_layers", "d_model", "heads", "feed_forward")
    _check_least(recipe.model, "[model]", **dict.fromkeys((*shape, "decoder_feed_forward"), 0))
    model = ModelSettings.of_size(recipe.model.backbone, recipe.model.size, PieceTokenizer(reading))
    width, heads = recipe.model.d_model or model.d_model, recipe.model.heads or model.heads
    if model.backbone in ("bart", "pegasus", "encoder", "decoder") and width % heads:
        raise SettingsError(f"model.d_model {width}: must be a multiple of model.heads {heads}")
    cells = math.prod(parse_grid(recipe.cut.grid))
    if reading.max_cells < cells:
        raise SettingsError(f"tokenizer.max_cells must be at least {cells} for {recipe.cut.grid}")


def _check_least(made: Any, where: str, **least: int) -> None:
    for name, value in least.items():
        if not value <= (got := getattr(made, name)) < math.inf:
            raise SettingsError(f"{where}: {name} {got:g}: must be a number from {value} on")


def _tables(record: dict[str, Any], key: str, path: Path) -> list[tuple[Any, str]]:
    """All [[key]] of a file, and what to call them."""
    found = record.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise SettingsError(f"{path}: '{key}' are tables: write [[{key}]]")
    return [(one, f"{path}: [[{key}]]") for one in found]


def _sweep(record: dict[str, Any], where: str) -> list[Row]:
    """A row for each of `values` of the setting `key`, named GROUP-VALUE."""
    rest = {k: v for k, v in record.items() if k not in ("key", "values", "deciding")}
    if not {"key", "values", "group"} <= set(record):
        raise SettingsError(f"{where}: needs group, key and values")
    for name in ("values", "deciding", "set"):
        if not isinstance(record.get(name, []), list):
            raise SettingsError(f"{where}: {name} = {record[name]!r} must be a list")
    rows = []
    for value in record["values"]:
        text = value if isinstance(value, str) else json.dumps(value)
        own = {
            "name": f"{record['group']}-{text}",
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
    from puzlm.learned_tokenizers import LearnedSettings
    from puzlm.tokenizer import settings_from

    s = recipe.tokenizer
    shared = {"max_cells": s.max_cells, "lexicographic": s.lexicographic, "separator": s.separator}
    made: LearnedSettings = settings_from(LearnedSettings, shared | row.learned, "learned")
    return made
