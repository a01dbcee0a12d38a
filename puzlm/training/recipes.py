"""Recipes: TOML files whose sections are the settings dataclasses, with --set overrides."""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from puzlm import files
from puzlm.errors import SettingsError, nearest
from puzlm.sections import at_least, section
from puzlm.tokenizer.piece_tokenizer import TokenizerSettings


@dataclass(frozen=True)
class DataSettings:
    """Where the images come from: folders, image files or tars of images."""

    train: tuple[str, ...] = ()
    val: tuple[str, ...] = ()
    tokens: str = ""
    """A file of `puzlm tokenize` to train on instead of cutting images at every step."""
    limit: int = 0
    """Use only the first so many training images; 0 uses all."""

    def __post_init__(self) -> None:
        at_least(0, self, "data", "limit")

    def check(self, *names: str) -> None:
        """Say which of the recipe's own paths is not there."""
        for name in names:
            for path in getattr(self, name):
                if not Path(path).exists():
                    raise SettingsError(
                        f"data.{name} of the recipe: {path}: no such file or folder; name your "
                        f"images with --set 'data.{name}=[\"FOLDER\"]'"
                    )


@dataclass(frozen=True)
class ModelRecipe:
    """A backbone by name and size; any number other than 0 overrides the size's."""

    backbone: str = "bart"
    size: str = "base"
    encoder_layers: int = 0
    decoder_layers: int = 0
    d_model: int = 0
    heads: int = 0
    feed_forward: int = 0
    decoder_feed_forward: int = 0
    dropout: float = 0.0


@dataclass(frozen=True)
class TrainSettings:
    """The loop."""

    steps: int = 10_000
    batch: int = 1024
    """Puzzles a step, over all processes together."""
    lr: float = 5e-4
    warmup: int = 500
    weight_decay: float = 0.01
    clip: float = 1.0
    heads: float = 0.5
    """Weight of the two training-only heads; 0 is the paper's loss alone."""
    centroid_start: bool = True
    """Start embeddings from the centroids, and positions as slot + place in the super-token."""
    average: float = 0.0
    """Decay of the averaged weights that are evaluated and saved; 0 takes the last ones."""
    seed: int = 0
    device: str = "auto"
    fast: bool = True
    """Use the compiled BART of fast.py on a GPU."""
    fp8: bool = False
    """On a GPU like the H100, the encoder's products in 8 bits where it suits: a fifth faster."""
    start: str = ""
    """A model to start from: its folder, or its name in the box."""
    keep: float = 0.0
    """Share of the weights that it started from in those that are saved: what was learned before
    and what is learned now often do better together."""
    fit_puzzles: int = 4096
    """Puzzles the tokenizer is fitted on when no tokenizer is given."""
    log_every: int = 50
    eval_every: int = 1000
    eval_puzzles: int = 500
    eval_gaps: tuple[float, ...] = (0.0,)
    save_every: int = 1000

    def __post_init__(self) -> None:
        at_least(1, self, "train", "steps", "batch", "fit_puzzles", "eval_puzzles")
        at_least(1, self, "train", "log_every", "eval_every", "save_every")
        at_least(0, self, "train", "warmup", "weight_decay", "heads", "seed")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingsError(f"train.{name} {getattr(self, name)}: must be above 0")
        if not 0 <= self.average < 1:
            raise SettingsError(f"train.average {self.average}: must be from 0 to below 1")
        if not 0 <= self.keep < 1:
            raise SettingsError(f"train.keep {self.keep}: must be from 0 to below 1")
        if self.keep and not self.start:
            raise SettingsError(f"train.keep {self.keep}: name the model to keep in train.start")
        if not all(0 <= gap < math.inf for gap in self.eval_gaps):
            raise SettingsError(f"train.eval_gaps {list(self.eval_gaps)}: must be at least 0")


