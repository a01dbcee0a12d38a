"""The models that see pixels: what they must be by construction, and that they learn."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from puzlm.errors import ModelError, PuzzleError, SettingsError
from puzlm.metrics import absolute
from puzlm.models.box import Box
from puzlm.models.shapes import against_none
from puzlm.models.vision import Block, Edges, EdgeSettings, Vision, VisionSettings
from puzlm.puzzle import Puzzle, cut
from puzlm.solver import Solver
from puzlm.training import train_vision as vision_train
from puzlm.training.corpus import Album
from puzlm.training.fast import bart as fast
from puzlm.training.fast import kernels, kernels_cut
from puzlm.training.train_frame import FrameNet
from puzlm.training.train_vision import Crops, Placing, VisionRecipe, build, quicken, train

TINY = VisionSettings(layers=1, d_model=32, heads=2, feed_forward=32, grids=("2x2", "3x3"))
RECIPE = """
grids = {grids}
[train]
steps = 40
batch = {batch}
lr = 3e-3
warmup = 5
log_every = 10
save_every = 20
device = "cpu"
[{kind}]
side = {side}
layers = 1
d_model = 32
"""
SMALL = {"grids": '["2x2", "3x3"]', "batch": 32, "side": 16}
WORN = """
[cut]
gap_share = 0.5
missing_share = 0.3
max_missing = 1
"""
ATTENDS = "heads = 2\nfeed_forward = 64\n"
VISION = (
    RECIPE.format(kind="vision", **SMALL)
    + ATTENDS
    + f"patch = 8\ngrids = {SMALL['grids']}\n"
    + WORN
)
EDGES = RECIPE.format(kind="edges", **SMALL) + ATTENDS + "depth = 8"
FRAME = RECIPE.format(kind="frame", grids='["4x4", "3x5"]', batch=64, side=4)


@pytest.fixture(scope="module")
def album(crops):
    return Album.of(crops)


def test_a_shuffle_changes_nothing_but_the_order(photo):
    torch.manual_seed(0)
    model = Vision(TINY).eval()
    pieces = Puzzle.from_image(photo, 3, seed=1).pieces
    order = np.random.default_rng(2).permutation(9)
    cells, right, below = model.read([pieces, pieces[order]], (3, 3))
    assert np.abs(cells[1] - cells[0][order]).max() < 1e-4
    assert np.abs(right[1] - right[0][np.ix_(order, order)]).max() < 1e-4
    assert np.abs(below[1] - below[0][np.ix_(order, order)]).max() < 1e-4


def test_waves_are_cosines_over_the_picture():
    """One output for all grids: what it says of a place does not depend on the grid asked for.

    3x3 has an output of its own, and a row of more cells than waves is not told apart.
    """
    torch.manual_seed(0)
    model = Vision(replace(TINY, waves=3)).eval()
    pooled = torch.randn(1, 6, 32)
    with torch.no_grad():
        weights = model.waves(pooled)[0, 4].view(3, 3).double().numpy() / 3
        for rows, columns in ((2, 3), (3, 2)):
            cells = model._cells(pooled, f"{rows}x{columns}")[0, 4].view(rows, columns)
            for r, c in ((0, 0), (1, 1), (rows - 1, 0), (0, columns - 1)):
                down, along = np.pi * (r + 0.5) / rows, np.pi * (c + 0.5) / columns
                waves = np.outer(np.cos(down * np.arange(3)), np.cos(along * np.arange(3)))
                assert float(cells[r, c]) == pytest.approx((weights * waves).sum(), abs=1e-5)
        assert torch.equal(model._cells(pooled, "3x3"), model.cells["3x3"](pooled))
        assert model._cells(pooled, "1x6") is None and model._cells(pooled, "2x4") is None
        assert Vision(TINY)._cells(pooled, "2x3") is None
    with pytest.raises(SettingsError, match=r"vision\.waves -1: must be at least 0"):
        replace(TINY, waves=-1)


def test_waves_learn_where_pieces_lie(tmp_path, album):
    path = tmp_path / "recipe.toml"
    path.write_text(VISION)
    more = ['grids=["2x4"]', "vision.waves=4", "train.steps=150"]
    recipe = VisionRecipe.load(path, more)
    assert recipe.placed == ["2x4"]
    train(recipe, tmp_path / "run", album=album)
    model = Vision.from_pretrained(tmp_path / "run")
    objective = Placing(model, 0.5, torch.float32)
    losses = []
    for waves in (True, False):
        if not waves:
            torch.nn.init.zeros_(model.waves.weight)
            torch.nn.init.zeros_(model.waves.bias)
        with torch.no_grad():
            batches = [Crops(recipe, album, "cpu", False).batch(step, 0, 1) for step in (51, 53)]
            losses.append(np.mean([float(objective(batch)[1][0]) for batch in batches]))
    assert losses[1] == pytest.approx(np.log(8), abs=1e-4) and losses[0] < losses[1] - 0.05


def test_sides_that_touch_are_read_alike(photo):
    """A mirrored piece's side, beside the piece, shows the same pixels from the border inwards."""
    torch.manual_seed(0)
    model = Edges(EdgeSettings(layers=1, d_model=32, heads=2, feed_forward=32)).eval()
    with torch.no_grad():
        model.kind.zero_()  # then a side is its pixels only
        piece = np.ascontiguousarray(cut(photo[200:344, 200:344], (3, 3))[4]).astype(np.float32)
        beside, under = piece[:, ::-1].copy(), piece[::-1].copy()
        own, mirrored, upended = model(torch.from_numpy(np.stack([piece, beside, under])))
    assert torch.allclose(own[1], mirrored[3], atol=1e-5)  # right against left
    assert torch.allclose(own[2], upended[0], atol=1e-5)  # bottom against top
    assert not torch.allclose(own[1], own[3], atol=1e-3)


