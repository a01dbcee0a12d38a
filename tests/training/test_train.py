from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_training import recipe_of

from bench.step_parts import WideBook
from puzlm.errors import ModelError, SettingsError
from puzlm.metrics import perfect
from puzlm.models import pretrained as checkpoints
from puzlm.models.backbones import Seq2Seq
from puzlm.models.side_model import SideModel
from puzlm.puzzle import Puzzle, cut
from puzlm.solver import Solver
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, side_symbols
from puzlm.tokenizer.token_files import write_tokens
from puzlm.training.corpus import Album, cut_batch, draw_batch
from puzlm.training.fast import bart as fast
from puzlm.training.fast.split_book import matrix_books
from puzlm.training.objective import Objective
from puzlm.training.recipes import Recipe
from puzlm.training.starts import build_model
from puzlm.training.train_reader import Pages, fit_tokenizer, train
from puzlm.training.train_sides import batches_of, fit
from puzlm.training.tricks import PLAIN, PROVEN


def test_tiny_model_overfits_32_real_puzzles(folder, tmp_path):
    """The whole path, from images to a solver that puts every training puzzle together."""
    recipe = recipe_of(
        folder, steps=300, batch=32, lr=3e-3, warmup=30, eval_every=300, log_every=100
    )
    done = train(recipe, tmp_path / "run")
    assert done["gap_0_perfect"] == 100
    solver = Solver.from_pretrained(tmp_path / "run", solver="seq2seq")
    puzzles = [Puzzle.load(f, 2) for f in sorted(folder.iterdir())]  # unshuffled pictures
    found = solver.solve_many(puzzles)
    assert all(perfect(f.positions, np.arange(4)) for f in found)
    shuffled = [Puzzle(p.pieces[[2, 0, 3, 1]], p.grid) for p in puzzles]
    again = solver.solve_many(shuffled)
    for one, two in zip(found, again, strict=True):  # the same picture comes out
        assert np.array_equal(one.image, two.image)


def test_one_fast_step_is_one_plain_step(folder, tmp_path):
    """Compiled graph and library model: the same loss and the same gradients within rounding."""
    recipe = recipe_of(folder)
    album = Album.read([folder])
    tokenizer = PieceTokenizer(recipe.tokenizer).fit([p for p in _images(folder)], max_iter=3)
    batch = Pages(recipe, tokenizer, "cpu", album).batch(0)
    compiled = Pages(recipe, tokenizer, "cpu", album)
    for name in ("cut", "encode", "write"):
        whole = torch.compile(getattr(compiled, name), backend="aot_eager", fullgraph=True)
        setattr(compiled, name, whole)
    again = compiled.batch(0)
    assert all(torch.equal(batch[key], again[key]) for key in batch)
    objective = Objective(build_model(recipe, tokenizer), tokenizer, 4, 0.5)
    results = {}
    for name in ("plain", "fast"):
        objective.fast = None if name == "plain" else torch.float32
        run = (
            objective
            if name == "plain"
            else torch.compile(objective, backend="aot_eager", fullgraph=True)
        )
        objective.zero_grad()
        loss, facts = run(batch)
        loss.backward()
        grads = {n: p.grad.clone() for n, p in objective.named_parameters() if p.grad is not None}
        results[name] = (loss, facts, grads)
    (loss_a, facts_a, grads_a), (loss_b, facts_b, grads_b) = results["plain"], results["fast"]
    assert torch.allclose(loss_a, loss_b, rtol=1e-5)
    assert torch.allclose(facts_a, facts_b, rtol=1e-5)
    for name, grad in grads_b.items():
        assert torch.allclose(grads_a[name], grad, atol=1e-5, rtol=1e-3), name


SPLIT = "strip:4+residual:24+strip:8+split:8:8x4+split:4:4x6"


