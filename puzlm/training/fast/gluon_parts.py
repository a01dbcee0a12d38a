# mypy: ignore-errors
"""What of Gluon the kernels of this package use, if it is there.

Gluon is Triton's lower storey: a kernel says itself what lies where, in which layout, and what
waits for what. It is new, and moves; without it everything is done the ways that need none.
"""

import importlib.util

import torch

THERE = importlib.util.find_spec("triton") is not None
if THERE:
    try:
        from triton.experimental import gluon
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.language.nvidia.ampere import async_copy
        from triton.experimental.gluon.language.nvidia.hopper import (
            fence_async_shared,
            warpgroup_mma,
            warpgroup_mma_wait,
        )
    except ImportError:
        THERE = False

__all__ = [
    "THERE",
    "async_copy",
    "fence_async_shared",
    "gl",
    "gluon",
    "runs_on",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]


def runs_on(device: str) -> bool:
    """Whether kernels in Gluon run there: a GPU with Hopper's matrix units."""
    return THERE and torch.cuda.get_device_capability(device)[0] == 9
