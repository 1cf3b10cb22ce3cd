"""Every picture of the pages is there, light, and drawn by the command that says so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_every_method_has_a_picture_of_what_travels():
    pages = {page.stem for page, path, _, _ in shown() if "/sent_" in path}
    methods = {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")}
    assert pages == methods - {"index"}


@pytest.mark.slow
def test_the_command_draws_the_pictures_anew(tmp_path):
    command = [sys.executable, "-m", "docs.figures", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {file.stem for file in tmp_path.iterdir()} == set(PICTURES)
    for file in tmp_path.iterdir():
        kept, drawn = (STATIC / file.name).read_text(), file.read_text()
        # Another processor may round a weight across a threshold.
        assert abs(len(drawn) - len(kept)) < 0.1 * len(kept), file.name
        assert "<dc:date>" not in drawn
