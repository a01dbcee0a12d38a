"""Learned tokenizers take PieceTokenizer's place: they learn, write sentences, save and load."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puzlm.errors import ModelError, SettingsError
from puzlm.puzzle import Puzzle, cut
from puzlm.study.learned_tokenizers import LearnedSettings, LearnedTokenizer, Quantiser
from puzlm.tokenizer.piece_tokenizer import SEP, PieceTokenizer

SMALL = {
    "vqvae": {"kind": "vqvae", "tokens": 16, "vocab_size": 64, "piece_size": 32, "width": 32},
    "titok": {
        "kind": "titok",
        "tokens": 6,
        "vocab_size": 64,
        "piece_size": 32,
        "width": 64,
        "layers": 1,
        "code_dim": 12,
    },
}


@pytest.fixture(scope="module")
def pieces(crops):
    plain = PieceTokenizer(piece_size=32)
    return np.concatenate([plain.canonical(cut(crop, (3, 3))) for crop in crops[:40]])


@pytest.fixture(scope="module", params=list(SMALL))
def learned(request, pieces):
    settings = LearnedSettings(
        **SMALL[request.param],
        max_cells=9,
        fit_seconds=60,
        fit_steps=120,
        fit_batch=32,
        fit_lr=1e-3,
    )
    return LearnedTokenizer(settings).fit_canonical(pieces)


def test_pieces_are_drawn_from_their_tokens(learned):
    """The tokens say what a piece looks like: half of the variance at least, by many codes."""
    assert learned.report_["steps"] == 120
    assert learned.report_["error"] < 0.5 * learned.report_["variance"]
    assert learned.report_["codes_used"] >= 8


def test_sentences_are_those_of_any_tokenizer(learned, crops):
    b = learned.settings.tokens
    assert learned.settings.border_length == b
    assert learned.sentence_length(9) == 9 * b + 8
    puzzles = [Puzzle.from_image(crops[i], 3, seed=i) for i in range(3)]
    text = learned(puzzles)
    assert text["input_ids"].shape == (3, 9 * b + 8)
    assert (text["input_ids"][:, b :: b + 1] == SEP).all()
    words = [text["input_ids"][0, s * (b + 1) : s * (b + 1) + b].tolist() for s in range(9)]
    assert words == sorted(words)
    codes = learned.encode(puzzles[0].pieces)[text["order"][0]]
    assert np.array_equal(np.array(words) - 4, codes[..., 0])


def test_moving_saving_and_torch_change_nothing(learned, pieces, tmp_path):
    want = learned.encode(pieces[:20])
    assert np.array_equal(learned.on("cpu").encode(pieces[:20]), want)
    there = learned.on("cpu").encode_canonical(torch.from_numpy(pieces[:20]))
    assert np.array_equal(there.numpy(), want)
    learned.save_pretrained(tmp_path)
    assert np.array_equal(LearnedTokenizer.from_pretrained(tmp_path).encode(pieces[:20]), want)
    text = (tmp_path / "tokenizer.json").read_text()
    width = learned.settings.width
    (tmp_path / "tokenizer.json").write_text(
        text.replace(f'"width": {width}', f'"width": {2 * width}')
    )
    with pytest.raises(ModelError, match="disagree"):
        LearnedTokenizer.from_pretrained(tmp_path)


def test_reading_needs_no_decoder(learned):
    """The parameter count is that of the encoder and the codes."""
    net = learned.net
    parts = [net.encoder, net.quantiser.codes]
    parts += [net.patches, net.read, net.down] if learned.settings.kind == "titok" else []
    count = sum(
        p.numel() if isinstance(p, torch.Tensor) else sum(w.numel() for w in p.parameters())
        for p in parts
    )
    assert learned.parameters == count


def test_embeddings_can_start_from_the_codes(learned):
    assert learned.codebooks_[0].half_whitened().shape == (64, learned.settings.code_dim)


def test_unused_codes_move_to_where_vectors_are():
    torch.manual_seed(0)
    quantiser = Quantiser(16, 4).train()
    quantiser.fresh = False
    centre = torch.nn.functional.normalize(torch.randn(16, 4), dim=-1)
    quantiser.codes.copy_(centre[:1].expand(16, 4))  # at first all codes lie in one place
    quantiser.sums.copy_(quantiser.codes)
    for _ in range(300):
        quantiser(centre[torch.randint(0, 16, (256,))] + 0.01 * torch.randn(256, 4))
    assert len(set(quantiser.eval().nearest(centre).tolist())) >= 8


def test_settings_that_cannot_be(pieces):
    with pytest.raises(SettingsError, match="has 64"):
        LearnedSettings(kind="vqvae", tokens=32)
    with pytest.raises(SettingsError, match="did you mean 'titok'"):
        LearnedSettings(kind="titik")
    with pytest.raises(SettingsError, match="multiple of 8"):
        LearnedSettings(kind="titok", piece_size=36)
    with pytest.raises(SettingsError, match="larger than the 48 tokens"):
        LearnedTokenizer(LearnedSettings(**SMALL["vqvae"])).fit_canonical(pieces[:3])
