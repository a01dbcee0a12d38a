"""Recipes: what cannot be trained is refused when it is read, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_training import recipe_of

from puzlm.errors import SettingsError
from puzlm.training.recipes import Recipe, kind_of
from puzlm.training.train_grids import ReaderRecipe
from puzlm.training.train_reader import train
from puzlm.training.train_vision import VisionRecipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def test_recipes_name_the_nearest_key(tmp_path):
    (tmp_path / "r.toml").write_text("[train]\nlr = 1e-3\nwarmpu = 5\n")
    with pytest.raises(SettingsError, match="did you mean 'warmup'"):
        Recipe.load(tmp_path / "r.toml")
    with pytest.raises(SettingsError, match="did you mean 'train'"):
        Recipe.from_dict({"tarin": {}})
    with pytest.raises(SettingsError, match="must be of type int"):
        Recipe.from_dict({"train": {"steps": "many"}})
    (tmp_path / "ok.toml").write_text("[train]\nsteps = 5\n")
    assert Recipe.load(tmp_path / "ok.toml", ["train.steps=7", "model.size=tiny"]).train.steps == 7
    with pytest.raises(SettingsError, match="no such recipe"):
        Recipe.load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.save_every", 0, "train.save_every 0: must be at least 1"),
        ("train.log_every", 0, "at least 1"),
        ("train.eval_every", 0, "at least 1"),
        ("train.eval_puzzles", 0, "at least 1"),
        ("train.fit_puzzles", 0, "at least 1"),
        ("train.steps", -1, "at least 1"),
        ("train.batch", 0, "at least 1"),
        ("train.warmup", -1, "at least 0"),
        ("train.seed", -1, "at least 0"),
        ("train.heads", "nan", "at least 0"),
        ("train.weight_decay", -0.1, "at least 0"),
        ("train.lr", 0.0, "train.lr 0.0: must be above 0"),
        ("train.lr", "inf", "above 0"),
        ("train.clip", -1.0, "above 0"),
        ("train.average", 1.0, "from 0 to below 1"),
        ("train.keep", 1.0, "from 0 to below 1"),
        ("train.keep", 0.5, "train.keep 0.5: name the model to keep in train.start"),
        ("train.eval_gaps", [0.0, -0.5], "at least 0"),
        ("data.limit", -1, "at least 0"),
        ("sides.seed", -1, "at least 0"),
        ("cut.max_gap", -0.1, "cut.max_gap -0.1: must be at least 0"),
        ("cut.gap_power", -1.0, "cut.gap_power -1.0: must be at least 0"),
        ("cut.whole", 1.5, "cut.whole 1.5: must be from 0 to 1"),
        ("cut.flush", -0.1, "cut.flush -0.1: must be from 0 to 1"),
        ("cut.max_missing", 0, "at least 1"),
        ("cut.max_missing", 9, r"max_missing 9: must be below the 9 pieces .*grid 3"),
    ],
)
def test_what_cannot_be_trained_is_refused(key, value, message):
    changes = ["cut.missing_share=0.1", f"{key}={value}"]
    with pytest.raises(SettingsError, match=message):
        Recipe.from_overrides(changes)


def test_missing_pieces_are_counted_in_every_grid_of_a_vision_recipe(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("grids = ['3x3', '1x2']\n[cut]\nmissing_share = 0.1\n[edges]\n")
    with pytest.raises(SettingsError, match="below the 2 pieces"):
        VisionRecipe.load(path)
    assert VisionRecipe.load(path, ["cut.max_missing=1"]).cut.max_missing == 1


def test_a_grid_larger_than_the_tokenizer_reads_is_refused(folder, tmp_path):
    record = recipe_of(folder).as_dict()
    record["cut"]["grid"] = "5x1"
    with pytest.raises(SettingsError, match=r"cut.grid 5x1: 5 cells, but tokenizer.max_cells is 4"):
        train(Recipe.from_dict(record), tmp_path)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_shipped_recipes_are_fine(path):
    kinds = {"language": Recipe, "reader": ReaderRecipe}
    kinds.get(kind_of(path), VisionRecipe).load(path)
