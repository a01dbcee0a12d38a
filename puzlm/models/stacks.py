"""One-stack transformers: encoder-only and decoder-only, the size of an encoder-decoder.

They exist to be measured against the encoder-decoder. Layers are BART's (GELU, learned positions,
output tied to the embeddings) but normalised before each block, as in GPT-2: stacks this deep that
were normalised after it began to learn with some seeds only. Their number and width are chosen so
that a stack has as many weights as the encoder and decoder it replaces. Token ids in, logits out.
`Network` is what they and the LSTM and GRU of backbones.py have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.tokenizer.piece_tokenizer import PAD

MOST_CELLS = 1024  # rows for output positions of a decoder-only model, far beyond any sentence


def stack_shape(
    encoder_layers: int,
    decoder_layers: int,
    d_model: int,
    feed_forward: int,
    decoder_feed_forward: int = 0,
) -> tuple[int, int]:
    """Layers and feed-forward width of the one stack with as many weights as the two.

    >>> stack_shape(4, 2, 256, 1024)
    (7, 960)
    """
    square, line = 4 * d_model**2, 2 * d_model  # one attention; one unit of feed-forward width
    wide = decoder_feed_forward or feed_forward
    total = encoder_layers * (square + line * feed_forward)
    total += decoder_layers * (2 * square + line * wide)
    layers = max(1, round(total / (square + line * feed_forward)))
    return layers, max(8, round((total / layers - square) / line / 8) * 8)


class Output:
    """The two fields of transformers' output objects that this package reads."""

    def __init__(self, logits: Tensor, past_key_values: Any = None) -> None:
        self.logits, self.past_key_values = logits, past_key_values


class Network(nn.Module):
    """Called as transformers' models are; a child says how it reads and how it goes on writing."""

    embed: nn.Embedding

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed

    def get_encoder(self) -> Callable[..., tuple[Tensor]]:
        return self._encode

    def _encode(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor]:
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        return (self.read(x, attention_mask),)

    def forward(
        self,
        encoder_outputs: tuple[Tensor],
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> Output:
        states = encoder_outputs[0]
        return Output(*self.go_on(states, decoder_input_ids, attention_mask, past_key_values))

    def read(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """States (batch, T, d_model) of embedded sentences."""
        raise NotImplementedError

    def go_on(
        self, states: Tensor, tokens: Tensor, mask: Tensor | None, cache: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits (rows, N, vocabulary) after tokens (rows, N), and the cache to go on from."""
        raise NotImplementedError


class _Block(nn.Module):
    def __init__(self, d_model: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.fc1, self.fc2 = nn.Linear(d_model, feed_forward), nn.Linear(feed_forward, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, causal: bool, mask: Tensor | None = None, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Next states of x (batch, n, d), and keys and values (2, seen, batch, d) so far.

        `mask` (batch, 1, n, seen) is True where a position may look.
        """
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        memory = torch.stack([k, v]).transpose(1, 2)
        if past is not None:
            memory = torch.cat([past, memory.to(past)], 1)
            k, v = memory.transpose(1, 2).to(q).unbind(0)
        q, k, v = (a.unflatten(-1, (self.heads, -1)).transpose(1, 2) for a in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal and mask is None)
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.norm2(x))))), memory


class _Stack(Network):
    """Embeddings, positions and blocks; what the two models share."""

    def __init__(self, s: Any, positions: int) -> None:
        super().__init__()
        layers, feed_forward = stack_shape(
            s.encoder_layers, s.decoder_layers, s.d_model, s.feed_forward, s.decoder_feed_forward
        )
        self.embed = nn.Embedding(s.vocabulary, s.d_model, padding_idx=PAD)
        self.positions = nn.Embedding(positions, s.d_model)
        self.norm, self.last = nn.LayerNorm(s.d_model), nn.LayerNorm(s.d_model)
        self.blocks = nn.ModuleList(
            _Block(s.d_model, s.heads, feed_forward, s.dropout) for _ in range(layers)
        )
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear):
                    nn.init.zeros_(module.bias)
        with torch.no_grad():
            self.embed.weight[PAD].zero_()

    def placed(self, x: Tensor, first: int = 0) -> Tensor:
        """Embeddings (batch, n, d) with their positions, from number `first` on."""
        normed: Tensor = self.norm(x + self.positions.weight[first : first + x.shape[1]])
        return normed

    def write(self, states: Tensor) -> Tensor:
        """Logits over the vocabulary."""
        return F.linear(states, self.embed.weight)


