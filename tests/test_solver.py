from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import SAMPLES
from PIL import Image

from puzlm import Puzzle, Solver
from puzlm.errors import ModelError, PuzzleError, SettingsError
from puzlm.images import read_image, write_image
from puzlm.metrics import absolute, perfect
from puzlm.models.backbones import ModelSettings, Seq2Seq, TorchReader
from puzlm.puzzle import cut, shuffled
from puzlm.solving.calibration import ALL_RIGHT


@pytest.fixture(scope="module")
def auto():
    return Solver.from_pretrained()


@pytest.fixture(scope="module")
def reader():
    return Solver.from_pretrained(solver="seq2seq")


def test_shipped_model_solves_the_sample_photos(auto, reader, photo, crops):
    """What the README promises, on pictures the model has not seen."""
    whole = Puzzle.from_image(photo, 3, seed=5)
    for solver in (auto, reader):
        found = solver.solve(whole)
        assert perfect(found.positions, whole.truth)
        assert found.confidences.min() > 0.5
    worn = [Puzzle.from_image(photo, 3, gap=0.25, seed=i) for i in range(3)]
    assert (
        np.mean(
            [
                absolute(f.positions, p.truth)
                for f, p in zip(auto.solve_many(worn), worn, strict=True)
            ]
        )
        > 0.9
    )


def test_every_kind_of_input_gives_the_same_picture(auto, photo, tmp_path):
    puzzle = Puzzle.from_image(photo, 3, seed=2)
    puzzle.save(tmp_path / "folder")
    write_image(tmp_path / "shuffled.png", shuffled(puzzle))
    want = auto.solve(puzzle).array
    for x, grid in (
        (tmp_path / "folder", None),
        (str(tmp_path / "shuffled.png"), 3),
        (shuffled(puzzle), "3"),
        (list(puzzle.pieces), None),
        (puzzle, "3x3"),
        (Image.fromarray(shuffled(puzzle)), 3),
        ([Image.fromarray(piece).convert("RGBA") for piece in puzzle.pieces], None),
    ):
        assert np.array_equal(auto.solve(x, grid).array, want)


@pytest.mark.parametrize("decoding", ["valid", "beam", "assign"])
def test_answers_do_not_depend_on_the_order_of_the_pieces(decoding, photo):
    solver = Solver.from_pretrained(solver="seq2seq", decoding=decoding)
    pieces = cut(photo[:300, :300], (3, 3), 0.4)
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(3):
        found = solver.solve(Puzzle(pieces[rng.permutation(9)], (3, 3)))
        assert sorted(found.positions) == list(range(9))
        pictures.append(found.array)
    assert np.array_equal(pictures[0], pictures[1]) and np.array_equal(pictures[1], pictures[2])


def test_symbols_alone_never_look_at_pixels(photo, monkeypatch):
    """Language model, its mirror image and side model: any grid, given pieces, holes."""
    solver = Solver.from_pretrained(solver="symbols")

    def look(*_):
        raise AssertionError("a pixel was looked at")

    monkeypatch.setattr("puzlm.solving.classic.evidence", look)
    monkeypatch.setattr("puzlm.models.onnx_edges.OnnxEdges.vectors", look)
    worn = [Puzzle.from_image(photo, 3, gap=0.25, seed=i) for i in range(3)]
    worn.append(Puzzle.from_image(photo, 3, gap=0.25, missing=2, seed=4))
    found = solver.solve_many(worn)
    assert np.mean([absolute(f.positions, p.truth) for f, p in zip(found, worn, strict=True)]) > 0.8
    assert found[0].solver == "symbols (seq2seq puzlm-3x3 + sides)"
    wrong = {0: int((worn[0].truth[0] + 1) % 9)}
    assert solver.solve(worn[0], given=wrong).positions[0] == wrong[0]
    touching = Puzzle.from_image(photo, "2x4", seed=1)
    other = solver.solve(touching)
    assert other.solver == "symbols (reader + sides)"
    assert perfect(other.positions, touching.truth)
    named = Solver.from_pretrained("puzlm-3x3", solver="symbols").solve(worn[0])
    assert named.solver == "symbols (seq2seq + sides)"
    assert np.array_equal(named.confidences, found[0].confidences)


def test_a_sure_but_untrained_model_is_no_match_for_borders_that_touch(tokenizer, crops):
    torch.manual_seed(0)
    model = Seq2Seq(ModelSettings.of_size("bart", "tiny", tokenizer))
    with torch.no_grad():
        model.embedding.mul_(40)  # sure of whatever it says
    own = Solver(tokenizer, TorchReader(model))
    puzzles = [Puzzle.from_image(crop, 3, seed=i) for i, crop in enumerate(crops)]
    alone = own.variant(solver="seq2seq").solve_many(puzzles)
    assert np.mean([s.confidences.mean() for s in alone]) > 0.5
    right = [absolute(s.positions, p.truth) for s, p in zip(alone, puzzles, strict=True)]
    assert np.mean(right) < 0.4
    for solution, puzzle in zip(own.solve_many(puzzles), puzzles, strict=True):
        assert perfect(solution.positions, puzzle.truth)