@pytest.mark.parametrize(
    ("blocks", "patch"),
    [(False, SPLIT), (False, "square"), (True, SPLIT), (True, "strip:4+residual")],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler asks for it
def test_one_step_as_it_is_trained_is_one_plain_step(folder, blocks, patch, monkeypatch):
    """From the pixels on, whole or by layers: within rounding."""
    monkeypatch.setattr(fast, "BACKEND", "aot_eager")
    recipe = recipe_of(folder)
    recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, patch=patch))
    recipe = replace(recipe, cut=replace(recipe.cut, missing_share=0.5, max_missing=1))
    album = Album.read([folder])
    tokenizer = PieceTokenizer(recipe.tokenizer).fit(_images(folder), max_iter=3)
    tricks = replace(PROVEN, blocks=blocks, graph=False)
    objective = Objective(build_model(recipe, tokenizer), tokenizer, 4, 0.5)
    results = []
    for some in (None, tricks):
        pages = Pages(recipe, tokenizer, "cpu", album, tricks=some or PLAIN)
        run = objective
        if some is not None:
            assert pages.album.words is not None  # what the kernel cuts
            objective.fast, objective.tricks = torch.float32, some
            if not blocks:
                run = torch.compile(objective, backend="aot_eager", fullgraph=True)
        loss, facts = run(pages.batch(0))
        grads = torch.autograd.grad(loss, list(objective.parameters()), allow_unused=True)
        named = zip(objective.parameters(), grads, strict=True)
        flat = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in named])
        results.append((loss.detach(), facts, flat))
    (plain, _, before), (tricky, _, after) = results
    assert torch.allclose(plain, tricky, rtol=1e-5)
    assert float((before - after).norm() / before.norm()) < 1e-3


@pytest.mark.parametrize("pca_dim", [16, 50, None])
def test_split_products_find_the_symbols_of_float32(crops, pca_dim):
    """On photographs, whose patches lie far from the mean; one bfloat16 term is not enough."""
    settings = {"vocab_size": 256, "piece_size": 32, "patch": "strip:4+residual"}
    tokenizer = PieceTokenizer(pca_dim=pca_dim, **settings).fit(crops, max_iter=3)
    pieces = torch.cat([torch.from_numpy(tokenizer.canonical(cut(c, (3, 3)))) for c in crops])
    there = tokenizer.on("cpu")
    books, shares = there.codebooks_, {}
    there.codebooks_ = [WideBook(b.mean, b.components, b.centroids) for b in books]
    exact = there.encode_canonical(pieces.float())
    for way in ("float32", "split", "half", "bfloat16"):
        there.codebooks_ = books
        if way != "float32":
            there.codebooks_ = matrix_books(books, way)
        same = there.encode_canonical(pieces.float()) == exact
        shares[way] = float(same.float().mean())
    assert min(shares["split"], shares["half"]) >= shares["float32"] - 1e-4 > 0.999
    assert shares["bfloat16"] < 0.95


def _images(folder):
    from puzlm.images import iter_images

    return iter_images([folder])


def test_training_on_a_token_file(folder, tmp_path, crops):
    tokenizer = PieceTokenizer(recipe_of(folder).tokenizer).fit(crops[:32], max_iter=3)
    tokenizer.save_pretrained(tmp_path / "tok")
    assert write_tokens([folder], tokenizer, tmp_path / "t.npy", grid=(2, 2)) == 32
    tokens = np.load(tmp_path / "t.npy", mmap_mode="r")
    assert tokens.shape == (32, 4, 8, 1)
    first = cut(next(iter(_images(folder))), (2, 2))
    assert np.array_equal(tokens[0], tokenizer.encode(first))
    record = recipe_of(folder).as_dict()
    record |= {"tokenizer_path": str(tmp_path / "tok"), "data": {"tokens": str(tmp_path / "t.npy")}}
    recipe = Recipe.from_dict(record)
    assert train(recipe, tmp_path / "run")["done"]
    # A batch is the file's rows as they were drawn, repeated ones too.
    pages = Pages(recipe, tokenizer, "cpu")
    drawn = draw_batch(np.full((32, 2), 4096), 16, recipe.cut, (recipe.train.seed, 7)).image
    assert len(set(drawn)) < 16 and (np.diff(drawn) < 0).any()
    assert np.array_equal(pages.draw(7)[1].numpy(), tokens[drawn].astype(np.int64))
    half = pages.draw(7, rank=1, world=2)[1].numpy()
    assert np.array_equal(half, tokens[drawn[8:]].astype(np.int64))


def test_models_of_the_box_go_by_their_names(folder, tmp_path, monkeypatch):
    """As in every other command: the tokenizer, and the weights to start from."""
    monkeypatch.setattr(checkpoints, "BOX", tmp_path / "box")
    recipe = recipe_of(folder, steps=1)
    train(recipe, tmp_path / "box" / "mine")
    (tmp_path / "box" / "mine" / "card.json").write_text('{"name": "mine"}')
    recipe = replace(recipe.with_train(start="mine"), tokenizer_path="mine")
    assert train(recipe, tmp_path / "run")["done"]
    with pytest.raises(ModelError, match="model 'yours': neither a folder nor a model in the box"):
        train(replace(recipe, tokenizer_path="yours"), tmp_path / "other")


