"""Tricks of a training step: what they leave out is not read, and a broken one is found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puzlm import (
    fast,
    kernels,
    kernels_cross,
    kernels_cut,
    kernels_embedding,
    kernels_logsum,
    kernels_products,
)
from puzlm.backbones import ModelSettings
from puzlm.bench_checks import usable
from puzlm.bench_parts import WAYS, ways
from puzlm.bench_variants import EXTRA, VARIANTS
from puzlm.corpus import Album, CutSettings, cut_batch, draw_batch
from puzlm.errors import SettingsError
from puzlm.tokenizer import PieceTokenizer, TokenizerSettings
from puzlm.tricks import PROVEN, Tricks


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
        terms = [term for term in s.terms if term != "residual"]
        return [np.asarray(tokenizer.patches(y, term)).sum() for term in terms]

    whole = [np.asarray(tokenizer.patches(x, t)).sum() for t in s.terms if t != "residual"]
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


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 3), st.integers(1, 20))
def test_gradient_of_embeddings_is_the_librarys(seed, count, repeat, rows):
    torch.manual_seed(seed)
    table = torch.randn(rows, 5, requires_grad=True)
    ids, grad = torch.randint(0, rows, (count, repeat)), torch.randn(count, 5)
    torch.nn.functional.embedding(ids, table, 0).sum(1).backward(grad)
    got = kernels_embedding.embedding_backward(ids, grad, rows, 0)
    assert torch.allclose(got, table.grad, atol=1e-5)


def test_two_products():
    a, c = torch.randn(2, 3, 4, 5)
    b, d = torch.randn(2, 3, 5, 6)
    got = kernels_products.two_products(a, b, c, d)
    assert torch.allclose(got, a @ b + c @ d, atol=1e-5)


EVERYTHING = Tricks(cut=True, embedding=True, padded=True)
OTHERS = [
    Tricks(attention="logsum", gelu="product"),
    Tricks(attention="halves", gelu="kernel", fp8="fc", tokens="split"),
    Tricks(attention="kernel", cross=True),
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
    ("tricks", "module", "name"),
    [
        (Tricks(attention="logsum"), kernels_logsum, "attend_logsum_backward"),
        (Tricks(attention="halves"), kernels_logsum, "attend_logsum_backward"),
        (Tricks(gelu="product"), kernels_products, "slope_product"),
        (Tricks(gelu="product"), kernels_products, "gelu_product"),
        (Tricks(cross=True), kernels_cross, "cross_backward"),
    ],
)
def test_a_wrong_second_result_is_noticed(tricks, module, name, monkeypatch):
    """Sums and GELUs are made beside the first result, and must not be trusted for it."""
    right = getattr(module, name)

    def wrong(*a):
        first, second = right(*a)
        return first, 2 * second + 1

    monkeypatch.setattr(module, name, wrong)
    (why,) = usable(tricks, "cpu")[1].values()
    assert why == "wrong answers"


def test_gelu_inside_products_is_what_small_models_are_tested_with(tokenizer):
    tiny = ModelSettings.of_size("bart", "tiny", tokenizer)
    assert kernels_products.suits(tiny.feed_forward, tiny.d_model)
    assert not kernels_products.suits(tiny.feed_forward + 1, tiny.d_model)
    torch.manual_seed(0)
    x, up, down = torch.randn(5, 64), torch.randn(128, 64), torch.randn(64, 128)
    bias, grad = torch.randn(128), torch.randn(5, 64)
    h = (x @ up.T + bias).requires_grad_()
    want = torch.nn.functional.gelu(h)
    back = torch.autograd.grad(want @ down.T, h, grad)[0]
    got, (found, sums) = (
        kernels_products.gelu_product(x, up, bias),
        kernels_products.slope_product(grad, down, h.detach()),
    )
    assert torch.allclose(got[0], h, atol=1e-5) and torch.allclose(got[1], want, atol=1e-5)
    assert torch.allclose(found, back, atol=1e-4)
    assert torch.allclose(sums.sum(0), back.sum(0), atol=1e-4)


@pytest.mark.parametrize(
    ("trick", "module", "name"),
    [
        ("cut", kernels_cut, "cut"),
        ("embedding", kernels_embedding, "embedding_backward"),
        ("padded", kernels_products, "two_products"),
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
        assert sum(vars(kept)[other] for other in ("cut", "embedding", "padded")) == 2


def test_nothing_unmeasured_is_trained_with():
    """docs/speed.md has rows up to `attention` for what the fast loop does."""
    assert VARIANTS["attention"].tricks == PROVEN
    for name in ("cut", "embedding", "padded", "gathered", "words", "cross"):
        assert getattr(PROVEN, name) is False
    assert not set(VARIANTS) & set(EXTRA)


def test_ways_are_those_of_kernels_that_there_are():
    with pytest.raises(SettingsError, match="did you mean 'halves'"):
        ways("cut,halve", "cpu")
    with pytest.raises(SettingsError, match="on a GPU only"):
        ways("all", "cpu")
    tables = {
        **kernels.WAYS,
        **kernels_logsum.WAYS,
        **kernels_cross.WAYS,
        **kernels.GELU,
        "cut": kernels_cut.WAY,
    }
    tables |= dict.fromkeys(("gelu_product", "slope_product"), kernels_products.WAY)
    assert {name: first for name, (first, *_) in WAYS.items()} == tables
