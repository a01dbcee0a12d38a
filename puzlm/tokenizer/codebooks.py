"""The chain of codebooks behind a border position: patches to symbols, and how they are fitted.

    strip -> PCA -> nearest centroid -> what is left over -> nearest centroid -> ...
                                        what is left over in the end, cut into parts of dimensions

The same code runs on numpy arrays and on torch tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from puzlm.errors import SettingsError
from puzlm.tokenizer.arrays import concatenate, stack
from puzlm.tokenizer.kmeans import Array, Codebook
from puzlm.tokenizer.settings import Split, TokenizerSettings, depth_of, is_residual

Cut = Callable[[Array, str], Array]
"""Border patches (n, b, D) of canonical pieces for a term that is a square or a strip."""
Parts = tuple[Array, Array]
"""Means (parts, size) and centroids (parts, k, size) of the parts of a split."""


def encode(
    x: Array, s: TokenizerSettings, books: Sequence[Codebook], cut: Cut, parts: list[Parts]
) -> Array:
    """Symbols (n, b, symbols a position) of canonical pieces (n, side, side, 3)."""
    b, columns = s.border_length, []
    left: dict[str, Array] = {}
    for number, (base, term) in enumerate(_chain(s)):
        vectors = left[base] if is_residual(term) else _flat(cut(x, term))
        if _goes_on(s, number, base):
            symbols, left[base] = books[number].assign_rest(vectors)
        else:
            symbols = books[number].assign(vectors)
        columns.append(symbols.reshape(-1, b, 1))
    for split, table in zip(s.splits, parts, strict=True):
        symbols = nearest_parts(left[f"strip:{split.depth}"], table)
        columns.append(symbols.reshape(-1, b, split.count))
    return concatenate(columns, 2)


def fit(
    pieces: Array,
    s: TokenizerSettings,
    known: Sequence[Codebook],
    cut: Cut,
    *,
    seed: int,
    device: str,
    max_iter: int,
) -> list[Codebook]:
    """The codebooks: those known, and the others learned from canonical pieces."""
    x = pieces.astype(np.float32) if isinstance(pieces, np.ndarray) else pieces.float()
    books: list[Codebook] = []

    def learn(vectors: Array, pca_dim: int | None) -> None:
        number = len(books)
        size = s.sizes[number]
        if number < len(known):
            books.append(known[number])
            return
        if len(vectors) < size:
            raise SettingsError(
                f"vocab_size k = {size} is larger than the {len(vectors)} patches to "
                "learn from; give more images or a smaller k"
            )
        books.append(
            Codebook.fit(
                vectors, size, pca_dim, seed=seed + number, device=device, max_iter=max_iter
            )
        )

    left: dict[str, Array] = {}
    for number, (base, term) in enumerate(_chain(s)):
        residual = is_residual(term)
        vectors = left[base] if residual else _flat(cut(x, term))
        learn(vectors, None if residual else s.pca_dim)
        if _goes_on(s, number, base):
            book = books[-1]
            there = book if isinstance(vectors, np.ndarray) else book.on(vectors.device)
            left[base] = there.assign_rest(vectors)[1]
    for split in s.splits:
        for where in dimensions_of(s, split):
            learn(left[f"strip:{split.depth}"][:, where], None)
    return books


def dimensions_of(s: TokenizerSettings, split: Split) -> list[slice]:
    """The dimensions of each part of a split."""
    size = s.dimensions(split.depth) // split.count
    return [slice(n * size, (n + 1) * size) for n in range(split.count)]


def parts_of(s: TokenizerSettings, books: Sequence[Codebook]) -> list[Parts]:
    """The codebooks of each split as two arrays."""
    found, first = [], len(s.whole)
    for split in s.splits:
        own = books[first : first + split.count]
        found.append((stack([book.mean for book in own]), stack([b.centroids for b in own])))
        first += split.count
    return found


def shapes(s: TokenizerSettings) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a saved tokenizer: codebook 0's are 0.mean and so on."""
    found: dict[str, tuple[int, ...]] = {}
    number = 0

    def book(size: int, dimensions: int, pixels: int | None = None) -> None:
        nonlocal number
        found[f"{number}.mean"] = (pixels or dimensions,)
        found[f"{number}.centroids"] = size, dimensions
        if pixels is not None:
            found[f"{number}.components"] = dimensions, pixels
        number += 1

    for base, term in _chain(s):
        across = s.patch_side if base == "square" else depth_of(base)
        pixels = s.patch_side * across * 3
        dimensions = pixels if s.pca_dim is None else min(s.pca_dim, pixels)
        reduced = s.pca_dim is not None and not is_residual(term)
        book(s.sizes[number], dimensions, pixels if reduced else None)
    for split in s.splits:
        for _ in range(split.count):
            book(split.codes, s.dimensions(split.depth) // split.count)
    return found


def nearest_parts(x: Array, parts: Parts) -> Array:
    """Symbols (n, parts) of what is left over, x (n, parts * size): each part by its codebook."""
    mean, centroids = parts
    x = (x.reshape(len(x), len(mean), -1) - mean)[:, :, None]
    scores = (centroids * centroids).sum(-1) * -0.5
    for place in range(centroids.shape[2]):  # two or four: a sum over so short an axis is slow
        scores = scores + x[..., place] * centroids[..., place]
    return scores.argmax(-1)


def _chain(s: TokenizerSettings) -> list[tuple[str, str]]:
    """Every whole symbol, with the square or strip whose chain it belongs to."""
    found, base = [], ""
    for term in s.whole:
        base = base if is_residual(term) else term
        found.append((base, term))
    return found


def _goes_on(s: TokenizerSettings, number: int, base: str) -> bool:
    """Whether somebody reads what a symbol left over."""
    more = s.whole[number + 1 : number + 2]
    split = (f"strip:{split.depth}" for split in s.splits)
    return bool(more and is_residual(more[0])) or base in split


def _flat(patches: Array) -> Array:
    return patches.reshape(-1, patches.shape[-1])
