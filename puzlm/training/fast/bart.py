"""BART's forward pass written for speed, over the very weights of the transformers model.

What differs from the library's, none of it the result: one product for query, key and value;
activations in one dtype (bfloat16 on a GPU) with float32 master weights; no attention masks where
nothing is masked; and a cross-attention that never makes keys and values. A puzzle has an order of
magnitude fewer slots than tokens, so multiplying the queries by W_k and the averages by W_v costs a
seventh of projecting every encoder state twice. The key bias shifts all scores of a query alike
and drops out of the softmax.

`Tricks` (tricks.py) are further changes, each with its own switch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from puzlm.tokenizer.piece_tokenizer import PAD
from puzlm.training.fast import bart8 as fast8
from puzlm.training.fast import kernels, kernels_cross
from puzlm.training.fast.fast_words import Columns, summed
from puzlm.training.tricks import PLAIN, Tricks

BACKEND = "inductor"  # the compiler's; 'aot_eager' needs no C++ compiler
POSITION_OFFSET = 2  # BART's position table has two unused rows in front


def bart(
    net: Any,
    inputs: Tensor,
    decoder_inputs: Tensor,
    dtype: torch.dtype,
    tricks: Tricks = PLAIN,
    columns: Columns | None = None,
) -> tuple[Any, ...]:
    """Logits (batch, N, vocabulary) and encoder states (batch, T, d) of token ids.

    `inputs` is (batch, T) or (batch, T, F); several symbols a position are summed, by products if
    it is known which codebook each column belongs to.
    """
    table, heads = net.model.shared.weight, net.config.encoder_attention_heads
    sizes = (heads, decoder_inputs.shape[1], inputs.shape[1], net.config.d_model)
    if tricks.cross and not kernels_cross.suits(*sizes, inputs.device.type):
        tricks = replace(tricks, cross=False)
    wrap = compiled if tricks.blocks else _as_it_is
    start, layer, last = wrap(_start), wrap(_encoder_layer), wrap(_decoder_layer)
    encoder = net.model.encoder
    eight = tricks.fp8 and fast8.suits(net, inputs.shape, inputs.device.type)
    if eight and tricks.start and inputs.ndim == 2:
        states = fast8.read(inputs, encoder, table, POSITION_OFFSET, heads, dtype)
    else:
        states = start(table, inputs, *_weights(encoder, ENDS), dtype, columns)
        if eight:
            states = fast8.encode(states, encoder.layers, heads)
        else:
            for block in encoder.layers:
                states = layer(states, _named(block), heads, tricks)
    y = start(table, decoder_inputs, *_weights(net.model.decoder, ENDS), dtype)
    layers = net.model.decoder.layers
    read: tuple[Tensor, ...] = (states,) * (len(layers) + 1)
    if tricks.gathered and tricks.blocks:
        read = readers(states, len(read))
    for block, here in zip(layers, read, strict=False):
        y = last(y, here, _named(block), heads, tricks)
    return wrap(_logits)(y, table, tricks.aligned), read[-1]


ENDS = ("embed_positions.weight", "layernorm_embedding.weight", "layernorm_embedding.bias")


def _weights(module: Any, names: tuple[str, ...]) -> list[Tensor]:
    return [module.get_parameter(name) for name in names]


def _named(module: Any) -> dict[str, Tensor]:
    return dict(module.named_parameters())


@functools.cache
def compiled(work: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function once for all that call it."""
    made: Callable[..., Any] = torch.compile(work, backend=BACKEND, dynamic=False)
    return made


def _as_it_is(work: Callable[..., Any]) -> Callable[..., Any]:
    return work


def _start(
    table: Tensor,
    ids: Tensor,
    places: Tensor,
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
    columns: Columns | None = None,
) -> Tensor:
    """Symbols and places, normalised: gathered in float32, so that gradients add up in it."""
    if columns is None or ids.ndim == 2:
        x = F.embedding(ids, table, PAD)  # PAD learns nothing from being read, as in the library
        x = (x if ids.ndim == 2 else x.sum(2)).to(dtype)
    else:
        x = summed(table, ids, columns, dtype)
    x = x + places[POSITION_OFFSET : POSITION_OFFSET + x.shape[1]].to(dtype)
    return F.layer_norm(x, x.shape[-1:], scale.to(dtype), shift.to(dtype))


