"""Pieces laid by a picture of the whole, in another print."""

import numpy as np
import pytest
from conftest import SAMPLES
from PIL import Image, ImageFilter

from puzlm import Puzzle, Solver
from puzlm.errors import PuzzleError, SettingsError
from puzlm.images import Pixels, read_image, write_image
from puzlm.pieces.poses import QUARTERS, inverse, laid
from puzlm.puzzle import cut


@pytest.fixture(scope="module")
def auto() -> Solver:
    return Solver.from_pretrained()


def printed(picture: Pixels) -> Pixels:
    """The picture cropped a little, smaller, blurred, darker and redder."""
    image = Image.fromarray(picture[6:-3, 4:-8]).resize((420, 300))
    values = np.asarray(image.filter(ImageFilter.GaussianBlur(1))) / 255.0
    values = values**1.3 * [1.0, 0.85, 0.8] + 0.05
    return (np.clip(values, 0, 1) * 255).astype(np.uint8)


def piled(picture: Pixels, grid, gap=0.0, poses=(0,), missing=0):
    """Shuffled pieces, their true cells, and the poses that set them upright."""
    pieces, rng = cut(picture, grid, gap), np.random.default_rng(3)
    order = rng.permutation(len(pieces))[missing:]
    upright = rng.choice(poses, len(order))
    shown = [laid(pieces[i], inverse(p)) for i, p in zip(order, upright, strict=True)]
    return np.stack(shown), order, upright


@pytest.mark.parametrize("gap", [0.0, 0.3])
@pytest.mark.parametrize("poses", [(0,), (0, 2), QUARTERS])
def test_pieces_find_their_cells_and_their_way_up(auto, photo, gap, poses):
    picture = photo[:400, :600]
    pieces, truth, upright = piled(picture, (4, 6), gap, poses, missing=2)
    found = auto.solve(Puzzle(pieces, (4, 6)), reference=printed(picture))
    assert np.mean(found.positions == truth) > 0.9  # some of the sky look alike
    right = found.positions == truth
    assert (np.array(found.poses or [0] * 22)[right] == upright[right]).mean() > 0.9
    assert found.confidences[right].mean() > 0.8 and found.solver == "reference"


def test_nobody_needs_to_name_the_grid_nor_the_other_pile(auto, photo, tmp_path):
    flower = read_image(SAMPLES / "flower.jpg")[:400, :600]
    pieces, truth, _ = piled(flower, (4, 6))
    write_image(tmp_path / "lid.png", printed(flower))
    found = auto.solve(list(pieces), reference=tmp_path / "lid.png")
    assert found.grid == (4, 6) and np.array_equal(found.positions, truth)
    more = np.concatenate([pieces, cut(photo[:400, :600], (4, 6))[:3]])
    found = auto.solve(list(more), "4x6", reference=printed(flower))
    assert np.array_equal(found.positions[:24], truth) and (found.positions[24:] == -1).all()


def test_given_pieces_stay(auto, photo):
    pieces, truth, _ = piled(photo[:400, :600], (2, 3))
    other = int(truth[1])
    found = auto.solve(Puzzle(pieces, (2, 3)), given={0: other}, reference=photo)
    assert found.positions[0] == other and found.confidences[0] == 1


def test_bad_input_is_refused(auto, photo, tmp_path):
    pieces, _, _ = piled(photo[:400, :600], (2, 3))
    puzzle = Puzzle(pieces, (2, 3))
    with pytest.raises(PuzzleError, match="16 x 16 pixels or more"):
        auto.solve(puzzle, reference=photo[:8, :8])
    with pytest.raises(SettingsError, match="'random' heeds none"):
        Solver(solver="random").solve(puzzle, reference=photo)
    with pytest.raises(PuzzleError, match="the grid is not known"):
        auto.solve(list(pieces), given={0: 1}, reference=photo)
