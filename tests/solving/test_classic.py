"""Pixel measures against literal references; real photographs cut up and solved."""

import numpy as np
import pytest
from PIL import Image
from sheets import compressed
from sklearn.datasets import load_sample_image

from puzlm import Puzzle
from puzlm.errors import PuzzleError
from puzlm.pieces.colour_bleed import mended
from puzlm.pieces.poses import QUARTERS
from puzlm.solving import classic
from puzlm.solving.search.assembly import beam_search


def cut(name, grid, side, seed=0):
    """Cut a sample photo into shuffled pieces (n, side, side, 3) and the cells they came from."""
    rows, columns = grid
    image = load_sample_image(name)[: rows * side, : columns * side]
    pieces = image.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    truth = np.random.default_rng(seed).permutation(rows * columns)
    return pieces[truth], truth


def slow_mgc(left, right):
    """Follow Gallagher's equations 1 to 5 literally, for one pair side by side."""
    dummies = [(0, 0, 0), (1, 1, 1), (-1, -1, -1)]
    dummies += [(1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0), (0, -1, 0), (0, 0, -1)]

    def one_way(edge, inner, other):
        gradient = edge - inner
        covariance = np.cov(np.vstack([gradient, dummies]).T)
        difference = other - edge - gradient.mean(axis=0)
        return sum(d @ np.linalg.inv(covariance) @ d for d in difference)

    left, right = left.astype(float), right.astype(float)
    forth = one_way(left[:, -1], left[:, -2], right[:, 0])
    return forth + one_way(right[:, 0], right[:, 1], left[:, -1])


def slow_prediction(left, right):
    left, right = left.astype(float), right.astype(float)
    forth = np.abs(2 * left[:, -1] - left[:, -2] - right[:, 0]) ** 0.3
    back = np.abs(2 * right[:, 0] - right[:, 1] - left[:, -1]) ** 0.3
    return (forth.sum() + back.sum()) ** ((1 / 16) / 0.3)


def slow_ssd(left, right):
    return ((left[:, -1].astype(float) - right[:, 0]) ** 2).sum()


@pytest.mark.parametrize(
    ("measure", "slow"),
    [
        (classic.mgc, slow_mgc),
        (classic.prediction, slow_prediction),
        (classic.ssd, slow_ssd),
    ],
)
@pytest.mark.parametrize("shape", [(12, 12), (9, 14)])
def test_measure_equals_the_formula(measure, slow, shape, monkeypatch):
    monkeypatch.setattr(classic, "CHUNK", 50)  # several chunks even for seven pieces
    image = load_sample_image("china.jpg")
    pieces = np.stack(
        [image[30 * k : 30 * k + shape[0], 40 * k : 40 * k + shape[1]] for k in range(7)]
    )
    right, below = measure(pieces)
    turned = pieces.transpose(0, 2, 1, 3)
    for i in range(7):
        for j in range(7):
            if i == j:
                assert right[i, j] == below[i, j] == np.inf
            else:
                assert right[i, j] == pytest.approx(slow(pieces[i], pieces[j]), rel=1e-4)
                assert below[i, j] == pytest.approx(slow(turned[i], turned[j]), rel=1e-4)


def test_scores_are_log_ratios_to_the_second_best():
    cost = np.array([[np.inf, 1, 4], [9, np.inf, 3], [2, 8, np.inf]], np.float32)
    expected = -np.log(1 / 4) - np.log(1 / 8)  # second best of row 0 is 4, of column 1 is 8
    assert classic.scores(cost)[0, 1] == pytest.approx(expected, rel=1e-4)
    assert classic.scores(cost)[0, 2] == pytest.approx(-np.log(4 / 4) - np.log(4 / 4), abs=1e-4)
    assert (np.diag(classic.scores(cost)) == -np.inf).all()


def test_flat_pieces_give_finite_costs():
    for cost in classic.mgc(np.full((4, 8, 8, 3), 255, np.uint8)):
        assert np.isfinite(cost[~np.eye(4, dtype=bool)]).all()
    result = classic.solve(np.full((4, 8, 8, 3), 255, np.uint8), (2, 2))
    assert sorted(result.positions) == [0, 1, 2, 3]
    assert (result.confidence < 0.01).all()


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
@pytest.mark.parametrize(("grid", "side"), [((3, 3), 96), ((4, 6), 64), ((15, 22), 28)])
def test_photos_are_solved(name, grid, side):
    pieces, truth = cut(name, grid, side)
    result = classic.solve(pieces, grid)
    assert (result.positions == truth).mean() > 0.97
    assert not result.poses.any()
    assert ((result.confidence >= 0) & (result.confidence <= 1)).all()
    if side >= 64:
        assert result.confidence.mean() > 0.5


