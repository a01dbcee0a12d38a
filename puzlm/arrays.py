"""What numpy and torch spell differently: each takes what either library made. torch comes late."""

from __future__ import annotations

import numpy as np

from puzlm.kmeans import Array


def concatenate(parts: list[Array], axis: int) -> Array:
    """Join along an axis; a single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    import torch

    return torch.cat(parts, axis)


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


def where(condition: Array, value: int, other: Array) -> Array:
    """Put a value where the condition holds."""
    if isinstance(other, np.ndarray):
        return np.where(condition, value, other)
    return other.masked_fill(condition, value)
