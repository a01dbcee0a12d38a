"""Albums, and puzzles cut from them on the device."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from puzlm.errors import ImageError
from puzlm.images import write_image
from puzlm.puzzle import cut, parse_grid
from puzlm.study import trial
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training import corpus, train_sides
from puzlm.training import train_reader as language
from puzlm.training import train_vision as vision_train
from puzlm.training.corpus import Album, Bounds, CutSettings, cut_batch, draw_batch, neighbour_slots
from puzlm.training.recipes import Recipe, kind_of
from puzlm.training.train_vision import VisionRecipe

RECIPES = Path(__file__).parents[2] / "recipes"


def test_device_cut_is_the_tokenizers_cut(crops):
    """Cutting and resizing in one go gives what cutting, then resizing gives."""
    album = Album.of(crops[:8])
    settings = CutSettings(gap_share=0.7, jitter=0.5, flip=False, min_crop=0.6)
    draw = draw_batch(album.sizes.numpy(), 12, settings, (0, 5))
    parts = [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()]
    tokenizer = PieceTokenizer(piece_size=40)
    cut_pieces = cut_batch(album, *parts[:-1], side=40).numpy()
    packed = album.with_words(part=1000)
    assert np.array_equal(cut_batch(packed, *parts[:-1], side=40).numpy(), cut_pieces)
    for i in range(12):
        for cell in range(9):
            (top, left), (height, width) = draw.corner[i, cell], draw.piece[i]
            piece = crops[draw.image[i]][top : top + height, left : left + width]
            want = tokenizer.canonical(piece[None])[0]
            assert np.abs(want - cut_pieces[i, cell]).max() <= 1  # rounding of ties


@pytest.mark.parametrize(("power", "above"), [(1.0, 1 / 3), (0.5, 5 / 9)])
def test_a_power_below_1_makes_wide_gaps_more_frequent(power, above):
    """Of gaps up to 0.6 of a piece those above 0.4: 1 - (2/3)^(1/power)."""
    settings = CutSettings(gap_share=1.0, max_gap=0.6, gap_power=power, min_crop=1.0)
    draw = draw_batch(np.full((1, 2), 3000), 4000, settings, (0, 1))
    gaps = 1000 / draw.piece[:, 0] - 1
    assert abs(float((gaps > 0.4).mean()) - above) < 0.025 and gaps.max() < 0.602


def test_whole_puzzles_show_the_whole_image_or_its_centre_square():
    settings = CutSettings(whole=0.7, min_crop=0.5, stretch=1.0)
    draw = draw_batch(np.array([[90, 120]]), 1000, settings, (0, 2))
    ends = draw.corner[:, -1] + draw.piece
    spans = np.concatenate([draw.corner[:, 0], ends], 1).tolist()
    assert abs(spans.count([0, 0, 90, 120]) / 1000 - 0.35) < 0.05
    assert abs(spans.count([0, 15, 90, 105]) / 1000 - 0.35) < 0.05
    assert len({tuple(span) for span in spans}) > 200  # crops beside them


@given(st.integers(20, 300), st.integers(20, 300), st.sampled_from(["3", "2x4", "1x3"]))
def test_flush_pieces_reach_the_edge_and_keep_their_gaps(height, width, grid):
    settings = CutSettings(
        grid, min_crop=0.6, whole=0.5, flush=1.0, gap_share=0.9, max_gap=0.6, jitter=1.0
    )
    draw = draw_batch(np.array([[height, width]]), 64, settings, (1,))
    corner, end = draw.corner, draw.corner[:, -1] + draw.piece
    assert corner.min() >= 0 and (end <= (height, width)).all()
    rows, columns = parse_grid(grid)
    apart = corner[:, -1] - corner[:, 0]
    pitch = apart / np.maximum((rows - 1, columns - 1), 1)
    assert (pitch == pitch.round()).all()  # all gaps alike: no jitter
    shown = end - corner[:, 0]
    whole = (shown >= np.minimum(height, width) - np.array([rows, columns])).all(1)
    assert whole.sum() >= 16  # what is shown is filled, but for less than a pixel a cell
    gaps = (pitch / draw.piece - 1)[:, [rows > 1, columns > 1]]
    assert gaps.max() <= 0.6 + 1 / draw.piece.min() and gaps.max() > 0.2


def test_recipes_without_whole_puzzles_draw_what_they_drew():
    """A resumed run, and a recipe on record, see the puzzles that they saw."""
    settings = CutSettings(gap_share=0.9, jitter=0.25, missing_share=0.2, colour=0.3)
    draw = draw_batch(np.array([[192, 250], [200, 200]]), 3, settings, (5, 7))
    assert draw.image.tolist() == [0, 1, 1]
    assert draw.piece.tolist() == [[53, 69], [45, 50], [42, 55]]
    assert draw.corner[:, 4].tolist() == [[69, 88], [53, 61], [74, 78]]


def test_flipped_puzzles_are_puzzles_of_the_mirrored_image(crops):
    settings = CutSettings(min_crop=1.0, stretch=0.0)
    square = [c[:96, :96] for c in crops[:4]]
    draw = draw_batch(np.full((4, 2), 96), 16, settings, (3, 3))
    assert draw.flip.any() and not draw.flip.all()
    parts = [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()]
    pieces = cut_batch(Album.of(square), *parts[:-1], side=32).numpy()
    for i in range(16):
        image = square[draw.image[i]]
        assert np.array_equal(pieces[i], cut(image[:, ::-1] if draw.flip[i] else image, (3, 3)))


def test_neighbour_slots_by_hand():
    order = torch.tensor([[3, 0, 2, 1]])  # slot 0 holds cell 3, ...
    present = torch.tensor([[True, True, True, False]])  # the piece of cell 3 is missing
    right, below = neighbour_slots(order, present, (2, 2))
    assert right.tolist() == [[4, 3, 4, 4]]  # cell 0 -> cell 1 is slot 3; 2 -> 3 is missing
    assert below.tolist() == [[4, 2, 4, 4]]  # cell 0 -> cell 2 is slot 2


def test_a_saved_album_comes_back_with_or_without_words(crops, tmp_path):
    album = Album.of(crops[:3])
    for one in (album, album.with_words()):
        one.save(tmp_path / "album.safetensors")
        back = Album.load(tmp_path / "album.safetensors")
        assert back.words is None and torch.equal(back.pixels, album.pixels)
        assert torch.equal(back.offsets, album.offsets) and torch.equal(back.sizes, album.sizes)


def test_reading_does_not_run_ahead_of_decoding(crops, monkeypatch):
    """Files are read when they are soon needed: a tar of any size does not lie in memory."""
    given, done, furthest = 0, 0, 0

    def blobs(_):
        nonlocal given
        for number in range(40):
            given += 1
            yield str(number), bytes([number])

    def decode(blob, name):
        nonlocal done, furthest
        time.sleep(0.002)
        done, furthest = done + 1, max(furthest, given - done)
        return crops[blob[0]]

    monkeypatch.setattr(corpus, "iter_blobs", blobs)
    monkeypatch.setattr(corpus, "read_image", decode)
    album = Album.read(["many"], workers=2)
    assert torch.equal(album.pixels, Album.of(crops[:40]).pixels)
    assert furthest < 10


# ---- large images ---------------------------------------------------------------------------


def test_large_images_are_cut_as_the_tokenizer_reads_them(photo, tmp_path):
    """Thirteen times the side, of which four taps of the cut would see a third."""
    image = photo[:426, :639]
    write_image(tmp_path / "large.png", image)
    want = PieceTokenizer(piece_size=16).canonical(cut(image, (3, 3))).astype(float)
    whole, bounds = CutSettings(min_crop=1.0, stretch=0.0, flip=False), Bounds.of(["3"], 16)
    errors = []
    for album in (Album.read([tmp_path]), Album.read([tmp_path], bounds=bounds)):
        draw = draw_batch(album.sizes.numpy(), 1, whole, (0,))
        parts = [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()]
        errors.append(np.abs(cut_batch(album, *parts[:-1], side=16).numpy()[0] - want).mean())
    assert errors[0] > 5 and errors[1] < 1.5
    assert album.sizes.tolist() == [[96, 96]]
    again = Album.read([tmp_path]).within(bounds)
    assert torch.equal(again.pixels, album.pixels) and again.within(bounds) is again


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda p: p.stem)
def test_the_shipped_recipes_see_their_images_as_they_are(path, crops):
    """They were trained on pictures of 200 and 240 px. The reader chooses images by the grid."""
    if kind_of(path) == "reader":
        return
    if kind_of(path) == "language":
        recipe = Recipe.load(path)
        bounds = Bounds.of([recipe.cut.grid], recipe.tokenizer.side)
    else:
        recipe = VisionRecipe.load(path)
        bounds = Bounds.of(recipe.grids, recipe.model.side)
    for side in (200, 240):
        image = np.zeros((side, side, 3), np.uint8)
        assert bounds.fit(image, "it") is image
    album = Album.of([crops[0]])
    assert album.within(bounds) is album


@pytest.mark.parametrize("kind", ["train", "fit-sides", "vision", "ablate"])
def test_whoever_cuts_has_shrunk_large_images(kind, photo, tmp_path, monkeypatch):
    """Pieces of 16 px in a grid of 2: a side of 640 px is too long, one of 80 px is not."""
    write_image(tmp_path / "images" / "large.png", photo[:80])

    def look(album, *_, **__):
        raise StopIteration(album.sizes.tolist())

    for module in (language, train_sides, trial, vision_train):
        monkeypatch.setattr(module, "cut_batch", look)
    shape = {"piece_size": 16, "max_cells": 4}
    data, train = {"train": [str(tmp_path / "images")]}, {"device": "cpu"}
    sides = {"device": "cpu"}
    record = {"cut": {"grid": 2}, "tokenizer": shape, "data": data, "train": train, "sides": sides}
    with pytest.raises(StopIteration, match=r"\[\[80, 64\]\]"):
        if kind == "train":
            language.train(Recipe.from_dict(record), tmp_path / "run")
        elif kind == "fit-sides":
            train_sides.fit_sides(Recipe.from_dict(record), tmp_path / "run")
        elif kind == "vision":
            (tmp_path / "r.toml").write_text(
                f"grids = ['2x2', '3x3']\n[data]\ntrain = {data['train']}\n[train]\ndevice='cpu'\n"
                "[vision]\nside = 16\npatch = 8\nlayers = 1\ngrids = ['2x2', '3x3']\n"
            )
            vision_train.train(VisionRecipe.load(tmp_path / "r.toml"), tmp_path / "run")
        else:
            gallery = trial.Gallery([trial.Kind("a", ("images",), ("images",))], tmp_path, "cpu")
            gallery.pieces(0, 1, CutSettings("2"), 16, (0,))


def test_images_too_small_for_the_grid_are_refused_by_name(photo, tmp_path):
    """Cells of less than two pixels would be filled from the next image of the album."""
    write_image(tmp_path / "0.png", photo[:8, :6])
    write_image(tmp_path / "1.png", photo[:8, :5])
    bounds = Bounds.of(["4x3", "2x2"], 16)
    with pytest.raises(ImageError, match=r"1\.png: 5 x 8 pixels; .* at least 6 x 8"):
        Album.read([tmp_path], bounds=bounds)
    with pytest.raises(ImageError, match="image 1 of the album: 5 x 8 pixels"):
        Album.read([tmp_path]).within(bounds)
    album = Album.read([tmp_path], limit=1, bounds=bounds)
    draw = draw_batch(album.sizes.numpy(), 64, CutSettings("4x3"), (0,))
    last = (draw.corner + draw.piece[:, None]).max((0, 1))
    assert (draw.corner >= 0).all() and (last <= [8, 6]).all()
