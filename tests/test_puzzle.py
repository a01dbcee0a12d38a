from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from puzlm.errors import PuzzleError
from puzlm.images import read_image, write_image
from puzlm.pieces.seams import find_grid, rulings
from puzlm.puzzle import (
    HOLE,
    WRONG,
    Puzzle,
    assemble,
    cut,
    draw,
    geometry,
    open_grid,
    parse_grid,
    shuffled,
)

SAMPLES = Path(__file__).parents[1] / "puzlm" / "samples"


def test_convention_is_raster_cell_of_each_piece():
    """Worked example: a 2x3 image of six flat colours, pieces in a known order."""
    colours = np.arange(6, dtype=np.uint8).reshape(2, 3)
    image = np.repeat(np.repeat(colours, 4, 0), 5, 1)[:, :, None].repeat(3, 2)
    puzzle = Puzzle.from_image(image, "2x3", seed=3)
    for piece, cell in zip(puzzle.pieces, puzzle.truth, strict=True):
        assert piece.shape == (4, 5, 3)
        assert (piece == cell).all()  # the colour is the raster cell the piece was cut from


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1), st.data())
def test_assemble_of_shuffle_is_the_identity(rows, columns, seed, data):
    if rows * columns < 2:
        columns = 2
    height = data.draw(st.integers(rows, 40))
    width = data.draw(st.integers(columns, 40))
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    puzzle = Puzzle.from_image(image, (rows, columns), seed=seed)
    picture = assemble(puzzle.pieces, puzzle.truth, puzzle.grid)
    top, left = (height % rows) // 2, (width % columns) // 2
    assert height - picture.shape[0] <= rows - 1
    assert width - picture.shape[1] <= columns - 1
    kept = image[top : top + picture.shape[0], left : left + picture.shape[1]]
    assert np.array_equal(picture, kept)


def test_gap_is_fraction_of_the_piece_or_pixels(photo):
    for gap in (0.5, 40):
        where = geometry(360, 360, (3, 3), gap)
        assert where.cell == (120, 120)
        assert where.piece == (80, 80)
    centre = cut(photo[:360, :360], (3, 3), 0.5)[4]
    assert np.array_equal(centre, photo[140:220, 140:220])


def test_jitter_stays_inside_the_cell_and_follows_the_seed(photo):
    image = photo[:300, :300]
    centred = cut(image, (3, 3), 0.5)
    a = cut(image, (3, 3), 0.5, True, np.random.default_rng(1))
    b = cut(image, (3, 3), 0.5, True, np.random.default_rng(1))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, centred)
    for index, piece in enumerate(a):  # the piece is found inside its own cell
        row, column = divmod(index, 3)
        cell = image[row * 100 : row * 100 + 100, column * 100 : column * 100 + 100]
        windows = np.lib.stride_tricks.sliding_window_view(cell, piece.shape)
        assert (windows == piece).all(axis=(-1, -2, -3)).any()


def test_missing_pieces_leave_holes(photo):
    puzzle = Puzzle.from_image(photo, 3, missing=2, seed=5)
    assert len(puzzle.pieces) == 7
    assert len(set(puzzle.truth.tolist())) == 7
    picture = assemble(puzzle.pieces, puzzle.truth, puzzle.grid)
    height, width = puzzle.pieces.shape[1:3]
    for cell in set(range(9)) - set(puzzle.truth.tolist()):
        top, left = cell // 3 * height, cell % 3 * width
        assert (picture[top : top + height, left : left + width] == HOLE).all()