def compressed_after_shuffling(name):
    """Shuffle pieces of a small photo, save that as JPEG, cut it again: before, after, truth."""
    image = Image.fromarray(load_sample_image(name)).resize((201, 201))
    clean = Puzzle.from_image(np.asarray(image), 3, seed=0)
    return clean.pieces, compressed(clean).pieces, clean.truth


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_pieces_compressed_after_shuffling(name):
    clean, bled, truth = compressed_after_shuffling(name)
    assert classic.bleeding(clean) < 0.1 < 0.9 < classic.bleeding(bled)
    np.testing.assert_array_equal(classic.solve(bled, (3, 3)).positions, truth)


def test_mended_pieces_are_known_to_have_bled():
    """Their chroma is flat at the border, where MGC would lean on it most."""
    _, bled, truth = compressed_after_shuffling("china.jpg")
    pieces = mended(Puzzle(bled, (3, 3))).pieces
    assert classic.bleeding(pieces) == 0
    for told, apart in zip(classic.seams(pieces, 1.0), classic.mgc(pieces), strict=True):
        assert not np.array_equal(told, apart)
    right, below = classic.evidence(pieces, 1.0)
    found = beam_search(right, below, (3, 3))[0][0]
    np.testing.assert_array_equal(found, truth)


def test_plain_mgc_finds_the_shuffled_picture_again():
    # The reason for `seams`: chroma that ran over the cuts joins pieces that only lay together.
    _, bled, truth = compressed_after_shuffling("china.jpg")
    assert (classic.solve(bled, (3, 3), "mgc").positions != truth).any()


def test_evidence_without_bleeding_is_mgc():
    clean, _ = cut("china.jpg", (3, 4), 60)
    for score, cost in zip(classic.evidence(clean), classic.mgc(clean), strict=True):
        np.testing.assert_array_equal(score, classic.scores(cost))
    assert classic.bleeding(clean[:, :13, :13]) == 0  # too small to tell


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_half_bled_costs_lie_between(share, monkeypatch):
    pieces, _ = cut("china.jpg", (2, 3), 40)
    ends = []
    for value in (0.0, 1.0, share):
        monkeypatch.setattr(classic, "bleeding", lambda _, value=value: value)
        ends.append(classic.seams(pieces)[0])
    off = ~np.eye(6, dtype=bool)
    between = (1 - share) * np.log(ends[0][off]) + share * np.log(ends[1][off])
    np.testing.assert_allclose(np.log(ends[2][off]), between, rtol=1e-4)
    assert np.isinf(np.diag(ends[2])).all()


@pytest.mark.parametrize("measure", ["prediction", "ssd"])
def test_other_measures_solve_a_small_puzzle(measure):
    pieces, truth = cut("china.jpg", (3, 4), 100)
    np.testing.assert_array_equal(classic.solve(pieces, (3, 4), measure).positions, truth)


def test_pieces_need_not_be_square():
    pieces, truth = cut("china.jpg", (4, 4), 96)
    np.testing.assert_array_equal(classic.solve(pieces[:, :, :50], (4, 4)).positions >= 0, True)
    image = load_sample_image("china.jpg")[:400, :600]
    oblong = image.reshape(5, 80, 5, 120, 3).swapaxes(1, 2).reshape(25, 80, 120, 3)
    np.testing.assert_array_equal(
        classic.solve(oblong[::-1], (5, 5)).positions, np.arange(25)[::-1]
    )


def test_missing_extra_and_given_pieces():
    pieces, truth = cut("china.jpg", (5, 7), 80)
    keep = ~np.isin(truth, [8, 17])
    np.testing.assert_array_equal(classic.solve(pieces[keep], (5, 7)).positions, truth[keep])
    strangers, _ = cut("flower.jpg", (2, 2), 80)
    result = classic.solve(np.concatenate([pieces, strangers]), (5, 7), given={3: int(truth[3])})
    np.testing.assert_array_equal(result.positions, [*truth, -1, -1, -1, -1])


def test_rotated_pieces_are_set_upright():
    pieces, truth = cut("flower.jpg", (7, 10), 60)
    turned = np.random.default_rng(1).integers(0, 4, 70)
    turned[5] = 0
    mixed_up = np.stack([np.rot90(p, t) for p, t in zip(pieces, turned, strict=True)])
    result = classic.solve(mixed_up, (7, 10), poses=QUARTERS, given={5: int(truth[5])})
    np.testing.assert_array_equal(result.positions, truth)
    np.testing.assert_array_equal((result.poses + turned) % 4, 0)


@pytest.mark.parametrize(
    ("pieces", "options", "message"),
    [
        (np.zeros((4, 8, 8), np.uint8), {}, "number, height, width, 3"),
        (np.zeros((4, 8, 8, 3)), {}, "give uint8"),
        (np.zeros((4, 1, 8, 3), np.uint8), {}, "2x2 or more"),
    ],
)
def test_wrong_input_is_named(pieces, options, message):
    with pytest.raises(PuzzleError, match=message):
        classic.solve(pieces, (2, 2), **options)
