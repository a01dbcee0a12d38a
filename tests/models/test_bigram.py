"""`puzlm fit-sides`: from images and from token files, on any grid, with clear errors."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from puzlm.errors import ModelError, SettingsError
from puzlm.images import write_image
from puzlm.models.side_model import SideModel, SideSettings
from puzlm.puzzle import cut
from puzlm.solver import Solver
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, side_symbols
from puzlm.tokenizer.token_files import TokenFiles, write_tokens
from puzlm.training.recipes import Recipe
from puzlm.training.run_files import TrainingError
from puzlm.training.train_sides import fit, fit_sides, touching_pairs

SIDES = {
    "embedding": 16,
    "hidden": 64,
    "vector": 32,
    "batch": 32,
    "lr": 3e-3,
    "log_every": 20,
    "warmup": 10,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def images(crops, tmp_path_factory):
    path = tmp_path_factory.mktemp("images")
    for number, crop in enumerate(crops[:48]):
        write_image(path / f"{number:02d}.png", crop)
    return path


@pytest.fixture(scope="module")
def strips(crops, tmp_path_factory):
    tokenizer = PieceTokenizer(
        vocab_size=64, pca_dim=16, piece_size=32, patch="strip:4", granularity=2, max_cells=9
    ).fit(crops, max_iter=4)
    tokenizer.save_pretrained(tmp_path_factory.mktemp("strips"))
    return tokenizer


def recipe_of(images, grid="2x3", **sides):
    return Recipe.from_dict(
        {
            "data": {"train": [str(images)]},
            "cut": {"grid": grid, "min_crop": 0.9, "flip": False},
            "tokenizer": {
                "vocab_size": 64,
                "pca_dim": 16,
                "piece_size": 32,
                "patch": "strip:4",
                "granularity": 2,
                "max_cells": 9,
            },
            "train": {"fit_puzzles": 256},
            "sides": {**SIDES, **sides},
        }
    )


def neighbours_found(folder, crops, grid):
    """Share of pieces whose right neighbour is the model's first choice."""
    tokenizer, model = PieceTokenizer.from_pretrained(folder), SideModel.from_pretrained(folder)
    hits = []
    for crop in crops[:30]:
        right, _ = model.scores(side_symbols(tokenizer.encode(cut(crop, grid)), tokenizer.settings))
        cells = np.arange(grid[0] * grid[1])
        hits += [right[c].argmax() == c + 1 for c in cells if (c + 1) % grid[1]]
    return np.mean(hits)


