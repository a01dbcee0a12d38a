"""The network that finds a board's frame: what it must be by construction, and what it is worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puzlm.assembly import repaired
from puzlm.box import Box
from puzlm.errors import ModelError
from puzlm.frame import Frame, FrameSettings, framed, shrunk
from puzlm.frame_train import FrameNet, rolled, take
from puzlm.puzzle import Puzzle, cut
from puzlm.solver import Solver

TINY = FrameSettings(side=4, d_model=8, layers=2)


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    return FrameNet(TINY).eval()


def board(photo, grid, gap=0.0):
    """Pieces of a photo as they belong: (rows, columns, high, wide, 3)."""
    pieces = cut(photo, grid, gap=gap)
    return np.asarray(pieces).reshape(*grid, *pieces[0].shape)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(2, 6), columns=st.integers(2, 6), down=st.integers(0, 5),
       along=st.integers(0, 5), seed=st.integers(0, 99))  # fmt: skip
def test_it_rolls_with_the_board(tiny, rows, columns, down, along, seed):
    """It cannot know the frame by its place."""
    pieces = np.random.default_rng(seed).integers(0, 256, (rows, columns, 5, 7, 3), np.uint8)
    asked = tiny.asked()
    row, column = asked.read(pieces)
    moved = asked.read(np.roll(pieces, (down, along), (0, 1)))
    assert np.allclose(moved[0], np.roll(row, down), atol=1e-4)
    assert np.allclose(moved[1], np.roll(column, along), atol=1e-4)
    assert np.isclose(np.exp(row).sum(), 1) and np.isclose(np.exp(column).sum(), 1)


def test_the_twin_that_learns_says_the_same(tiny, photo):
    pieces = board(photo, (5, 4))
    row, column = tiny.asked().read(pieces)
    from puzlm.tokenizer import resized

    small = resized(shrunk(pieces.reshape(-1, *pieces.shape[2:]), 8), 4)
    with torch.no_grad():
        found = tiny(torch.from_numpy(small).view(1, 5, 4, 4, 4, 3))
    assert np.allclose(found[0].log_softmax(-1)[0], row, atol=1e-4)
    assert np.allclose(found[1].log_softmax(-1)[0], column, atol=1e-4)
    assert row.std() > 0 and column.std() > 0


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(2, 7), columns=st.integers(2, 7), seed=st.integers(0, 999))
def test_boards_to_learn_from(rows, columns, seed):
    """Each piece lies somewhere once, and a board without mistakes is the picture, rolled."""
    layouts, frames = rolled(40, (rows, columns), np.random.default_rng(seed))
    assert (np.sort(layouts, 1) == np.arange(rows * columns)).all()
    assert (frames >= 0).all() and (frames < [rows, columns]).all()
    picture = np.arange(rows * columns).reshape(rows, columns)
    true = [np.roll(picture, frame, (0, 1)).ravel() for frame in frames]
    right = (layouts == np.stack(true)).mean(1)
    assert 0.2 < (right == 1).mean() < 1  # about half, the others with mistakes
    assert right.mean() > 0.5


def test_shrinking_takes_means():
    pieces = np.arange(2 * 9 * 4 * 3, dtype=np.uint8).reshape(2, 9, 4, 3)
    assert shrunk(pieces, 5) is pieces
    small = shrunk(pieces, 4)  # nine rows: two of each, and one over
    assert small.shape == (2, 4, 4, 3)
    assert (small[0, 1] == pieces[0, 2:4].mean(0).round()).all()


@pytest.mark.parametrize("grid", [(10, 10), (6, 9)])
def test_the_shipped_one_finds_the_frame_of_photos(grid, photo):
    network = Box().frame
    rng = np.random.default_rng(0)
    pieces = board(photo, grid, gap=0.2)
    for _ in range(5):
        frame = tuple(int(rng.integers(0, size)) for size in grid)
        row, column = network.read(np.roll(pieces, frame, (0, 1)))
        assert (row.argmax(), column.argmax()) == frame


def test_a_rolled_answer_is_rolled_back(photo):
    """Pair scores that tell everything but where the picture begins."""
    puzzle = Puzzle.from_image(photo, "8x8", gap=0.2, seed=3)
    truth = puzzle.truth
    n, (rows, columns) = len(truth), puzzle.grid
    down, along = np.divmod(truth, columns)
    right = 4.0 * ((down[:, None] == down) & ((along[:, None] + 1) % columns == along))
    below = 4.0 * (((down[:, None] + 1) % rows == down) & (along[:, None] == along))
    shifted = (down + 3) % rows * columns + (along + 5) % columns
    swapped = shifted.copy()
    swapped[[0, 9]] = swapped[[9, 0]]  # one mistake that looking again mends
    for start in (truth, shifted, swapped):
        found = framed(Box().frame, puzzle.pieces, start, right, below, puzzle.grid)
        assert (found == truth).all()
    assert n == 64


def test_repair_hears_of_cells(photo):
    """Without pair evidence the cells alone decide."""
    rng = np.random.default_rng(0)
    truth, start = rng.permutation(36), rng.permutation(36)
    cells = np.where(np.arange(36) == truth[:, None], 0.0, -5.0)
    nothing = rng.normal(0, 1e-3, (36, 36))
    assert (repaired(start, nothing, nothing.T, (6, 6), cells) == truth).mean() > 0.9


def test_auto_asks_it_of_large_worn_boards_only(photo):
    solver = Solver.from_pretrained()
    worn = solver.solve(Puzzle.from_image(photo, "6x6", gap=0.25, seed=0))
    assert worn.solver.endswith("+ frame)")
    whole = Puzzle.from_image(photo, "6x6", seed=0)
    assert "frame" not in solver.solve(whole).solver
    worn = Puzzle.from_image(photo, "6x6", gap=0.25, seed=0)
    fixed = solver.solve(worn, given={0: 5})  # a given piece says where the picture lies
    assert "frame" not in fixed.solver and fixed.positions[0] == 5


def test_the_exam_counts_rows_and_columns(tiny, photo):
    puzzles = [Puzzle.from_image(photo, "4x5", seed=k) for k in range(3)]
    marks = take(tiny, [("4x5", puzzles)])
    assert set(marks) == {"4x5_row", "4x5_column", "4x5_both"}
    assert all(0 <= mark <= 100 for mark in marks.values())
    assert marks["4x5_both"] <= min(marks["4x5_row"], marks["4x5_column"])


def test_saved_and_read(tiny, tmp_path):
    tiny.save_pretrained(tmp_path)
    read = Frame.from_pretrained(tmp_path)
    for name, weight in tiny.named_parameters():
        assert np.allclose(read.weights[name], weight.detach().numpy(), atol=1e-3)
    text = (tmp_path / "frame.json").read_text()
    (tmp_path / "frame.json").write_text(text.replace('"layers": 2', '"layers": 3'))
    with pytest.raises(ModelError, match=r"frame\.safetensors does not fit"):
        Frame.from_pretrained(tmp_path)
