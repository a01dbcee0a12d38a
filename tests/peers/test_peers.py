"""Solvers of others: what is said when a checkout is missing or another; each real one, if here."""

from __future__ import annotations

import heapq
import importlib
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from drawn_pages import cut_page, draw_page
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from puzlm import SAMPLES, Puzzle
from puzlm.errors import PuzlmError
from puzlm.images import read_image

PEERS = ("gaps", "paikin_tal", "yu_lp", "deeprec")
STAND_IN = """
class Piece:
    def __init__(self, number):
        self.id = number
class GeneticAlgorithm:
    def __init__(self, image, side, population, generations):
        self.cells = image.shape[0] * image.shape[1] // side**2
    def start_evolution(self, verbose):
        print("a bar of progress")
        self.pieces = [Piece(number) for number in reversed(range(self.cells))]
        return self
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No adapter, and nothing that one brought, is imported yet."""
    for name in [n for n in sys.modules if n.startswith("peers.") or n.split(".")[0] == "gaps"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.mark.parametrize("name", PEERS)
def test_without_a_checkout_one_line_says_which(name, refused, monkeypatch, tmp_path):
    asked = ("evaluate", "--images", SAMPLES, "--solver", f"peers.{name}:solve")
    monkeypatch.delenv("PEER_DIR", raising=False)
    assert f"peers.{name}: set PEER_DIR to a checkout of github.com/" in refused(*asked)
    monkeypatch.setenv("PEER_DIR", str(tmp_path))
    assert "no checkout of github.com/" in refused(*asked)


def test_another_commit_is_named_and_kept(run, monkeypatch, tmp_path, capfd):
    """A stand-in: a repository of the right shape that is not theirs."""
    there = tmp_path / "there"
    (there / "gaps").mkdir(parents=True)
    (there / "gaps" / "__init__.py").touch()
    (there / "gaps" / "genetic_algorithm.py").write_text(STAND_IN)
    git = ("git", "-C", there, "-c", "user.name=a", "-c", "user.email=a@a")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "a")):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setenv("PEER_DIR", str(there))
    picture = tmp_path / "square.png"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (90, 90, 3), np.uint8)).save(picture)
    output = tmp_path / "out.json"
    asked = ("evaluate", "--images", picture, "--solver", "peers.gaps:solve", "-o", output)
    code, out, err = run(*asked)
    assert code == 0 and "bar of progress" not in out
    assert "the checkout is at" in err and "78f982b01ce5" in err
    result = json.loads(output.read_text())
    assert result["settings"]["about"]["repository"] == "nemanja-m/gaps"
    assert len(result["settings"]["about"]["commit"]) == 40
    assert result["outcomes"][0]["positions"] == [*reversed(range(9))]


PYTHON_2 = """
'''A module of Python 2.'''
import sys
import Queue
class Dear(object):
    def __init__(self, (name, price)):
        self.name, self.price = name, price
    def __cmp__(self, other):
        return cmp(other.price, self.price)
    def __unicode__(self):
        return u"%s for %d" % (self.name, self.price)
    def __str__(self):
        return unicode(self).encode("utf-8")
half = lambda n: n / 2
most = sys.maxint
count = xrange(3)
def told(stream):
    print >>stream, Dear(("tea", 3)),
"""


def test_python_2_keeps_its_meaning(tmp_path):
    from peers.python2 import import_from

    (tmp_path / "of_python_2.py").write_text(PYTHON_2)
    import_from(tmp_path)
    module = importlib.import_module("of_python_2")
    assert (module.half(7), module.half(7.0)) == (3, 3.5)
    assert module.most == 2**31 - 1 and [*module.count] == [0, 1, 2]
    heap = [module.Dear(("a", 1)), module.Dear(("b", 9)), module.Dear(("c", 5))]
    heapq.heapify(heap)
    assert [heapq.heappop(heap).name for _ in range(3)] == ["b", "c", "a"]
    assert str(module.Dear(("tea", 3))) == "tea for 3"
    assert not (tmp_path / "__pycache__").exists()


@given(arrays(float, st.integers(1, 6).map(lambda n: (n, n)), elements=st.floats(0, 9, width=16)))
def test_the_shortest_path_is_the_shortest(distances):
    from peers.shortest_path import shortest_path

    def length(path):
        return sum(distances[a, b] for a, b in itertools.pairwise(path))

    found = shortest_path(distances)
    assert sorted(found) == [*range(len(distances))]
    best = min(map(length, itertools.permutations(range(len(distances)))))
    assert length(found) == pytest.approx(best, abs=1e-5)  # the program is exact to 1e-7 a step


def real(name):
    """A peer's function, where PEER_DIR holds its checkout and what its code needs is installed."""
    try:
        return importlib.import_module(f"peers.{name}").solve
    except PuzlmError as error:
        pytest.skip(str(error))


def test_the_real_deeprec_puts_strips_together():
    solve = real("deeprec")
    page = draw_page(0, width=1240, height=3300, size=60)  # 300 pixels an inch
    strips = cut_page(page, 8)
    shuffle = np.random.default_rng(0).permutation(len(strips))
    order = solve([strips[i] for i in shuffle])
    assert [int(shuffle[i]) for i in order] == [*range(8)]


@pytest.mark.parametrize("name", PEERS[:3])
def test_a_real_peer_solves_a_photo(name):
    solve = real(name)
    photo = read_image(SAMPLES / "china.jpg")[:400]
    for grid in ("2x3", "4x4"):
        shown = photo[:, :600] if grid == "2x3" else photo[:, :400]  # square pieces
        puzzle = Puzzle.from_image(shown, grid, seed=1)
        positions = solve(list(puzzle.pieces), puzzle.grid)
        assert np.array_equal(positions, puzzle.truth)
        assert positions == solve(list(puzzle.pieces), puzzle.grid)
