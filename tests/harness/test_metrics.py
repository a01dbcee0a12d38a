from __future__ import annotations

import numpy as np
import pytest

from puzlm.metrics import absolute, bootstrap, neighbour, perfect


def test_worked_example():
    truth = np.arange(9)
    assert absolute(truth, truth) == perfect(truth, truth) == neighbour(truth, truth, 3) == 1
    swapped = truth.copy()
    swapped[[0, 8]] = [8, 0]  # two corners exchanged: each loses its two pairs
    assert absolute(swapped, truth) == 7 / 9
    assert perfect(swapped, truth) == 0
    assert neighbour(swapped, truth, 3) == 8 / 12
    shifted = (truth // 3) * 3 + (truth + 1) % 3  # every row turned by one: columns stay together
    assert absolute(shifted, truth) == 0
    assert neighbour(shifted, truth, 3) == (6 + 3) / 12


def test_only_present_pieces_count():
    truth = np.array([0, 1, 8])  # cells 0 and 1 touch, 8 is alone
    assert absolute([0, 1, 5], truth) == 2 / 3
    assert neighbour([3, 4, 8], truth, 3) == 1
    assert neighbour([2, 3, 8], truth, 3) == 0  # cells 2 and 3 follow in raster but do not touch
    assert neighbour([0, -1, 8], truth, 3) == 0
    assert neighbour([0, 1, 2, 3, -1], [0, 1, 2, 3, -1], 2) == 1  # the last is no piece of it
    assert neighbour([7, 2], np.array([0, 8]), 3) == 1  # nothing touches


def test_bootstrap_interval():
    interval = bootstrap([1.0] * 50)
    assert (interval.value, interval.low, interval.high) == (100, 100, 100)
    half = bootstrap([0.0, 1.0] * 200)
    assert half.value == 50
    assert 44 < half.low < 46 < 54 < half.high < 56  # normal theory says 50 +- 4.9
    assert half == bootstrap([0.0, 1.0] * 200)
    with pytest.raises(ValueError, match="at least one puzzle"):
        bootstrap([])
