"""The encoder in 8 bits: its parts, and the whole against BART's own layers."""

import pytest
import torch
from torch.nn import functional as F
from transformers import BartConfig, BartForConditionalGeneration

from bench import kernel_checks as bench_checks
from puzlm.tokenizer.piece_tokenizer import PAD, SEP
from puzlm.training.fast import bart8 as fast8
from puzlm.training.fast import gluon_parts, kernels_attend8, kernels_cross, kernels_words
from puzlm.training.fast import kernels_fp8 as k8
from puzlm.training.fast.bart import bart
from puzlm.training.objective import Objective
from puzlm.training.tricks import Tricks


def off(got, want):
    return float(
        (got.detach().float() - want.detach().float()).norm() / want.detach().float().norm()
    )


def net(**changes):
    """Two layers of 128 with heads of 64."""
    torch.manual_seed(0)
    few = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 256, "decoder_ffn_dim": 128}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = {"vocab_size": 90, "d_model": 128, "dropout": 0.0, **few, **heads, **changes}
    return BartForConditionalGeneration(BartConfig(**config))


def test_the_fit_of_gelu_is_closer_than_bfloat16():
    x = torch.linspace(-9, 9, 20_001, dtype=torch.float64, requires_grad=True)
    want = F.gelu(x)
    (rise,) = torch.autograd.grad(want.sum(), x)
    x, want = x.detach(), want.detach()
    error = (x * k8.below(x) - want).abs()
    assert float(error.max()) < 6e-5
    assert float((error / want.abs().clamp_min(2e-3)).max()) < 1 / 1300
    assert float((k8.slope(x) - rise).abs().max()) < 5e-4
    near = x.clone().requires_grad_()
    (own,) = torch.autograd.grad((near * k8.below(near)).sum(), near)
    inside = x.abs() < 4.9  # beyond, the fit is a straight line
    assert torch.allclose(k8.slope(x)[inside], own[inside], atol=1e-6)


def test_a_norm_and_its_gradients_are_the_librarys():
    torch.manual_seed(0)
    x, o, a, b = (torch.randn(128, 64) for _ in range(4))
    gain, shift = (torch.rand(64) + 0.5).requires_grad_(), torch.randn(64, requires_grad=True)
    total = (x + o).requires_grad_()
    want = F.layer_norm(total, (64,), gain, shift)
    back = torch.autograd.grad(want, (total, gain, shift), a + b)
    out, small, spread = k8.norm(x, o, gain.detach(), shift.detach())
    assert torch.allclose(out, want, atol=1e-5)
    assert off(small.float() / k8.NORMED, want) < 0.04
    found, found8, sums = k8.norm_backward(a, b, out, spread, gain.detach(), shift.detach(), 64.0)
    assert torch.allclose(found, back[0], atol=1e-5)
    assert off(found8.float() / 64, back[0]) < 0.08
    for got, right in zip(sums, (back[1], back[2], back[0].sum(0)), strict=True):
        assert torch.allclose(got, right, atol=1e-4)


def test_what_is_too_large_for_8_bits_becomes_the_largest():
    x = torch.tensor([[1e9, -1e9, 1.0, 0.0]])
    assert k8.rounded(x, 2.0, k8.E4).float().tolist() == [[448, -448, 2, 0]]
    assert k8.rounded(x, 2.0, k8.E5).float().tolist() == [[57344, -57344, 2, 0]]


def test_weights_keep_their_size():
    torch.manual_seed(0)
    q, k, out = torch.randn(128, 128), 5 * torch.randn(128, 128), 1e-3 * torch.randn(256, 128)
    found = k8.weights([[q, k], [out]])
    for (small, turned, scale), want in zip(found, (torch.cat([q, k]), out), strict=True):
        assert off(small.float() * scale, want) < 0.04
        assert torch.equal(turned.float(), small.float().t())


def test_a_gain_of_0_leaves_gradients_finite():
    gain, shift = torch.ones(64), torch.zeros(64)
    gain[5] = 0
    x, a = torch.randn(128, 64), torch.randn(128, 64)
    out, _, spread = k8.norm(x, x, gain, shift)
    found, _, sums = k8.norm_backward(a, None, out, spread, gain, shift, 64.0)
    assert torch.isfinite(found).all() and torch.isfinite(sums).all()


def test_the_start_and_its_gradients_are_the_librarys():
    """Symbols, places and norm, with the gradient in two parts; [PAD] learns nothing."""
    torch.manual_seed(0)
    ids = torch.randint(0, 20, (6, 28))
    assert bool((ids == PAD).any()) and bool((ids == SEP).any())
    table, places = torch.randn(20, 64, requires_grad=True), torch.randn(28, 64, requires_grad=True)
    gain, shift = (torch.rand(64) + 0.5).requires_grad_(), torch.randn(64, requires_grad=True)
    want = F.layer_norm(F.embedding(ids, table, PAD) + places, (64,), gain, shift)
    a, b = torch.randn(168, 64), torch.randn(168, 64)
    right = torch.autograd.grad(want, (table, places, gain, shift), (a + b).view(6, 28, 64))
    plain = [t.detach() for t in (table, places, gain, shift)]
    out, small, spread = kernels_words.start(ids, *plain, torch.float32)
    assert torch.allclose(out, want.flatten(0, 1), atol=1e-5)
    assert off(small.float() / k8.NORMED, out) < 0.04
    found = kernels_words.start_backward(a, b, out, spread, ids, *plain[2:], 20)
    for got, wanted in zip(found, right, strict=True):
        assert torch.allclose(got, wanted, atol=1e-4)
    assert not found[0][PAD].any()


