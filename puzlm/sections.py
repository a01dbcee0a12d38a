"""Sections of recipes and settings of saved models: tables read into dataclasses, and checked."""

from __future__ import annotations

import math
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from puzlm.errors import SettingsError, nearest


def at_least(low: float, settings: Any, where: str, *names: str) -> None:
    """Refuse numbers of a settings dataclass below `low`, and those that are no numbers."""
    for name in names:
        value = getattr(settings, name)
        if not low <= value < math.inf:
            raise SettingsError(f"{where}.{name} {value}: must be at least {low:g}")


def section(kind: type[Any], record: Any, where: str) -> Any:
    """Build a settings dataclass from a table; names and types are checked, the nearest named."""
    hints = get_type_hints(kind)
    known = [f.name for f in fields(kind)]
    if not isinstance(record, dict):
        raise SettingsError(f"{where}: must be a table")
    values: dict[str, Any] = {}
    for key, value in record.items():
        if key not in known:
            raise SettingsError(f"{where}: unknown key '{key}'; {nearest(key, known)}")
        if hints[key] is float and type(value) is int:
            value = float(value)
        elif key == "pca_dim":
            value = value or None
        elif isinstance(value, list):
            value = tuple(value)
        elif key == "grid":
            value = str(value)
        if not _fits(value, hints[key]):
            raise SettingsError(f"{where}: {key} = {record[key]!r} {_wanted(hints[key])}")
        values[key] = value
    try:
        return kind(**values)
    except (TypeError, SettingsError) as error:
        raise SettingsError(f"{where}: {error}") from error


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of a file may stand for a field of this type."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(v, get_args(hint)[0]) for v in value)
    if get_origin(hint) is UnionType:
        return any(_fits(value, one) for one in get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    plain = get_origin(hint) or hint
    return plain not in (int, str, bool, dict, NoneType) or type(value) is plain


def _wanted(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"must be a list of type {get_args(hint)[0].__name__}"
    if get_origin(hint) is UnionType:
        hint = get_args(hint)[0]
    return f"must be of type {(get_origin(hint) or hint).__name__}"
