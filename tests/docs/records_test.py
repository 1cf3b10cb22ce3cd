"""Tables of speed say what the committed records of benchmarks say."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from benchmarks import adapters, pages
from benchmarks.v2 import page as benchmark
from configs import spafl_fashion_mnist
from docs.figures import printed

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["performance.md", "unseen_clients.md"])
def test_pages_show_their_records(tmp_path, name):
    page = Path(shutil.copy(DOCS / name, tmp_path))
    pages.draw_records(page)
    assert page.read_text() == (DOCS / name).read_text()


@pytest.mark.slow
def test_pages_of_methods_show_their_rows_of_the_benchmark(tmp_path):
    shutil.copytree(DOCS / "methods", tmp_path / "docs/methods")
    benchmark.draw_rows(tmp_path)
    for page in (tmp_path / "docs/methods").glob("*.md"):
        assert page.read_text() == (DOCS / "methods" / page.name).read_text()


def test_the_page_of_flasc_shows_the_record_of_its_study():
    drawn = adapters.compared(adapters.published())
    marked = f"<!-- table adapters -->\n{drawn}\n<!-- end -->"
    assert marked in (DOCS / "methods/flasc.md").read_text()


def test_shares_of_unseen_clients_are_those_of_the_seeds():
    record = DOCS.parent / "benchmarks/results/cpu/unseen_clients.json"
    rows = {row["method"]: row for row in json.loads(record.read_text())["results"]}

    def ends(values):
        values = 100 * np.array(values)
        half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
        return values.mean(), half

    for row in rows.values():
        for name in ("seen", "unseen"):
            assert row[f"{name}, %"] == "{:.1f} ± {:.1f}".format(*ends(row[name]))
        gap = ends(np.subtract(row["seen"], row["unseen"]))
        assert row["seen - unseen, points"] == "{:+.1f} ± {:.1f}".format(*gap)
    page = (DOCS / "unseen_clients.md").read_text().replace("\n", " ")
    for name in ("finetune", "ditto"):
        gain, half = ends(np.subtract(rows[name]["seen"], rows["fedavg"]["seen"]))
        assert f"({gain - half:.1f} to {gain + half:.1f})" in page


@pytest.mark.parametrize(
    ("table", "row", "figures"),
    [
        ("complement_mnist", "cs0.5", (72.5, None, 79.46)),  # beside .096 and .291
        ("flash_mnist", "nst", (96.19, 0.22, 97.63)),
        ("flash_pathological", "feddst", (97.35, None, 97.59)),  # within 2 GiB
    ],
)
def test_a_picture_of_a_paper_has_what_is_printed_and_what_ran(table, row, figures):
    (found,) = (each for each in printed.compared(table) if each.name == row)
    deviation = None if np.isnan(found.deviation) else found.deviation
    assert (found.printed, deviation, round(found.here.mean(), 2)) == figures


@pytest.mark.parametrize(
    ("row", "here", "drawn", "ends"),
    [
        ("spdst", [97.0], [97.0], 0.0),
        ("spdst", [97.0, 98.0], [97.0, 98.0], 0.0),
        ("spdst", [97.0, 98.0, 99.0], [98.0], 4.303 / 3**0.5),  # Student's t, 2 degrees
        ("pdst_a1000", [80.0, 97.0, 98.0], [80.0, 97.0, 98.0], 0.0),  # lost a class
    ],
)
def test_a_picture_has_an_interval_of_three_seeds_and_else_each(row, here, drawn, ends):
    ax = Figure().subplots()
    printed.draw_row(ax, 0, printed.Compared(row, np.array(here), 96.0, np.nan))
    _, (points, _, bars) = ax.containers
    np.testing.assert_array_equal(points.get_xdata(), drawn)
    lengths = (
        [np.ptp(segment[:, 0]) for segment in bars[0].get_segments()] if bars else 0
    )
    np.testing.assert_allclose(lengths, 2 * ends, atol=2e-3)


@pytest.mark.parametrize("method", ["heterofl", "fjord"])
def test_heterofl_and_fjord_train_by_the_optimizer_that_validation_chose(method):
    best = max(
        pages.results("spafl_optimizers").values(), key=lambda e: e["validation"]
    )
    tried = pages.declared("spafl_optimizers").rows[best["row"]].overrides
    optimizer = spafl_fashion_mnist.get_config(method).optimizer
    for name in ("momentum", "weight_decay", "clip"):
        assert optimizer.get(name, 0.0) == tried[f"optimizer.{name}"]


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
    facts = "4 x Z80, pfl 1, torch 3, jax 1.2, 2026-01-02; record `cpu/x.json`.\n"
    assert page.read_text() == mark.format(table + facts)