def test_log_ratios_to_none():
    log_p = np.log(np.array([[[0.7, 0.1, 0.2], [0.05, 0.05, 0.9]]]))
    ratios = against_none(log_p, 2)
    assert np.allclose(np.exp(ratios[0]), [[3.5, 0.5], [1 / 18, 1 / 18]])


def _kill_at_30(line):
    if line["step"] == 30:
        raise KeyboardInterrupt


@pytest.mark.parametrize(("text", "kind"), [(VISION, Vision), (EDGES, Edges), (FRAME, FrameNet)])
def test_training_learns_resumes_and_saves(text, kind, album, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    recipe = VisionRecipe.load(path)
    whole = train(recipe, tmp_path / "whole", album=album)
    assert whole["done"]
    lines = [json.loads(x) for x in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    total = [x["loss"] + x["heads"] for x in lines]
    assert total[-1] < total[0]
    # Killed after step 30, it goes on from its checkpoint at 20 with the very same losses.
    again = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        train(recipe, again, album=album, report=_kill_at_30)
    train(recipe, again, album=album)
    resumed = [json.loads(x) for x in (again / "metrics.jsonl").read_text().splitlines()]
    assert [x["loss"] for x in resumed] == [x["loss"] for x in lines]
    model = kind.from_pretrained(tmp_path / "whole")
    assert all(torch.isfinite(p).all() for p in model.parameters())
    # Started from those weights it begins where they ended; another shape is refused.
    more = [f"train.start={tmp_path / 'whole'}", "train.steps=10"]
    train(VisionRecipe.load(path, more), tmp_path / "more", album=album)
    line = json.loads((tmp_path / "more" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["loss"] + line["heads"] < 0.5 * (total[0] + total[-1])
    if kind is Vision:  # it may get an output that it had not; the others stay
        grown = build(VisionRecipe.load(path, [*more, "vision.waves=3"]))
        kept = {k: p for k, p in grown.named_parameters() if not k.startswith("waves")}
        assert {"waves.weight", "waves.bias"} == dict(grown.named_parameters()).keys() - kept.keys()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, kept[name])
        grown.save_pretrained(tmp_path / "grown")
        for other in ("vision.waves=2", "vision.waves=0"):  # one that is there may not change
            with pytest.raises(SettingsError, match="another shape"):
                build(VisionRecipe.load(path, [f"train.start={tmp_path / 'grown'}", other]))
    with pytest.raises(SettingsError, match="another shape"):
        name = kind.__name__.lower().removesuffix("net")
        other = [*more, f"{name}.layers=2"]
        train(VisionRecipe.load(path, other), tmp_path / "no", album=album)
    assert not (tmp_path / "no").exists()


def learned(block, x):
    """What comes out, and the gradients of the input and of all weights."""
    out = block(x)
    torch.manual_seed(0)
    grads = torch.autograd.grad(out, [x, *block.parameters()], torch.randn_like(out))
    return [out.detach(), *grads]


@pytest.fixture
def asked(monkeypatch):
    """Numbers of tokens that kernels.attend is called with."""
    tokens, right = [], kernels.attend

    def noted(qkv, heads, causal):
        tokens.append(qkv.shape[1])
        return right(qkv, heads, causal)

    monkeypatch.setattr(kernels, "attend", noted)
    return tokens


@pytest.mark.parametrize(("tokens", "by_kernel"), [(144, True), (64, True), (161, False)])
def test_a_block_learns_the_same_with_the_kernels(tokens, by_kernel, asked):
    torch.manual_seed(0)
    block = Block(64, 2, 128)
    torch.nn.init.normal_(block.qkv.bias)
    x = torch.randn(3, tokens, 64, requires_grad=True)
    names, plain = list(block.state_dict()), learned(block, x)
    with torch.no_grad():
        answer = block(x)
    quicken(block)
    assert list(block.state_dict()) == names
    for a, b in zip(learned(block, x), plain, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)
    assert asked == [tokens] * by_kernel
    with torch.no_grad():  # an exam is the library's, to the last bit
        assert torch.equal(block(x), answer)
    assert asked == [tokens] * by_kernel


def test_a_compiled_vit_learns_the_same_with_the_kernels():
    """The step as it is trained: weights handed in, 144 tokens, one graph."""
    torch.manual_seed(0)
    model = Vision(TINY)
    objective = Placing(model, 0.5, torch.float32)
    pieces = torch.randint(0, 256, (2, 9, 48, 48, 3), dtype=torch.uint8)
    batch = {"pieces": pieces, "present": torch.rand(2, 9) > 0.1, "grid": torch.empty(3, 3)}
    weights = [p for name, p in model.named_parameters() if not name.startswith("cells.2x2")]

    def step(work):
        loss = work(batch)[0]
        return [loss.detach(), *torch.autograd.grad(loss, weights)]

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return aot_eager(graph, inputs)

    plain = step(objective)
    quicken(model)
    torch._dynamo.reset()
    got = step(torch.compile(objective, dynamic=False, backend=backend, fullgraph=True))
    assert len(graphs) == 1 and "puzlm.attend" in graphs[0]
    assert "scaled_dot_product_attention" not in graphs[0]
    for a, b in zip(got, plain, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("device", "fast_loop", "there"),
    [("cuda", True, True), ("cuda", True, False), ("cuda", False, True), ("cpu", True, True)],
)
def test_training_takes_the_kernels_where_they_are(
    device, fast_loop, there, album, tmp_path, monkeypatch
):
    """Compiled, on a GPU that can run them; nothing here needs one."""
    (tmp_path / "recipe.toml").write_text(VISION)
    recipe = VisionRecipe.load(tmp_path / "recipe.toml", [f"train.fast={str(fast_loop).lower()}"])
    monkeypatch.setattr(kernels, "there", lambda device: there)
    monkeypatch.setattr(vision_train, "pick_device", lambda name: device)
    monkeypatch.setattr(vision_train, "loop", lambda t, folder, objective, *_, **__: objective)
    monkeypatch.setattr(vision_train, "Crops", lambda *_: SimpleNamespace(batch=None))
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_: module)
    blocks = train(recipe, tmp_path / "out", album=album).model.blocks
    expected = fast.attended if (device, fast_loop, there) == ("cuda", True, True) else None
    assert len(blocks) and all(block.attention is expected for block in blocks)


@pytest.mark.parametrize("text", [VISION, FRAME])
def test_pieces_cut_by_the_kernel_are_those_cut_without(text, album, tmp_path, monkeypatch):
    """In bytes; where there is no room for words, and without the compiler, the plain way."""
    (tmp_path / "recipe.toml").write_text(text)
    recipe = VisionRecipe.load(tmp_path / "recipe.toml")
    plain = Crops(recipe, album, "cpu", compiled=False)
    words = 4 * album.pixels.numel() // 3
    monkeypatch.setattr(kernels, "there", lambda device: True)
    for free, kernel in ((2 * words - 1, False), (2 * words, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        crops = Crops(recipe, album, "cpu", compiled=True)
        assert crops.by_kernel == kernel == (crops.album.words is not None)
    assert not Crops(recipe, album, "cpu", compiled=False).by_kernel
    calls, right = [], kernels_cut.cut
    monkeypatch.setattr(kernels_cut, "cut", lambda *a: calls.append(1) or right(*a))
    for step in (0, 1):
        got, want = (c.batch(step, 0, 1) for c in (crops, plain))
        assert got["pieces"].dtype == torch.uint8 and got["pieces"].is_contiguous()
        assert torch.equal(got["pieces"].float(), want["pieces"])
        assert torch.equal(got["present"], want["present"])
    assert len(calls) == 2


def test_recipes_say_what_is_wrong(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(VISION)
    with pytest.raises(SettingsError, match="no output for 5x5"):
        VisionRecipe.load(path, ['grids=["5x5"]'])
    with pytest.raises(SettingsError, match="did you mean 'layers'"):
        VisionRecipe.load(path, ["vision.layer=3"])
    with pytest.raises(SettingsError, match="two models"):
        VisionRecipe.load(path, ["edges.layers=2"])
    with pytest.raises(SettingsError, match="write a list"):
        VisionRecipe.load(path, ["grids=5"])
    with pytest.raises(SettingsError, match="write a list"):
        VisionRecipe.load(path, ["grids=[]"])
    with pytest.raises(SettingsError, match="'cut' is a section"):
        VisionRecipe.load(path, ["cut=5"])
    path.write_text(FRAME)
    with pytest.raises(SettingsError, match="1x40: a frame needs two rows"):
        VisionRecipe.load(path, ['grids=["1x40"]'])
    with pytest.raises(SettingsError, match=r"frame\.side 0: must be at least 1"):
        VisionRecipe.load(path, ["frame.side=0"])
    with pytest.raises(SettingsError, match="no such recipe"):
        VisionRecipe.load(tmp_path / "none.toml")


def test_the_box_finds_a_model_for_the_grid(photo):
    box = Box()
    assert "3x3" in box.grids()
    assert box.language("4x7") is None
    solver = Solver.from_pretrained(solver="seq2seq")
    for grid, model in (("3x3", "puzlm-3x3"), ("5x5", "puzlm"), ("4x7", "puzlm")):
        puzzle = Puzzle.from_image(photo, grid, gap=0.1, seed=3)
        found = solver.solve(puzzle)
        assert found.solver == f"seq2seq (valid, {model})"
        assert absolute(found.positions, puzzle.truth) > 0.9
    with pytest.raises(PuzzleError, match="one after the other"):
        Solver.from_pretrained(solver="seq2seq", decoding="beam").solve(puzzle)
    with pytest.raises(PuzzleError, match="up to 100 pieces"):
        solver.solve(Puzzle.from_image(photo, (11, 10)))


@pytest.mark.parametrize("solver", ["vision-pairs", "auto"])
@pytest.mark.parametrize(("grid", "gap"), [(3, 0.4), (5, 0.125)])
def test_worn_pieces_of_a_photo_are_placed(solver, grid, gap, photo):
    puzzle = Puzzle.from_image(photo, grid, gap=gap, seed=5)
    found = Solver.from_pretrained(solver=solver).solve(puzzle)
    assert absolute(found.positions, puzzle.truth) == 1
    assert solver in found.solver


@pytest.mark.parametrize(
    ("grid", "gap", "missing"),
    [("4x4", 0.5, 0), ("4x4", 0.25, 2), ("2x3", 0.5, 0), ("6x6", 0.25, 0)],
)
def test_worn_pieces_are_placed_on_grids_without_an_output_of_their_own(grid, gap, missing, photo):
    """Sides and seams alone place three of these sixteen half worn pieces."""
    puzzle = Puzzle.from_image(photo, grid, gap=gap, missing=missing, seed=1)
    found = Solver.from_pretrained().solve(puzzle)
    assert absolute(found.positions, puzzle.truth) == 1
    assert "reader" in found.solver


def test_a_vit_of_one_grid_is_not_asked_about_others(photo):
    for grid, asked in ((3, True), (4, False)):
        puzzle = Puzzle.from_image(photo, grid, gap=0.25, seed=1)
        own = Vision(replace(TINY, grids=("3x3",)))
        assert ("vision" in Solver(whole=own).solve(puzzle).solver) is asked


def test_neighbours_are_learned_on_grids_without_an_output(tmp_path, album):
    path = tmp_path / "recipe.toml"
    path.write_text(VISION)
    recipe = VisionRecipe.load(path, ['grids=["2x2", "2x4"]', "train.eval_puzzles=4"])
    assert recipe.placed == ["2x2"]
    objective = Placing(Vision(recipe.model), 0.5, torch.float32)
    batch = Crops(recipe, album, "cpu", False).batch(1, 0, 1)
    assert batch["grid"].shape == (2, 4)
    loss, (cross_entropy, _, heads) = objective(batch)
    loss.backward()
    assert objective.model.below.weight.grad.abs().sum() > 0
    assert all(head.weight.grad is None for head in objective.model.cells.values())
    # A fresh model knows nothing: each of eight pieces or none is as likely.
    assert cross_entropy == pytest.approx(np.log(9), abs=0.3) and heads == pytest.approx(
        np.log(9), abs=0.3
    )


def test_weights_of_another_shape_are_refused(tmp_path):
    Vision(TINY).save_pretrained(tmp_path)
    Vision(replace(TINY, feed_forward=48)).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "vision.safetensors").replace(tmp_path / "vision.safetensors")
    with pytest.raises(ModelError, match=r"vision.safetensors does not fit vision.json"):
        Vision.from_pretrained(tmp_path)


def test_a_model_says_what_it_lacks(tmp_path, album):
    with pytest.raises(ModelError, match=r"has no ViT \(vision.json\)"):
        Solver.from_pretrained("puzlm-3x3", solver="vision")
    Edges(EdgeSettings(layers=1, d_model=32, heads=2, feed_forward=32)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no ViT"):
        Solver.from_pretrained(tmp_path, solver="vision")
    with pytest.raises(ModelError, match="has no language model"):
        Solver.from_pretrained("vision", solver="seq2seq")
