"""Models in the box: find them by name, read their cards. A model is one self-contained folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from puzlm import manifest
from puzlm.errors import ModelError
from puzlm.model_files import read_json
from puzlm.puzzle import parse_grid
from puzlm.solution import grid_name

BOX = manifest.BOX
DEFAULT = "puzlm-3x3"


def find(name_or_path: str | Path | None = None) -> Path:
    """Folder of a model: a name from the box, or a path."""
    wanted = str(name_or_path or DEFAULT)
    if wanted in names():
        return BOX / wanted
    path = Path(wanted)
    if path.is_dir():
        return path
    raise ModelError(
        f"model '{wanted}': neither a folder nor a model in the box "
        f"({', '.join(names()) or 'which is empty'})"
    )


def names() -> list[str]:
    """Names of the models in the box."""
    return (
        sorted(p.name for p in BOX.iterdir() if (p / "card.json").is_file()) if BOX.is_dir() else []
    )


def shipped(folder: Path) -> bool:
    """Whether a folder is a model of the box or a copy; a run may only have the same name."""
    if folder.resolve().parent == BOX.resolve():
        return True
    cards = [f / "card.json" for f in (folder, BOX / str(card(folder).get("name", "")))]
    return all(c.is_file() for c in cards) and cards[0].read_bytes() == cards[1].read_bytes()


def _check_card(record: dict[str, Any], where: str) -> None:
    """Refuse what a solver reads of a card and cannot use."""

    def number(value: Any) -> bool:
        return type(value) in (int, float) and math.isfinite(value)

    heat, grids = record.get("temperature", 1.0), record.get("grids", [])
    fusion = record.get("fusion", {})
    if not number(heat) or heat <= 0:
        raise ModelError(f"{where}: temperature must be a number above 0")
    if not isinstance(grids, list) or not all(isinstance(grid, str) for grid in grids):
        raise ModelError(f"{where}: grids must be a list of texts such as '3x3'")
    if not isinstance(fusion, dict) or not all(number(weight) for weight in fusion.values()):
        raise ModelError(f"{where}: fusion must be a table of numbers")


def card(folder: Path) -> dict[str, Any]:
    """What a model says about itself; a freshly trained one has no card yet and says little."""
    if (folder / "card.json").is_file():
        written = read_json(folder / "card.json")
        _check_card(written, str(folder / "card.json"))
        return written
    record: dict[str, Any] = {"name": folder.name}
    if (folder / "settings.json").is_file():
        cut = read_json(folder / "settings.json").get("cut")
        grid = cut.get("grid", "3") if isinstance(cut, dict) else "3"
        record["grids"] = [grid_name(parse_grid(str(grid)))]
    return record
