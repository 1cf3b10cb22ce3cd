"""Tables of speed say what the committed records of benchmarks say."""

import json
import shutil
from pathlib import Path

from benchmarks import pages

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_show_their_records(tmp_path):
    page = Path(shutil.copy(DOCS / "performance.md", tmp_path))
    pages.draw_records(page)
    assert page.read_text() == (DOCS / "performance.md").read_text()


def test_a_table_has_the_columns_that_its_mark_names_and_the_facts(tmp_path):
    machine = {"devices": "2 x cpu", "processor": "4 x Z80", "jax": "1.2"}
    rows = [{"set-up": "a", "ms": 0.12345, "peer's version": "torch 3, pfl 1"}]
    rows.append({"set-up": "b", "steps": 12345.6})
    record = {"machine": machine | {"commit": "abc", "date": "2026-01-02"}}
    folder = tmp_path / "benchmarks/results/cpu"
    folder.mkdir(parents=True)
    (folder / "x.json").write_text(json.dumps(record | {"results": rows}))
    page = tmp_path / "page.md"
    mark = "before\n<!-- record cpu/x: set-up | ms | steps -->\n{}<!-- end -->\nafter\n"
    page.write_text(mark.format("old\n"))
    pages.draw_records(page, tmp_path)
    table = "| set-up | ms | steps |\n| --- | --- | --- |\n| a | 0.123 | - |\n"
    table += "| b | - | 12,346 |\n\n"
    facts = "4 x Z80, pfl 1, torch 3, jax 1.2, commit abc, 2026-01-02.\n"
    assert page.read_text() == mark.format(table + facts)
