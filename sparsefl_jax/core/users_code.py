"""A user's own code: modules that are neither installed nor part of this package."""

import ast
import importlib
import itertools
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PACKAGE = __name__.partition(".")[0]
# Programs, configuration files and studies describe a run; they are not its code.
_KNOWN = {*sys.stdlib_module_names, _PACKAGE, "__main__", "<run_path>"}


def files(names: Sequence[str]) -> list[str]:
    """Returns the files of modules, and of a user's own ones that they import.

    Args:
      names: of modules; they are imported, and may be installed.
    """
    paths, left = {}, list(names)
    for name in names:
        importlib.import_module(name)
    while left:
        parts = left.pop().split(".")
        for name in itertools.accumulate(parts, "{}.{}".format):  # with its packages
            scope = vars(sys.modules[name]) if name in sys.modules else {}
            if name not in paths and (name in names or _is_own(scope)):
                paths[name] = scope.get("__file__") or ""
                left += _imports(paths[name], scope.get("__package__") or "")
    return list(filter(None, paths.values()))


def owns(error: BaseException | None, seen: tuple = ()) -> bool:
    """Returns whether an error, or one that caused it, comes out of a user's own code.

    It has come through such code, called by this package.

    Args:
      error: an error, or None.
      seen: errors that it has caused itself, as causes may form a circle.
    """
    if error is None or error in seen:
        return False
    scopes = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    below = itertools.dropwhile(lambda scope: not _ours(scope), scopes)
    before = error.__cause__ or error.__context__
    return any(map(_is_own, below)) or owns(before, (*seen, error))


def _ours(scope: Mapping[str, Any]) -> bool:
    return str(scope.get("__name__")).partition(".")[0] == _PACKAGE


def _is_own(scope: Mapping[str, Any]) -> bool:
    """Returns whether a module, by its variables, is a user's own."""
    name, file = scope.get("__name__") or "", scope.get("__file__")
    installed = file is None or {"site-packages", "dist-packages"} & {*Path(file).parts}
    return not installed and name.partition(".")[0] not in _KNOWN


def _imports(file: str, package: str) -> Iterator[str]:
    """Yields the names of all that may be a module in the imports of a module."""
    text = Path(file).read_bytes() if file.endswith(".py") else ""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = f"{package}.".rsplit(".", node.level)[0] if node.level else ""
            head = f"{above}.{node.module or ''}".strip(".")
            yield from (f"{head}.{alias.name}" for alias in node.names)