def test_wrong_pieces_are_framed_in_red(photo):
    puzzle = Puzzle.from_image(photo, 3, seed=1)
    assert np.array_equal(
        draw(puzzle.pieces, puzzle.truth, (3, 3), puzzle.truth),
        assemble(puzzle.pieces, puzzle.truth, (3, 3)),
    )
    answer = puzzle.truth.copy()
    answer[[0, 1]] = answer[[1, 0]]
    picture = draw(puzzle.pieces, answer, (3, 3), puzzle.truth)
    height, width = puzzle.pieces.shape[1:3]
    for piece, cell in enumerate(answer):
        corner = picture[cell // 3 * height, cell % 3 * width]
        assert (tuple(corner) == WRONG) == (piece in (0, 1))


def test_save_and_load_round_trip(photo, tmp_path):
    puzzle = Puzzle.from_image(photo, "3x4", gap=0.1, missing=1, seed=9)
    puzzle.save(tmp_path / "p")
    back = Puzzle.load(tmp_path / "p")
    assert np.array_equal(back.pieces, puzzle.pieces)
    assert np.array_equal(back.truth, puzzle.truth)
    assert back.grid == (3, 4)
    puzzle.save(tmp_path / "p")  # its own folder may be replaced
    assert not list(tmp_path.glob(".p.*"))


def test_given_and_turned_pieces_are_read_back(photo, tmp_path):
    made = Puzzle.from_image(photo, 3, seed=9)
    settings = {**made.settings, "given": {2: int(made.truth[2])}, "rotations": True}
    Puzzle(made.pieces, made.grid, made.truth, settings=settings).save(tmp_path / "p")
    assert Puzzle.load(tmp_path / "p").settings == settings
    record = json.loads((tmp_path / "p" / "puzzle.json").read_text())
    for bad in ([2], {"two": 3}, {"2": None}):
        (tmp_path / "p" / "puzzle.json").write_text(json.dumps({**record, "given": bad}))
        with pytest.raises(PuzzleError, match="puzzle.json: damaged"):
            Puzzle.load(tmp_path / "p")


def test_pieces_are_read_in_the_natural_order_of_their_names(photo, tmp_path):
    pieces = Puzzle.from_image(photo, 2, seed=2).pieces
    names = ("p2.png", "p10.png", "p²3.png", "²5.png")  # a superscript is no number to sort by
    for name, piece in zip(names, pieces, strict=True):
        write_image(tmp_path / name, piece)
    assert Puzzle.load(tmp_path).names == names


def test_shuffled_picture_with_holes_can_be_read_back(photo, tmp_path):
    puzzle = Puzzle.from_image(photo, 3, missing=2, seed=2)
    write_image(tmp_path / "s.png", shuffled(puzzle))
    back = Puzzle.load(tmp_path / "s.png", 3)
    assert np.array_equal(back.pieces, puzzle.pieces)


@pytest.mark.parametrize("grid", ["2", "3", "3x4", "5", "8x10"])
def test_the_grid_is_found_from_the_seams(grid, photo):
    puzzle = Puzzle.from_image(photo, grid, seed=2)
    assert find_grid(shuffled(puzzle)) == parse_grid(grid)


def margined(sheet, margin: int, strip: int) -> np.ndarray:
    """A sheet with a white margin around it, or a strip of the picture beside its tiles."""
    sheet = np.concatenate([sheet, sheet[:, :strip]], axis=1)
    return np.pad(sheet, ((margin,) * 2, (margin,) * 2, (0, 0)), constant_values=255)


@pytest.mark.parametrize("margin, strip", [(4, 0), (10, 0), (0, 20)])
def test_margins_and_a_strip_left_over_are_found(photo, tmp_path, margin, strip):
    puzzle = Puzzle.from_image(photo[:400, :600], "4x6", seed=1)
    sheet = margined(shuffled(puzzle), margin, strip)
    write_image(tmp_path / "s.png", sheet)
    for grid in (None, "4x6"):
        found = Puzzle.load(tmp_path / "s.png", grid)
        assert found.grid == (4, 6) and np.array_equal(found.pieces, puzzle.pieces)
        assert (found.sheet.top, found.sheet.left) == (margin, margin)
        whole = found.sheet.around(shuffled(found))
        assert np.array_equal(whole, sheet)


def test_a_picture_without_margins_has_none(photo):
    assert rulings(photo) is None
    puzzle = Puzzle.from_image(photo[:400, :600], "4x6", seed=1)
    assert rulings(shuffled(puzzle), (4, 6)) is None


def test_blocks_of_jpeg_are_no_seams(photo, tmp_path):
    """Every eighth line of a compressed sheet is a faint seam; a grid was made of these."""
    for picture in (photo, read_image(SAMPLES / "flower.jpg")):
        sheet = shuffled(Puzzle.from_image(picture[:416, :624], 3, gap=0.1, seed=2))
        Image.fromarray(sheet).save(tmp_path / "s.jpg", quality=20)
        assert Puzzle.load(tmp_path / "s.jpg").grid == (3, 3)
        Image.fromarray(picture).save(tmp_path / "p.jpg", quality=20)
        with pytest.raises(PuzzleError, match="--grid"):
            Puzzle.load(tmp_path / "p.jpg")


def test_seams_in_one_direction_are_not_enough(photo):
    """They may be a grid's whose other seams do not show, and 3x1 is a wrong answer to 3x3."""
    assert find_grid(shuffled(Puzzle.from_image(photo, "1x4", seed=2))) is None


def test_a_whole_photo_has_no_seams(photo):
    assert find_grid(photo) is None
    assert find_grid(photo[:400, :400]) is None


def test_piece_files_sort_like_numbers(photo, tmp_path):
    pieces = cut(photo, (4, 4))
    for i, piece in enumerate(pieces):
        write_image(tmp_path / f"{i}.png", piece)
    back = Puzzle.load(tmp_path)
    assert back.grid == (4, 4)
    assert np.array_equal(back.pieces, pieces)


def test_parse_grid_and_the_place_holder():
    assert parse_grid("3") == parse_grid(3) == (3, 3)
    assert parse_grid("3x4") == (3, 4)
    assert open_grid(25) == (5, 5) and open_grid(12) == (3, 4)
    for bad in ("", "x", "3x", "0", "-3", "1", "3x4x5"):
        with pytest.raises(PuzzleError):
            parse_grid(bad)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: Puzzle.load(d / "nowhere"), "no such file"),
        (lambda d: Puzzle.load(d), "no piece files"),
        (lambda d: Puzzle.from_image(np.zeros((1, 1, 3), np.uint8), 3), "too small"),
        (lambda d: Puzzle.from_image(np.zeros((9, 9, 3), np.uint8), 3, gap=3), "leaves nothing"),
        (lambda d: Puzzle.from_image(np.zeros((9, 9, 3), np.uint8), 3, missing=9), "0 to 8"),
    ],
)
def test_bad_input_says_what_is_wrong(make, message, tmp_path):
    with pytest.raises(PuzzleError, match=message):
        make(tmp_path)


