"""Encoder-decoder language models over the puzzle vocabulary, behind one call shape.

BART, T5 and Pegasus come from transformers, built from scratch; LSTM and GRU are here, and the
one-stack models that the paper argues against in stacks.py. Nothing in this module touches a pixel:
token ids go in, logits over token ids come out.

    logits = model(input_ids, decoder_input_ids)          training, (batch, N, vocabulary)
    state = model.start(input_ids)                        decoding, one token at a time
    logits, state = model.step(state, tokens)             (rows, vocabulary)
    state = model.reorder(state, rows)                    for beams
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from puzlm.errors import ModelError, SettingsError, nearest
from puzlm.model_files import build, read_settings, save
from puzlm.models.stacks import DecoderOnly, EncoderOnly, Network
from puzlm.sections import at_least
from puzlm.tokenizer.piece_tokenizer import BOS, EOS, PAD, PieceTokenizer, read_safetensors

SIZES = {  # encoder layers, decoder layers, d_model, heads, feed-forward
    "tiny": (2, 2, 128, 4, 512),
    "small": (4, 4, 256, 4, 1024),
    "base": (6, 6, 512, 8, 2048),
}
BACKBONES = ("bart", "t5", "pegasus", "lstm", "gru", "encoder", "decoder")


@dataclass(frozen=True)
class ModelSettings:
    """Shape of a backbone."""

    backbone: str = "bart"
    """bart, t5, pegasus, lstm, gru, or one stack of the same size: encoder, decoder."""
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 512
    heads: int = 8
    feed_forward: int = 2048
    decoder_feed_forward: int = 0
    """Feed-forward width of the decoder; 0 takes the encoder's."""
    dropout: float = 0.0
    vocabulary: int = 0
    """Token ids in all, len(tokenizer); filled in from the tokenizer."""
    max_length: int = 1024
    """Longest sentence the model can read; filled in from the tokenizer."""
    slot_length: int = 0
    """Positions of a super-token and its separator; filled in from the tokenizer."""
    symbols: int = 0
    """Whole symbols a position, 0 for all; of the others, parts of splits, [PAD] counts nothing.
    Filled in from the tokenizer."""

    def __post_init__(self) -> None:
        if self.backbone not in BACKBONES:
            raise SettingsError(
                f"backbone '{self.backbone}' is unknown; {nearest(self.backbone, BACKBONES)}"
            )
        at_least(1, self, "model", "encoder_layers", "decoder_layers", "d_model", "heads")
        at_least(1, self, "model", "feed_forward", "max_length")
        at_least(0, self, "model", "decoder_feed_forward", "vocabulary", "slot_length", "symbols")
        at_least(0, self, "model", "dropout")
        if self.dropout >= 1:
            raise SettingsError(f"model.dropout {self.dropout}: must be below 1")
        parts = {"lstm": 2, "gru": 2, "t5": 1}.get(self.backbone, self.heads)
        if self.d_model % parts:
            raise SettingsError(f"model.d_model {self.d_model}: must be a multiple of {parts}")

    @classmethod
    def of_size(cls, backbone: str, size: str, tokenizer: PieceTokenizer) -> ModelSettings:
        """Settings of a named size (tiny, small, base) for a tokenizer's vocabulary."""
        if size not in SIZES:
            raise SettingsError(f"model size '{size}' is unknown; {nearest(size, SIZES)}")
        encoder, decoder, d_model, heads, feed_forward = SIZES[size]
        return cls(
            backbone,
            encoder,
            decoder,
            d_model,
            heads,
            feed_forward,
            feed_forward,
            vocabulary=len(tokenizer),
            max_length=tokenizer.sentence_length(tokenizer.settings.max_cells),
            slot_length=tokenizer.settings.border_length + tokenizer.settings.separator,
            symbols=len(tokenizer.settings.whole) if tokenizer.settings.splits else 0,
        )

    @classmethod
    def of_recipe(cls, wanted: Any, tokenizer: PieceTokenizer) -> ModelSettings:
        """Settings of a recipe's [model]: a named size, with what else is set there."""
        named = cls.of_size(wanted.backbone, wanted.size, tokenizer)
        other = {k: v for k, v in vars(wanted).items() if v and k not in ("size", "backbone")}
        return cls(**{**vars(named), **other})


