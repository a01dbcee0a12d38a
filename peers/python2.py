"""Import Python 2 code of a checkout as it stands: translated in memory, nothing is written.

`lib2to3`, which translates, left Python with 3.13. What it does not do is done on the syntax tree:
a division of two integers gives an integer, `sys.maxint` has 31 bits (as on the author's Windows),
a class with `__cmp__` can be ordered, and text is what `__unicode__` says.
"""

from __future__ import annotations

import ast
import functools
import sys
import types
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from puzlm.errors import SettingsError

MAXINT = 2**31 - 1


def divide(a: Any, b: Any) -> Any:
    """Divide as Python 2 does."""
    return a // b if isinstance(a, int) and isinstance(b, int) else a / b


class _Tree(ast.NodeTransformer):
    """Give Python 3 syntax the meaning it had in Python 2."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div):
            return node
        name = ast.Name("_divide", ast.Load())
        return ast.copy_location(ast.Call(name, [node.left, node.right], []), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == "maxint" and isinstance(node.value, ast.Name) and node.value.id == "sys":
            return ast.copy_location(ast.Constant(MAXINT), node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        if "__cmp__" in methods:
            node.body += ast.parse("def __lt__(self, other): return self.__cmp__(other) < 0").body
        if "__unicode__" in methods:
            node.body = [n for n in node.body if n is not methods.get("__str__")]
            methods["__unicode__"].name = "__str__"
        return node


class _Loader(SourceFileLoader):
    """Translate a module each time it is imported; its .pyc is never looked for."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Python 3 came to frown upon
            tree = _Tree().visit(ast.parse(translated(path), path))
            helpers = "from peers.python2 import divide as _divide, compare as cmp"
            tree.body[_after_head(tree) : _after_head(tree)] = ast.parse(helpers).body
            return compile(ast.fix_missing_locations(tree), path, "exec")


def compare(a: Any, b: Any) -> int:
    """The built-in `cmp` of Python 2."""
    return int(a > b) - int(a < b)


def _after_head(tree: ast.Module) -> int:
    """Where statements may stand: after the docstring and imports from the future."""
    count = 0
    for node in tree.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        count += 1
    return count


def translated(path: str) -> str:
    """A file of Python 2 as Python 3."""
    text = Path(path).read_text(encoding="utf-8-sig")
    return str(_tool().refactor_string(text.replace("\r\n", "\n") + "\n", path))


@functools.cache  # loading the fixers takes a second
def _tool() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it will go
        try:
            from lib2to3.refactor import RefactoringTool, get_fixers_from_package
        except ImportError as error:
            raise SettingsError("this peer is Python 2: use Python 3.12 or older") from error
    names = set(get_fixers_from_package("lib2to3.fixes"))
    return RefactoringTool(sorted(names - {"lib2to3.fixes.fix_renames"}))


class _Finder(MetaPathFinder):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        for place in [str(self.folder)] if path is None else path:
            if Path(place).is_relative_to(self.folder):
                spec = FileFinder(place, (_Loader, [".py"])).find_spec(fullname)
                if spec is not None and spec.loader is not None:
                    return spec
        return None


def import_from(folder: Path) -> None:
    """Let `import` find the Python 2 modules of a folder, before all others."""
    sys.meta_path.insert(0, _Finder(folder))
