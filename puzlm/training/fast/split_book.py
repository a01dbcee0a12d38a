"""A tokenizer's codebook for a GPU's matrix units: symbols from products of 16-bit numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from puzlm.tokenizer.kmeans import Codebook
from puzlm.tokenizer.settings import TokenizerSettings
from puzlm.training.fast.kernels_nearest import TILE, WIDEST, nearest, nearest_half, wide_product

LARGEST = 2**14
"""Numbers of a patch, up to which all of its PCA surely fits into float16: 255 * 128 and twice that
for what is left over."""


def matrix_books(books: Sequence[Codebook], tokens: str) -> list[Codebook]:
    """Codebooks that do the same with 16-bit products; `tokens` as in Tricks."""
    if tokens == "half" and all(len(book.mean) <= LARGEST for book in books):
        return [HalfBook(book) for book in books]
    return [SplitBook(book, "split" if tokens == "half" else tokens) for book in books]


def in_pairs(s: TokenizerSettings) -> bool:
    """Whether kernels_cut.patches can write all that a tokenizer reads: one symbol for each border
    patch, and patches that come in pairs of one row, on 16 bytes (8 numbers) as products need."""
    even = s.granularity % 2 == 0 and s.patch_side % 8 == 0
    return even and s.patch == "square" and s.border and s.pca_dim is not None


class SplitBook(Codebook):
    """A codebook's symbols from bfloat16 products whose sums stay in float32.

    Pixels are whole grey levels, so x - 128 is exact in bfloat16. A float32 factor is the sum of
    three bfloat16 numbers ('split'): the PCA takes three products side by side, the scores the six
    largest of the nine of two such sums. Three of them would do for noise, but a photograph's
    patches lie so far from the mean that one symbol in two thousand would change.
    """

    PAIRS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))

    def __init__(self, book: Codebook, tokens: str) -> None:
        super().__init__(book.mean, book.components, book.centroids)
        self.terms = 3 if tokens == "split" else 1
        self.basis: Tensor | None = None
        if book.components is not None:
            self.basis = torch.cat(_split(book.components, self.terms)).t().contiguous()
            self.shift = ((128 - book.mean.double()) @ book.components.double().t()).float()
        parts = _split(book.centroids, 3)
        self.pairs = self.PAIRS if self.terms == 3 else self.PAIRS[:1]
        self.table = torch.cat([parts[j] for _, j in self.pairs], 1).contiguous()
        self.half = (book.centroids * book.centroids).sum(-1) * 0.5

    def assign(self, x: Tensor) -> Tensor:
        """Symbols (n,) of vectors (n, D), whole grey levels if there is a PCA."""
        if self.basis is None:
            x = x - self.mean
        else:
            x = wide_product((x - 128).to(torch.bfloat16), self.basis)
            x = x.view(len(x), self.terms, -1).sum(1) + self.shift
        parts = _split(x, self.terms)
        found: Tensor = nearest(
            torch.cat([parts[i] for i, _ in self.pairs], 1), self.table, self.half
        )
        return found


class HalfBook(Codebook):
    """The same from float16 products, half as many.

    Two float16 numbers hold 22 of the 24 bits of a float32 number, three bfloat16 numbers all 24:
    the PCA takes two products side by side, the scores the three largest of four. What is left out
    is below the rounding of sums in float32. Float16 ends at 65,504 and loses bits below 2**-14:
    PCA values of grey levels lie between (see LARGEST), components are scaled by a power of two.
    """

    def __init__(self, book: Codebook, planar: bool = False) -> None:
        """`planar`: vectors are float16 rows of kernels_cut.patches, less 128, colour by colour."""
        super().__init__(book.mean, book.components, book.centroids)
        self.planar, depth = planar, book.centroids.shape[1]
        self.wide = max(16, 2 ** math.ceil(math.log2(depth)))
        self.basis: Tensor | None = None
        if book.components is not None:
            components = book.components
            shift = ((128 - book.mean.double()) @ components.double().t()).float()
            self.shift = _padded(shift, self.wide)
            if planar:
                components = components.view(depth, -1, 3).swapaxes(1, 2).reshape(depth, -1)
            scale = 2.0 ** (14 - math.ceil(math.log2(float(components.abs().max()))))
            self.unit = 1 / scale
            parts = [_padded(part.t(), self.wide) for part in _halves(components * scale)]
            self.basis = torch.cat(parts, 1).contiguous()
        half = (book.centroids * book.centroids).sum(-1) * 0.5
        high, low = (_padded(part, self.wide) for part in _halves(book.centroids))
        if self.wide > WIDEST:
            self.table, self.half = torch.cat([high, low, high], 1), half
        else:
            count = -len(half) % TILE  # more that are never the nearest
            self.half = torch.nn.functional.pad(half, (0, count), value=math.inf)
            table = torch.stack([high, low], 1)
            self.table = torch.cat([table, table.new_zeros(count, 2, self.wide)])

    def assign(self, x: Tensor) -> Tensor:
        """Symbols (n,) of vectors (n, D), whole grey levels if there is a PCA."""
        if self.basis is None:
            x = _padded(x - self.mean, self.wide)
        else:
            x = wide_product(x if self.planar else (x - 128).half(), self.basis)
            x = x.view(len(x), 2, -1).sum(1) * self.unit + self.shift
        high, low = _halves(x)
        if self.wide > WIDEST:
            found: Tensor = nearest(torch.cat([low, high, high], 1), self.table, self.half)
        else:
            found = nearest_half(torch.stack([high, low], 1), self.table, self.half)
        return found


def _padded(x: Tensor, wide: int) -> Tensor:
    """With zeros behind the last axis; itself if there is nothing to add."""
    more = wide - x.shape[-1]
    return torch.nn.functional.pad(x, (0, more)) if more else x


def _halves(x: Tensor) -> list[Tensor]:
    return _split(x, 2, 13, torch.float16)


def _split(
    x: Tensor, terms: int, bits: int = 16, dtype: torch.dtype = torch.bfloat16
) -> list[Tensor]:
    """Tensors of 16-bit numbers that add up to x, the largest first.

    Rounded by adding half a step and masking the lower bits: a compiler may leave out a conversion
    there and back.
    """
    parts: list[Tensor] = []
    for _ in range(terms):
        upper = ((x.view(torch.int32) + 2 ** (bits - 1)) & -(2**bits)).view(torch.float32)
        parts.append(upper.to(dtype))
        x = x - upper
    return parts
