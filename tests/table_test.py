"""A table's rows run one by one, are resumed, reused and written."""

import importlib
import json

import numpy as np
import pytest

from benchmarks import table as tables
from benchmarks.tables import Row, Table, runs
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import experiment, loop
from sparsefl_jax.runs.config import build, fields
from sparsefl_jax.system import interrupt
from tests.tiny import ctrl_c, network, write_images

pytestmark = pytest.mark.slow

CONFIG = """
from sparsefl_jax.runs.config import build, defaults

def get_config(argument=""):
    config = defaults.default_config()
    config.dataset = {dataset!r}
    config.normalize, config.num_clients = False, 6
    config.model = {{"name": "mlp", "widths": (8,)}}
    config.algorithm = {{"name": argument}}
    if argument == "pdst":
        config.density = 0.5
        config.algorithm.density = config.get_oneway_ref("density")
    config.num_rounds, config.eval_every = 4, 2
    config.cohort_size, config.batch_size = 2, 8
    return defaults.complete(config)
"""
TABLE = Table(
    {
        "dense": Row("tiny_config.py:fedavg", "98.0 ± 0.1"),
        "thin": Row("tiny_config.py:pdst", "90.0", {"density": 0.25}),
    },
    (*runs("dense thin", 0), *runs("thin dense", 1)),
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    dataset = tmp_path / "tiny.npz"
    write_images(dataset, 120)
    (tmp_path / "tiny_config.py").write_text(CONFIG.format(dataset=str(dataset)))
    marks = "# Title\n<!-- table tiny -->\nold\n<!-- end -->\nrest\n<!-- end -->\n"
    document = tables.page("tiny", tmp_path)
    document.parent.mkdir(parents=True)
    document.write_text(marks)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "tiny_config", raising=False)
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("plot_run", "write_page"):  # which take most of the time
        monkeypatch.setattr(experiment.report, name, lambda path: None)
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


def stop_the_third(monkeypatch):
    """Sends Ctrl-C after the first segment of the third run."""
    segments, started, send = loop.go_on, [], ctrl_c(monkeypatch)

    def interrupted(*args, **kwargs):
        started.append(None)
        for segment in segments(*args, **kwargs):
            if len(started) == 3:
                send()
            yield segment

    monkeypatch.setattr(loop, "go_on", interrupted)


def test_interrupted_in_the_middle_and_resumed(root, calls, monkeypatch):
    with monkeypatch.context() as patch:
        stop_the_third(patch)
        with pytest.raises(interrupt.StoppedError):
            tables.fill(TABLE, "tiny", root=root)
    first = ["dense_seed0", "thin_seed0", "thin_seed1"]
    assert calls == first
    assert list(tables.results("tiny", root)) == [("dense", 0), ("thin", 0)]
    listed = tables.listing(TABLE, "tiny", root).splitlines()
    assert [line.split()[3] for line in listed] == ["done", "done", "begun", "-"]

    tables.fill(TABLE, "tiny", root=root)
    assert calls == [*first, "thin_seed1", "dense_seed1"]
    records = read_records(root / "runs/tables/tiny/thin_seed1/metrics.jsonl")
    rounds = [r["round"] for r in records]
    assert sorted(rounds) == [1, 2, 2, 3, 4, 4]  # two of them evaluations

    found = tables.results("tiny", root)
    assert list(found) == [("dense", 0), ("dense", 1), ("thin", 0), ("thin", 1)]
    thin = found["thin", 1]
    assert set(thin) >= {"accuracy", "gbit", "minutes", "date", "commit", "device"}
    assert thin["density"] < 0.5 < found["dense", 0]["density"]
    assert thin["gbit"] < found["dense", 1]["gbit"] and thin["flops_share"] < 0.5
    lines = tables.page("tiny", root).read_text().splitlines()
    assert lines[:2] == ["# Title", "<!-- table tiny -->"] and "old" not in lines
    assert lines[-3:] == ["<!-- end -->", "rest", "<!-- end -->"]
    mean = np.mean([found["thin", s]["accuracy"]["global"]["final"] for s in (0, 1)])
    assert f"| 90.0 | {100 * mean:.2f} ± " in lines[5] and "| 0, 1 |" in lines[5]

    tables.fill(TABLE, "tiny", root=root)  # nothing is left to do
    assert len(calls) == 5


def test_a_table_can_have_columns_of_its_own(root):
    def extra(path):
        seed = int(path.name[-1])
        return {"shown": 0.25 + seed, "kept": 7.0} if "thin" in path.name else {}

    table = TABLE._replace(columns=("shown",), extra=extra)
    tables.fill(table, "tiny", root=root)
    assert tables.results("tiny", root)["thin", 1]["kept"] == 7.0
    head, _, dense, thin = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in tables.page("tiny", root).read_text().splitlines()[2:6]
    )
    assert dense[head.index("shown")] == "-" and thin[head.index("shown")] == "0.750"
    assert head.index("shown") == head.index("density") + 1


