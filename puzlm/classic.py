"""Pixel compatibilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

def _mahalanobis(edge, inner, other, chunk=512):
    n, length, _ = edge.shape
    gradient = edge - inner
    mean = gradient.mean(axis=1)
    dummies = np.concatenate([np.zeros((1, 3)), np.eye(3), -np.eye(3), np.ones((1, 3)), -np.ones((1, 3))])
    sample = np.concatenate([gradient, np.broadcast_to(dummies, (n, 9, 3))], axis=1)
    sample = sample - sample.mean(axis=1, keepdims=True)
    covariance = sample.transpose(0, 2, 1) @ sample / (length + 8)
    inverse = np.linalg.inv(covariance)
    expected = edge + mean[:, None]
    weighted = expected @ inverse
    constant = (weighted * expected).sum(axis=(1, 2))
    moments = (other.transpose(0, 2, 1) @ other).reshape(n, 9)
    features = np.concatenate([other.reshape(n, -1), moments], axis=1)
    weights = np.concatenate([-2 * weighted.reshape(n, -1), inverse.reshape(n, 9)], axis=1)
    out = np.empty((n, n), np.float32)
    for s in range(0, n, chunk):
        out[s:s+chunk] = weights[s:s+chunk] @ features.T + constant[s:s+chunk, None]
    return np.maximum(out, 0)

def _sides(pieces):
    x = pieces.astype(np.float64) - 128
    return x[:, :, -1], x[:, :, -2], x[:, :, 0], x[:, :, 1]

def mgc(pieces):
    res = []
    for p in (pieces, pieces.transpose(0, 2, 1, 3)):
        last, last2, first, first2 = _sides(p)
        d = _mahalanobis(last, last2, first)
        d += _mahalanobis(first, first2, last).T
        np.fill_diagonal(d, np.inf)
        res.append(d)
    return tuple(res)

def ssd(pieces):
    res = []
    for p in (pieces, pieces.transpose(0, 2, 1, 3)):
        last, _, first, _ = _sides(p)
        n = len(p); a = last.reshape(n, -1); b = first.reshape(n, -1)
        d = ((a*a).sum(1)[:, None] + (b*b).sum(1) - 2*a@b.T).astype(np.float32)
        np.fill_diagonal(d, np.inf)
        res.append(d)
    return tuple(res)

def prediction(pieces, p=0.3, q=1/16, chunk_elems=4_000_000):
    table = (np.arange(1024, dtype=np.float32) ** p).astype(np.float32)
    res = []
    for pc in (pieces, pieces.transpose(0, 2, 1, 3)):
        x = pc.astype(np.int16)
        n = len(x)
        last, last2, first, first2 = (x[:, :, k].reshape(n, -1) for k in (-1, -2, 0, 1))
        nl = 2*last - last2; nf = 2*first - first2
        d = np.zeros((n, n), np.float32)
        for k in range(last.shape[1]):
            d += table[np.abs(nl[:, None, k] - first[None, :, k])]
            d += table[np.abs(nf[None, :, k] - last[:, None, k])]
        d **= q / p
        np.fill_diagonal(d, np.inf)
        res.append(d)
    return tuple(res)