@dataclass(frozen=True)
class SideRecipe:
    """Shape and training of the side model, for `puzlm fit-sides`."""

    embedding: int = 64
    hidden: int = 512
    vector: int = 128
    steps: int = 2000
    batch: int = 256
    """Puzzles a step; all their sides are told apart, so more are harder and better."""
    lr: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.01
    seed: int = 0
    device: str = "auto"
    log_every: int = 50

    def __post_init__(self) -> None:
        at_least(1, self, "sides", "embedding", "hidden", "vector")
        at_least(1, self, "sides", "steps", "batch", "warmup", "log_every")
        at_least(0, self, "sides", "weight_decay", "seed")
        if not 0 < self.lr < 1:
            raise SettingsError(f"sides.lr {self.lr}: must be between 0 and 1")


@dataclass(frozen=True)
class Recipe:
    """All settings of one training run."""

    data: DataSettings = field(default_factory=DataSettings)
    cut: Any = None
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    model: ModelRecipe = field(default_factory=ModelRecipe)
    train: TrainSettings = field(default_factory=TrainSettings)
    sides: SideRecipe = field(default_factory=SideRecipe)
    tokenizer_path: str = ""
    """A fitted tokenizer: its folder, or the name of a model in the box; empty fits one."""

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] | None = None) -> Recipe:
        """Read a TOML recipe and apply `section.key=value` overrides."""
        record = read_toml(path)
        return cls.from_overrides(overrides or [], record, str(path))

    @classmethod
    def from_overrides(
        cls, overrides: list[str], record: dict[str, Any] | None = None, where: str = "--set"
    ) -> Recipe:
        """Apply `section.key=value` texts to a record of settings, or to the defaults."""
        return cls.from_dict(overridden(record or {}, overrides), where)

    @classmethod
    def from_dict(cls, record: dict[str, Any], where: str = "recipe") -> Recipe:
        """Check names and types of everything, naming the nearest key for an unknown one."""
        from puzlm.training.corpus import CutSettings

        kinds: dict[str, Any] = {
            "data": DataSettings,
            "cut": CutSettings,
            "tokenizer": TokenizerSettings,
            "model": ModelRecipe,
            "train": TrainSettings,
            "sides": SideRecipe,
        }
        parts: dict[str, Any] = {"cut": CutSettings()}
        for name, value in record.items():
            if name == "tokenizer_path":
                parts[name] = str(value)
            elif name not in kinds:
                known = [*kinds, "tokenizer_path"]
                raise SettingsError(f"{where}: unknown key '{name}'; {nearest(name, known)}")
            elif not isinstance(value, dict):
                raise SettingsError(f"{where}: '{name}' is a section: write [{name}]")
            else:
                parts[name] = section(kinds[name], value, f"{where}: [{name}]")
        return cls(**parts)

    def as_dict(self) -> dict[str, Any]:
        """Everything, resolved, for the file beside the results."""
        return asdict(self)

    def with_train(self, **changes: Any) -> Recipe:
        """Copy with changes to the [train] section."""
        return replace(self, train=replace(self.train, **changes))


def read_toml(path: str | Path, what: str = "recipe") -> dict[str, Any]:
    """Read a TOML file, or say in one line why not."""
    if not Path(path).exists():
        raise SettingsError(f"{path}: no such {what}")
    return files.read_toml(path, SettingsError)


def kind_of(path: str | Path) -> str:
    """What a recipe trains: 'reader', 'vision', 'edges', 'frame', or a 'language' model."""
    record, kinds = read_toml(path), ("reader", "vision", "edges", "frame")
    return next((kind for kind in kinds if kind in record), "language")


def overridden(record: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Apply `section.key=value` texts to a record of settings."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise SettingsError(f"--set {override}: write section.key=value")
        try:
            value = files.parse_toml(f"v = {text}", f"--set {key}", SettingsError)["v"]
        except SettingsError as error:
            if not isinstance(error.__cause__, tomllib.TOMLDecodeError):
                raise  # a number too large, lists nested without end
            value = text  # a bare word is a string
        *parts, name = key.strip().split(".")
        target = record
        for part in parts:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise SettingsError(f"--set {override}: '{part}' is no section")
        target[name] = value
    return record
