"""Imports point down: no circle of folders, and none of modules."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import house  # noqa: E402


def test_no_folder_imports_one_that_imports_it():
    assert house.cycle(house.PACKAGE) == []


def test_no_circle_of_imports():
    assert max(house.floors(house.PACKAGE).values()) > 1  # a circle has no floor


def test_libraries_are_neither_patched_nor_read_where_they_are_private():
    private = re.compile(r"\b(unittest|mock|asyncio|_src)\b")
    files = house.PACKAGE.rglob("*.py")
    assert not [path for path in files if private.search(path.read_text())]
