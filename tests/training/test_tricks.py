"""Tricks of a training step: what they leave out is not read, and a broken one is found out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import recipe_of

from bench.kernel_checks import usable
from bench.step_parts import WAYS, ways
from bench.variants import EXTRA, VARIANTS
from puzlm.errors import SettingsError
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, TokenizerSettings, is_residual
from puzlm.training.corpus import Album, CutSettings, cut_batch, draw_batch
from puzlm.training.fast import bart as fast
from puzlm.training.fast import kernels, kernels_cut
from puzlm.training.train_reader import Pages, tricks_for
from puzlm.training.tricks import PLAIN, PROVEN, Tricks


@st.composite
def tokenizers(draw):
    B = draw(st.integers(1, 5))
    patch = draw(st.sampled_from(["square", "strip", "strip+strip", "strip+residual"]))
    depths = [draw(st.integers(1, 6)) for _ in range(2)]
    terms = [f"strip:{depths.pop()}" if t == "strip" else t for t in patch.split("+")]
    border = draw(st.booleans()) or patch != "square"
    size = draw(st.integers(12, 30))
    more = {"border": border, "clockwise": draw(st.booleans())}
    return TokenizerSettings(granularity=B, patch="+".join(terms), piece_size=size, **more)


@settings(max_examples=60, deadline=None)
@given(tokenizers())
def test_patches_are_read_as_deep_as_said_and_no_deeper(s):
    """Without its middle a piece has the same patches; without one ring more it has not."""
    tokenizer, x = PieceTokenizer(s), np.ones((1, s.side, s.side, 3), np.float32)

    def read(depth):
        y = x.copy()
        y[:, depth : s.side - depth, depth : s.side - depth] = 0
        terms = [term for term in s.terms if not is_residual(term)]
        return [np.asarray(tokenizer.patches(y, term)).sum() for term in terms]

    whole = [np.asarray(tokenizer.patches(x, t)).sum() for t in s.terms if not is_residual(t)]
    depth = s.depth or (s.side + 1) // 2
    assert read(depth) == whole
    if s.depth:
        assert read(depth - 1) != whole


def album_and_draw(seed, grid="2x3"):
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 256, (*rng.integers(12, 60, 2), 3), np.uint8) for _ in range(3)]
    album = Album.of(images)
    some = CutSettings(grid, gap_share=0.5, jitter=0.5, colour=1.0)
    draw = draw_batch(album.sizes.numpy(), 4, some, (seed,))
    return album, [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()][:5]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 24), st.integers(0, 6))
def test_the_cut_of_the_kernel_is_the_cut(seed, side, depth):
    """From words instead of bytes, in four bytes a pixel, and 0 where nobody reads."""
    album, drawn = album_and_draw(seed)
    depth = depth if 2 * depth < side else 0
    there = album.with_words()
    got = kernels_cut.cut(there.words, there.offsets, there.sizes, *drawn, side, depth)
    want = cut_batch(album, *drawn, side=side).view(-1, side, side, 3)
    seen = torch.ones(side, side, 1)
    if depth:
        seen[depth : side - depth, depth : side - depth] = 0
    assert torch.equal(got[..., :3].float(), want * seen) and not got[..., 3].any()


@pytest.mark.parametrize(
    ("changes", "direct"),
    [
        ({}, True),
        ({"granularity": 2, "clockwise": False, "pca_dim": 50}, True),
        ({"pca_dim": 200}, True),  # wider than the kernel for float16 keeps
        ({"granularity": 3}, False),
        ({"border": False}, False),
        ({"pca_dim": None}, False),
        ({"patch": "strip:8+residual"}, False),
    ],
)
def test_rows_of_patches_have_the_symbols_of_pieces(folder, crops, changes, direct):
    """Of photographs; a tokenizer that reads something else than pairs of patches is cut pieces."""
    some = {"granularity": 4, "patch": "square", "vocab_size": 256, "max_cells": 9}
    recipe = recipe_of(folder, batch=24)
    recipe = replace(
        recipe,
        tokenizer=replace(recipe.tokenizer, **{**some, **changes}),
        cut=CutSettings("3x3", gap_share=0.5, jitter=0.5, colour=1.0),
    )
    tokenizer = PieceTokenizer(recipe.tokenizer).fit(crops, max_iter=2)
    album, found = Album.of(crops), []
    for tricks in (PLAIN, Tricks(tokens="half", cut=True, patches=True)):
        pages = Pages(recipe, tokenizer, "cpu", album, tricks=tricks)
        parts = pages.draw(0)
        found.append(pages.encode(pages.cut(*parts[1:6])))
        assert pages.read(parts)["ids"].shape[0] == 24
    assert (pages.book is not None) == direct
    assert found[0].shape == found[1].shape and found[0].dtype == found[1].dtype
    assert float((found[0] == found[1]).float().mean()) > 0.9995


def test_two_products():
    a, c = torch.randn(2, 3, 4, 5)
    b, d = torch.randn(2, 3, 5, 6)
    got = kernels.two_products(a, b, c, d)
    assert torch.allclose(got, a @ b + c @ d, atol=1e-5)


@pytest.mark.parametrize(
    ("length", "causal"), [(144, False), (130, False), (116, False), (9, True)]
)
def test_attention_is_that_of_the_library(length, causal):
    """Values, logarithms, gradients and their sums."""
    torch.manual_seed(0)
    qkv = torch.randn(2, length, 3 * 64, requires_grad=True)
    grad = torch.randn(2, length, 64)
    want = fast.mix(qkv, 2, causal)
    (back,) = torch.autograd.grad(want, qkv, grad)
    plain = qkv.detach()
    got, logs = kernels.attend(plain, 2, causal)
    found, sums = kernels.attend_backward(plain, got, logs, grad, 2, causal)
    q, k, _ = plain.double().view(2, length, 3, 2, 32).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(2, 3) * 32**-0.5
    if causal:
        scores = scores.tril() + torch.full_like(scores, -1e9).triu(1)
    pairs = [(got, want), (logs, scores.exp().sum(-1).log2()), (found, back), (sums, back.sum(1))]
    for a, b in pairs:
        assert torch.allclose(a, b.to(a), rtol=1e-5, atol=5e-5)


EVERYTHING = Tricks(cut=True, padded=True)
OTHERS = [
    Tricks(attention="kernel", gelu="kernel"),
    Tricks(gelu="kernel", fp8=True, tokens="split"),
    Tricks(cross=True),
    Tricks(tokens="half", cut=True, patches=True),
]


@pytest.mark.parametrize("tricks", [EVERYTHING, *OTHERS])
def test_what_works_is_used(tricks):
    assert usable(tricks, "cpu") == (tricks, {})


def test_wrong_sums_of_readers_are_noticed(monkeypatch):
    monkeypatch.setattr(fast, "BACKEND", "aot_eager")
    fast.compiled.cache_clear()
    assert usable(Tricks(gathered=True), "cpu")[1] == {}
    monkeypatch.setattr(fast, "_total", lambda *parts: parts[0])
    assert usable(Tricks(gathered=True), "cpu") == (Tricks(), {"gathered": "wrong answers"})
    fast.compiled.cache_clear()


@pytest.mark.parametrize(
    ("tricks", "name"),
    [
        (Tricks(attention="kernel"), "attend"),
        (Tricks(attention="kernel"), "attend_backward"),
        (Tricks(gelu="kernel"), "gelu_backward"),
    ],
)
def test_a_wrong_second_result_is_noticed(tricks, name, monkeypatch):
    """Logarithms and sums are made beside the first result, and must not be trusted for it."""
    right = getattr(kernels, name)

    def wrong(*a):
        first, second, *others = right(*a)
        return first, 2 * second + 1, *others

    monkeypatch.setattr(kernels, name, wrong)
    (why,) = usable(tricks, "cpu")[1].values()
    assert why == "wrong answers"


@pytest.mark.parametrize(
    ("trick", "module", "name"),
    [
        ("cut", kernels_cut, "cut"),
        ("padded", kernels, "two_products"),
    ],
)
def test_a_kernel_that_is_wrong_or_fails_is_dropped_and_said(trick, module, name, monkeypatch):
    right, calls = getattr(module, name), []

    def wrong(*a):
        calls.append(a)
        return right(*a) + (len(calls) % 2 == 0 if trick == "cut" else 1)

    def broken(*_):
        raise RuntimeError("no such card")

    for bad, why in ((wrong, "wrong answers"), (broken, "RuntimeError: no such card")):
        monkeypatch.setattr(module, name, bad)
        kept, dropped = usable(EVERYTHING, "cpu")
        assert dropped == {trick: why} and not getattr(kept, trick)
        assert kept.cut != kept.padded


def test_what_is_measured_and_pays_is_trained_with():
    """The ladder of docs/speed.md; 8 bits where a recipe says so."""
    ladder = ["batch", "half", "fp8", "cross", "wide", "ahead", "start", "pooled"]
    assert list(VARIANTS)[-8:] == ladder
    assert [name for name, variant in VARIANTS.items() if variant.alone] == ladder[4:]
    assert [name for name, variant in VARIANTS.items() if not variant.fast] == ["plain"]
    assert VARIANTS["padded"].tricks == VARIANTS["batch"].tricks
    assert replace(VARIANTS["pooled"].tricks, fp8=False) == PROVEN
    assert not set(VARIANTS) & set(EXTRA)


def test_training_takes_the_tricks_that_the_device_allows(monkeypatch):
    """Without Triton or GPU none; all but the cut without room for words, or without images."""
    album, _ = album_and_draw(0)
    words = album.with_words().words
    assert tricks_for("cpu", album) == tricks_for("cpu", None) == PLAIN
    monkeypatch.setattr(kernels, "there", lambda device: device == "cuda")
    for free, cut in ((8 * len(words), True), (8 * len(words) - 1, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10 * free))
        assert tricks_for("cuda", album) == replace(PROVEN, cut=cut)
        assert tricks_for("cuda", album, True) == replace(PROVEN, cut=cut, fp8=True)
        assert tricks_for("cuda", None) == replace(PROVEN, cut=False)


def test_ways_are_those_of_kernels_that_there_are():
    with pytest.raises(SettingsError, match="did you mean 'attend_backward'"):
        ways("cut,attend_backwards", "cpu")
    with pytest.raises(SettingsError, match="on a GPU only"):
        ways("all", "cpu")
    tables = {**kernels.WAYS, "cut": kernels_cut.WAY}
    assert {name: first for name, (first, *_) in WAYS.items()} == tables
