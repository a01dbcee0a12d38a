"""BART's encoder with its products in 8 bits, forward and backward written out by hand.

    x ─ qkv ─ attend ─ out ─(+)─ norm ─ fc1 ─ GELU ─ fc2 ─(+)─ norm ─ next layer

Everything between two products is one kernel (kernels_fp8.py) that leaves behind what the next
product reads, in 8 bits; what is added up along the layers stays in 16. All four products of a
layer are in 8 bits, and so are the gradients of what they read. So are the gradients of their
weights but for `out`, which is too small to gain by it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from puzlm.training.fast import kernels_attend8, kernels_words
from puzlm.training.fast import kernels_fp8 as k8
from puzlm.training.fast.kernels_attend8 import attend, attend_backward
from puzlm.training.fast.kernels_fp8 import product, turn, unit

NAMES = (
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.out_proj.weight", "fc1.weight", "fc2.weight",
    "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
    "self_attn.out_proj.bias", "fc1.bias", "fc2.bias",
    "self_attn_layer_norm.weight", "self_attn_layer_norm.bias",
    "final_layer_norm.weight", "final_layer_norm.bias",
)  # fmt: skip
"""Weights of a layer, in the order in which _Encoder takes them and gives their gradients."""
KEPT = 11  # tensors of a layer that the backward pass reads
ROWS = 128  # tokens of a batch must be a multiple: kernels take so many at a time
GRADIENT = 2.0**18
"""Scale of gradients, times puzzles: a loss that is a mean makes them as small as those are many.
With it half of them are above 1/32 and the largest about 1,000, before training and after it
(docs/runs/gradients.txt); e5m2 reaches from 2^-16 to 57,344."""


def suits(net: Any, shape: torch.Size, device: str) -> bool:
    """Whether sentences (batch, T, ...) of a BART can be read in 8 bits."""
    c, tokens = net.config, shape[0] * shape[1]
    widths = (c.d_model, c.encoder_ffn_dim)
    fits = c.d_model % 128 == 0 and c.encoder_ffn_dim % 256 == 0
    fits = fits and all(w & (w - 1) == 0 for w in widths)
    return (
        fits
        and tokens % ROWS == 0
        and tokens * max(3 * c.d_model, c.encoder_ffn_dim) < 2**31
        and kernels_attend8.suits(shape[1], c.d_model // c.encoder_attention_heads, device)
    )


def read(ids: Tensor, encoder: Any, table: Tensor, offset: int, heads: int, dtype: Any) -> Tensor:
    """States (batch, T, d) of sentences (batch, T); places begin at a row of their table."""
    places, norm = encoder.embed_positions.weight, encoder.layernorm_embedding
    parts = table, places, norm.weight, norm.bias
    x, again, small = _Start.apply(ids, *parts, offset, dtype)  # type: ignore[no-untyped-call]
    return _encode(x, again, small, encoder.layers, heads)


def encode(x: Tensor, layers: Any, heads: int) -> Tensor:
    """The same of sentences that are embedded already, (batch, T, d)."""
    flat = x.detach().reshape(-1, x.shape[-1]).contiguous()
    return _encode(x, x, k8.small(flat, unit(1.0, x.device), k8.NORMED), layers, heads)


def _encode(x: Tensor, again: Tensor, small: Tensor, layers: Any, heads: int) -> Tensor:
    weights = [layer.get_parameter(name) for layer in layers for name in NAMES]
    states: Tensor = _Encoder.apply(x, again, small, heads, *weights)  # type: ignore[no-untyped-call]
    return states


class _Start(torch.autograd.Function):
    """Embedded sentences twice, and in 8 bits: the gradients of both arrive apart, and are added up
    where they are read."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, table: Tensor, places: Tensor, gain: Tensor, shift: Tensor,
        offset: int, dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        here = places[offset : offset + ids.shape[1]]
        out, small, spread = kernels_words.start(ids, table, here, gain, shift, dtype)
        ctx.save_for_backward(ids, out, spread, gain, shift)
        ctx.sizes = len(table), len(places), offset
        ctx.mark_non_differentiable(small)
        shape = (*ids.shape, -1)
        return out.view(shape), out.view(shape), small

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        ids, out, spread, gain, shift = ctx.saved_tensors
        rows, count, offset = ctx.sizes
        a, b = (g.reshape(out.shape).contiguous() for g in (a, b))
        table, here, d_gain, d_shift = kernels_words.start_backward(
            a, b, out, spread, ids, gain, shift, rows
        )
        places = torch.zeros(count, out.shape[1], device=out.device)
        places[offset : offset + len(here)] = here
        return None, table, places, d_gain, d_shift, None, None