@pytest.mark.parametrize("separator", [True, False])
def test_means_of_pieces_are_those_of_the_objective(separator):
    judge = Objective.__new__(Objective)
    torch.nn.Module.__init__(judge)
    judge.cells, judge.b, judge.separator = 9, 12, separator
    states = torch.randn(2, 9 * 12 + 8 * separator, 64, requires_grad=True)
    grad, results = torch.randn(2, 9, 64), []
    for judge.tricks in (Tricks(), Tricks(pooled=True)):
        means = judge.pool(states)
        assert ("_Pool" in type(means.grad_fn).__name__) == judge.tricks.pooled
        results.append((means.detach(), *torch.autograd.grad(means, states, grad)))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("start", [False, True])
def test_bart_in_8_bits_is_bart_within_rounding(start):
    model = net()
    ids, written = torch.randint(4, 90, (32, 28)), torch.randint(4, 90, (32, 9))
    answers = torch.randint(4, 90, (288,))
    results = []
    for tricks in (Tricks(), Tricks(fp8=True, start=start)):
        logits, states = bart(model, ids, written, torch.float32, tricks)
        loss = F.cross_entropy(logits.flatten(0, 1), answers)
        grads = torch.autograd.grad(loss, model.parameters(), allow_unused=True)
        results.append((loss.detach(), states.detach(), grads))
    (plain, states, before), (eight, rounded, after) = results
    assert torch.allclose(plain, eight, rtol=0.01)
    assert 1e-3 < off(rounded, states) < 0.1  # it is used, and it rounds
    for (name, _), a, b in zip(model.named_parameters(), before, after, strict=True):
        if a is not None and "k_proj.bias" not in name:  # whose gradient is 0 but for rounding
            assert off(b, a) < 0.25, name
    flat = [torch.cat([g.flatten() for g in grads if g is not None]) for grads in (before, after)]
    assert float(F.cosine_similarity(*flat, dim=0)) > 0.999


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"encoder_attention_heads": 4}, (32, 28)),  # heads of 32
        ({"encoder_ffn_dim": 384}, (32, 28)),
        ({}, (3, 28)),  # 84 tokens
        ({}, (32, 144)),
    ],
)
def test_what_does_not_suit_is_read_in_16_bits(changes, shape):
    model = net(**changes)
    assert fast8.suits(net(), torch.Size((32, 28)), "cpu")
    assert not fast8.suits(model, torch.Size(shape), "cpu")
    ids = torch.randint(4, 90, shape)
    plain, eight = (
        bart(model, ids, ids[:, :9], torch.float32, tricks)[0]
        for tricks in (Tricks(), Tricks(fp8=True))
    )
    assert torch.equal(plain, eight)


def test_attention_in_8_bits_is_attention():
    torch.manual_seed(0)
    qkv, grad = torch.randn(2, 28, 3 * 128), torch.randn(2, 28, 128)
    mixed, small, logs = kernels_attend8.attend(qkv, 2)
    assert off(small.float().view(mixed.shape) / k8.MIXED, mixed) < 0.04
    found, sums = kernels_attend8.attend_backward(qkv, mixed, logs, grad, 2, 8.0)
    assert found.shape == (56, 384) and off(found.float().sum(0) / 8, sums) < 0.2
    assert float(sums[128:256].abs().max()) < 1e-4 * float(sums.abs().max())  # of the keys


def test_cross_attention_by_heads_is_that_of_the_library():
    assert bench_checks.cross("cpu", torch.float32)
    model = net(d_model=256, encoder_attention_heads=4, decoder_attention_heads=4)
    ids, written = torch.randint(4, 90, (4, 28)), torch.randint(4, 90, (4, 9))
    assert kernels_cross.suits(4, 9, 28, 256, "cpu")
    assert not kernels_cross.suits(8, 25, 28, 512, "cpu")
    results = []
    for tricks in (Tricks(), Tricks(cross=True)):
        logits, states = bart(model, ids, written, torch.float32, tricks)
        grads = torch.autograd.grad(logits.sin().sum(), model.parameters(), allow_unused=True)
        results.append([logits.detach(), *(g for g in grads if g is not None)])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max()) + 1e-6)


@pytest.mark.skipif(not gluon_parts.THERE, reason="Triton is not installed")
def test_a_product_waits_for_what_it_reads():
    """Chunk c of the states is copied in group c + 1, queries beyond the slots one a step; these
    counts are those of the schedules that were run on a card."""
    from puzlm.training.fast.gluon_cross import backward_pending, forward_pending

    assert [forward_pending(8, 4, c) for c in range(8)] == [7, 6, 5, 5, 1, 1, 1, 1]
    assert [forward_pending(8, 5, c) for c in range(8)] == [7, 6, 5, 5, 5, 2, 2, 2]
    assert [backward_pending(8, 6, False, c) for c in range(8)] == [3, 3, 2, 3, 3, 4, 3, 3]
    assert [backward_pending(8, 6, True, c) for c in range(8)] == [3, 2, 2, 2, 2, 2, 2, 2]
