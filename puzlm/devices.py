"""Where torch computes: names of devices, checked before anything is sent there."""

from __future__ import annotations

import os

from puzlm.errors import SettingsError


def check_device(name: str, option: str = "device") -> str:
    """The same name, if torch can compute there."""
    if name == "cpu":
        return name
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"{option} {name}: must be cpu, cuda or cuda:NUMBER") from error
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= there:
        raise SettingsError(f"{option} {name}: there is no such GPU here; use cpu")
    return name


def pick_device(name: str, option: str = "train.device") -> str:
    """The device of this process: a name, or 'auto' for a GPU if there is one."""
    if name != "auto":
        return check_device(name, option)
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
