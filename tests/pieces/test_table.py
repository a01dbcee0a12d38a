"""Photographs of loose pieces: rendered, so that the truth is known."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from puzlm import Puzzle
from puzlm.cli.main import app
from puzlm.errors import ImageError
from puzlm.harness.tables import TablePhoto, photograph, with_square_cells
from puzlm.images import read_image, write_image
from puzlm.pieces import find_pieces
from puzlm.pieces.photos import table_of, write_pieces
from puzlm.pieces.table import Table
from puzlm.puzzle import cut, shuffled

SAMPLES = Path(__file__).parents[2] / "puzlm" / "samples"


@pytest.fixture(scope="module")
def photo() -> TablePhoto:
    """Nine pieces of a photo on stone, at all angles."""
    picture = read_image(SAMPLES / "china.jpg")
    return photograph(picture, (3, 3), np.random.default_rng(5), side=140, ground="stone")


@pytest.fixture(scope="module")
def table(photo: TablePhoto) -> Table:
    return find_pieces(photo.image)


def wrong(photo: TablePhoto, table: Table) -> list[float]:
    """How far the corners of each true piece lie from those found, in sides."""
    errors = []
    for truth in photo.corners:
        side = np.linalg.norm(truth[0] - truth[1])
        errors.append(
            min(
                np.linalg.norm(np.roll(place.corners, k, 0) - truth, axis=1).max() / side
                for place in table.places
                for k in range(4)
            )
        )
    return errors


def test_every_piece_is_found_within_a_fiftieth_of_its_side(
    photo: TablePhoto, table: Table
) -> None:
    assert len(table.pieces) == 9 and not table.left_out
    assert max(wrong(photo, table)) < 0.02
    assert table.turned


def test_a_straightened_piece_shows_the_picture_it_was_cut_from(
    photo: TablePhoto, table: Table
) -> None:
    size = table.pieces.shape[1]
    best = []
    true = cut(with_square_cells(read_image(SAMPLES / "china.jpg"), (3, 3)), (3, 3))
    for corners, cell in zip(photo.corners, photo.cells, strict=True):
        nearest = min(
            range(9),
            key=lambda k: np.linalg.norm(table.places[k].corners.mean(0) - corners.mean(0)),
        )
        piece = np.asarray(Image.fromarray(true[cell]).resize((size, size)), float).ravel()
        likeness = [
            np.corrcoef(piece, np.rot90(table.pieces[nearest], k).ravel())[0, 1] for k in range(4)
        ]
        best.append(max(likeness))
    assert np.mean(best) > 0.85 and min(best) > 0.7


def test_a_photo_is_solved_and_a_guide_is_written(photo: TablePhoto, tmp_path: Path) -> None:
    path = tmp_path / "table.png"
    write_image(path, photo.image)
    answer = CliRunner().invoke(app, ["solve", str(path), "-o", str(tmp_path / "a.png"), "--json"])
    record = json.loads(answer.stdout)
    assert record["grid"] == [3, 3] and len(record["places"]) == 9 and len(record["turns"]) == 9
    assert read_image(record["guide"]).shape[1] > read_image(record["image"]).shape[1]


def test_pieces_are_written_as_a_folder_that_can_be_solved(table: Table, tmp_path: Path) -> None:
    write_pieces(table, tmp_path / "out")
    assert len(Puzzle.load(tmp_path / "out").pieces) == 9
    assert (tmp_path / "out" / "photos" / "numbered_0.jpg").is_file()


def test_a_table_without_pieces_is_said_in_one_line(photo: TablePhoto) -> None:
    empty = np.random.default_rng(0).normal(150, 4, (400, 600, 3)).astype(np.uint8)
    with pytest.raises(ImageError, match="no pieces were found"):
        find_pieces(empty)
    height, width = photo.image.shape[:2]
    low, high = photo.corners[0].min(0) - 12, photo.corners[0].max(0) + 12
    alone = photo.image[
        max(0, int(low[1])) : min(height, int(high[1])),
        max(0, int(low[0])) : min(width, int(high[0])),
    ]
    with pytest.raises(ImageError, match="only one piece"):
        find_pieces(alone)


def test_a_shuffled_sheet_is_no_table(tmp_path: Path) -> None:
    sheet = shuffled(Puzzle.from_image(read_image(SAMPLES / "china.jpg"), 4, seed=2))
    write_image(tmp_path / "sheet.png", sheet)
    assert table_of([tmp_path / "sheet.png"]) is None
    assert table_of([SAMPLES / "flower.jpg"]) is None


def test_a_pile_photographed_twice_is_counted_once(photo: TablePhoto, tmp_path: Path) -> None:
    picture = read_image(SAMPLES / "china.jpg")
    looks = [
        photograph(picture, (3, 3), np.random.default_rng(seed), side=140, ground=ground).image
        for seed, ground in ((6, "wood"), (7, "stone"))
    ]
    table = find_pieces([photo.image, *looks])
    assert len(table.pieces) == 9 and {place.photo for place in table.places} == {0}
    again = [one.piece for one in table.left_out]
    assert sorted(again) == sorted([*range(9), *range(9)])
    paths = [tmp_path / f"{k}.png" for k in range(3)]
    for path, image in zip(paths, [photo.image, *looks], strict=True):
        write_image(path, image)
    assert table_of(paths) is not None


def test_other_pieces_on_a_second_photo_are_not_left_out(photo: TablePhoto) -> None:
    flower = read_image(SAMPLES / "flower.jpg")
    other = photograph(flower, (3, 3), np.random.default_rng(5), side=140, ground="stone")
    table = find_pieces([photo.image, other.image])
    assert len(table.pieces) == 18 and not table.left_out
