"""A table's rows run one by one, are resumed, reused and written."""

import functools

import numpy as np
import pytest

from benchmarks import pages
from benchmarks import table as tables
from benchmarks.tables import Row, Table
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import experiment
from sparsefl_jax.system import interrupt
from tests.runs.checkpoint_test import stop_after
from tests.tiny import network

CONFIG = """
from pathlib import Path
from tests.tiny import tiny_config

def get_config(argument=""):
    config = tiny_config(Path(__file__).parent)
    config.first_stage, config.algorithm = {}, {"name": argument}
    if argument == "pdst":
        config.density = 0.5
        config.algorithm.density = config.get_oneway_ref("density")
    return config
"""
TABLE = Table(
    {
        "dense": Row("tiny_config.py:fedavg", "98.0 ± 0.1"),
        "thin": Row("tiny_config.py:pdst", "90.0", {"density": 0.25}),
    },
    seeds=2,
)


@pytest.fixture
def root(tmp_path, monkeypatch, unplotted):
    (tmp_path / "tiny_config.py").write_text(CONFIG)
    marks = "# Title\n<!-- table tiny -->\nold\n<!-- end -->\nrest\n<!-- end -->\n"
    document = pages.page("tiny", tmp_path)
    document.parent.mkdir(parents=True)
    document.write_text(marks)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "tiny_config", raising=False)
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def calls(monkeypatch):
    """Records the directories that were run, in order."""
    seen, run = [], experiment.run
    monkeypatch.setattr(
        experiment,
        "run",
        lambda c, path, **k: seen.append(path.name) or run(c, path, **k),
    )
    return seen


@pytest.mark.slow
def test_interrupted_in_the_middle_and_resumed(root, calls, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 5)  # within the third run
        with pytest.raises(interrupt.StoppedError):
            tables.fill(TABLE, "tiny", root=root)
    first = ["dense_seed0", "thin_seed0", "dense_seed1"]
    assert calls == first
    assert list(pages.results("tiny", root)) == [("dense", 0), ("thin", 0)]
    listed = tables.listing(TABLE, "tiny", root).splitlines()
    assert [line.split()[3] for line in listed] == ["done", "done", "begun", "-"]

    tables.fill(TABLE, "tiny", root=root)
    assert calls == [*first, "dense_seed1", "thin_seed1"]
    records = read_records(root / "runs/tables/tiny/dense_seed1/metrics.jsonl")
    rounds = [r["round"] for r in records]
    assert sorted(rounds) == [1, 2, 2, 3, 4, 4]  # two of them evaluations

    found = pages.results("tiny", root)
    assert list(found) == [("dense", 0), ("dense", 1), ("thin", 0), ("thin", 1)]
    thin = found["thin", 1]
    assert set(thin) >= {"accuracy", "gbit", "minutes", "date", "commit", "device"}
    dense, sparse = (found[row, 0]["accuracy"]["global"] for row in ("dense", "thin"))
    assert sparse["density"] < 0.5 < dense["density"] == 1
    assert thin["gbit"] < found["dense", 1]["gbit"] and thin["flops_share"] < 0.5
    lines = pages.page("tiny", root).read_text().splitlines()
    assert lines[:2] == ["# Title", "<!-- table tiny -->"] and "old" not in lines
    assert lines[-3:] == ["<!-- end -->", "rest", "<!-- end -->"]
    mean = np.mean([found["thin", s]["accuracy"]["global"]["final"] for s in (0, 1)])
    assert f"| global | 90.0 | {100 * mean:.2f} ± " in lines[5] and "| 2 |" in lines[5]

    tables.fill(TABLE, "tiny", root=root)  # nothing is left to do
    assert len(calls) == 5


@pytest.mark.slow
def test_rows_of_several_processes_are_files_that_are_merged(root, monkeypatch):
    for row in TABLE.rows:
        tables.fill(TABLE, "tiny", root=root, only=[row], seeds=1, out=root / "rows")
    assert not pages.results("tiny", root)
    written = sorted(path.name for path in (root / "rows").iterdir())
    assert written == ["dense_seed0.json", "thin_seed0.json"]
    monkeypatch.setattr(pages, "declared", lambda name: TABLE)
    monkeypatch.setattr(pages, "TABLES", ["tiny"])
    monkeypatch.setattr(tables, "ROOT", root)
    publish = functools.partial(tables.publish, root=root)
    monkeypatch.setattr(tables, "publish", publish)
    monkeypatch.setattr("sys.argv", ["table", "tiny", "--merge", str(root / "rows")])
    tables.main()
    assert list(pages.results("tiny", root)) == [("dense", 0), ("thin", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", pages.TABLES)
def test_every_table_declares_what_can_be_configured(name):
    table = pages.declared(name)
    for row in table.rows:
        config = tables.row_config(table, row, 2)
        assert config.seed == 2
        budgets = build.build_budgets(freeze(config))
        assert build.build_stages(freeze(config), network(config.model.name), budgets)
    assert {row for row, _ in pages.results(name)} <= set(table.rows)


NEEDING = Table(
    {
        "dense": Row("tiny_config.py:fedavg"),
        "large": Row("tiny_config.py:fedavg", needs="a GPU (12 PFLOP)"),
        "far": Row("tiny_config.py:pdst", needs="FEMNIST"),
    },
    seeds=2,
)


def test_what_a_row_needs_decides_whether_it_runs(root, monkeypatch):
    rows = [row for row in NEEDING.rows if row != "large"]
    assert tables.wanted(NEEDING) == [(row, seed) for seed in (0, 1) for row in rows]
    assert tables.wanted(NEEDING, ["large", "far"], 1) == [("large", 0), ("far", 0)]
    monkeypatch.setattr(tables.jax, "default_backend", lambda: "gpu")
    assert [row for row, _ in tables.wanted(NEEDING, seeds=1)] == list(NEEDING.rows)
