"""The reader's batches: what is said of words must be true of the pictures they were read from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puzlm.models.reader import Reader, settings_for
from puzlm.puzzle import cut
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training.train_grids import Pages, ReaderRecipe

GRID = (2, 3)


@pytest.fixture(scope="module")
def tokenizer(crops) -> PieceTokenizer:
    settings = {
        "patch": "strip:4",
        "piece_size": 16,
        "vocab_size": 32,
        "pca_dim": 8,
        "granularity": 2,
    }
    return PieceTokenizer(**settings).fit(crops[:8], max_iter=5)


def _read(tokenizer: PieceTokenizer, image: np.ndarray, ways: int) -> tuple[dict, torch.Tensor]:
    """A batch of one puzzle, and the symbols of its pieces in all ways (cells, ways, b, F)."""
    pieces = tokenizer.canonical(cut(image, GRID))
    turned = np.stack([np.rot90(pieces, k, (1, 2)) for k in range(ways)], 1)
    symbols = tokenizer.encode_canonical(turned.reshape(-1, *pieces.shape[1:]))
    symbols = torch.from_numpy(symbols.reshape(1, len(pieces), ways, *symbols.shape[1:]))
    pages = Pages(ReaderRecipe(), tokenizer, "cpu")
    return pages.sentences(symbols, torch.ones(1, len(pieces), dtype=torch.bool), GRID), symbols[0]


def test_neighbours_are_those_of_the_picture_turned_as_a_whole(tokenizer, crops):
    batch, symbols = _read(tokenizer, crops[0], 4)
    board = np.arange(6).reshape(GRID)
    words = {}  # (cell, turn) -> word
    for slot, cell in enumerate(batch["order"][0].tolist()):
        for place, turn in enumerate(batch["turn"][0, slot].tolist()):
            words[cell, turn] = slot * 4 + place
            read = batch["ids"][0, words[cell, turn], :-1] - tokenizer.rows(symbols)[0]
            assert (read == symbols[cell, turn]).all()
    for turn in range(4):
        shown = np.rot90(board, turn)
        for name, first, second in (
            ("right", shown[:, :-1], shown[:, 1:]),
            ("below", shown[:-1], shown[1:]),
        ):
            said = batch[name][0]
            for cell, other in zip(first.ravel(), second.ravel(), strict=True):
                assert said[words[cell, turn]] == words[other, turn]
            last = shown[:, -1] if name == "right" else shown[-1]
            assert all(said[words[cell, turn]] == 24 for cell in last)


def test_a_sentence_does_not_know_how_pieces_lay(tokenizer, crops):
    _, symbols = _read(tokenizer, crops[0], 4)
    there = torch.ones(1, 6, dtype=torch.bool)
    pages = Pages(ReaderRecipe(), tokenizer, "cpu")
    upright = pages.sentences(symbols[None], there, GRID)
    lay = torch.tensor([3, 1, 0, 2, 2, 1])
    moved = torch.stack(
        [piece.roll(-int(turn), 0) for piece, turn in zip(symbols, lay, strict=True)]
    )
    shuffled = torch.tensor([4, 2, 0, 5, 1, 3])
    other = pages.sentences(moved[shuffled][None], there, GRID)
    assert (upright["ids"] == other["ids"]).all()


def test_missing_pieces_come_last_and_are_nobodys_neighbour(tokenizer, crops):
    _, symbols = _read(tokenizer, crops[0], 1)
    there = torch.ones(1, 6, dtype=torch.bool)
    there[0, 1] = False
    pages = Pages(ReaderRecipe(), tokenizer, "cpu")
    batch = pages.sentences(symbols[None], there, GRID)
    assert batch["order"][0, -1] == 1
    assert not batch["present"][0, -1]
    slot = batch["order"][0].tolist().index(0)
    assert batch["right"][0, slot] == 6


def test_room_to_spare_changes_nothing(tokenizer, crops):
    torch.manual_seed(0)
    model = Reader(settings_for(tokenizer, d_model=32, heads=2, feed_forward=64, words=1, sides=1))
    batch, _ = _read(tokenizer, crops[0], 1)
    slots = torch.arange(6)[None]
    given = batch["order"][:, :-1]
    x = model.embed(batch["ids"])
    plain = model(x, GRID, slots, given, False)
    roomy = model(x, GRID, slots, given, False, 540)
    for a, b in zip(plain, roomy, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
