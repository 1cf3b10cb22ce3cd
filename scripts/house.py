"""Prints how much code there is and where, and how deep the way to a round is.

    python scripts/house.py              # code lines by folder, rooms, floors of runs/
    python scripts/house.py --frames     # and a small run's way from main to its rounds

A code line is neither blank nor a comment nor part of a docstring. A room is a file; it
stands one floor above the highest file of its folder that it imports. Frames are the
project's functions on the stack when the first compiled segment is called.
"""

import ast
import io
import runpy
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sparsefl_jax"
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENDMARKER),
}
SCOPES = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
RUN = "--config=configs/flash_mnist.py:mini"


def code_lines(path: Path) -> int:
    """Counts the lines of a file that hold code."""
    text = path.read_text()
    held = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            held |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, SCOPES) and ast.get_docstring(node) is not None:
            held -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(held)


def total(folder: Path) -> int:
    """Counts the code lines of a folder."""
    return sum(map(code_lines, folder.rglob("*.py")))


def imported(path: Path) -> Iterator[str]:
    """Yields the dotted names that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield str(node.module)


def floors(folder: Path) -> dict[str, int]:
    """Returns the floor of each file of a folder, by dotted name; the lowest is 1."""
    rooms = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }
    below = {name: set(imported(path)) & rooms.keys() for name, path in rooms.items()}

    def floor(name: str) -> int:
        return 1 + max(map(floor, below[name] - {name}), default=0)

    return {name: floor(name) for name in rooms}


def frames() -> list[str]:
    """Runs a small configuration; returns the functions on the way to its rounds."""
    found = []

    def watch(frame, event, argument):
        del argument
        code = frame.f_code
        at_call = event == "call" and code.co_name == "__call__" and not found
        if not at_call or not code.co_filename.endswith("jax/_src/stages.py"):
            return
        if "namedtuple[State]" not in str(frame.f_locals["self"].in_tree):
            return
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE) or path.name == "launch.py":
                where = path.relative_to(ROOT)
                found.append(f"{where}:{frame.f_code.co_qualname}")
            frame = frame.f_back
        found.reverse()
        sys.setprofile(None)

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["launch.py", RUN, f"--workdir={folder}/run"]
        sys.path.insert(0, str(ROOT))
        sys.setprofile(watch)
        try:
            runpy.run_path(str(ROOT / "launch.py"), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    return [name for name in found if not name.endswith("<module>")]


def main():
    """Prints the tables."""
    for folder in (PACKAGE, *sorted(p for p in PACKAGE.iterdir() if p.is_dir())):
        if count := total(folder):
            print(f"{count:7,}  {folder.relative_to(ROOT)}/")
    for name in ("benchmarks", "configs", "studies", "scripts", "tests"):
        print(f"{total(ROOT / name):7,}  {name}/")
    levels = floors(PACKAGE / "runs")
    print(f"runs/: {len(levels)} rooms on {max(levels.values())} floors")
    if "--frames" in sys.argv:
        way = frames()
        print(f"{len(way)} frames from main to the first compiled segment:")
        print(*(f"    {name}" for name in way), sep="\n")


if __name__ == "__main__":
    main()
