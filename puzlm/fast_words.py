"""Several symbols a position: their embeddings summed, and what each learns, by matrix products.

A position's vector is the sum of its symbols' embeddings, so all of them get the same gradient.
Added row by row, a thousand puzzles of a hundred symbols a position would be millions of rows that
wait for each other. As a table of ones, positions x symbols of a codebook, the same is a product
that the matrix units do. The parts of a split have few symbols each: they are read that way, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from puzlm.kernels_nearest import wide_product
from puzlm.tokenizer import FIRST_SYMBOL, PAD, SEP, PieceTokenizer


@dataclass(frozen=True)
class Columns:
    """Codebooks behind the columns of input_ids (batch, T, F); their ids follow one another."""

    sizes: tuple[int, ...]
    """Of the codebooks of whole symbols."""
    splits: tuple[tuple[int, int], ...]
    """Parts of each split, and symbols of each part."""

    @classmethod
    def of(cls, tokenizer: PieceTokenizer) -> Columns:
        """The columns of a tokenizer's sentences."""
        s = tokenizer.settings
        splits = tuple((split.count, split.codes) for split in s.splits)
        return cls(tuple(s.sizes[: len(s.whole)]), splits)

    @property
    def mask(self) -> int:
        """Id of [MASK], which follows all symbols."""
        parts = sum(count * codes for count, codes in self.splits)
        return FIRST_SYMBOL + sum(self.sizes) + parts


def summed(table: Tensor, ids: Tensor, columns: Columns, dtype: torch.dtype) -> Tensor:
    """Sums (batch, T, d) of the embeddings of ids (batch, T, F); [PAD] counts nothing in parts."""
    made: Tensor = _Summed.apply(table, ids, columns, dtype)  # type: ignore[no-untyped-call]
    return made


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, ids: Tensor, columns: Columns, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.columns, ctx.rows = columns, len(table)
        whole = len(columns.sizes)
        x = F.embedding(ids[..., :whole], table, PAD).sum(2)
        first = FIRST_SYMBOL + sum(columns.sizes)
        if columns.splits:
            ones = _parts(ids, columns, dtype)
            small = ones @ table[first : columns.mask].to(dtype)
            x = x + small.view(x.shape)
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (ids,), columns = ctx.saved_tensors, ctx.columns
        flat = grad.flatten(0, 1)
        none = flat.new_zeros(1, flat.shape[1], dtype=torch.float32)
        # Of the special tokens only [SEP] and [MASK] are read, in the first column.
        special = _ones(ids[..., 0], (SEP, columns.mask), flat.dtype)
        separator, mask = wide_product(special.t(), flat)[:2].split(1)
        blocks, first = [none.expand(SEP, -1), separator], FIRST_SYMBOL
        for number, size in enumerate(columns.sizes):
            codes = torch.arange(first, first + size, device=ids.device)
            ones = (ids[..., number].flatten()[:, None] == codes).to(flat.dtype)
            blocks.append(wide_product(ones.t(), flat))
            first += size
        if columns.splits:
            blocks.append(wide_product(_parts(ids, columns, flat.dtype).t(), flat))
        blocks += [mask, none.expand(ctx.rows - columns.mask - 1, -1)]
        return torch.cat(blocks), None, None, None


def _parts(ids: Tensor, columns: Columns, dtype: torch.dtype) -> Tensor:
    """Ones (batch * T, symbols of all parts) where a part has a symbol."""
    column, first = len(columns.sizes), FIRST_SYMBOL + sum(columns.sizes)
    made = []
    for count, codes in columns.splits:
        here = ids[..., column : column + count].flatten(0, 1)
        known = torch.arange(first, first + count * codes, device=ids.device).view(count, codes)
        made.append((here[:, :, None] == known).to(dtype).flatten(1))
        column, first = column + count, first + count * codes
    return torch.cat(made, 1)


def _ones(ids: Tensor, known: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Ones (n, 8) where ids (batch, T) are known, in columns beyond which there is nothing."""
    here = ids.flatten()
    made = [(here == token).to(dtype) for token in known]
    return torch.stack(made + [torch.zeros_like(made[0])] * (8 - len(made)), 1)
