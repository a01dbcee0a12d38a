"""What training minimises: cross-entropy on the cells, and heads that are thrown away after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.models.backbones import Seq2Seq
from puzlm.tokenizer.piece_tokenizer import BOS, PieceTokenizer
from puzlm.training.fast import kernels_words
from puzlm.training.fast.bart import bart, compiled
from puzlm.training.fast.fast_words import Columns
from puzlm.training.loop import Batch
from puzlm.training.tricks import PLAIN, Tricks


class Heads(nn.Module):
    """Training-only heads on the pooled encoder states: right of me, below me, my cell."""

    def __init__(self, d_model: int, cells: int) -> None:
        super().__init__()
        self.right = nn.Linear(d_model, 2 * d_model)
        self.below = nn.Linear(d_model, 2 * d_model)
        self.none = nn.Parameter(torch.zeros(2, d_model))
        self.cell = nn.Linear(d_model, cells)

    def forward(self, pooled: Tensor, padded: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, slots, d) -> two (batch, slots, slots + 1) and one (batch, slots, cells)."""
        found = []
        for linear, none in zip((self.right, self.below), self.none, strict=True):
            query, key = _in_dtype(linear, pooled).chunk(2, -1)
            answers = key.shape[1] + 1
            # Empty keys up to a multiple of 8: shorter rows keep the matrix units out.
            none = none.to(key).expand(len(key), 1, -1)
            key = F.pad(torch.cat([key, none], 1), (0, 0, 0, -answers % 8))
            scores = query @ key.transpose(1, 2) / key.shape[-1] ** 0.5
            found.append(scores[..., :answers])
        return found[0], found[1], _in_dtype(self.cell, pooled, padded)


def _in_dtype(linear: nn.Linear, x: Tensor, padded: bool = False) -> Tensor:
    """Apply a layer in the dtype of x, its weights staying in float32.

    Padded: with empty rows up to a multiple of 8, whose answers are cut off again.
    """
    weight, bias = linear.weight.to(x.dtype), linear.bias.to(x.dtype)
    if not padded:
        return F.linear(x, weight, bias)
    more = -len(bias) % 8
    return F.linear(x, F.pad(weight, (0, 0, 0, more)), F.pad(bias, (0, more)))[..., : len(bias)]


class Objective(nn.Module):
    """Cross-entropy on the cells, plus the heads when their weight is above 0."""

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: PieceTokenizer,
        cells: int,
        heads: float,
        fast: torch.dtype | None = None,
        tricks: Tricks = PLAIN,
    ) -> None:
        super().__init__()
        self.model, self.weight, self.fast, self.tricks = model, heads, fast, tricks
        self.heads = Heads(model.settings.d_model, cells) if heads > 0 else None
        self.first_cell, self.cells = tokenizer.cell_token_id(0), cells
        self.b = tokenizer.settings.border_length
        self.separator = tokenizer.settings.separator
        self.columns = Columns.of(tokenizer)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss, and (cross-entropy, teacher-forced accuracy, head loss) for the log."""
        labels = batch["order"] + self.first_cell
        given = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
        if self.fast is not None:
            logits, states = bart(
                self.model.net, batch["ids"], given, self.fast, self.tricks, self.columns
            )
        else:
            states = self.model.encode(batch["ids"])
            logits = self.model(batch["ids"], given, states=states)
        judge = compiled(Objective.judge) if self.tricks.blocks else Objective.judge
        return judge(self, logits, states, batch)

    def judge(self, logits: Tensor, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same from what the model said, and from its encoder states."""
        labels, here = batch["order"] + self.first_cell, batch["present"]
        plain = _mean(logits, labels, here, batch["count"])
        right = ((logits.argmax(-1) == labels) & here).sum() / batch["count"]
        if self.heads is None:
            return plain, torch.stack([plain.detach(), right, plain.detach() * 0])
        pooled = self.pool(states)
        pooled = pooled if self.tricks.heads16 else pooled.float()
        found = self.heads(pooled, self.tricks.padded)
        answers = (batch["right"], batch["below"], batch["order"])
        share = (0.5, 0.5, 1.0)
        losses = [
            k * _mean(x, y, here, batch["count"])
            for k, x, y in zip(share, found, answers, strict=True)
        ]
        extra = torch.stack(losses).sum()
        return plain + self.weight * extra, torch.stack([plain.detach(), right, extra.detach()])

    def pool(self, states: Tensor) -> Tensor:
        """Mean of each piece's states, (batch, slots, d)."""
        width = states.shape[-1]
        if self.tricks.pooled and width & (width - 1) == 0:
            means: Tensor = _Pool.apply(states, self.cells, self.b)  # type: ignore[no-untyped-call]
            return means
        if self.separator:
            states = F.pad(states, (0, 0, 0, 1))
        words = states.view(len(states), self.cells, -1, states.shape[-1])
        return words[:, :, : self.b].mean(2)


class _Pool(torch.autograd.Function):
    """The same in a kernel of its own: padding the states first would copy all of them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, cells: int, b: int) -> Tensor:
        ctx.sizes = states.shape[1], b
        means: Tensor = kernels_words.pool(states, cells, b)
        return means

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        length, b = ctx.sizes
        step = -(-length // grad.shape[1])
        wide = F.pad((grad / b)[:, :, None].expand(-1, -1, b, -1), (0, 0, 0, step - b))
        return wide.flatten(1, 2)[:, :length], None, None


def _mean(logits: Tensor, answers: Tensor, here: Tensor, count: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, 1).float(), answers.flatten(), reduction="none")
    return (losses * here.flatten()).sum() / count
