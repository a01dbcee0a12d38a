"""From what a person has to pieces: folders, sheets, photographs and scans of a table."""

from typing import Any

__all__ = ["LeftOut", "Place", "Table", "find_pieces"]


def __getattr__(name: str) -> Any:
    """Load what finds pieces when it is asked for: it needs much of scipy."""
    if name not in __all__:
        raise AttributeError(f"module 'puzlm.pieces' has no attribute '{name}'")
    from puzlm.pieces import table

    return getattr(table, name)
