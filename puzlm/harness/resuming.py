"""OUTPUT.partial.jsonl of `puzlm evaluate`: a header, then a line for each puzzle done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from puzlm.errors import SettingsError
from puzlm.files import parse_json, read_bytes, write_bytes


def resume(
    partial: Path, head: dict[str, Any], commit: str
) -> tuple[str, dict[int, dict[str, Any]]]:
    """Read the puzzles done before, or begin the file."""
    lines = read_bytes(partial, SettingsError).split(b"\n") if partial.exists() else []
    try:
        # Only whole lines: what follows the last line end was being written when it stopped.
        first, *records = [parse_json(line, partial) for line in lines[:-1]] or [None]
        done = {int(record["index"]): record for record in records}
        begun = None if first is None else {key: first.get(key) for key in head}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{partial}: damaged; delete it to begin again") from error
    if begun is not None and begun != head:
        what = ", ".join(_changed(begun, head))
        raise SettingsError(
            f"{partial}: was begun with another {what}; delete it to begin again, "
            "or choose another output"
        )
    if begun is not None and first["commit"] != commit:
        commit = f"{commit}, begun at {first['commit']}"
    start = first or {**head, "commit": commit}
    text = "".join(json.dumps(record) + "\n" for record in [start, *done.values()])
    write_bytes(partial, text.encode())
    return commit, done


def _changed(begun: dict[str, Any], head: dict[str, Any]) -> list[str]:
    """Names of what differs between two headers; of the settings, which ones."""
    changed = [key for key in head if begun[key] != head[key]]
    for part in ("settings", "files"):
        before, now = begun[part], head[part]
        if part in changed and isinstance(before, dict):
            changed.remove(part)
            changed += [key for key in {**before, **now} if before.get(key) != now.get(key)]
    names = {"source": "version of the solver's source file", "puzlm": "version of puzlm"}
    return [names.get(key, key) for key in changed]