@pytest.mark.parametrize("average", [0.0, 0.5])
def test_what_is_saved_may_keep_a_share_of_the_start(folder, tmp_path, average):
    """Also after a break: the start is that of the recipe, not that of the checkpoint."""
    recipe = recipe_of(folder, steps=1)
    train(recipe, tmp_path / "old")
    before = str(tmp_path / "old")
    recipe = replace(recipe.with_train(start=before), tokenizer_path=before)
    recipe = recipe.with_train(steps=7, lr=0.01, average=average)
    train(recipe, tmp_path / "new")
    train(recipe.with_train(keep=0.25), tmp_path / "both", stop_after=0)
    train(recipe.with_train(keep=0.25), tmp_path / "both")
    old, new, both = (
        Seq2Seq.from_pretrained(tmp_path / name).tensors() for name in ("old", "new", "both")
    )
    assert any((new[name] - old[name]).abs().max() > 0.01 for name in old)
    for name in old:
        torch.testing.assert_close(both[name], 0.25 * old[name] + 0.75 * new[name])


def test_going_on_with_more_symbols(folder, tmp_path):
    """The weights of a model go on in one that reads more symbols; a break does no harm."""
    recipe = recipe_of(folder, steps=1)
    train(recipe, tmp_path / "few")
    few, before = Seq2Seq.from_pretrained(tmp_path / "few"), str(tmp_path / "few")
    words = replace(recipe.tokenizer, patch="strip:4+residual:24")
    recipe = replace(recipe.with_train(start=before), tokenizer_path=before, tokenizer=words)
    old = PieceTokenizer.from_pretrained(before)
    train(recipe.with_train(steps=2), tmp_path / "run", stop_after=0)
    new = PieceTokenizer.from_pretrained(tmp_path / "run")
    assert new.settings.sizes == [64, 24]
    start = build_model(recipe, new)
    mask, more = old.mask_token_id, new.mask_token_id
    was, now = few.embedding.detach().numpy(), start.embedding.detach().numpy()
    assert np.array_equal(was[:mask], now[:mask]) and np.array_equal(was[mask:], now[more:])
    # A further step from a centroid begins where the old symbols say that it leads.
    looks, further = old.codebooks_[0].centroids, new.codebooks_[1].vectors()
    step = np.linalg.lstsq(looks - looks.mean(0), was[4:mask] - was[4:mask].mean(0), rcond=None)[0]
    assert np.corrcoef((further @ step).ravel(), now[mask:more].ravel())[0, 1] > 0.99
    # The folder's own symbols, not others fitted anew, go on after a break.
    other = recipe.with_train(steps=2)
    assert train(other, tmp_path / "run")["done"]
    again = PieceTokenizer.from_pretrained(tmp_path / "run")
    assert np.array_equal(again.codebooks_[1].centroids, new.codebooks_[1].centroids)


def test_token_files_that_do_not_fit_are_refused(folder, tmp_path, crops):
    """In one line each, before a step is made."""
    tokenizer = PieceTokenizer(recipe_of(folder).tokenizer).fit(crops[:32], max_iter=1)
    tokenizer.save_pretrained(tmp_path / "tok")
    other = PieceTokenizer(tokenizer.settings, vocab_size=32).fit(crops[:32], max_iter=1)
    write_tokens([folder], tokenizer, tmp_path / "t.npy", grid=(1, 2))
    write_tokens([folder], other, tmp_path / "other.npy", grid=(2, 2))
    record = recipe_of(folder).as_dict() | {"tokenizer_path": str(tmp_path / "tok")}
    for name, message in (
        ("none.npy", "none.npy: no such token file"),
        ("t.npy", "puzzles of 1x2, but cut.grid is 2"),
        ("other.npy", "made by another tokenizer"),
    ):
        record["data"] = {"tokens": str(tmp_path / name)}
        with pytest.raises(SettingsError, match=message):
            train(Recipe.from_dict(record), tmp_path / "run")
    record["tokenizer_path"] = ""
    with pytest.raises(SettingsError, match="set tokenizer_path"):
        train(Recipe.from_dict(record), tmp_path / "fresh")