@pytest.mark.parametrize("make", [Puzzle.from_image, Puzzle.from_shuffled])
def test_pictures_are_eight_bit_colours(make, photo):
    """Floats would turn black, 16 bits wrap."""
    for bad in (photo / 255, photo.astype(np.uint16) * 257, photo[:, :, 0], photo[:, :, :2]):
        with pytest.raises(PuzzleError, match="the picture has shape .* of uint8 is needed"):
            make(bad, 3)
    assert np.array_equal(make(Image.fromarray(photo), 3).pieces, make(photo, 3).pieces)
    clear = np.dstack([photo, np.full(photo.shape[:2], 255, np.uint8)])
    assert np.array_equal(make(Image.fromarray(clear), 3).pieces, make(photo, 3).pieces)


def test_folder_of_different_sizes_or_another_number(tmp_path, photo):
    pieces = cut(photo, (3, 3))
    for i, piece in enumerate(pieces):
        write_image(tmp_path / f"{i}.png", piece)
    assert len(Puzzle.load(tmp_path, 2).pieces) == 9
    (tmp_path / "8.png").unlink()
    assert Puzzle.load(tmp_path).settings["open"]
    assert len(Puzzle.load(tmp_path, 3).pieces) == 8
    Image.new("RGB", (5, 5)).save(tmp_path / "8.png")
    with pytest.raises(PuzzleError, match="differ in size"):
        Puzzle.load(tmp_path, 3)


def test_puzzle_json_cannot_name_files_elsewhere(tmp_path):
    record = {"grid": [2, 2], "pieces": ["../secret.png"] * 4, "truth": None}
    (tmp_path / "puzzle.json").write_text(json.dumps(record))
    with pytest.raises(PuzzleError, match="plain file names"):
        Puzzle.load(tmp_path)
    (tmp_path / "puzzle.json").write_text("{")
    with pytest.raises(PuzzleError, match="damaged"):
        Puzzle.load(tmp_path)


def test_save_refuses_a_folder_with_other_files(photo, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(PuzzleError, match="holds other files"):
        Puzzle.from_image(photo, 2).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("what", ["letter.txt", "photos", "piece_9.png", "damaged"])
def test_save_removes_nothing_but_an_older_puzzle(what, photo, tmp_path):
    folder = tmp_path / "p"
    Puzzle.from_image(photo, 3).save(folder)
    if what == "photos":
        (folder / "photos").mkdir()
    elif what == "damaged":
        (folder / "puzzle.json").write_text("{")
    else:
        (folder / what).write_text("dear")
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    with pytest.raises(
        PuzzleError, match=rf"holds other files \({'' if what == 'damaged' else what}"
    ):
        Puzzle.from_image(photo, 2).save(folder)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before
