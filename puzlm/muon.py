"""Muon: AdamW for vectors and tables, steps of equal length in all directions for matrices.

A matrix's momentum is replaced by the nearest matrix whose singular values are all 1, by a few
steps of a Newton-Schulz iteration. Scaled to the length that AdamW's steps have, so that the same
rate and weight decay do (Liu et al. 2025, "Muon is scalable for LLM training").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

TURNS = ((3.4445, -4.7750, 2.0315),) * 5  # a x + b x x'x + c x x'x x'x
LENGTH = 0.2  # root mean square of a step in units of the rate, as AdamW's mostly is


def orthogonal(x: Tensor) -> Tensor:
    """Matrices (n, a, b), a at most b, with singular values near 1 (0.7 to 1.2)."""
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in TURNS:
        square = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """The first group's weights are matrices, the second's are for AdamW."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        lr: Any,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.98),
        momentum: float = 0.95,
        fused: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay}
        super().__init__([{"params": list(matrices)}, {"params": list(others)}], defaults)
        self.betas, self.momentum, self.fused, self.capturable = betas, momentum, fused, capturable

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step with the gradients that are there."""
        matrices, others = self.param_groups
        self._turn(matrices)
        self._adamw(others)

    def _turn(self, group: dict[str, Any]) -> None:
        weights = [p for p in group["params"] if p.grad is not None]
        grads = [p.grad for p in weights]
        for p in weights:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        momenta = [self.state[p]["momentum"] for p in weights]
        torch._foreach_lerp_(momenta, grads, 1 - self.momentum)
        ahead = torch._foreach_lerp(grads, momenta, self.momentum)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        for shape in dict.fromkeys(p.shape for p in weights):
            same = [n for n, p in enumerate(weights) if p.shape == shape]
            # Wide ones as they are, high ones turned: then the squares are the small ones.
            x = torch.stack([ahead[n] for n in same])
            x = x.bfloat16() if x.is_cuda else x
            high = shape[0] > shape[1]
            x = orthogonal(x.transpose(1, 2).contiguous() if high else x)
            x = (x.transpose(1, 2) if high else x).float() * (LENGTH * max(shape) ** 0.5)
            x = x * group["lr"]
            torch._foreach_sub_([weights[n] for n in same], list(x.unbind(0)))

    def _adamw(self, group: dict[str, Any]) -> None:
        weights = [p for p in group["params"] if p.grad is not None]
        for p in weights:
            if not self.state[p]:
                self.state[p]["step"] = torch.zeros((), device=p.device if self.fused else "cpu")
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        kept = [self.state[p] for p in weights]
        adamw(
            weights,
            [p.grad for p in weights],
            [s["exp_avg"] for s in kept],
            [s["exp_avg_sq"] for s in kept],
            [],
            [s["step"] for s in kept],
            fused=self.fused,
            capturable=self.capturable,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=1e-8,
            maximize=False,
        )
