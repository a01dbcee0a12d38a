"""The path of one solve through the package: which modules it enters, and how often it changes.

    python -m tools.walk PUZZLE_FOLDER      # as `puzlm solve PUZZLE_FOLDER`

Prints one line a module, in the order in which they are first entered, with the number of functions
of it that ran. What runs while modules are imported does not count.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import puzlm

PACKAGE = str(Path(puzlm.__file__).parent)


def walk(folder: Path) -> tuple[dict[str, set[str]], int]:
    """Functions entered, by module, and how often the path changes module."""
    from puzlm.cli.main import main

    entered: dict[str, set[str]] = {}
    last = ""
    changes = 0

    importing = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal last, changes, importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        if importing or event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        module = code.co_filename[len(PACKAGE) + 1 : -len(".py")].replace("/", ".")
        entered.setdefault(module, set()).add(code.co_qualname)
        changes += module != last
        last = module

    with tempfile.TemporaryDirectory() as there:
        sys.argv = ["puzlm", "solve", str(folder), "-o", str(Path(there) / "solved.png")]
        sys.setprofile(look)
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    return entered, changes


if __name__ == "__main__":
    found, changed = walk(Path(sys.argv[1]))
    for name, functions in found.items():
        print(f"{name:32} {len(functions):4} functions")
    total = sum(map(len, found.values()))
    print(f"{len(found)} modules, {total} functions, {changed} changes of module")
