"""The reader's graph and its decoder in numpy give torch's answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from puzlm.errors import ModelError
from puzlm.models.box import load_puzzle_reader
from puzlm.models.onnx_reader import export
from puzlm.models.reader import Reader, settings_for
from puzlm.puzzle import Puzzle
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer


@pytest.fixture(scope="module")
def folder(crops, tmp_path_factory) -> Path:
    """A small reader with random weights: a strip, what it left over, and parts of that."""
    made = tmp_path_factory.mktemp("reader")
    settings = {"granularity": 2, "piece_size": 16, "vocab_size": 24, "pca_dim": 8, "max_cells": 12}
    tokenizer = PieceTokenizer(patch="strip:4+residual+split:4:4x3", **settings)
    tokenizer.fit(crops[:8], max_iter=5).save_pretrained(made)
    torch.manual_seed(0)
    shape = {"d_model": 32, "heads": 4, "feed_forward": 48, "words": 2, "sides": 1, "slots": 12}
    model = Reader(settings_for(tokenizer, **shape, decoder_feed_forward=24, longest=6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(made)
    return export(made)


def _both(folder: Path) -> tuple:
    return load_puzzle_reader(folder, "onnx", "cpu"), load_puzzle_reader(folder, "torch", "cpu")


@pytest.mark.parametrize(("grid", "missing"), [("3x3", 0), ("2x5", 2), ("1x6", 1)])
def test_both_say_the_same(folder, photo, grid, missing):
    puzzles = [Puzzle.from_image(photo, grid, seed=n, missing=missing) for n in range(2)]
    pieces, shape = [p.pieces for p in puzzles], puzzles[0].grid
    quick, slow = _both(folder)
    for a, b in zip(quick.read(pieces, shape), slow.read(pieces, shape), strict=True):
        assert a.std() > 0.01  # the comparison says something
        np.testing.assert_allclose(a, b, atol=1e-4)
    alone = quick.read(pieces[1:], shape)
    for a, b in zip(quick.read(pieces, shape), alone, strict=True):
        np.testing.assert_allclose(a[1:], b, atol=1e-4)
    fixed = [{1: 3}, {}]
    both = quick.write(pieces, shape, fixed), slow.write(pieces, shape, fixed)
    for a, b in zip(*both, strict=True):
        assert np.array_equal(a[0], b[0])
        np.testing.assert_allclose(a[1], b[1], atol=1e-3)
    written = quick.write(pieces, shape, fixed)
    assert written[0][0][1] == 3
    assert all(len(set(cells.tolist())) == len(cells) for cells, *_ in written)


def test_what_is_said_does_not_depend_on_how_pieces_lie(folder, photo):
    puzzle = Puzzle.from_image(photo[:240, :360], "2x3", seed=2)
    lay = [1, 0, 3, 2, 2, 1]
    turned = np.stack([np.rot90(p, k) for p, k in zip(puzzle.pieces, lay, strict=True)])
    quick, slow = _both(folder)
    upright, other = quick.read_turned(puzzle.pieces, (2, 3)), quick.read_turned(turned, (2, 3))
    for a, b in zip(upright, slow.read_turned(puzzle.pieces, (2, 3)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    same = np.array([(t + lay[i]) % 4 * 6 + i for t in range(4) for i in range(6)])
    np.testing.assert_allclose(other[0], upright[0][same], atol=1e-5)
    for a, b in zip(other[1:], upright[1:], strict=True):
        np.testing.assert_allclose(a, b[np.ix_(same, same)], atol=1e-5)


@pytest.mark.parametrize("name", ["reader.json", "reader.onnx", "reader.safetensors"])
def test_damaged_folders(folder, tmp_path, name):
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    data = (bad / name).read_bytes()
    (bad / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="bad") as caught:
        load_puzzle_reader(bad, "onnx", "cpu")
    assert "\n" not in str(caught.value)