def test_a_finished_run_is_taken_up_under_any_name(root, calls):
    config = tables.row_config(TABLE, "thin", 0)
    elsewhere = root / "runs/tables/tiny/from_somewhere"
    experiment.run(config, elsewhere, progress=False)
    before = json.loads((elsewhere / "config.json").read_text())
    del before["init_what"], before["until"]  # fields that it did not have
    (elsewhere / "config.json").write_text(json.dumps(before))
    calls.clear()
    tables.fill(TABLE, "tiny", root=root, only="thin", seeds=1)
    assert calls == [] and list(tables.results("tiny", root)) == [("thin", 0)]
    before["init_what"] = "mask"  # no longer the row's
    (elsewhere / "config.json").write_text(json.dumps(before))
    assert tables.find(elsewhere.parent, config) is None


def test_the_density_is_that_of_the_round_whose_accuracy_counts(tmp_path):
    def judged(round, density):
        models = {"personal": {"density": 0.1, "layer_density": density}}
        at = {"phase": "eval", "stage": 0, "round": round, "gbit_cumulative": 0.0}
        return at | {"models": models}

    lines = [json.dumps(judged(*at)) for at in ((1, 0.9), (2, 0.6), (3, 0.3))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    told = {"accuracy": {"personal": {"best_round": 2, "layer_density": 0.3}}}
    told |= {"density": 0.1, "seconds": 60.0}
    told |= dict.fromkeys(("commit", "device", "versions"), "")
    told["stages"] = [{"bits_up": 0, "bits_down": 0, "flops": 1, "flops_dense": 2}]
    (tmp_path / "summary.json").write_text(json.dumps(told))
    assert tables.entry(tmp_path, best=True)["density"] == 0.6
    assert tables.entry(tmp_path)["density"] == 0.3


NAMES = sorted(p.stem for p in (tables.ROOT / "benchmarks/tables").glob("[!_]*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_every_table_declares_what_can_be_configured(name):
    table = importlib.import_module(f"benchmarks.tables.{name}").TABLE
    assert {row for row, _ in table.order} == set(table.rows)
    assert len(set(table.order)) == len(table.order)
    for row in table.rows:
        config = tables.row_config(table, row, 2)
        assert config.seed == 2
        fields.check(config)
        assert build.build_stages(config, network(config.model.name))
    assert set(tables.results(name, tables.ROOT)) <= set(table.order)


def test_a_row_can_change_what_two_stages_refer_to():
    table = importlib.import_module("benchmarks.tables.flash_cifar10").TABLE
    config = tables.row_config(table, "spdst_d01", 0)
    assert config.first_stage.density == 0.01  # follows `density`


def test_unknown_rows_are_refused():
    with pytest.raises(ValueError, match="only='fedav'"):
        tables.wanted(TABLE, "fedav")
    assert tables.wanted(TABLE, "thin", 1) == [("thin", 0)]


def test_what_the_code_left_behind_says_so_and_runs_again(root, monkeypatch):
    """The text follows the accuracy until the row has a new entry."""

    def entry(seed, accuracy, **more):
        told = {"global": {"final": accuracy}, "cut": {"final": 0.5}}
        numbers = dict.fromkeys(("density", "gbit", "flops_share", "minutes"), 0.25)
        told = {"row": "dense", "seed": seed, "accuracy": told, "commit": "abc"}
        return told | numbers | {"date": "2026-11-21"} | more

    old, new = entry(0, 0.75, stale="before the repair"), entry(1, 0.875)
    lines = tables.markdown(TABLE, [old]).splitlines()
    assert "| 75.00 (cut 50.00, before the repair) | 0 |" in lines[2]
    lines = tables.markdown(TABLE, [old, new]).splitlines()
    assert "| 87.50 (cut 50.00) | 1 |" in lines[2] and "75.00" not in lines[2]

    (root / "benchmarks/tables").mkdir(parents=True)
    (root / "benchmarks/tables/tiny.json").write_text(json.dumps([old, new]))
    begun = []
    monkeypatch.setattr(experiment, "run", lambda c, path, **k: begun.append(path.name))
    monkeypatch.setattr(tables, "entry", lambda path, best: entry(0, 0.625))
    tables.fill(TABLE, "tiny", root=root, only="dense")
    assert begun == ["dense_seed0"]
    assert "stale" not in tables.results("tiny", root)["dense", 0]