def test_from_images_with_its_own_tokenizer(images, crops, tmp_path):
    done = fit_sides(recipe_of(images, steps=80), tmp_path)
    assert neighbours_found(tmp_path, crops, (2, 3)) > 0.7  # chance is one in five
    log = [json.loads(line) for line in (tmp_path / "sides.metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [20, 40, 60, 80]
    assert log[-1]["loss"] < 0.9 * log[0]["loss"] and done["loss"] == log[-1]["loss"]
    assert log[-1]["first_rank"] > log[0]["first_rank"] and log[-1]["puzzles_per_second"] > 0
    assert json.loads((tmp_path / "sides.settings.json").read_text())["sides"]["steps"] == 80
    found = Solver.from_pretrained(tmp_path, solver="bigram", backend="torch").solve(crops[0], 3)
    assert sorted(found.positions) == list(range(9))  # another grid than it was fitted on


def test_the_same_seed_gives_the_same_model(images, strips, tmp_path):
    strips.save_pretrained(tmp_path / "tokenizer")
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        recipe = recipe_of(images, steps=3, seed=seed)
        fit_sides(replace(recipe, tokenizer_path=str(tmp_path / "tokenizer")), tmp_path / name)
        weights.append((tmp_path / name / "sides.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_from_token_files_by_the_command(images, strips, crops, tmp_path):
    """Two files with different gaps make one corpus; the tokenizer goes beside the model."""
    strips.save_pretrained(tmp_path / "tokenizer")
    for gap in (0.0, 0.1):
        write_tokens([images], strips, tmp_path / f"gap-{gap}.npy", grid=(3, 3), gap=gap)
    changes = [f"--set=sides.{key}={value}" for key, value in {**SIDES, "steps": 120}.items()]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "puzlm",
            "fit-sides",
            "gap-0.0.npy",
            "gap-0.1.npy",
            "--tokenizer",
            "tokenizer",
            "-o",
            "model",
            "--json",
            *changes,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["grid"] == [3, 3] and record["step"] == 120
    assert neighbours_found(tmp_path / "model", crops, (3, 3)) > 0.6  # chance is one in eight


def test_token_files_are_read_as_one_array(images, strips, tmp_path):
    paths = [tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.npy"]
    for path, limit in zip(paths, (5, 1, 7), strict=True):
        write_tokens([images], strips, path, grid=(2, 2), limit=limit)
    whole = np.concatenate([np.load(path) for path in paths])
    files = TokenFiles(paths, strips)
    assert len(files) == 13 and files.grid == (2, 2)
    for rows in ([0, 4, 5, 6, 12], [5, 5], [0, 0, 1], [12], list(range(13))):
        assert np.array_equal(files[np.array(rows)], whole[rows])


@pytest.mark.parametrize("grid", [(1, 4), (4, 1), (2, 3)])
def test_pairs_of_any_grid(grid, strips):
    """A single row or column trains too: nothing is divided by the pairs that are not there."""
    rng = np.random.default_rng(0)
    shape = (8, grid[0] * grid[1], strips.settings.border_length, 1)
    tokens = torch.from_numpy(rng.integers(0, 64, shape))
    lines = []
    fit(
        strips,
        lambda step: tokens,
        grid,
        steps=4,
        log_every=1,
        report=lines.append,
        embedding=8,
        hidden=8,
        vector=8,
    )
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]
    pairs = touching_pairs((2, 3))
    assert pairs[0][0].tolist() == [0, 1, 3, 4] and pairs[0][1].tolist() == [1, 2, 4, 5]
    assert pairs[1][0].tolist() == [0, 1, 2] and pairs[1][1].tolist() == [3, 4, 5]


def test_errors_say_what_to_do(images, strips, tokenizer, tmp_path):
    strips.save_pretrained(tmp_path / "strips")
    tokenizer.save_pretrained(tmp_path / "squares")
    write_tokens([images], strips, tmp_path / "two.npy", grid=(2, 2), limit=4)
    write_tokens([images], strips, tmp_path / "three.npy", grid=(3, 3), limit=4)
    (tmp_path / "noise.npy").write_bytes(b"noise")
    recipe = recipe_of(images, steps=2)
    given = replace(recipe, tokenizer_path=str(tmp_path / "strips"))
    squares = replace(recipe, tokenizer_path=str(tmp_path / "squares"))
    for plan, names, words in [
        (recipe, ["two.npy"], "give --tokenizer"),
        (given, ["two.npy", "three.npy"], "three.npy: grid 3x3, but"),
        (given, ["none.npy"], "make one with: puzlm tokenize"),
        (given, ["noise.npy"], "not a .npy file of tokens"),
        (squares, ["two.npy"], "made by another tokenizer"),
        (replace(recipe, data=replace(recipe.data, train=())), [], "data.train"),
    ]:
        with pytest.raises(SettingsError, match=words):
            fit_sides(plan, tmp_path / "out", [tmp_path / name for name in names])
    assert not (tmp_path / "out").exists()
    with pytest.raises(ModelError, match="already has another tokenizer"):
        fit_sides(given, tmp_path / "squares", [tmp_path / "two.npy"])
    with pytest.raises(SettingsError, match="no pieces that touch"):
        touching_pairs((1, 1))
    with pytest.raises(SettingsError, match="sides.steps 0: must be at least 1"):
        recipe_of(images, steps=0)


def test_symbols_that_came_later_are_not_read(strips, crops):
    """A side model goes on beside a tokenizer that says more of every position."""
    model = SideModel(SideSettings(2, 1, 64, 8, 16, 12))
    x = np.concatenate([strips.canonical(cut(c, (2, 2))) for c in crops[:24]])
    more = strips.with_symbols("strip:4+residual:16", x, max_iter=2)
    codes = more.encode_canonical(x[:4])
    old = model.scores(side_symbols(codes[..., :1], strips.settings))
    new = model.scores(side_symbols(codes, more.settings))
    assert np.array_equal(old, new)
    model.start_from_centroids(more)


def test_a_loss_that_is_no_number_stops_it(strips):
    tokens = torch.zeros((2, 4, strips.settings.border_length, 1), dtype=torch.int64)
    with pytest.raises(TrainingError, match="lower sides.lr"):
        fit(
            strips,
            lambda step: tokens,
            (2, 2),
            steps=3,
            lr=1e30,
            log_every=1,
            embedding=8,
            hidden=8,
            vector=8,
        )


def test_the_recipe_is_that_of_the_shipped_side_model():
    root = Path(__file__).parents[2]
    sides = Recipe.load(root / "recipes" / "sides.toml").sides
    shipped = json.loads((root / "puzlm" / "models" / "puzlm-3x3" / "sides.json").read_text())
    assert all(getattr(sides, k) == shipped[k] for k in ("embedding", "hidden", "vector"))
    log = json.loads((root / "docs" / "runs" / "photos-3x3.sides.json").read_text())
    assert sides.steps == log[-1]["step"]


def test_training_needs_neither_the_command_nor_ray():
    """Machines that only train have neither of them."""
    code = (
        "import sys, puzlm.models.side_model, puzlm.training.train_reader; "
        "import puzlm.tokenizer.token_files; "
        "print(sorted({'typer', 'rich', 'ray', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
