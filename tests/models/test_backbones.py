from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from puzlm.errors import ModelError, SettingsError
from puzlm.models.backbones import BACKBONES, ModelSettings, Seq2Seq, TorchReader
from puzlm.models.decoding import decode
from puzlm.puzzle import Puzzle
from puzlm.tokenizer.piece_tokenizer import BOS
from puzlm.training.fast import bart as fast
from puzlm.training.fast import kernels
from puzlm.training.fast.bart import bart
from puzlm.training.tricks import Tricks


def model_of(backbone, tokenizer):
    """A random model, loud enough for its answers to depend on what it reads."""
    torch.manual_seed(1)
    model = Seq2Seq(ModelSettings.of_size(backbone, "tiny", tokenizer)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "shared" in name:
                parameter.normal_(0, 1)
            elif parameter.ndim == 2 and "embed" not in name:
                parameter.normal_(0, 2 / parameter.shape[1] ** 0.5)
    return model


@pytest.fixture(scope="module")
def sentences(tokenizer, crops):
    puzzles = [Puzzle.from_image(crop, 3, seed=i) for i, crop in enumerate(crops[:5])]
    return torch.from_numpy(tokenizer(puzzles)["input_ids"])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_one_call_shape(backbone, tokenizer, sentences):
    """Step by step with a cache gives the logits of one pass with teacher forcing."""
    model = model_of(backbone, tokenizer)
    written = torch.randint(tokenizer.cell_token_id(0), len(tokenizer), (5, 9))
    written[:, 0] = BOS
    with torch.no_grad():
        whole = model(sentences, written)
        assert whole.shape == (5, 9, len(tokenizer))
        state, steps = model.start(sentences), []
        for slot in range(9):
            logits, state = model.step(state, written[:, slot])
            steps.append(logits)
        assert torch.allclose(torch.stack(steps, 1), whole, atol=1e-4)
        rows = torch.tensor([0, 0, 2])
        state = model.reorder(model.step(model.start(sentences), written[:, 0])[1], rows)
        again, _ = model.step(state, written[rows, 1])
        assert torch.allclose(again, whole[rows, 1], atol=1e-4)


@pytest.mark.parametrize("backbone", ["bart", "t5", "pegasus"])
def test_greedy_is_generate(backbone, tokenizer, sentences):
    """The paper's decoding is the library's greedy generate(), token for token."""
    model = model_of(backbone, tokenizer)
    model.net.generation_config.eos_token_id = None
    with torch.no_grad():
        if backbone == "pegasus":  # untrained, it repeats its last word; louder layers are heard
            for weight in model.net.model.decoder.layers.parameters():
                weight.mul_(4)
        want = model.net.generate(sentences, max_new_tokens=9, do_sample=False, num_beams=1)[:, 1:]
    first = tokenizer.cell_token_id(0)
    got = decode(
        TorchReader(model),
        sentences.numpy(),
        slots=9,
        grid=(3, 3),
        first_cell=first,
        method="greedy",
    )
    cells = want.numpy() - first
    assert np.array_equal(got.cells, np.where((cells >= 0) & (cells < 9), cells, -1))
    assert len({tuple(row) for row in want.tolist()}) > 1  # the answer depends on the sentence


@pytest.mark.parametrize("backbone", [b for b in BACKBONES if b != "t5"])
def test_further_symbols_that_say_nothing_change_nothing(backbone, tokenizer, sentences):
    """[PAD] beside a symbol adds nothing: one symbol a position reads as it does alone."""
    model = model_of(backbone, tokenizer)
    several = torch.stack([sentences, torch.zeros_like(sentences)], 2)
    with torch.no_grad():
        model.embedding[0] = 0  # as it is before model_of
        assert torch.allclose(model.encode(several), model.encode(sentences), atol=1e-5)


@pytest.mark.parametrize("backbone", ["bart", "lstm", "gru", "encoder", "decoder"])
def test_padding_changes_nothing(backbone, tokenizer, crops):
    """A short sentence in a batch with a long one reads as it does alone."""
    model = model_of(backbone, tokenizer)
    small, large = Puzzle.from_image(crops[0], 2), Puzzle.from_image(crops[1], 3)
    both, alone = tokenizer([small, large], "pt"), tokenizer(small, "pt")
    written = torch.full((1, 1), BOS)
    with torch.no_grad():
        one = model(alone["input_ids"], written)
        two = model(both["input_ids"], written.expand(2, 1), both["attention_mask"])
        whole = model(alone["input_ids"], written, alone["attention_mask"])
    assert torch.allclose(one[0], two[0], atol=1e-4)
    assert torch.allclose(one, whole, atol=1e-5)


@pytest.mark.parametrize(("layers", "width"), [((4, 2), 256), ((3, 3), 128), ((6, 1), 64)])
def test_one_stack_has_the_weights_of_two(layers, width, tokenizer):
    """Encoder-only and decoder-only models are compared at the size of the encoder-decoder."""
    shape = {
        "encoder_layers": layers[0],
        "decoder_layers": layers[1],
        "d_model": width,
        "heads": 4,
        "feed_forward": 4 * width,
    }

    def layer_weights(backbone):
        named = ModelSettings.of_size(backbone, "tiny", tokenizer)
        model = Seq2Seq(ModelSettings(**{**vars(named), **shape, "decoder_feed_forward": 0}))
        return sum(
            p.numel()
            for name, p in model.named_parameters()
            if p.ndim == 2 and not re.search("embed|positions|shared", name)
        )

    wanted = layer_weights("bart")
    for backbone in ("encoder", "decoder"):
        assert layer_weights(backbone) == pytest.approx(wanted, rel=0.01)


def test_what_one_stack_can_see(tokenizer, sentences):
    """Encoder-only: not what was placed before. Decoder-only: not what stands behind."""
    first = tokenizer.cell_token_id(0)
    written = torch.full((5, 9), first)
    written[:, 0] = BOS
    other = written.clone()
    other[:, 1:] += 3
    with torch.no_grad():
        encoder, decoder = model_of("encoder", tokenizer), model_of("decoder", tokenizer)
        assert torch.equal(encoder(sentences, written), encoder(sentences, other))
        assert not torch.allclose(
            decoder(sentences, written)[:, 5], decoder(sentences, other)[:, 5]
        )
        changed = sentences.clone()
        changed[:, 60] = 4 + (changed[:, 60] - 3) % 64
        for model, same in ((decoder, True), (encoder, False)):
            before, after = model.encode(sentences)[:, :60], model.encode(changed)[:, :60]
            assert torch.allclose(before, after, atol=1e-5) == same
        assert not torch.allclose(decoder(sentences, written), decoder(changed, written))


@pytest.mark.parametrize("symbols", [1, 3])
def test_fast_bart_is_bart(symbols, tokenizer):
    """Same logits and same gradients from the same weights, for one and for several symbols.

    In double precision: in single, gradients of a loud model differ in the fourth digit from one
    processor to another.
    """
    model = model_of("bart", tokenizer).train().double()
    ids = torch.randint(0, len(tokenizer), (4, 30) if symbols == 1 else (4, 30, symbols))
    written = torch.randint(0, len(tokenizer), (4, 9))
    slow = model(ids, written)
    quick, states = bart(model.net, ids, written, torch.float64)
    assert torch.allclose(slow, quick, atol=1e-10)
    assert torch.allclose(states, model.encode(ids), atol=1e-10)
    target = torch.randn_like(slow)
    slow_grads = torch.autograd.grad((slow * target).sum(), model.parameters(), allow_unused=True)
    fast_grads = torch.autograd.grad((quick * target).sum(), model.parameters(), allow_unused=True)
    names = [name for name, _ in model.named_parameters()]
    for name, a, b in zip(names, slow_grads, fast_grads, strict=True):
        if b is None:  # a key bias of the cross-attention: drops out of the softmax
            assert a is None or float(a.abs().max()) < 1e-9, name
        else:
            assert torch.allclose(a, b, atol=1e-9, rtol=1e-9), name


TRICKS = {  # and how far logits and gradients may be from the plain ones, of their length
    "aligned": (Tricks(aligned=True), 1e-5),
    "shared": (Tricks(gelu="shared"), 1e-5),
    "gelu": (Tricks(gelu="kernel"), 1e-5),
    "attention": (Tricks(attention="kernel"), 1e-5),
    "blocks": (Tricks(blocks=True), 1e-5),
    "padded": (Tricks(padded=True), 1e-5),
    "gathered": (Tricks(blocks=True, gathered=True), 1e-5),
    "together": (Tricks(aligned=True, gelu="kernel", attention="kernel"), 1e-5),
}


@pytest.mark.parametrize("name", TRICKS)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler asks for it
def test_tricks_change_nothing_but_rounding(name, tokenizer, monkeypatch):
    """Logits and gradients of every trick, against those without; 8 bits: test_fast8.py."""
    monkeypatch.setattr(fast, "BACKEND", "aot_eager")
    tricks, bound = TRICKS[name]
    model = model_of("bart", tokenizer).train()
    with torch.no_grad():  # each layer about as loud as what it reads, as after training
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in parameter_name:
                parameter.mul_(0.5)
    torch.manual_seed(0)
    ids = torch.randint(0, len(tokenizer), (4, 30))
    written = torch.randint(0, len(tokenizer), (4, 9))
    answers = torch.randint(0, len(tokenizer), (36,))
    results = []
    for some in (Tricks(), tricks):
        logits, states = bart(model.net, ids, written, torch.float32, some)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers)
        grads = torch.autograd.grad(loss, model.parameters(), allow_unused=True)
        flat = torch.cat([g.flatten() for g in grads if g is not None])
        results.append((logits.detach(), states.detach(), flat, float(loss.detach())))
    for plain, tricky in zip(*(r[:3] for r in results), strict=True):
        assert float((plain - tricky).norm() / plain.norm()) < bound
    assert results[1][3] == pytest.approx(results[0][3], rel=1e-5)


