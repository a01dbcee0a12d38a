"""The network that finds a board's frame: what it must be by construction, and what it is worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puzlm.errors import ModelError, SettingsError
from puzlm.models import pretrained as checkpoints
from puzlm.models.box import VISION, Box
from puzlm.models.frame import Frame, FrameSettings, shrunk
from puzlm.puzzle import Puzzle, cut
from puzlm.solver import Solver
from puzlm.solving.framing import framed
from puzlm.solving.search.assembly import repaired
from puzlm.training.train_frame import FrameNet, rolled, take

TINY = FrameSettings(side=4, d_model=8, layers=2)


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return FrameNet(TINY).eval()


def board(photo, grid, gap=0.0):
    """Pieces of a photo as they belong: (rows, columns, high, wide, 3)."""
    pieces = cut(photo, grid, gap=gap)
    return np.asarray(pieces).reshape(*grid, *pieces[0].shape)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(2, 6),
    columns=st.integers(2, 6),
    down=st.integers(0, 5),
    along=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_it_rolls_with_the_board(rows, columns, down, along, seed):
    """It cannot know the frame by its place."""
    pieces = np.random.default_rng(seed).integers(0, 256, (rows, columns, 5, 7, 3), np.uint8)
    torch.manual_seed(0)
    asked = FrameNet(TINY).asked()
    row, column = asked.read(pieces)
    moved = asked.read(np.roll(pieces, (down, along), (0, 1)))
    assert np.allclose(moved[0], np.roll(row, down), atol=1e-4)
    assert np.allclose(moved[1], np.roll(column, along), atol=1e-4)
    assert np.isclose(np.exp(row).sum(), 1) and np.isclose(np.exp(column).sum(), 1)


def test_the_twin_that_learns_says_the_same(tiny, photo):
    pieces = board(photo, (5, 4))
    row, column = tiny.asked().read(pieces)
    from puzlm.tokenizer.piece_tokenizer import resized

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
    assert 0.2 < (right == 1).mean() < 1  # the others have mistakes
    assert right.mean() > 0.5


def test_mistakes_are_bands_that_slipped_and_pieces_that_were_swapped():
    layouts, frames = rolled(2000, (10, 10), np.random.default_rng(0))
    slipped = swapped = 0
    for layout, frame in zip(layouts, frames, strict=True):
        picture = np.roll(layout.reshape(10, 10), -frame, (0, 1))
        wrong = picture != np.arange(100).reshape(10, 10)
        lines = [x.all(axis) for x in (wrong,) for axis in (0, 1)]
        whole = any(line.any() for line in lines)  # a row or a column with no piece in its place
        slipped += whole
        swapped += bool(wrong.any()) and not whole
    assert 0.25 < slipped / 2000 < 0.45  # one of two kinds of bands, each in a fifth of the boards
    assert 0.15 < swapped / 2000 < 0.35


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


def ring(truth, grid):
    """Pair scores that tell everything but where the picture begins."""
    rows, columns = grid
    down, along = np.divmod(truth, columns)
    right = 4.0 * ((down[:, None] == down) & ((along[:, None] + 1) % columns == along))
    below = 4.0 * (((down[:, None] + 1) % rows == down) & (along[:, None] == along))
    return right, below


def roll(positions, grid, down, along):
    row, column = np.divmod(positions, grid[1])
    return (row + down) % grid[0] * grid[1] + (column + along) % grid[1]


class Says:
    """A network that says of a board whose pieces are numbered where it wants the frame."""

    def __init__(self, grid, row=0.0, column=0.0):
        self.grid, self.row, self.column = grid, row, column

    def read(self, pieces):
        """`row` is how much more it likes a frame above the true row 2, and `column` left of 3."""
        number = pieces[:, :, 0, 0, 0].astype(int)
        row, column = np.divmod(number, self.grid[1])
        return self.row * (row[:, 0] == 2), self.column * (column[0] == 3)


def test_a_rolled_answer_is_rolled_back(photo):
    puzzle = Puzzle.from_image(photo, "8x8", gap=0.2, seed=3)
    right, below = ring(puzzle.truth, puzzle.grid)
    shifted = roll(puzzle.truth, puzzle.grid, 3, 5)
    swapped = shifted.copy()
    swapped[[0, 9]] = swapped[[9, 0]]  # one mistake that looking again mends
    for start in (puzzle.truth, shifted, swapped):
        found = framed(Box().frame, puzzle.pieces, start, right, below, puzzle.grid)
        assert (found == puzzle.truth).all()


def parted(truth, grid, fit):
    """Those of a ring, and a true frame whose pairs fit by so much (others by 4)."""
    right, below = ring(truth, grid)
    row, column = np.divmod(truth, grid[1])
    below[np.ix_(row == grid[0] - 1, row == 0)] *= fit / 4
    right[np.ix_(column == grid[1] - 1, column == 0)] *= fit / 4
    return right, below


@pytest.mark.parametrize("grid", [(6, 9), (9, 6), (12, 14)])
def test_the_weakest_seam_is_cut_where_the_network_is_silent(grid):
    truth = np.random.default_rng(0).permutation(grid[0] * grid[1])
    right, below = parted(truth, grid, fit=2)
    pieces = np.broadcast_to(truth[:, None, None, None], (len(truth), 4, 4, 3))
    for start in (truth, roll(truth, grid, 2, 1)):
        assert (framed(Says(grid), pieces, start, right, below, grid) == truth).all()


@pytest.mark.parametrize("grid", [(6, 9), (12, 14)])
def test_network_and_seams_weigh_a_pair_alike(grid):
    """A unit of the network's logs counts as much as a unit of fit of every pair along a seam."""
    truth = np.random.default_rng(1).permutation(grid[0] * grid[1])
    right, below = parted(truth, grid, fit=3)
    pieces = np.broadcast_to(truth[:, None, None, None], (len(truth), 4, 4, 3))
    for row, column, down, along in ((0.9, 0.9, 0, 0), (1.1, 0.9, 2, 0), (0.9, 1.1, 0, 3)):
        found = framed(Says(grid, row, column), pieces, truth, right, below, grid)
        assert (found == roll(truth, grid, -down, -along)).all()


