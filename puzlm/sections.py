"""Sections of recipes and settings of saved models: tables read into dataclasses, and checked."""

from __future__ import annotations

import math
from typing import Any

from puzlm.errors import SettingsError


def at_least(low: float, settings: Any, where: str, *names: str) -> None:
    """Refuse numbers of a settings dataclass below `low`, and those that are no numbers."""
    for name in names:
        value = getattr(settings, name)
        if not low <= value < math.inf:
            raise SettingsError(f"{where}.{name} {value}: must be at least {low:g}")