def _logits(y: Tensor, table: Tensor, aligned: bool) -> Tensor:
    words = table.to(y.dtype)
    if not aligned:
        return F.linear(y, words)
    # Rows of a multiple of 8 numbers lie on 16 bytes; the rows too many are cut off again.
    return F.linear(y, F.pad(words, (0, 0, 0, -len(words) % 8)))[..., : len(words)]


def _norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def _linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def _self_attention(
    w: dict[str, Tensor], name: str, x: Tensor, heads: int, tricks: Tricks, encoder: bool
) -> Tensor:
    weight = torch.cat([w[f"{name}.{p}_proj.weight"] for p in "qkv"])
    bias = torch.cat([w[f"{name}.{p}_proj.bias"] for p in "qkv"])
    if tricks.attention != "library" and kernels.suits(
        x.shape[1], x.shape[2] // heads, not encoder
    ):
        mixed: Tensor = _Attention.apply(x, weight, bias, heads, not encoder)  # type: ignore[no-untyped-call]
    else:
        mixed = mix(F.linear(x, weight, bias), heads, not encoder)
    return _linear(w, f"{name}.out_proj", mixed)


def attended(x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> Tensor:
    """Self-attention of x (batch, T, d) before its output layer, in a kernel that is fit for it.

    Without a mask; weight (3 d, d) and bias (3 d) make queries, keys and values.
    """
    if not kernels.suits(x.shape[1], x.shape[2] // heads):
        return mix(F.linear(x, weight, bias), heads, False)
    mixed: Tensor = _Attention.apply(x, weight, bias, heads, False)  # type: ignore[no-untyped-call]
    return mixed


def mix(qkv: Tensor, heads: int, causal: bool) -> Tensor:
    """Averages (batch, T, d) of the values, from qkv (batch, T, 3 d), as the library makes them."""
    batch, length, width = qkv.shape
    qkv = qkv.view(batch, length, 3, heads, width // 3 // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return mixed.transpose(1, 2).reshape(batch, length, width // 3)


def _cross_attention(
    w: dict[str, Tensor], name: str, x: Tensor, states: Tensor, heads: int, tricks: Tricks
) -> Tensor:
    """Keys' and values' weights are applied to the few queries and means, not to all states."""
    batch, length, d = x.shape
    size = d // heads
    q = _linear(w, f"{name}.q_proj", x).view(batch, length, heads, size) * size**-0.5
    keys = w[f"{name}.k_proj.weight"].view(heads, size, d)
    values = w[f"{name}.v_proj.weight"].view(heads, size, d)
    if tricks.cross:
        rows = torch.bmm(q.view(-1, heads, size).transpose(0, 1), keys)  # (heads, batch * N, d)
        mean: Tensor = _CrossByHead.apply(rows, states)  # type: ignore[no-untyped-call]
        mixed = torch.bmm(mean, values.transpose(1, 2)).transpose(0, 1).reshape(batch, length, d)
        return _linear(w, f"{name}.out_proj", mixed + w[f"{name}.v_proj.bias"])
    q = torch.einsum("blhs,hsd->blhd", q, keys).reshape(batch, length * heads, d)
    if tricks.padded:
        mean = _Cross.apply(q, states).view(batch, length, heads, d)  # type: ignore[no-untyped-call]
    elif tricks.aligned:
        shares = (states @ q.transpose(1, 2)).softmax(1)  # (batch, T, N * heads)
        mean = (shares.transpose(1, 2) @ states).view(batch, length, heads, d)
    else:
        shares = (q @ states.transpose(1, 2)).softmax(-1)  # (batch, N * heads, T)
        mean = (shares @ states).view(batch, length, heads, d)
    mixed = torch.einsum("blhd,hsd->blhs", mean, values).reshape(batch, length, d)
    return _linear(w, f"{name}.out_proj", mixed + w[f"{name}.v_proj.bias"])


def _feed_forward(w: dict[str, Tensor], x: Tensor, tricks: Tricks) -> Tensor:
    width = len(w["fc1.bias"])
    if tricks.gelu == "kernel" and width & (width - 1) == 0:
        layers = [w[f"{layer}.{kind}"] for layer in ("fc1", "fc2") for kind in ("weight", "bias")]
        flat: Tensor = _FeedForward.apply(x.flatten(0, 1), *layers)  # type: ignore[no-untyped-call]
        return _norm(w, "final_layer_norm", x + flat.view(x.shape))
    inner = _linear(w, "fc1", x)
    inner = F.gelu(inner) if tricks.gelu == "library" else _Gelu.apply(inner)  # type: ignore[no-untyped-call]
    return _norm(w, "final_layer_norm", x + _linear(w, "fc2", inner))


def _encoder_layer(x: Tensor, weights: dict[str, Tensor], heads: int, tricks: Tricks) -> Tensor:
    w = {name: weight.to(x.dtype) for name, weight in weights.items()}
    x = x + _self_attention(w, "self_attn", x, heads, tricks, True)
    return _feed_forward(w, _norm(w, "self_attn_layer_norm", x), tricks)


def _decoder_layer(
    y: Tensor, states: Tensor, weights: dict[str, Tensor], heads: int, tricks: Tricks
) -> Tensor:
    w = {name: weight.to(y.dtype) for name, weight in weights.items()}
    y = y + _self_attention(w, "self_attn", y, heads, tricks, False)
    y = _norm(w, "self_attn_layer_norm", y)
    y = y + _cross_attention(w, "encoder_attn", y, states, heads, tricks)
    return _feed_forward(w, _norm(w, "encoder_attn_layer_norm", y), tricks)


# ---- the parts of the tricks ------------------------------------------------------------------


class _Readers(torch.autograd.Function):
    """One tensor for several readers, whose gradients are added up in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for _ in range(count))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return compiled(_total)(*grads), None


def readers(x: Tensor, count: int) -> tuple[Tensor, ...]:
    """A tensor for so many readers."""
    made: tuple[Tensor, ...] = _Readers.apply(x, count)  # type: ignore[no-untyped-call]
    return made


def _total(*parts: Tensor) -> Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


class _Cross(torch.autograd.Function):
    """Means (batch, n, d) of the states (batch, T, d) for queries (batch, n, d).

    Left to itself, autograd writes the gradient of the shares as queries x tokens: rows that do
    not lie on 16 bytes, turned round in a further pass.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, states: Tensor) -> Tensor:
        shares = (states @ q.transpose(1, 2)).softmax(1)  # (batch, T, n)
        ctx.save_for_backward(q, states, shares)
        return shares.transpose(1, 2) @ states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        q, states, shares = ctx.saved_tensors
        wide, back = shares.float(), (states @ grad.transpose(1, 2)).float()
        scores = (wide * (back - (wide * back).sum(1, keepdim=True))).to(q.dtype)
        return scores.transpose(1, 2) @ states, kernels.two_products(shares, grad, scores, q)


class _CrossByHead(torch.autograd.Function):
    """The same in kernels of its own, for queries (heads, batch * N, d)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, states: Tensor) -> Tensor:
        mean: Tensor
        mean, kept = kernels_cross.cross(q, states)
        ctx.save_for_backward(q, states, kept)
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        dq, dstates = kernels_cross.cross_backward(*ctx.saved_tensors, grad)
        return dq, dstates


class _Gelu(torch.autograd.Function):
    """GELU whose backward pass makes the density from the exponential it needs anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * kernels.normal(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        changed: Tensor = grad.float() * kernels.slope(ctx.saved_tensors[0].float())
        return changed.to(grad.dtype)


class _Attention(torch.autograd.Function):
    """Self-attention before its output layer; the kernel also sums up the bias's gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int, causal: bool
    ) -> Tensor:
        qkv = F.linear(x, weight, bias)
        mixed: Tensor
        mixed, logs = kernels.attend(qkv, heads, causal)
        ctx.save_for_backward(x, weight, qkv, mixed, logs)
        ctx.ways = (heads, causal)
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, qkv, mixed, logs = ctx.saved_tensors
        dqkv, sums = kernels.attend_backward(qkv, mixed, logs, grad, *ctx.ways)
        flat = dqkv.flatten(0, 1)
        dx = (flat @ weight).view(x.shape)
        return dx, flat.t() @ x.flatten(0, 1), sums.sum(0).to(grad.dtype), None, None


class _FeedForward(torch.autograd.Function):
    """fc2(GELU(fc1(x))), with the kernels of the GELU: they also sum up for others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        h = F.linear(x, w1, b1)
        g = kernels.gelu(h)
        ctx.save_for_backward(x, h, g, w1, w2)
        return F.linear(g, w2, b2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, h, g, w1, w2 = ctx.saved_tensors
        dh, sums = kernels.gelu_backward(grad @ w2, h)
        db1 = sums.sum(0).to(grad.dtype)
        return dh @ w1, dh.t() @ x, db1, grad.t() @ g, grad.sum(0)
