"""Doors for strangers: the corpus of tools/fuzz.py and changes of it meet a PuzlmError at most."""

from __future__ import annotations

import numpy as np
import pytest

from tools.fuzz import CORPUS, TARGETS, attempt

CHANGES = 60  # of every target; `make fuzz` is the long run
# Inputs of the corpus that must be taken: a target that refuses everything tests nothing.
TAKEN = {"image": 13, "zip": 4, "puzzle": 2, "results": 1, "model": 5, "graph": 2, "recipe": 1}


NEEDS = {"zip": "fastapi", "recipe": "torch"}  # of other targets plain puzlm is enough


def inputs(target):
    pytest.importorskip(NEEDS.get(target, "numpy"))
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus(target):
    taken = [attempt(target, data) for data in inputs(target)]
    assert sum(taken) >= TAKEN[target]


@pytest.mark.parametrize("target", TARGETS)
def test_changes_of_the_corpus(target):
    """Bytes exchanged, cut out, doubled, and parts of two inputs joined."""
    rng, corpus = np.random.default_rng(0), inputs(target)
    for _ in range(CHANGES):
        data = bytearray(corpus[rng.integers(len(corpus))])
        for _ in range(rng.integers(1, 5)):
            at, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
            kind = rng.integers(4)
            if kind == 0 and at < len(data):
                data[at] = rng.integers(256)
            elif kind == 1:
                del data[at : min(end, at + 64)]
            elif kind == 2:
                data[at:at] = data[at : min(end, at + 64)]
            else:
                other = corpus[rng.integers(len(corpus))]
                data[at:] = other[rng.integers(len(other) + 1) :]
        attempt(target, bytes(data))
