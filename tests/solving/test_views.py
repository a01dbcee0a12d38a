"""Views of a puzzle: the answer of a mirrored or turned puzzle is the mirrored or turned answer."""

from __future__ import annotations

import numpy as np
import pytest

from puzlm.errors import PuzzleError
from puzlm.puzzle import Puzzle, assemble
from puzlm.solving.evidence import UNSEEN
from puzlm.solving.views import ALL, LIT, MIRRORED, UPRIGHT, View, look_again, read_views, together
from puzlm.tokenizer.piece_tokenizer import BOS


@pytest.mark.parametrize("view", ALL + LIT)
def test_a_view_is_the_whole_picture_mirrored_turned_and_lit(view, crops):
    """Pieces and cells of a view, put together, are the picture as that view shows it."""
    puzzle = Puzzle.from_image(crops[0][:96, :96], 3, seed=1)
    whole = assemble(puzzle.pieces, puzzle.truth, puzzle.grid)
    wanted = np.rot90(whole[:, ::-1] if view.mirror else whole, view.turns)
    wanted = np.minimum(wanted * view.light, 255)
    place = np.argsort(view.cells(puzzle.grid))  # cell of the puzzle -> cell of the view
    got = assemble(view.pieces(puzzle.pieces), place[puzzle.truth], puzzle.grid)
    assert np.abs(got - wanted).max() < 0.501


def test_eight_different_views():
    assert len({tuple(v.cells((3, 3))) for v in ALL}) == 8


class Oracle:
    """A reader that knows the right answer of every sentence, and doubts it now and then."""

    def __init__(self, tokenizer, puzzles, views, sure):
        self.vocabulary, self.first = len(tokenizer), tokenizer.cell_token_id(0)
        self.answers = {}
        for number, view in enumerate(views):
            for puzzle in puzzles:
                text = tokenizer(Puzzle(view.pieces(puzzle.pieces), puzzle.grid))
                place = np.argsort(view.cells(puzzle.grid))
                cells = place[puzzle.truth][text["order"][0]]
                self.answers[text["input_ids"].tobytes()] = (cells, sure[number])

    def start(self, input_ids, attention_mask):
        return [(*self.answers[row[None].tobytes()], 0) for row in input_ids]

    def step(self, state, tokens):
        logits = np.zeros((len(state), self.vocabulary), np.float32)
        assert all(t == BOS for t, s in zip(tokens, state, strict=True) if s[2] == 0)
        for row, (cells, sure, slot) in enumerate(state):
            right = cells[slot] if sure > 0 else cells[::-1][slot]
            logits[row, self.first + right] = abs(sure)
        return logits, [(c, s, slot + 1) for c, s, slot in state]

    def reorder(self, state, rows):
        return [state[r] for r in rows]


@pytest.fixture(scope="module")
def puzzles(crops):
    return [Puzzle.from_image(crops[i][:96, :96], 3, seed=i) for i in range(3)]


@pytest.mark.parametrize("views", [UPRIGHT, MIRRORED, LIT, ALL])
def test_answers_of_all_views_are_turned_back(views, tokenizer, puzzles):
    found = read_views(Oracle(tokenizer, puzzles, views, [8] * 8), tokenizer, puzzles, views)
    for cells, sure, puzzle in zip(found.cells, found.confidence, puzzles, strict=True):
        assert np.array_equal(cells, puzzle.truth)
        assert (sure > 0.9).all()
    for boards, scores, puzzle in zip(found.alternatives, found.scores, puzzles, strict=True):
        assert np.array_equal(boards[0], puzzle.truth) and (scores[1:] <= scores[:-1]).all()
    assert found.marginals == pytest.approx(found.marginals / found.marginals.sum(-1)[..., None])


def test_two_sure_views_outvote_a_doubtful_one(tokenizer, puzzles):
    """One view with a wrong answer: alone it is wrong, with the others it is corrected."""
    views = (View(), View(mirror=True), View(turns=2))
    oracle = Oracle(tokenizer, puzzles, views, [-6, 9, 9])
    alone = read_views(oracle, tokenizer, puzzles, UPRIGHT)
    together = read_views(oracle, tokenizer, puzzles, views)
    assert not any(np.array_equal(c, p.truth) for c, p in zip(alone.cells, puzzles, strict=True))
    assert all(np.array_equal(c, p.truth) for c, p in zip(together.cells, puzzles, strict=True))


def test_boards_of_all_views_are_judged_by_all():
    """By hand: one that a view did not hold is a nat below the last that it held."""
    a, b, c = [0, 1, 2], [1, 0, 2], [2, 1, 0]
    first = (np.array([a, b]), np.array([-0.2, -2.0]))
    second = (np.array([b, c, a]), np.array([-0.5, -1.5, -np.inf]))
    boards, scores = together([[first, second], [first, first]])
    assert boards[0].tolist() == [b, a, c]
    assert scores[0].tolist() == pytest.approx([-1.25, (-1.7 - UNSEEN) / 2, (-3.5 - UNSEEN) / 2])
    assert boards[1, :2].tolist() == [a, b]
    assert scores[1].tolist() == pytest.approx([-0.2, -2.0, -np.inf])


def test_given_pieces_are_given_in_every_view(tokenizer, puzzles):
    """A wrong cell that is given is kept, whatever the views say."""
    given = [{2: int((p.truth[2] + 1) % p.cells)} for p in puzzles]
    oracle = Oracle(tokenizer, puzzles, MIRRORED, [8] * 2)
    found = read_views(oracle, tokenizer, puzzles, MIRRORED, given=given)
    assert [int(cells[2]) for cells in found.cells] == [g[2] for g in given]


def test_a_long_puzzle_is_not_laid_on_its_side(tokenizer, crops):
    puzzle = Puzzle.from_image(crops[0], "2x3")
    with pytest.raises(PuzzleError, match="2x3 puzzle cannot be turned"):
        read_views(Oracle(tokenizer, [puzzle], UPRIGHT, [8]), tokenizer, [puzzle], ALL)


def test_looks_at_all_views_are_turned_back_and_averaged(puzzles):
    """A ViT that sees truly which piece lies where says the same of every view."""
    puzzle = puzzles[0]
    views = {v.pieces(puzzle.pieces).tobytes(): v for v in LIT}
    assert len(views) == len(LIT)

    def look(shown):
        found = []
        for one in shown:
            view = views.pop(one.pieces.tobytes())  # each view is shown once
            at = np.argsort(view.cells(puzzle.grid))[puzzle.truth]
            row, column = np.divmod(at, 3)
            down, along = row - row[:, None], column - column[:, None]  # of j, seen from i
            right, below = (down == 0) & (along == 1), (down == 1) & (along == 0)
            found.append((np.eye(9)[at] / view.light, right / view.light, below / view.light))
        return found

    (first,) = look([puzzle])
    ((cells, right, below),) = look_again(look, [puzzle], [first])
    assert not views
    share = np.mean([1 / v.light for v in LIT])
    assert np.allclose(cells, first[0] * share)
    assert np.allclose(right, first[1] * share) and np.allclose(below, first[2] * share)
    blind = (None, *first[1:])
    ((none, *_),) = look_again(lambda shown: [blind] * len(shown), [puzzle], [blind])
    assert none is None