class Seq2Seq(nn.Module):
    """One call shape over every backbone."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        kinds = {
            "lstm": _Recurrent,
            "gru": _Recurrent,
            "encoder": EncoderOnly,
            "decoder": DecoderOnly,
        }
        self.net: Any = kinds.get(settings.backbone, _transformer)(settings)

    @property
    def embedding(self) -> Tensor:
        """Token embeddings (vocabulary, d_model)."""
        weight: Tensor = self.net.get_input_embeddings().weight
        return weight

    def inputs(self, input_ids: Tensor) -> dict[str, Tensor]:
        """Several symbols a position are one input vector: the sum of their embeddings."""
        if input_ids.ndim == 2:
            return {"input_ids": input_ids}
        # Pegasus scales what it embeds itself, but not what it is given.
        scale = getattr(self.net.get_encoder(), "embed_scale", 1.0)
        whole = self.settings.symbols or input_ids.shape[2]
        x = self.net.get_input_embeddings()(input_ids[..., :whole]).sum(2)
        if whole < input_ids.shape[2]:  # summed in one go: a hundred vectors would take gigabytes
            parts = input_ids[..., whole:].flatten(0, 1)
            more = F.embedding_bag(parts, self.embedding, mode="sum", padding_idx=PAD)
            x = x + more.view(x.shape)
        return {"inputs_embeds": x * scale}

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encoder states (batch, T, d_model) of sentences (batch, T) or (batch, T, F)."""
        out = self.net.get_encoder()(**self.inputs(input_ids), attention_mask=attention_mask)
        states: Tensor = out[0]
        return states

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        states: Tensor | None = None,
    ) -> Tensor:
        """Logits (batch, N, vocabulary) given all placements so far (teacher forcing)."""
        if states is None:
            states = self.encode(input_ids, attention_mask)
        out = self.net(
            encoder_outputs=(states,),
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            use_cache=False,
            return_dict=True,
        )
        logits: Tensor = out.logits
        return logits

    def start(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Any]:
        """Read the sentences; the returned state is what `step` goes on from."""
        return {
            "states": self.encode(input_ids, attention_mask),
            "mask": attention_mask,
            "cache": None,
        }

    def step(self, state: dict[str, Any], tokens: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Feed one token a row; logits (rows, vocabulary) of the next."""
        out = self.net(
            encoder_outputs=(state["states"],),
            attention_mask=state["mask"],
            decoder_input_ids=tokens[:, None],
            past_key_values=state["cache"],
            use_cache=True,
            return_dict=True,
        )
        return out.logits[:, -1], {**state, "cache": out.past_key_values}

    def reorder(self, state: dict[str, Any], rows: Tensor) -> dict[str, Any]:
        """Keep the given rows of a state, in that order.

        More rows than before (the first time) copies everything. After that a row only ever takes
        over from another hypothesis about the same puzzle: what was read stays where it is, and
        only what was written moves.
        """
        mask, cache, states = state["mask"], state["cache"], state["states"]
        first = len(rows) != len(states)
        if isinstance(cache, tuple):
            cache = tuple(part.index_select(part.ndim - 2, rows) for part in cache)
        elif cache is not None:
            (cache if first else cache.self_attention_cache).reorder_cache(rows)
        if first:
            states, mask = states[rows], None if mask is None else mask[rows]
        return {"states": states, "mask": mask, "cache": cache}

    def tensors(self) -> dict[str, Tensor]:
        """Weights by name, shared ones once."""
        return {name: p.detach() for name, p in self.net.named_parameters()}

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write model.json and model.safetensors."""
        save(folder, "model", self.settings, self.tensors(), dtype)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Seq2Seq:
        """Read a saved model in float32; nothing in the files is executed."""
        folder = Path(folder)
        settings = read_settings(ModelSettings, folder / "model.json")
        arrays = read_safetensors(folder / "model.safetensors")
        model = build(cls, settings, arrays, f"{folder}: model")
        model.load(arrays, str(folder))
        return model.eval()

    def load(self, arrays: dict[str, Any], where: str = "the weights") -> None:
        """Take over weights by name; all must be there and of the right shape."""
        own = self.tensors()
        if missing := sorted(set(own) ^ set(arrays)):
            raise ModelError(f"{where}: weights do not fit model.json (first: {missing[0]})")
        for name, parameter in own.items():
            value = torch.as_tensor(arrays[name])
            if value.shape != parameter.shape:
                raise ModelError(
                    f"{where}: weight {name} has shape {tuple(value.shape)}, "
                    f"{tuple(parameter.shape)} is needed"
                )
            parameter.copy_(value)


def _transformer(s: ModelSettings) -> Any:
    """Build a transformers model from scratch.

    Special ids are set explicitly and the forced end token is off: the library's defaults would
    collide with symbols.
    """
    common: dict[str, Any] = dict(
        vocab_size=s.vocabulary,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        forced_bos_token_id=None,
    )
    if s.backbone == "t5":
        from transformers import T5Config, T5ForConditionalGeneration

        return T5ForConditionalGeneration(
            T5Config(
                d_model=s.d_model,
                d_kv=s.d_model // s.heads,
                d_ff=s.feed_forward,
                num_heads=s.heads,
                num_layers=s.encoder_layers,
                num_decoder_layers=s.decoder_layers,
                dropout_rate=s.dropout,
                **common,
            )
        )
    layers: dict[str, Any] = dict(
        d_model=s.d_model,
        encoder_layers=s.encoder_layers,
        decoder_layers=s.decoder_layers,
        encoder_attention_heads=s.heads,
        decoder_attention_heads=s.heads,
        encoder_ffn_dim=s.feed_forward,
        decoder_ffn_dim=s.decoder_feed_forward or s.feed_forward,
        dropout=s.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="gelu",
        max_position_embeddings=s.max_length,
        **common,
    )
    if s.backbone == "pegasus":
        from transformers import PegasusConfig, PegasusForConditionalGeneration

        # as in the published models: without it the fixed positions drown the symbols
        return PegasusForConditionalGeneration(PegasusConfig(**layers, scale_embedding=True))
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(BartConfig(**layers))


class _Recurrent(Network):
    """LSTM or GRU: two-way encoder; decoder that attends to the encoder states (Luong, dot)."""

    def __init__(self, s: ModelSettings) -> None:
        super().__init__()
        rnn = nn.LSTM if s.backbone == "lstm" else nn.GRU
        self.embed = nn.Embedding(s.vocabulary, s.d_model, padding_idx=PAD)
        reader = rnn(
            s.d_model,
            s.d_model // 2,
            s.encoder_layers,
            batch_first=True,
            bidirectional=True,
            dropout=s.dropout,
        )
        self.encoder = nn.ModuleDict({"rnn": reader})  # as its weights are named in saved models
        self.rnn = rnn(s.d_model, s.d_model, s.decoder_layers, batch_first=True, dropout=s.dropout)
        self.query = nn.Linear(s.d_model, s.d_model, bias=False)
        self.mix = nn.Linear(2 * s.d_model, s.d_model)
        self.out = nn.Linear(s.d_model, s.vocabulary)

    def read(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rnn, long = self.encoder["rnn"], x.shape[1]
        if mask is None:
            states: Tensor = rnn(x)[0]
            return states
        # Packed: the way back must begin at the last word of each sentence, not at its padding.
        packed = pack_padded_sequence(x, mask.sum(1).cpu(), True, enforce_sorted=False)
        states, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=long)
        return states

    def go_on(
        self, states: Tensor, tokens: Tensor, mask: Tensor | None, cache: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if cache is not None and len(cache) == 1:
            cache = cache[0]  # GRU has one state tensor, LSTM two
        hidden, after = self.rnn(self.embed(tokens), cache)
        scores = self.query(hidden) @ states.transpose(1, 2) / states.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, float("-inf"))
        context = scores.softmax(-1) @ states
        logits = self.out(torch.tanh(self.mix(torch.cat([hidden, context], -1))))
        return logits, after if isinstance(after, tuple) else (after,)


class TorchReader:
    """A Seq2Seq as decoding.py sees it: numpy in, numpy out, no gradients."""

    def __init__(self, model: Seq2Seq) -> None:
        self.model = model.eval()
        self.device = next(model.parameters()).device

    def start(self, input_ids: Any, attention_mask: Any = None) -> Any:
        mask = (
            None if attention_mask is None or attention_mask.all() else self._move(attention_mask)
        )
        with torch.inference_mode():
            return self.model.start(self._move(input_ids), mask)

    def step(self, state: Any, tokens: Any) -> Any:
        with torch.inference_mode():
            logits, state = self.model.step(state, self._move(tokens))
            return logits.float().cpu().numpy(), state

    def reorder(self, state: Any, rows: Any) -> Any:
        with torch.inference_mode():
            return self.model.reorder(state, self._move(rows))

    def _move(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self.device)
