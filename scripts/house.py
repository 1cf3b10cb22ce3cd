"""Prints how much code there is and where, and how deep the way to a round is.

    python scripts/house.py              # code lines, rooms, cycles, names, tokens
    python scripts/house.py --frames     # and a small run's way from main to its rounds

A code line is neither blank nor a comment nor part of a docstring. A room is a file; it
stands one floor above the highest file of its folder that it imports. Frames are the
project's functions on the stack when the first compiled segment is called.
"""

import ast
import collections
import graphlib
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


def code_of(path: Path) -> list[tuple[int, int]]:
    """Returns the first and the last line of each token of a file that is code."""
    text, docs = path.read_text(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, SCOPES) and ast.get_docstring(node) is not None:
            docs |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = [(t.start[0], t.end[0]) for t in tokens if t.type not in SILENT]
    return [pair for pair in lines if pair[0] not in docs]


def code_lines(path: Path) -> int:
    """Counts the lines of a file that hold code."""
    return len({line for a, b in code_of(path) for line in range(a, b + 1)})


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


def cycle(package: Path) -> list[str]:
    """Returns folders of a package that import one another in a circle; [] if none."""
    graph = {}
    for path in package.rglob("*/*.py"):
        names = (name.split(".") for name in imported(path))
        below = {n[1] for n in names if n[0] == package.name and n[1:]}
        folder = path.relative_to(package).parts[0]
        graph[folder] = graph.get(folder, set()) | below - {folder}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def twice(package: Path) -> list[str]:
    """Returns the names that several modules of a package have."""
    names = collections.Counter(path.stem for path in package.rglob("[!_]*.py"))
    return sorted(name for name, count in names.items() if count > 1)


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
    tokens = sum(len(code_of(path)) for path in PACKAGE.rglob("*.py"))
    print(f"{tokens / total(PACKAGE):.2f} tokens a line")
    print(f"folders that import in a circle: {', '.join(cycle(PACKAGE)) or 'none'}")
    print(f"names that stand twice: {', '.join(twice(PACKAGE))}")
    if "--frames" in sys.argv:
        way = frames()
        print(f"{len(way)} frames from main to the first compiled segment:")
        print(*(f"    {name}" for name in way), sep="\n")


if __name__ == "__main__":
    main()
