"""Parts of a row: puzzles that are cut and tokenised before the clock, layers that are compiled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puzlm.images import write_image
from puzlm.puzzle import cut
from puzlm.study import trial
from puzlm.study.timed import Draws, compiled_layers, count_compiled, masks_as_outside, schedule
from puzlm.study.trial import Gallery, Kind, Library, eroded, make_library
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training.corpus import CutSettings, draw_batch
from puzlm.training.objective import Objective
from puzlm.training.recipes import Recipe
from puzlm.training.starts import build_model


def test_the_schedule_ends_with_the_time():
    assert schedule(0, 0.0, 1.0, 10) == pytest.approx(0.1)
    assert schedule(500, 0.0, 1.0, 10) == pytest.approx(1.0)
    assert schedule(500, 0.5, 1.0, 10) == pytest.approx(0.51)
    assert schedule(500, 1.0, 1.0, 10) == pytest.approx(0.02)


def test_training_puzzles_have_the_gap_of_their_kind(crops, tmp_path):
    """What is trained on is what the exam cuts: same pieces, same places."""
    write_image(tmp_path / "a" / "0.png", crops[0][:96, :96])
    gallery = Gallery([Kind("worn", ("a",), ("a",), gap=0.5)], tmp_path, "cpu")
    whole = CutSettings("3", min_crop=1.0, stretch=0.0, flip=False)
    got = gallery.pieces(0, 1, whole, 21, (0, 0))[0].numpy()
    assert np.array_equal(got, cut(crops[0][:96, :96], (3, 3), 0.5))
    plain = draw_batch(np.array([[96, 96]]), 4, whole, (0,))
    assert (plain.piece == 32).all() and (eroded(plain, 0.5).piece == 21).all()


@pytest.mark.parametrize("lexicographic", [True, False])
def test_the_input_order_says_nothing(lexicographic, crops, tmp_path):
    """Without lexicographic order a sentence keeps the input order: it must be a shuffled one."""
    write_image(tmp_path / "a" / "0.png", crops[0])
    gallery = Gallery([Kind("plain", ("a",), ("a",))], tmp_path, "cpu")
    recipe = Recipe.from_dict(
        {
            "cut": {"grid": 3},
            "train": {"batch": 64, "fit_puzzles": 8},
            "tokenizer": {
                "vocab_size": 8,
                "pca_dim": 4,
                "piece_size": 16,
                "max_cells": 9,
                "lexicographic": lexicographic,
            },
        }
    )
    tokenizer = PieceTokenizer(recipe.tokenizer)
    library = make_library(tokenizer, gallery, recipe, 64)
    assert isinstance(library, Library) and library.tokens.shape == (64, 9, 12, 1)
    draws = Draws(library.tokens, tokenizer, recipe, "cpu")
    draws.turn(0)
    batch = draws.batch()
    assert (batch["order"].sort(1).values == torch.arange(9)).all()
    if not lexicographic:
        assert len({tuple(row) for row in batch["order"].tolist()}) > 60
    # The answer belongs to the sentence: the symbols at a slot are those of its cell.
    there = library.tokens[draws.rows[:, None], batch["order"]][..., 0]
    words = torch.nn.functional.pad(batch["ids"], (0, 1)).view(64, 9, 13)[:, :, :12]
    assert torch.equal(words - 4, there)
    corner = int((batch["order"][5] == 0).nonzero())
    assert int(batch["order"][5, batch["right"][5, corner]]) == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler itself looks at it
@pytest.mark.parametrize("backbone", ["bart", "t5", "pegasus", "encoder", "decoder"])
def test_compiled_layers_compute_the_same_and_go_back(backbone, crops, tmp_path):
    """Every layer of a transformer is compiled; loss and gradients stay what they are."""
    write_image(tmp_path / "a" / "0.png", crops[0])
    gallery = Gallery([Kind("plain", ("a",), ("a",))], tmp_path, "cpu")
    recipe = Recipe.from_dict(
        {
            "cut": {"grid": 2},
            "train": {"batch": 4, "fit_puzzles": 8},
            "model": {
                "backbone": backbone,
                "size": "tiny",
                "d_model": 16,
                "feed_forward": 32,
                "decoder_feed_forward": 32,
            },
            "tokenizer": {"vocab_size": 8, "pca_dim": 4, "piece_size": 16, "max_cells": 4},
        }
    )
    tokenizer = PieceTokenizer(recipe.tokenizer)
    draws = Draws(make_library(tokenizer, gallery, recipe, 16).tokens, tokenizer, recipe, "cpu")
    objective = Objective(build_model(recipe, tokenizer), tokenizer, 4, 0.5)
    draws.turn(3)

    def step():
        objective.zero_grad()
        loss = objective(draws.batch())[0]
        loss.backward()
        return [
            loss.detach(),
            *(p.grad.clone() for p in objective.parameters() if p.grad is not None),
        ]

    plain = step()
    torch._dynamo.utils.counters.clear()
    with compiled_layers(objective, draws, "cpu", backend="aot_eager"):
        assert count_compiled(objective) == {"encoder": 5, "decoder": 5}.get(backbone, 4)
        draws.turn(3)
        together = step()
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert len(plain) == len(together) > 20
    for a, b in zip(plain, together, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert count_compiled(objective) == 0


def test_the_library_draws_no_mask_for_a_recording(monkeypatch):
    """Older versions do; what they ask is answered as if there were no recording."""
    from transformers import masking_utils

    def recording(tensor=None):
        return True

    monkeypatch.setattr(masking_utils, "is_tracing", recording)
    with masks_as_outside():
        assert not masking_utils.is_tracing()  # so it needs no mask
        assert masking_utils.is_tracing(torch.ones(2))  # and looks into no tensor
    assert masking_utils.is_tracing is recording


def test_more_puzzles_than_fit_are_cut_part_by_part(crops, tmp_path, monkeypatch):
    """Kept or not, the training puzzles are the same."""
    write_image(tmp_path / "a" / "0.png", crops[0])
    gallery = Gallery([Kind("plain", ("a",), ("a",))], tmp_path, "cpu")
    kept = gallery.stock(128, CutSettings("2"), 16)
    assert isinstance(kept, list) and gallery.stock(128, CutSettings("2"), 16) is kept
    monkeypatch.setattr(trial, "KEPT_BYTES", 0)
    apart = gallery.stock(128, CutSettings("2"), 16)
    assert not isinstance(apart, list)
    parts = list(apart)
    assert len(parts) == len(kept) == 2
    assert all(torch.equal(a, b) for a, b in zip(parts, kept, strict=True))
