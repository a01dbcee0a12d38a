"""What takes arrays of numpy and of torch alike, however they spell it. torch comes late."""

from __future__ import annotations

import numpy as np

from puzlm.tokenizer.kmeans import Array


def concatenate(parts: list[Array], axis: int) -> Array:
    """Join along an axis; a single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    import torch

    return torch.cat(parts, axis)


def stack(parts: list[Array]) -> Array:
    """Arrays of one shape as one array with a new first axis."""
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts)
    import torch

    return torch.stack(parts)


def pick(a: Array, index: list[int], there: Array = None) -> Array:
    """Columns of axis 1; `there` is the index on the device of a, if it is there."""
    if isinstance(a, np.ndarray):
        return a[:, index]
    import torch

    return a.index_select(1, torch.tensor(index, device=a.device) if there is None else there)


def flip(a: Array, axis: int) -> Array:
    """Reverse an axis."""
    return np.flip(a, axis) if isinstance(a, np.ndarray) else a.flip(axis)


def take_along(a: Array, index: Array, axis: int) -> Array:
    """Values of an axis at an index for each place."""
    if isinstance(a, np.ndarray):
        return np.take_along_axis(a, index, axis)
    return a.take_along_dim(index, axis)


def where(condition: Array, values: Array, other: Array) -> Array:
    """Put values where the condition holds."""
    if isinstance(other, np.ndarray):
        return np.where(condition, values, other)
    return values.where(condition, other)


def lexicographic_order(words: Array) -> Array:
    """Order (batch, n) that sorts words (batch, n, length) of ids below 65536; ties keep order.

    Rank of a word = number of words before it, by comparing all pairs: for a few dozen pieces that
    is faster than sorting, and it is the same arithmetic on every device.
    """
    n, length = words.shape[1:]
    index = (words[0, :, 0] * 0 + 1).cumsum(0)  # 1 .. n, an array or tensor like the words
    before = index[:, None] < index[None, :]  # (.., i, j): does i come before j?
    for end in range(length, 0, -3):
        key = words[:, :, end - 1]
        for back in range(2, min(3, end) + 1):  # three ids of 16 bits to one comparison
            key = key + (words[:, :, end - back] << (16 * (back - 1)))
        first, second = key[:, :, None], key[:, None, :]
        before = (first < second) | ((first == second) & before)
    return before.sum(1).argsort(-1)


FACTOR = 6_364_136_223_846_793_005  # odd, below 2**63: products wrap round and lose nothing


def checksum(words: Array) -> Array:
    """Three numbers below 65,536 (batch, n, 3) that tell words (batch, n, length, F) apart."""
    mixed = words[..., 0]
    for column in range(1, words.shape[3]):
        mixed = mixed * FACTOR + words[..., column]
    total = mixed[:, :, 0]
    for place in range(1, mixed.shape[2]):
        total = total * FACTOR + mixed[:, :, place]
    return concatenate([(total >> bit & 65535)[..., None] for bit in (48, 32, 16)], 2)