def test_looking_again_hears_the_frame(monkeypatch):
    """What a piece's cell says of the frame: most, if all pieces roll to where the frame is."""
    grid, seen = (6, 9), []
    truth = np.random.default_rng(2).permutation(54)
    right, below = ring(truth, grid)
    pieces = np.broadcast_to(truth[:, None, None, None], (54, 4, 4, 3))

    def listen(positions, right, below, grid, cells):
        seen.append((positions, cells))
        return positions

    monkeypatch.setattr("puzlm.solving.framing.repaired", listen)
    start = roll(truth, grid, 4, 2)
    framed(Says(grid, 5.0, 3.0), pieces, start, right, below, grid)
    ((positions, cells),) = seen
    assert (positions == roll(truth, grid, -2, -3)).all()  # true row 2 and column 3 come first
    worth = cells[np.arange(54), positions].sum()
    assert worth == pytest.approx(9 * 5.0 + 6 * 3.0)
    other = roll(positions, grid, 1, 0)
    assert cells[np.arange(54), other].sum() == pytest.approx(6 * 3.0)


def test_repair_hears_of_cells():
    """Without pair evidence the cells alone decide."""
    rng = np.random.default_rng(0)
    truth, start = rng.permutation(36), rng.permutation(36)
    cells = np.where(np.arange(36) == truth[:, None], 0.0, -5.0)
    nothing = rng.normal(0, 1e-3, (36, 36))
    assert (repaired(start, nothing, nothing.T, (6, 6), cells) == truth).mean() > 0.9


def test_auto_asks_it_of_large_worn_boards_only(photo):
    solver = Solver.from_pretrained()
    worn = solver.solve(Puzzle.from_image(photo, "10x11", gap=0.25, seed=0))
    assert worn.solver.endswith("+ frame)")
    whole = Puzzle.from_image(photo, "10x11", seed=0)
    assert "frame" not in solver.solve(whole).solver
    worn = Puzzle.from_image(photo, "10x11", gap=0.25, seed=0)
    fixed = solver.solve(worn, given={0: 5})  # a given piece says where the picture lies
    assert "frame" not in fixed.solver and fixed.positions[0] == 5
    fewer = Puzzle.from_image(photo, "6x6", gap=0.25, missing=2, seed=0)
    assert "frame" not in solver.solve(fewer).solver
    more = Puzzle(np.concatenate([worn.pieces, worn.pieces[:2]]), (10, 11))
    assert "frame" not in solver.solve(more).solver


def test_the_exam_counts_rows_and_columns(tiny, photo):
    puzzles = [Puzzle.from_image(photo, "10x10", gap=0.2, seed=k) for k in range(4)]
    right = {"_row": 100, "_column": 100, "_both": 100}
    assert take(FrameNet.from_pretrained(checkpoints.BOX / VISION), [("", puzzles)]) == right
    marks = take(tiny, [("", puzzles)])  # it knows nothing
    assert marks["_both"] <= min(marks["_row"], marks["_column"]) < 100


def test_saved_and_read(tiny, tmp_path):
    tiny.save_pretrained(tmp_path)
    read = Frame.from_pretrained(tmp_path)
    for name, weight in tiny.named_parameters():
        assert np.allclose(read.weights[name], weight.detach().numpy(), atol=1e-3)
    text = (tmp_path / "frame.json").read_text()
    (tmp_path / "frame.json").write_text(text.replace('"layers": 2', '"layers": 3'))
    with pytest.raises(ModelError, match=r"frame\.safetensors does not fit"):
        Frame.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="only a frame network, which solves nothing alone"):
        Solver.from_pretrained(tmp_path)
    for odd in ('"2"', "2.0", "null", "-1", "[2]"):
        (tmp_path / "frame.json").write_text(text.replace('"layers": 2', f'"layers": {odd}'))
        with pytest.raises(SettingsError, match=r"layers .*must be (of type int|at least 1)"):
            Frame.from_pretrained(tmp_path)
    with torch.no_grad():
        tiny.embed.weight[0, 0] = torch.nan
    tiny.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no finite numbers"):
        Frame.from_pretrained(tmp_path)
