from __future__ import annotations

import numpy as np
import pytest

from puzlm.solving.ground import SHARP, plain_ground, settled

GRID = (4, 4)


def board_of(*cells):
    """A board whose picture, pieces 0, 1, ..., lies in these cells; the rest is ground."""
    rest = [c for c in range(16) if c not in cells]
    return np.array([*cells, *rest]), np.array([*range(len(cells)), *[len(cells)] * len(rest)])


def seams(*pairs):
    """Scores in which only some pairs are sharp."""
    scores = np.zeros((16, 16))
    for first, second in pairs:
        scores[first, second] = SHARP - 1
    return scores


@pytest.mark.parametrize("start", [(0, 1, 4, 5), (2, 3, 6, 7), (9, 10, 13, 14), (5, 6, 9, 10)])
@pytest.mark.parametrize("sharp", [False, True])
def test_a_picture_lies_in_the_middle_of_its_ground(start, sharp):
    positions, kinds = board_of(*start)
    right = below = np.zeros((16, 16))
    if sharp:  # on all sides alike
        right, below = (np.where(kinds[:, None] == kinds, 0.0, SHARP - 1) for _ in range(2))
    moved, sure = settled(positions[None], right, below, GRID, np.array([4]), kinds)
    assert moved[0, :4].tolist() == [5, 6, 9, 10]
    assert sorted(moved[0].tolist()) == list(range(16))
    assert 0.2 < sure[:4].max() < 0.7 and sure.max() < 1


def test_a_sky_stays_above():
    """What runs into the ground on one side and ends sharply on the other lies at that other."""
    positions, kinds = board_of(*range(4, 16))
    below = seams(*((12 + k, 8 + j) for k in range(4) for j in range(4)))  # ground, bottom row
    below += below.T
    right = np.zeros((16, 16))
    for start in (positions, (positions - 4) % 16):  # the sky above, and below
        moved, sure = settled(start[None], right, below, GRID, np.array([12]), kinds)
        assert moved[0].tolist() == positions.tolist()
        assert sure.min() > 0.99


def test_nothing_moves_without_plain_lines():
    positions, kinds = board_of(*range(15))
    zero = np.zeros((16, 16))
    moved, sure = settled(positions[None], zero, zero, GRID, np.array([15]), kinds)
    assert np.array_equal(moved[0], positions) and (sure == 1).all()


def test_a_ground_has_one_colour_and_several_pieces():
    pieces = np.zeros((6, 2, 2, 3), np.uint8)
    pieces[1] = 9
    pieces[2:4, 0, 0] = 5
    assert plain_ground(pieces, np.array([0, 1, 2, 2, 0, 0])).tolist() == [0]
