"""What happens to pieces before somebody scans them: light that differs, noise, compression.

Each piece is damaged by itself, after the cut: what a codec or a lamp does to one piece says
nothing of its neighbours.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 8  # pixels of a codec's block
LIGHT = 0.2  # of a piece at most, brighter or darker; its colours a quarter of that
NOISE = 12.0  # grey levels of the strongest noise
COARSE = 60.0  # grey levels between steps of the finest detail, in the strongest compression


def damaged(pieces: Tensor, cells: int, shares: tuple[float, float, float]) -> Tensor:
    """Pieces (puzzles * cells, side, side, 3) in grey levels, some puzzles damaged.

    `shares` of the puzzles have other light on every piece, noise, or pieces that were compressed.
    """
    puzzles = len(pieces) // cells
    there = pieces.device

    def some(share: float) -> Tensor:
        """Strength of a damage for each piece (n, 1, 1, 1): 0 for all of most puzzles."""
        strong = torch.rand(puzzles, device=there) * (torch.rand(puzzles, device=there) < share)
        return strong.repeat_interleave(cells)[:, None, None, None]

    light, noise, codec = shares
    x = pieces.float()
    n, across = len(x), torch.linspace(-1, 1, x.shape[1], device=there)
    if light:
        strong = LIGHT * some(light)
        plain = torch.rand(n, 1, 1, 1, device=there) * 2 - 1
        colour = (torch.rand(n, 1, 1, 3, device=there) * 2 - 1) / 4
        slope = torch.rand(n, 2, device=there) - 0.5
        ramp = slope[:, :1, None] * across[:, None] + slope[:, 1:, None] * across
        x = x * (1 + strong * (plain + colour + ramp[..., None]))
    if noise:
        x = x + NOISE * some(noise) * torch.randn_like(x)
    if codec:
        x = compressed(x, COARSE * some(codec) ** 2)
    return x.clamp(0, 255).round()


def compressed(x: Tensor, step: Tensor) -> Tensor:
    """Round the waves of every block of pixels to steps that grow with how fine they are."""
    wave = torch.arange(BLOCK, device=x.device)
    basis = torch.cos(math.pi / BLOCK * (wave[None] + 0.5) * wave[:, None]) * (2 / BLOCK) ** 0.5
    basis[0] /= 2**0.5
    n, side = x.shape[:2]
    whole = side // BLOCK * BLOCK
    blocks = x[:, :whole, :whole].reshape(n, whole // BLOCK, BLOCK, whole // BLOCK, BLOCK, 3)
    waves = torch.einsum("nabcde,ub,vd->naucve", blocks, basis, basis)
    fine = (wave[:, None] + wave[None] + 2) / (2 * BLOCK)
    size = (step[..., None, None] * fine[:, None, :, None]).clamp_min(1e-3)
    waves = (waves / size).round() * size
    made = torch.einsum("naucve,ub,vd->nabcde", waves, basis, basis).reshape(n, whole, whole, 3)
    x = x.clone()
    x[:, :whole, :whole] = made
    return x
