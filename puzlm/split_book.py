"""A tokenizer's codebook for a GPU's matrix units: symbols from products of bfloat16 numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from puzlm.kernels_nearest import nearest, wide_product
from puzlm.kmeans import Codebook


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


def _split(x: Tensor, terms: int) -> list[Tensor]:
    """Bfloat16 tensors that add up to x, the largest first.

    Rounded by adding half a step and masking the upper 16 bits: a compiler may leave out a
    conversion there and back.
    """
    parts: list[Tensor] = []
    for _ in range(terms):
        upper = ((x.view(torch.int32) + 32768) & -65536).view(torch.float32)
        parts.append(upper.to(torch.bfloat16))
        x = x - upper
    return parts