class _Encoder(torch.autograd.Function):
    """Takes x twice, since it has two gradients: what is added up along the layers, and what comes
    back through the first product."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, again: Tensor, out8: Tensor, heads: int, *weights: Tensor
    ) -> Tensor:
        batch, length, d = x.shape
        count, dtype, device = len(weights) // len(NAMES), x.dtype, x.device
        layers = [weights[i * len(NAMES) : (i + 1) * len(NAMES)] for i in range(count)]
        groups = [group for w in layers for group in ([*w[:3]], [w[3]], [w[4]], [w[5]])]
        small = k8.weights([[t.detach() for t in group] for group in groups])
        normed, active, mixing = (unit(1 / s, device) for s in (k8.NORMED, k8.ACTIVE, k8.MIXED))
        out = x.reshape(-1, d).contiguous()
        kept: list[Tensor] = []
        for i, w in enumerate(layers):
            qkv8, mix8, fc1, fc2 = small[4 * i : 4 * i + 4]
            bias = [b.to(dtype) for b in (torch.cat(w[6:9]), *w[9:12])]
            kept.append(out8)
            qkv = product(out8, qkv8[0], normed, qkv8[2], dtype, bias[0]).view(batch, length, -1)
            mixed, mixed8, logs = attend(qkv, heads)
            o = product(mixed8, mix8[0], mixing, mix8[2], dtype, bias[1])
            x1, x8, spread1 = k8.norm(out, o, w[12], w[13])
            h = product(x8, fc1[0], normed, fc1[2], dtype, bias[2])
            g8, g_turned = k8.gelu(h)
            o = product(g8, fc2[0], active, fc2[2], dtype, bias[3])
            out, out8, spread2 = k8.norm(x1, o, w[14], w[15], i == count - 1)
            kept += [qkv, mixed, logs, x1, spread1, x8, h, g_turned, out, spread2]
        ctx.save_for_backward(*weights, *kept, *(t for s in small for t in s[1:]))
        ctx.shape = (batch, length, d, heads, count)
        return out.view(batch, length, d)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        batch, length, d, heads, count = ctx.shape
        saved, dtype, device = list(ctx.saved_tensors), grad.dtype, grad.device
        weights, saved = saved[: count * len(NAMES)], saved[count * len(NAMES) :]
        kept, small = saved[: KEPT * count], saved[KEPT * count :]
        scale = GRADIENT * 2.0 ** math.ceil(math.log2(batch))
        grained, normed, active = (unit(1 / s, device) for s in (scale, k8.NORMED, k8.ACTIVE))

        def down(g8: Tensor, of: int) -> Tensor:
            """Gradient of what a layer's product reads, from that of what it gives."""
            return product(g8, small[of], grained, small[of + 1], dtype)

        def weight(g8: Tensor, x8: Tensor, unit_x: Tensor) -> Tensor:
            """And that of its weight, from both turned: a sum over all tokens, so not `fast`."""
            return product(g8, x8, grained, unit_x, dtype, fast=False).float()

        a, b = grad.reshape(-1, d).contiguous(), None
        found: list[Tensor] = []
        for i in reversed(range(count)):
            w = weights[i * len(NAMES) : (i + 1) * len(NAMES)]
            y8, qkv, mixed, logs, x1, spread1, x8, h, g_turned, x2, spread2 = kept[
                KEPT * i : KEPT * (i + 1)
            ]
            a, a8, (d_gain2, d_shift2, d_bias2) = k8.norm_backward(
                a, b, x2, spread2, w[14], w[15], scale
            )
            d_fc2 = weight(turn(a8), g_turned, active)
            dh, dh_turned, d_bias1 = k8.gelu_backward(down(a8, 8 * i + 6), h, scale)
            d_fc1 = weight(dh_turned, turn(x8), normed)
            a, a8, (d_gain1, d_shift1, d_bias_out) = k8.norm_backward(
                a, down(dh, 8 * i + 4), x1, spread1, w[12], w[13], scale
            )
            d_out = a.t() @ mixed.view(-1, d)
            dm = down(a8, 8 * i + 2).view(batch, length, d)
            dqkv, d_bias = attend_backward(qkv, mixed, logs, dm, heads, scale)
            b, d_qkv = down(dqkv, 8 * i), weight(turn(dqkv), turn(y8), normed)
            found = [
                *d_qkv.chunk(3), d_out.float(), d_fc1, d_fc2,
                *d_bias.chunk(3), d_bias_out, d_bias1, d_bias2,
                d_gain1, d_shift1, d_gain2, d_shift2,
                *found,
            ]  # fmt: skip
        assert b is not None
        shape = (batch, length, d)
        return (a.view(shape), b.view(shape), None, None, *found)