def test_missing_pieces_keep_their_cells_free(auto, photo):
    puzzle = Puzzle.from_image(photo, 3, missing=2, seed=3)
    found = auto.solve(puzzle)
    assert len(found.positions) == 7
    assert len(set(found.positions.tolist())) == 7
    assert absolute(found.positions, puzzle.truth) > 0.5


def test_given_pieces_stay_where_they_are(auto, reader, photo):
    puzzle = Puzzle.from_image(photo, 3, seed=4)
    wrong = (int(puzzle.truth[0]) + 1) % 9
    for solver in (auto, reader):
        found = solver.solve(puzzle, given={0: wrong})
        assert found.positions[0] == wrong
        assert sorted(found.positions) == list(range(9))
    for bad, message in (
        ({9: 0}, "pieces 0 to 8"),
        ({0: 9}, "cells 0 to 8"),
        ({0: 1, 1: 1}, "same cell"),
    ):
        with pytest.raises(PuzzleError, match=message):
            auto.solve(puzzle, given=bad)


@pytest.mark.parametrize("decoding", ["beam", "assign"])
def test_alternatives_are_boards_that_can_be(decoding, photo):
    """With most pieces given there are fewer boards than a beam holds."""
    solver = Solver.from_pretrained("puzlm-3x3", solver="seq2seq", decoding=decoding)
    puzzle = Puzzle.from_image(photo, 3, seed=1)
    for number, boards in ((6, 5), (7, 1), (8, 0)):
        given = {i: int(puzzle.truth[i]) for i in range(number)}
        found = solver.solve(puzzle, given=given)
        assert len(found.alternatives) == boards
        for other in found.alternatives:
            assert sorted(other) == list(range(9))
            assert all(other[piece] == cell for piece, cell in given.items())


def test_other_grids_are_solved_by_what_can(auto, reader, photo):
    puzzle = Puzzle.from_image(photo, "4x6", seed=1)
    found = auto.solve(puzzle)
    assert "pixels" in found.solver and "seq2seq" not in found.solver
    assert absolute(found.positions, puzzle.truth) > 0.9
    assert reader.solve(puzzle).solver == "seq2seq (valid, puzlm)"
    with pytest.raises(PuzzleError, match="trained for 3x3; use"):
        Solver.from_pretrained("puzlm-3x3", solver="seq2seq").solve(puzzle)


def test_extra_pieces_are_left_over(photo, crops, tmp_path):
    """Nine pieces of a photo and one of a flower: the stranger is named, not placed."""
    pieces = list(cut(photo[:300, :300], (3, 3)))
    stranger = crops[0][:100, :100]
    for i, piece in enumerate([*pieces[:4], np.ascontiguousarray(stranger[:96, :96]), *pieces[4:]]):
        write_image(tmp_path / f"{i}.png", piece[:96, :96])
    puzzle = Puzzle.load(tmp_path, 3, incomplete=True)
    found = Solver(solver="classic").solve(puzzle)
    assert (found.positions == -1).sum() == 1


def test_turned_pieces_are_set_upright(photo):
    """Type 2: the picture comes out whole, up to a turn of the whole."""
    pieces = cut(photo[:400, :400], (4, 4))
    rng = np.random.default_rng(3)
    order, turns = rng.permutation(16), rng.integers(0, 4, 16)
    turned = np.stack([np.rot90(pieces[i], t) for i, t in zip(order, turns, strict=True)])
    found = Solver(solver="classic", rotations=True).solve(Puzzle(turned, (4, 4)))
    whole = [np.rot90(photo[:400, :400], t) for t in range(4)]
    assert any(np.array_equal(found.array, w) for w in whole)
    with pytest.raises(SettingsError, match="only the classic solver"):
        Solver(solver="random", rotations=True)


def test_what_a_solver_lacks_is_said_when_it_should_solve(photo):
    puzzle = Puzzle.from_image(photo, 3, seed=1)
    one = Solver.from_pretrained("puzlm-3x3", solver="bigram")
    for lacking, message in (
        (one.variant(solver="vision"), r"solver 'vision': has no ViT \(vision.json\)"),
        (one.variant(solver="seq2seq"), "solver 'seq2seq': has no language model"),
        (Solver(solver="bigram"), "solver 'bigram': has no side model"),
    ):
        with pytest.raises(ModelError, match=message):
            lacking.solve(puzzle)
    boxed = Solver.from_pretrained(solver="bigram").variant(solver="seq2seq")
    assert perfect(boxed.solve(puzzle).positions, puzzle.truth)  # the box has all


