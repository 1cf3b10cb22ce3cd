"""Every picture of the pages is there, light, and drawn by the command that says so."""

import re
from pathlib import Path

from docs.figures.__main__ import PICTURES

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "docs" / "_static"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FIGURE = re.compile(r"^```\{figure\} (\S+)\n:alt: (.+)\n(?::.*\n)*\n(.+)", re.M)
# Drawn by hand, by the benchmark, by `examples/spafl_bound.py`, and by a browser.
OTHERS = {"round", "spafl_bound", "page_run", "page_study"}
OTHERS |= {path.stem for path in STATIC.glob("benchmark_*.svg")}


def shown():
    return [
        (page, *found) for page in PAGES for found in FIGURE.findall(page.read_text())
    ]


def test_pages_show_all_pictures_that_are_drawn():
    files = [(page.parent / path).resolve() for page, path, _, _ in shown()]
    assert all(file.parent == STATIC and file.exists() for file in files)
    assert {file.stem for file in files} - OTHERS == set(PICTURES)
    on_a_card = {"five_methods"}  # of the index
    kept = {file.stem for file in STATIC.glob("*.*g")}
    assert kept == {file.stem for file in files} | on_a_card
    assert all(file.stat().st_size < 200_000 for file in files)
