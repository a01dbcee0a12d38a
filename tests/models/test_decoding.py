from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puzlm.errors import SettingsError
from puzlm.models.decoding import decode


class Table:
    """A reader whose next-token logits depend on the sentence and on all tokens written so far."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self.vocabulary, self.seed = vocabulary, seed

    def start(self, input_ids, attention_mask=None):
        return [(int(row[0]),) for row in input_ids]

    def step(self, state, tokens):
        state = [key + (int(token),) for key, token in zip(state, tokens, strict=True)]
        logits = [
            np.random.default_rng((self.seed, *key)).normal(0, 2, self.vocabulary) for key in state
        ]
        return np.array(logits, np.float32), state

    def reorder(self, state, rows):
        return [state[row] for row in rows]


def log_probability(reader, sentence, cells, grid_cells, first):
    """Probability of writing these cells, each step over the cells not used yet."""
    state, token, total = reader.start(np.array([[sentence]])), 1, 0.0
    for slot, cell in enumerate(cells):
        logits, state = reader.step(state, np.array([token]))
        free = [c for c in range(grid_cells) if c not in cells[:slot]]
        values = logits[0, [first + c for c in free]].astype(float)
        total += (
            values[free.index(cell)] - np.log(np.exp(values - values.max()).sum()) - values.max()
        )
        token = first + cell
    return total


IDS = np.arange(3)[:, None]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from(["valid", "beam", "assign"]), st.integers(1, 6))
def test_answers_are_always_injections(seed, method, slots):
    found = decode(
        Table(20, seed), IDS, slots=slots, grid=(2, 3), first_cell=10, method=method, width=5
    )
    assert found.cells.shape == (3, slots)
    for row in found.cells:
        assert len(set(row.tolist())) == slots
        assert set(row.tolist()) <= set(range(6))
    assert ((found.confidence > 0) & (found.confidence <= 1 + 1e-9)).all()


def test_wide_beam_finds_the_best_of_all_permutations():
    reader = Table(12, 7)
    found = decode(reader, IDS, slots=4, grid=(2, 2), first_cell=5, method="beam", width=24)
    for row in range(3):
        scores = {
            p: log_probability(reader, row, p, 4, 5) for p in itertools.permutations(range(4))
        }
        assert tuple(found.cells[row]) == max(scores, key=scores.get)
        assert np.isclose(found.scores[row, 0], max(scores.values()), atol=1e-4)
        # All 24 permutations are in the beam, so the marginals are exact.
        share = np.exp(list(scores.values()))
        want = sum(s for p, s in zip(scores, share, strict=True) if p[2] == 1) / share.sum()
        assert np.isclose(found.marginals[row, 2, 1], want, atol=1e-4)


def test_greedy_may_repeat_and_valid_may_not():
    class Stubborn(Table):
        def step(self, state, tokens):
            logits = np.tile(np.arange(self.vocabulary, dtype=np.float32), (len(tokens), 1))
            return logits, state

    common = dict(slots=4, grid=(2, 2), first_cell=2)
    assert (
        decode(Stubborn(6, 0), IDS, **common, method="greedy").cells.tolist() == [[3, 3, 3, 3]] * 3
    )
    assert (
        decode(Stubborn(6, 0), IDS, **common, method="valid").cells.tolist() == [[3, 2, 1, 0]] * 3
    )
    # A token that is no cell is no position.
    assert (decode(Stubborn(9, 0), IDS, **common, method="greedy").cells == -1).all()


@pytest.mark.parametrize("method", ["valid", "beam", "assign", "greedy"])
def test_given_placements_are_kept(method):
    given_cells = [{2: 0}, {0: 5, 1: 4}, {}]
    found = decode(
        Table(20, 3),
        IDS,
        slots=6,
        grid=(2, 3),
        first_cell=10,
        method=method,
        width=4,
        given=given_cells,
    )
    for row, placed in enumerate(given_cells):
        for slot, cell in placed.items():
            assert found.cells[row, slot] == cell
        if method != "greedy":
            assert sorted(found.cells[row]) == list(range(6))


def test_unknown_method():
    with pytest.raises(SettingsError, match="did you mean 'beam'"):
        decode(Table(9, 0), IDS, slots=4, grid=(2, 2), first_cell=5, method="beem")
