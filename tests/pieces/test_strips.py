"""Strips: what is paper is found, sides are straightened, names tell nothing."""

import numpy as np
import pytest
from drawn_pages import cut_page, draw_page, wear
from PIL import Image

from puzlm.errors import PuzzleError
from puzlm.images import write_image
from puzlm.pieces.strips import blank, find_paper, inks_of, mostly_white, read_strip, read_strips
from puzlm.puzzle import Puzzle
from puzlm.solving.pages import straightened


def test_paper_is_found_on_a_dark_ground():
    strip = wear(cut_page(draw_page(), 12)[5], 1)
    found = find_paper(strip.pixels)
    assert (found == strip.paper).mean() > 0.99


def test_a_picture_without_ground_is_all_paper():
    assert find_paper(cut_page(draw_page(), 12)[5].pixels).all()


def test_straightened_sides_bring_slanted_text_back():
    page = draw_page()
    strip = cut_page(page, 12)[5]
    slanted = wear(strip, 3)
    straight = straightened(slanted)[:, :, 0].astype(int)
    width = min(straight.shape[1], strip.width)
    worn = np.abs(straight[:, :width] - strip.pixels[:, :width, 0]).mean()
    bent = np.abs(slanted.pixels[:, :width, 0].astype(int) - strip.pixels[:, :width, 0]).mean()
    assert worn < bent / 2


def test_order_of_reading_does_not_follow_names(tmp_path):
    strips = cut_page(draw_page(), 9)
    for folder, names in (("a", range(9)), ("b", reversed(range(9)))):
        for strip, name in zip(strips, names, strict=True):
            (tmp_path / folder).mkdir(exist_ok=True)
            write_image(tmp_path / folder / f"{name}.png", strip.pixels)
    first, second = (read_strips(tmp_path / folder) for folder in "ab")
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.pixels, other.pixels)
    assert [one.name for one in first] != sorted(one.name for one in first)


def test_alpha_and_mask_say_what_is_paper(tmp_path):
    strip = wear(cut_page(draw_page(), 12)[4], 2)
    alpha = np.where(strip.paper, 255, 0).astype(np.uint8)
    write_image(tmp_path / "clear.png", np.dstack([strip.pixels, alpha]))
    write_image(tmp_path / "plain.png", strip.pixels)
    Image.fromarray(alpha).save(tmp_path / "mask.png")
    columns = strip.paper.any(0)
    for read in (
        read_strip(tmp_path / "clear.png"),
        read_strip(tmp_path / "plain.png", tmp_path / "mask.png"),
    ):
        assert np.array_equal(read.paper, strip.paper[:, columns])


def test_a_mask_of_another_size_is_refused(tmp_path):
    write_image(tmp_path / "a.png", np.full((50, 10, 3), 250, np.uint8))
    Image.fromarray(np.full((40, 10), 255, np.uint8)).save(tmp_path / "m.png")
    with pytest.raises(PuzzleError, match="another size"):
        read_strip(tmp_path / "a.png", tmp_path / "m.png")


def test_pages_are_mostly_white_and_photographs_are_not(photo):
    assert mostly_white([strip.pixels for strip in cut_page(draw_page(), 20)], 825)
    assert not mostly_white(list(Puzzle.from_image(photo, "2x8").pieces), 640)


def test_a_thing_on_a_white_ground_is_no_page(photo):
    picture = np.full((600, 600, 3), 255, np.uint8)
    picture[150:450, 150:450] = photo[:300, :300]
    assert not mostly_white(list(Puzzle.from_image(picture, 5).pieces), 600)


def test_a_strip_of_the_margin_is_blank():
    inks = inks_of(cut_page(draw_page(), 20))
    assert [blank(ink) for ink in inks[:3]] == [True, True, False]
