"""Imports point down: no folder imports a higher one, and no circle of modules."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

import sparsefl_jax

# Bottom first. `report` reads the files of a run and imports nothing of `runs`.
FOLDERS = (
    "core",
    "system",
    "models",
    "sparsity",
    "data",
    "training",
    "wire",
    "algorithms",
    "simulation",
    "report",
    "analysis",
    "runs",
    "export",
    "testing",
    "presets",
    "studies",
    "launch",
    "__main__",
)

ROOT = Path(next(iter(sparsefl_jax.__path__)))


def imported(text: str, known: set[str]) -> set[str]:
    """Returns the modules that a source imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "an import relative to a folder"
            # `from folder import name`: a module of the folder, or what it defines
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known
            if names - known:
                found |= {node.module} & known
    return found


@pytest.fixture(scope="module")
def package():
    sources = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        sources[name.removesuffix(".__init__")] = path.read_text()
    return {name: imported(text, set(sources)) for name, text in sources.items()}


def test_no_folder_imports_a_higher_one(package):
    """Highest is the package itself, which imports all."""
    height = {name: i for i, name in enumerate((*FOLDERS, ""))}

    def folder(module: str) -> str:
        return (module.split(".") + [""])[1]

    assert not [
        f"{module} imports {target}"
        for module, targets in sorted(package.items())
        for target in sorted(targets)
        if height[folder(target)] > height[folder(module)]
    ]


def test_no_circle_of_imports(package):
    graphlib.TopologicalSorter(package).prepare()


def test_libraries_are_neither_patched_nor_read_where_they_are_private():
    private = re.compile(r"\b(unittest|mock|asyncio|_src)\b")
    assert not [p for p in ROOT.rglob("*.py") if private.search(p.read_text())]
