"""Several symbols a position, summed: whole ones row by row, the parts of splits by a product.

A part has few symbols, and there are many parts: as ones in a table, positions x symbols of all
parts, times their embeddings, the matrix units read them at once, and learn them at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from puzlm.tokenizer.piece_tokenizer import FIRST_SYMBOL, PAD, PieceTokenizer


@dataclass(frozen=True)
class Columns:
    """Codebooks behind the columns of input_ids (batch, T, F); their ids follow one another."""

    whole: int
    """Columns of whole symbols."""
    first: int
    """Id of the first part's first symbol."""
    splits: tuple[tuple[int, int], ...]
    """Parts of each split, and symbols of each part."""

    @classmethod
    def of(cls, tokenizer: PieceTokenizer) -> Columns:
        """The columns of a tokenizer's sentences."""
        s = tokenizer.settings
        whole, splits = len(s.whole), tuple((split.count, split.codes) for split in s.splits)
        return cls(whole, FIRST_SYMBOL + sum(s.sizes[:whole]), splits)


def summed(table: Tensor, ids: Tensor, columns: Columns, dtype: torch.dtype) -> Tensor:
    """Sums (batch, T, d) of the embeddings of ids (batch, T, F); [PAD] counts nothing in parts."""
    x = F.embedding(ids[..., : columns.whole], table, PAD).sum(2).to(dtype)
    column, first = columns.whole, columns.first
    for count, codes in _alike(columns.splits):
        here = (ids[..., column : column + count].flatten(0, 1) - first).int()
        known = torch.arange(count * codes, device=ids.device, dtype=torch.int32)
        ones = (here[:, :, None] == known.view(count, codes)).to(dtype).flatten(1)
        x = x + (ones @ table[first : first + count * codes].to(dtype)).view(x.shape)
        column, first = column + count, first + count * codes
    return x


def _alike(splits: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Splits with as many symbols a part, one after the other, as one."""
    found: list[tuple[int, int]] = []
    for count, codes in splits:
        if found and found[-1][1] == codes:
            found[-1] = found[-1][0] + count, codes
        else:
            found.append((count, codes))
    return found