def test_a_sentence_too_long_for_the_kernel_is_read_by_the_library(tokenizer, monkeypatch):
    model = model_of("bart", tokenizer).train()
    ids = torch.randint(0, len(tokenizer), (2, 116))
    kernel = Tricks(attention="kernel")
    monkeypatch.setattr(kernels, "LONGEST", 64)
    got = bart(model.net, ids, ids[:, :9], torch.float32, kernel)[0]
    monkeypatch.undo()
    assert kernels.suits(116, 64) and not kernels.suits(161, 64) and not kernels.suits(116, 48)
    want = bart(model.net, ids, ids[:, :9], torch.float32)[0]
    assert torch.allclose(got, want, atol=1e-4)


def test_no_mask_reaches_the_kernel_that_has_none(tokenizer, monkeypatch):
    """Beyond 128 tokens the encoder takes the kernel with a tail, and the decoder the library."""
    assert kernels.suits(144, 64) and not kernels.suits(129, 64, causal=True)
    assert kernels.suits(128, 128, causal=True) and not kernels.suits(129, 128)
    model = model_of("bart", tokenizer).train()
    for side in (model.net.model.encoder, model.net.model.decoder):
        places = side.embed_positions.weight  # of 116 tokens
        side.embed_positions.weight = torch.nn.Parameter(torch.randn(132, places.shape[1]))
    ids = torch.randint(0, len(tokenizer), (2, 130))
    want = bart(model.net, ids, ids, torch.float32)[0]
    asked, right = [], kernels.attend

    def noted(qkv, heads, causal):
        asked.append((qkv.shape[1], causal))
        return right(qkv, heads, causal)

    monkeypatch.setattr(kernels, "attend", noted)
    got = bart(model.net, ids, ids, torch.float32, Tricks(attention="kernel"))[0]
    assert set(asked) == {(130, False)}
    assert torch.allclose(got, want, atol=1e-4)


def test_unknown_tricks_are_refused():
    with pytest.raises(SettingsError, match="trick gelu 'tanh'"):
        Tricks(gelu="tanh")


@pytest.mark.parametrize("backbone", BACKBONES)
def test_save_and_load(backbone, tokenizer, sentences, tmp_path):
    model = model_of(backbone, tokenizer)
    model.save_pretrained(tmp_path)
    back = Seq2Seq.from_pretrained(tmp_path)
    written = torch.full((5, 1), BOS)
    with torch.no_grad():
        assert torch.allclose(back(sentences, written), model(sentences, written), atol=1e-5)


def test_damaged_models_are_refused(tokenizer, tmp_path):
    model_of("gru", tokenizer).save_pretrained(tmp_path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "model.safetensors")  # a pickle by another name
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        Seq2Seq.from_pretrained(tmp_path)
    model_of("lstm", tokenizer).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").replace(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"do not fit|has shape"):
        Seq2Seq.from_pretrained(tmp_path)
    (tmp_path / "model.json").write_text("[")
    with pytest.raises(ModelError, match="damaged"):
        Seq2Seq.from_pretrained(tmp_path)
    with pytest.raises(SettingsError, match="did you mean 'bart'"):
        ModelSettings(backbone="brat")
