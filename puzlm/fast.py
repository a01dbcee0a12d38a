"""BART's forward pass written for speed, over the very weights of the transformers model.

What differs from the library's, none of it the result: one product for query, key and value;
activations in one dtype (bfloat16 on a GPU) with float32 master weights; no attention masks where
nothing is masked; and a cross-attention that never makes keys and values. A puzzle has an order of
magnitude fewer slots than tokens, so multiplying the queries by W_k and the averages by W_v costs a
seventh of projecting every encoder state twice. The key bias shifts all scores of a query alike
and drops out of the softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from puzlm.tokenizer import PAD

POSITION_OFFSET = 2  # BART's position table has two unused rows in front


def bart(net: Any, inputs: Tensor, decoder_inputs: Tensor, dtype: torch.dtype) -> tuple[Any, ...]:
    """Logits (batch, N, vocabulary) and encoder states (batch, T, d) of token ids.

    `inputs` is (batch, T) or (batch, T, F); several symbols a position are summed.
    """
    w = {name: p.to(dtype) for name, p in net.named_parameters()}
    heads = net.config.encoder_attention_heads
    table = w["model.shared.weight"]
    x = F.embedding(inputs, table, PAD)  # PAD learns nothing from being read, as in the library
    states = _encoder(w, x if inputs.ndim == 2 else x.sum(2), heads, net.config.encoder_layers)
    y = _decoder(
        w, F.embedding(decoder_inputs, table, PAD), states, heads, net.config.decoder_layers
    )
    return F.linear(y, table), states


def _start(w: dict[str, Tensor], x: Tensor, stack: str) -> Tensor:
    places = w[f"{stack}.embed_positions.weight"]
    x = x + places[POSITION_OFFSET : POSITION_OFFSET + x.shape[1]]
    return _norm(w, f"{stack}.layernorm_embedding", x)


def _norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def _linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def _self_attention(w: dict[str, Tensor], name: str, x: Tensor, heads: int, causal: bool) -> Tensor:
    batch, length, d = x.shape
    weight = torch.cat([w[f"{name}.{p}_proj.weight"] for p in "qkv"])
    bias = torch.cat([w[f"{name}.{p}_proj.bias"] for p in "qkv"])
    qkv = F.linear(x, weight, bias).view(batch, length, 3, heads, d // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return _linear(w, f"{name}.out_proj", mixed.transpose(1, 2).reshape(batch, length, d))


def _cross_attention(
    w: dict[str, Tensor], name: str, x: Tensor, states: Tensor, heads: int
) -> Tensor:
    batch, length, d = x.shape
    size = d // heads
    q = _linear(w, f"{name}.q_proj", x).view(batch, length, heads, size) * size**-0.5
    keys = w[f"{name}.k_proj.weight"].view(heads, size, d)
    q = torch.einsum("blhs,hsd->blhd", q, keys).reshape(batch, length * heads, d)
    shares = (q @ states.transpose(1, 2)).softmax(-1)  # (batch, N * heads, T)
    mean = (shares @ states).view(batch, length, heads, d)
    values = w[f"{name}.v_proj.weight"].view(heads, size, d)
    mixed = torch.einsum("blhd,hsd->blhs", mean, values).reshape(batch, length, d)
    return _linear(w, f"{name}.out_proj", mixed + w[f"{name}.v_proj.bias"])


def _feed_forward(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    inner = F.gelu(_linear(w, f"{name}.fc1", x))
    return _norm(w, f"{name}.final_layer_norm", x + _linear(w, f"{name}.fc2", inner))


def _encoder(w: dict[str, Tensor], x: Tensor, heads: int, layers: int) -> Tensor:
    x = _start(w, x, "model.encoder")
    for number in range(layers):
        name = f"model.encoder.layers.{number}"
        x = x + _self_attention(w, f"{name}.self_attn", x, heads, False)
        x = _feed_forward(w, name, _norm(w, f"{name}.self_attn_layer_norm", x))
    return x


def _decoder(w: dict[str, Tensor], y: Tensor, states: Tensor, heads: int, layers: int) -> Tensor:
    y = _start(w, y, "model.decoder")
    for number in range(layers):
        name = f"model.decoder.layers.{number}"
        y = y + _self_attention(w, f"{name}.self_attn", y, heads, True)
        y = _norm(w, f"{name}.self_attn_layer_norm", y)
        y = y + _cross_attention(w, f"{name}.encoder_attn", y, states, heads)
        y = _feed_forward(w, name, _norm(w, f"{name}.encoder_attn_layer_norm", y))
    return y
