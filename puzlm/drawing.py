"""Symbols drawn back: what a super-token says of its piece, as a picture made of centroids.

A symbol is the number of a centroid, and a centroid is a patch, so a sentence can be laid out as
pictures of its pieces, and nothing but the sentence is needed for it. A network that was taught on
pictures can then read sentences: it sees what the symbols say, never the pixels they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from puzlm.arrays import flip, padded
from puzlm.errors import SettingsError
from puzlm.kmeans import Array
from puzlm.puzzle import Puzzle
from puzlm.tokenizer import PieceTokenizer, TokenizerSettings, is_residual


def drawn(tokenizer: PieceTokenizer, symbols: Array) -> Array:
    """Canonical pieces (n, side, side, 3) in whole grey levels, from symbols (n, b, F).

    Every kind of strip draws every side, and where drawings overlap they are averaged. A drawing
    counts by the root of its symbols for each pixel inwards, which is nearly how far it can be
    trusted: docs/runs/drawn-val.txt. The same on numpy arrays and torch tensors.
    """
    s, side = tokenizer.settings, tokenizer.settings.side
    if not s.strips:
        raise SettingsError(f"patch '{s.patch}': only border strips can be drawn back")
    total: Array = 0.0
    weights = np.zeros((side, side, 1), np.float32)
    for depth, count, strips in _strips(tokenizer, symbols):
        weight, rest = math.sqrt(count / depth), side - depth
        top, right, bottom, left = _by_side(strips, s)
        bottom, right = flip(bottom, 2), flip(right, 2)
        vertical = padded(top.swapaxes(1, 2), 1, 0, rest) + padded(
            bottom.swapaxes(1, 2), 1, rest, 0
        )
        across = padded(left, 2, 0, rest) + padded(right, 2, rest, 0)
        total = total + weight * (vertical + across)
        weights[:depth] += weight
        weights[side - depth :] += weight
        weights[:, :depth] += weight
        weights[:, side - depth :] += weight
    share = np.where(weights > 0, 1 / np.maximum(weights, 1e-6), 0).astype(np.float32)
    if not isinstance(total, np.ndarray):
        import torch

        share = torch.from_numpy(share).to(total.device)
    return (total * share).clip(0, 255).round()


def as_symbols(tokenizer: PieceTokenizer, puzzle: Puzzle) -> Puzzle:
    """The puzzle with pieces that show what their symbols say, and nothing else."""
    pieces = drawn(tokenizer, tokenizer.encode(puzzle.pieces)).astype(np.uint8)
    return replace(puzzle, pieces=pieces)


def _strips(tokenizer: PieceTokenizer, symbols: Array) -> Iterator[tuple[int, int, Array]]:
    """For every kind of strip its depth, its number of symbols, and the patches (n, b, D)."""
    terms, books = tokenizer.settings.terms, tokenizer.codebooks_
    firsts = [k for k, term in enumerate(terms) if not is_residual(term)]
    for first, end in zip(firsts, [*firsts[1:], len(terms)], strict=True):
        book = books[first]
        looks = book.centroids[symbols[..., first]]
        for number in range(first + 1, end):  # each says what those before it left over
            rest = books[number]
            looks = looks + rest.centroids[symbols[..., number]] + rest.mean
        if book.components is not None:
            looks = looks @ book.components
        yield int(terms[first].split(":")[1]), end - first, looks + book.mean


def _by_side(strips: Array, s: TokenizerSettings) -> list[Array]:
    """Patches (n, b, D) as top, right, bottom, left: (n, side, depth, 3), in raster direction."""
    n, B = len(strips), s.granularity
    four = [strips[:, k * B : (k + 1) * B] for k in range(4)]
    if s.clockwise:
        four = [four[0], four[1], flip(four[2], 1), flip(four[3], 1)]
    else:
        four = [four[0], four[2], four[3], four[1]]
    return [a.reshape(n, s.side, -1, 3) for a in four]
