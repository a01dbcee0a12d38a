"""What the tests of training share: a small recipe, and the losses of a run."""

from __future__ import annotations

import json

from puzlm.training.recipes import Recipe


def recipe_of(folder, **train_settings):
    return Recipe.from_dict(
        {
            "data": {"train": [str(folder)], "val": [str(folder)]},
            "cut": {"grid": 2, "min_crop": 1.0, "stretch": 0.0, "flip": False},
            "tokenizer": {
                "vocab_size": 64,
                "pca_dim": 16,
                "piece_size": 32,
                "max_cells": 4,
                "patch": "strip:4",
                "granularity": 2,
            },
            "model": {"size": "tiny", "d_model": 64, "feed_forward": 128, "decoder_layers": 1},
            "train": {
                "steps": 12,
                "batch": 16,
                "warmup": 4,
                "log_every": 2,
                "eval_every": 12,
                "fit_puzzles": 256,
                "save_every": 5,
                "device": "cpu",
                **train_settings,
            },
        }
    )


def losses(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]