class EncoderOnly(_Stack):
    """All cells at once: the mean state of a slot says where its piece belongs.

    It never learns what was placed before; a decoder that uses every cell once still can.
    """

    def __init__(self, s: Any) -> None:
        super().__init__(s, s.max_length)
        self.slot_length = s.slot_length

    def read(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """States of a sentence; every position sees all."""
        seen = None if mask is None else mask[:, None, None, :].bool()
        x = self.placed(x)
        for block in self.blocks:
            x, _ = block(x, False, seen)
        states: Tensor = self.last(x)
        return states

    def go_on(
        self, states: Tensor, tokens: Tensor, mask: Tensor | None, cache: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits of as many slots as tokens are given, from the first slot not yet asked for.

        The cache is the number of slots asked for, (rows, 1).
        """
        rows = len(states)
        here = torch.ones_like(states[..., 0]) if mask is None else mask
        here = here.to(states)[..., None]
        short = -states.shape[1] % self.slot_length
        summed = F.pad(torch.cat([states * here, here], -1), (0, 0, 0, short))
        summed = summed.view(rows, -1, self.slot_length, summed.shape[-1]).sum(2)
        pooled = summed[..., :-1] / summed[..., -1:].clamp_min(1)
        asked = tokens.shape[1]
        first = 0 if cache is None else int(cache[0][0, 0])
        logits = self.write(pooled[:, first : first + asked])
        count = torch.full((rows, 1), first + asked, device=states.device)
        return logits, (count,)


class DecoderOnly(_Stack):
    """A causal language model over the sentence, then [BOS] and the cells one by one.

    A position sees what stands before it, so the first pieces are read without the others.
    """

    def __init__(self, s: Any) -> None:
        super().__init__(s, s.max_length + MOST_CELLS)
        self.max_length = s.max_length

    def read(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """States of a sentence. Its keys and values travel with them, as their `memory`."""
        seen, memory = None, []
        if mask is not None:
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            seen = seen & mask[:, None, None, :].bool()
        x = self.placed(x)
        for block in self.blocks:
            x, past = block(x, True, seen)
            memory.append(past)
        states: Tensor = self.last(x)
        states.memory = torch.cat(memory)  # type: ignore[attr-defined]
        return states

    def go_on(
        self, states: Tensor, tokens: Tensor, mask: Tensor | None, cache: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Go on writing: the cache is the memory (2 layers, seen, rows, d) of all that was read."""
        memory = states.memory if cache is None else cache[0]  # type: ignore[attr-defined]
        asked = tokens.shape[1]
        written = memory.shape[1] - states.shape[1]
        x, parts = self.placed(self.embed(tokens), self.max_length + written), []
        seen = torch.ones(asked, written + asked, dtype=torch.bool, device=x.device).tril(written)
        seen = seen.expand(len(x), 1, -1, -1)
        sentence = torch.ones_like(states[:, :, 0]) if mask is None else mask
        sentence = sentence.bool()[:, None, None].expand(-1, -1, asked, -1)
        seen = torch.cat([sentence, seen], -1)
        for block, past in zip(self.blocks, memory.chunk(len(self.blocks)), strict=True):
            x, more = block(x, False, seen, past)
            parts.append(more)
        return self.write(self.last(x)), (torch.cat(parts),)
