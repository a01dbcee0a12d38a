"""One-stack transformers: encoder-only and decoder-only, the size of an encoder-decoder.

They exist to be measured against the encoder-decoder. Layers are BART's (normalised after each
block, GELU, learned positions, output tied to the embeddings), their number and width chosen so
that a stack has as many weights as the encoder and decoder it replaces. Token ids in, logits out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.tokenizer import PAD

MOST_CELLS = 1024  # rows for output positions of a decoder-only model, far beyond any sentence


def stack_shape(encoder_layers: int, decoder_layers: int, d_model: int, feed_forward: int,
                decoder_feed_forward: int = 0) -> tuple[int, int]:  # fmt: skip
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
        q, k, v = self.qkv(x).chunk(3, -1)
        memory = torch.stack([k, v]).transpose(1, 2)
        if past is not None:
            memory = torch.cat([past, memory.to(past)], 1)
            k, v = memory.transpose(1, 2).to(q).unbind(0)
        q, k, v = (a.unflatten(-1, (self.heads, -1)).transpose(1, 2) for a in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal and mask is None)
        x = self.norm1(x + self.drop(self.out(mixed.transpose(1, 2).flatten(2))))
        return self.norm2(x + self.drop(self.fc2(F.gelu(self.fc1(x))))), memory


class _Stack(nn.Module):
    """Embeddings, positions and blocks; what the two models share."""

    def __init__(self, s: Any, positions: int) -> None:
        super().__init__()
        layers, feed_forward = stack_shape(
            s.encoder_layers, s.decoder_layers, s.d_model, s.feed_forward, s.decoder_feed_forward
        )
        self.embed = nn.Embedding(s.vocabulary, s.d_model, padding_idx=PAD)
        self.positions = nn.Embedding(positions, s.d_model)
        self.norm = nn.LayerNorm(s.d_model)
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

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed

    def write(self, states: Tensor) -> Tensor:
        """Logits over the vocabulary."""
        return F.linear(states, self.embed.weight)


class _Reading(nn.Module):
    """What `Seq2Seq.encode` calls: the states of a sentence, by its stack's `read`."""

    def __init__(self, stack: EncoderOnly | DecoderOnly) -> None:
        super().__init__()
        self.__dict__["stack"] = stack  # not a submodule: its weights are counted once

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None,
                attention_mask: Tensor | None = None) -> tuple[Tensor]:  # fmt: skip
        stack: Any = self.__dict__["stack"]
        x = stack.embed(input_ids) if inputs_embeds is None else inputs_embeds
        x = stack.norm(x + stack.positions.weight[: x.shape[1]])
        return (stack.read(x, attention_mask),)


class EncoderOnly(_Stack):
    """All cells at once: the mean state of a slot says where its piece belongs.

    It never learns what was placed before; a decoder that uses every cell once still can.
    """

    def __init__(self, s: Any) -> None:
        super().__init__(s, s.max_length)
        self.slot_length = s.slot_length
        self.reading = _Reading(self)

    def get_encoder(self) -> nn.Module:
        return self.reading

    def read(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        """States of a sentence; every position sees all."""
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        for block in self.blocks:
            x, _ = block(x, False, mask)
        return x

    def forward(
        self,
        encoder_outputs: tuple[Tensor],
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> Any:
        """Logits of as many slots as tokens are given, from the first slot not yet asked for.

        The cache is the number of slots asked for, (rows, 1).
        """
        from puzlm.backbones import _Output

        states = encoder_outputs[0]
        rows = len(states)
        here = torch.ones_like(states[..., 0]) if attention_mask is None else attention_mask
        here = here.to(states)[..., None]
        short = -states.shape[1] % self.slot_length
        summed = F.pad(torch.cat([states * here, here], -1), (0, 0, 0, short))
        summed = summed.view(rows, -1, self.slot_length, summed.shape[-1]).sum(2)
        pooled = summed[..., :-1] / summed[..., -1:].clamp_min(1)
        asked = decoder_input_ids.shape[1]
        first = 0 if past_key_values is None else int(past_key_values[0][0, 0])
        logits = self.write(pooled[:, first : first + asked])
        count = torch.full((rows, 1), first + asked, device=states.device)
        return _Output(logits, (count,))


class DecoderOnly(_Stack):
    """A causal language model over the sentence, then [BOS] and the cells one by one.

    A position sees what stands before it, so the first pieces are read without the others.
    """

    def __init__(self, s: Any) -> None:
        super().__init__(s, s.max_length + MOST_CELLS)
        self.max_length = s.max_length
        self.reading = _Reading(self)

    def get_encoder(self) -> nn.Module:
        return self.reading

    def read(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        """States of a sentence. Its keys and values travel with them, as their `memory`."""
        mask, memory = None, []
        if attention_mask is not None:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            mask = mask & attention_mask[:, None, None, :].bool()
        for block in self.blocks:
            x, past = block(x, True, mask)
            memory.append(past)
        x.memory = torch.cat(memory)  # type: ignore[attr-defined]
        return x

    def forward(
        self,
        encoder_outputs: tuple[Tensor],
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> Any:
        """Go on writing: the cache is the memory (2 layers, seen, rows, d) of all that was read."""
        from puzlm.backbones import _Output

        states = encoder_outputs[0]
        memory = states.memory if past_key_values is None else past_key_values[0]  # type: ignore[attr-defined]
        length, asked = states.shape[1], decoder_input_ids.shape[1]
        written = memory.shape[1] - length
        at = self.max_length + written
        x = self.embed(decoder_input_ids) + self.positions.weight[at : at + asked]
        x, parts = self.norm(x), []
        mask = torch.ones(asked, written + asked, dtype=torch.bool, device=x.device).tril(written)
        mask = mask.expand(len(x), 1, -1, -1)
        sentence = torch.ones_like(states[:, :, 0], dtype=torch.bool)
        if attention_mask is not None:
            sentence = attention_mask.bool()
        mask = torch.cat([sentence[:, None, None].expand(-1, -1, asked, -1), mask], -1)
        for block, past in zip(self.blocks, memory.chunk(len(self.blocks)), strict=True):
            x, more = block(x, False, mask, past)
            parts.append(more)
        return _Output(self.write(x), (torch.cat(parts),))