# ---- the side model -------------------------------------------------------------------------


CLOCKWISE = [[0, 1, 2, 3], [4, 5, 6, 7], [11, 10, 9, 8], [15, 14, 13, 12]]
RASTER = [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15], [4, 5, 6, 7]]
SQUARES = [[0, 1, 2, 3], [3, 4, 5, 6], [9, 8, 7, 6], [0, 11, 10, 9]]
RASTER_SQUARES = [[0, 1, 2, 3], [3, 5, 7, 11], [8, 9, 10, 11], [0, 4, 6, 8]]


@pytest.mark.parametrize(
    ("patch", "clockwise", "sides"),
    [
        ("strip:4", True, CLOCKWISE),
        ("strip:4", False, RASTER),
        ("square", True, SQUARES),
        ("square", False, RASTER_SQUARES),
    ],
)
def test_sides_are_read_in_raster_direction(patch, clockwise, sides):
    """Places in the super-token of top, right, bottom and left: left to right, top to bottom."""
    tokenizer = PieceTokenizer(vocab_size=64, piece_size=32, patch=patch, clockwise=clockwise)
    code = np.arange(tokenizer.settings.border_length)[None, :, None]
    assert side_symbols(code, tokenizer.settings)[0, ..., 0].tolist() == sides
    # The symbols stand where the walk put them: a piece of four strips, each darker than the last.
    if patch == "square":
        return
    shades = np.arange(4) * 60
    for axis, (one, other) in ((1, (0, 2)), (0, (3, 1))):  # along top and bottom, left and right
        piece = np.repeat(shades, 8)[None, :, None] if axis else np.repeat(shades, 8)[:, None, None]
        piece = np.broadcast_to(piece, (32, 32, 3))[None].astype(np.float32)
        strips = tokenizer.patches(piece, patch).mean(-1)[..., None]
        read = side_symbols(strips, tokenizer.settings)[0, ..., 0]
        assert read[one].tolist() == read[other].tolist() == shades.tolist()


def test_side_model_learns_what_touches(crops, tmp_path):
    tokenizer = PieceTokenizer(vocab_size=64, pca_dim=16, piece_size=32, patch="strip:4")
    tokenizer.fit(crops, max_iter=4)
    tokens = np.stack([tokenizer.encode(cut(c, (3, 3))) for c in crops])
    shape = {"hidden": 64, "vector": 32, "embedding": 16}
    model = fit(tokenizer, batches_of(tokens, 32), (3, 3), steps=250, lr=3e-3, **shape)
    model.save_pretrained(tmp_path)
    back = SideModel.from_pretrained(tmp_path)
    hits = []
    for puzzle in tokens[:30]:
        right, _ = back.scores(side_symbols(puzzle.astype(np.int64), tokenizer.settings))
        assert np.isneginf(np.diag(right)).all()
        hits += [right[i].argmax() == i + 1 for i in (0, 1, 3, 4, 6, 7)]
    assert np.mean(hits) > 0.8  # chance is one in eight


def test_unsorted_pieces_do_not_come_in_the_order_of_their_cells(folder):
    """Without lexicographic order the answer must not be 0, 1, 2, ...: it would need no reading."""
    recipe = recipe_of(folder, batch=32)
    recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, lexicographic=False))
    album = Album.read([folder])
    tokenizer = fit_tokenizer(recipe, album, "cpu")
    pages = Pages(recipe, tokenizer, "cpu", album)
    batch = pages.batch(3)
    order = batch["order"].numpy()
    assert (np.sort(order, 1) == np.arange(4)).all()
    assert len({tuple(row) for row in order.tolist()}) > 10
    # The sentence is that of the pieces in this order.
    draw = draw_batch(pages.sizes, 32, recipe.cut, (recipe.train.seed, 3))
    parts = [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()]
    side = tokenizer.settings.side
    pieces = cut_batch(album, *parts[:-1], side=side)
    symbols = pages.tokenizer.encode_canonical(pieces.view(-1, side, side, 3)).view(32, 4, -1)
    b = tokenizer.settings.border_length
    first = batch["ids"][:, :b].reshape(32, -1).numpy() - 4
    expected = symbols.numpy()[np.arange(32), order[:, 0]]
    assert np.array_equal(first, expected)