def test_a_variant_differs_in_nothing_else():
    one = Solver(solver="classic", rotations=True)
    one.raw = True
    other = one.variant(solver="classic")
    assert other.rotations and other.raw
    with pytest.raises(SettingsError, match="only the classic solver"):
        one.variant(solver="random")


def test_solve_many_is_solve(auto, photo):
    kinds = [(3, 0, 0), (3, 0.5, 1), (2, 0, 0), (3, 0.1, 0)]
    puzzles = [Puzzle.from_image(photo, g, gap=x, missing=m, seed=3) for g, x, m in kinds]
    for one, puzzle in zip(auto.solve_many(puzzles), puzzles, strict=True):
        assert np.array_equal(one.positions, auto.solve(puzzle).positions)


def test_no_large_model_is_asked_where_sides_leave_no_doubt(photo):
    """Worn, equal, missing or given pieces: all are asked."""
    solver = Solver.from_pretrained()
    puzzle = Puzzle.from_image(photo, 3, seed=1)
    found = solver.solve(puzzle)
    assert found.solver == "auto (edges + pixels, clear)"
    assert np.array_equal(found.positions, puzzle.truth)
    assert not solver.box._languages and "reader" not in vars(solver.box)  # nor were they loaded
    assert np.all(found.confidences == ALL_RIGHT)
    twice = np.where(np.arange(9)[:, None, None, None] == 1, puzzle.pieces[0], puzzle.pieces)
    for other in (
        Puzzle.from_image(photo, 3, gap=0.3, seed=1),
        Puzzle.from_image(photo, 3, missing=1, seed=1),
        Puzzle(twice, (3, 3)),
    ):
        assert "reader" in solver.solve(other).solver
    assert "reader" in solver.solve(puzzle, given={0: int(puzzle.truth[0])}).solver
    assert not solver.box._languages  # asked only where colours ran, or the ViT is in doubt


def test_the_reader_looks_again_where_its_answer_is_in_doubt(photo, monkeypatch):
    """At five more views of those puzzles, no others; where a language model is, it reads them."""
    solver = Solver.from_pretrained()
    flower = read_image(SAMPLES / "flower.jpg")
    sure = Puzzle.from_image(photo, 3, gap=0.3, seed=1)
    doubtful = Puzzle.from_image(flower, 3, gap=0.5, seed=1)
    asked, read = [], solver.whole.read
    counted = lambda pieces, grid: (asked.append(len(pieces)), read(pieces, grid))[1]  # noqa: E731
    monkeypatch.setattr(solver.whole, "read", counted)
    found = solver.solve_many([sure, doubtful])
    assert asked == [2, 5]
    assert found[0].solver == "auto (reader + edges + pixels)"
    assert found[1].solver == "auto (seq2seq puzlm-3x3 + reader + edges + pixels, 6 looks)"
    assert found[0].confidences.min() > 0.9 > found[1].confidences.min()
    assert [*solver.box._languages] == ["3x3"]
    larger = [solver.solve(Puzzle.from_image(flower, side, gap=0.5, seed=1)) for side in (4, 5)]
    assert larger[0].solver == "auto (reader + edges + pixels, 6 looks)"
    assert larger[1].solver == "auto (reader + edges + pixels, 6 looks)"
    again = solver.solve(doubtful)
    assert np.array_equal(again.positions, found[1].positions)
    np.testing.assert_allclose(again.confidences, found[1].confidences, atol=1e-3)
    # With every piece given there is nothing to doubt.
    given = {i: int(cell) for i, cell in enumerate(doubtful.truth)}
    assert solver.solve(doubtful, given=given).solver == "auto (reader + edges + pixels)"


def test_solution_is_frozen_and_says_who_answered(auto, photo):
    found = auto.solve(Puzzle.from_image(photo, 3, gap=0.5))
    with pytest.raises(AttributeError):
        found.solver = "me"
    assert found.solver.startswith("auto (reader")
    assert found.seconds > 0
    record = found.as_dict()
    assert record["positions"] == found.positions.tolist() and len(record["confidences"]) == 9
    assert sorted(found.order) == list(range(9))


def test_clear_errors(tmp_path):
    with pytest.raises(ModelError, match="neither a folder nor a model in the box"):
        Solver.from_pretrained("nonsense")
    with pytest.raises(ModelError, match="tokenizer.json is missing"):
        Solver.from_pretrained(tmp_path)
    with pytest.raises(SettingsError, match="did you mean 'classic'"):
        Solver(solver="clasic")
    with pytest.raises(SettingsError, match="did you mean 'beam'"):
        Solver(decoding="baem")
    with pytest.raises(PuzzleError, match="has a 3x3 grid, not 2x2"):
        Solver(solver="classic").solve(Puzzle(np.zeros((9, 8, 8, 3), np.uint8), (3, 3)), "2x2")
    with pytest.raises(PuzzleError, match="needs its grid"):
        Solver(solver="classic").solve(np.zeros((9, 9, 3), np.uint8))
