"""A table's rows run one by one, are resumed, reused and written."""

import json

import numpy as np
import pytest

from benchmarks import pages
from benchmarks import table as tables
from benchmarks.tables import Row, Table
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import experiment, simulate
from sparsefl_jax.runs.config import build
from sparsefl_jax.runs.config.defaults import freeze
from sparsefl_jax.system import interrupt
from tests.report import equal_cost_test
from tests.tiny import ctrl_c, network, write_images

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
    dataset = tmp_path / "tiny.npz"
    write_images(dataset, 120)
    (tmp_path / "tiny_config.py").write_text(CONFIG.format(dataset=str(dataset)))
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


def stop_the_third(monkeypatch):
    """Sends Ctrl-C after the first segment of the third run."""
    segments, started, send = simulate.simulate, [], ctrl_c(monkeypatch)

    def interrupted(*args, **kwargs):
        started.append(None)
        for segment in segments(*args, **kwargs):
            if len(started) == 3:
                send()
            yield segment

    monkeypatch.setattr(simulate, "simulate", interrupted)


@pytest.mark.slow
def test_interrupted_in_the_middle_and_resumed(root, calls, monkeypatch):
    def extra(path):  # a column of its own, and what only the file keeps
        shown = {"shown": 0.25 + int(path.name[-1]), "kept": 7.0}
        return shown if "thin" in path.name else {}

    table = TABLE._replace(columns=("shown",), extra=extra)
    with monkeypatch.context() as patch:
        stop_the_third(patch)
        with pytest.raises(interrupt.StoppedError):
            tables.fill(table, "tiny", root=root)
    first = ["dense_seed0", "thin_seed0", "dense_seed1"]
    assert calls == first
    assert list(pages.results("tiny", root)) == [("dense", 0), ("thin", 0)]
    listed = tables.listing(table, "tiny", root).splitlines()
    assert [line.split()[3] for line in listed] == ["done", "done", "begun", "-"]

    tables.fill(table, "tiny", root=root)
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

    assert thin["kept"] == 7.0
    head, _, *rows = (line.strip("| ").split(" | ") for line in lines[2:6])
    assert [row[head.index("shown")] for row in rows] == ["-", "0.750"]
    assert head.index("shown") == head.index("density") + 1

    tables.fill(table, "tiny", root=root)  # nothing is left to do
    assert len(calls) == 5


def finished(folder, accuracy, evaluated, traffic=()):
    """Writes a run of which `evaluated` has the models' densities by round."""
    begun = next(equal_cost_test.lines([(0.0, None)]))
    lines = [
        begun | {"phase": "eval", "round": round, "models": models}
        for round, models in evaluated.items()
    ]
    lines = [{"schema": 1}, *lines, *(begun | entries for entries in traffic)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    told = {"accuracy": accuracy, "density": 0.1, "seconds": 60.0}
    told |= dict.fromkeys(("commit", "device", "versions"), "")
    told["stages"] = [{"bits_up": 0, "bits_down": 0, "flops": 1, "flops_dense": 2}]
    (folder / "summary.json").write_text(json.dumps(told))


def rows_of(text):
    """Returns the cells of a table's rows by their heads."""
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    )
    return [dict(zip(head, row, strict=True)) for row in rows]


def judged(final, best, best_round, **densities):
    return {"final": final, "best": best, "best_round": best_round} | densities


@pytest.mark.parametrize("best", [False, True])
def test_every_model_has_a_row_with_its_own_accuracy_and_density(tmp_path, best):
    """The aggregate is denser than the model that is cut to the target."""
    accuracy = {
        "aggregated": judged(0.5, 0.75, 1, density=0.375),
        "masked": judged(0.25, 0.625, 2, density=0.125),
    }
    densities = {1: (0.875, 0.25), 2: (0.5, 0.1875), 3: (0.375, 0.125)}
    models = {
        round: {"aggregated": {"density": a}, "masked": {"density": m}}
        for round, (a, m) in densities.items()
    }
    finished(tmp_path, accuracy, models)
    found = {"row": "nst", "seed": 0, "own": 0.5} | tables.entry(tmp_path, best)
    table = Table({"nst": Row("tiny.py:nst", "96.2")}, 1, best, ("own",))
    rows = rows_of(pages.markdown(table, [found]))
    shown = [[r[h] for h in ("model", "paper, %", "own", "density")] for r in rows]
    if best:
        first, second = "0.875 (final 0.375)", "0.188 (final 0.125)"
        accuracies = ["75.00 (final 50.00)", "62.50 (final 25.00)"]
    else:
        first, second, accuracies = "0.375", "0.125", ["50.00", "25.00"]
    assert shown == [
        ["aggregated", "96.2", "0.500", first],
        ["masked", "-", "-", second],
    ]
    assert [row["here, %"] for row in rows] == accuracies


def test_spafls_gbit_are_those_of_its_thresholds(tmp_path):
    declared = pages.declared("spafl_fashion_mnist")
    down = {"thresholds": 5800, "delta": 5800, "initial": 4_305_000}
    traffic = [
        {"entries_down": down, "entries_up": {"thresholds": 5800}},
        {"entries_down": down, "entries_up": {"thresholds": 5800}},
    ]
    finished(tmp_path, {}, {}, traffic)
    found = declared.extra(tmp_path)
    assert found["gbit"] == pytest.approx(2 * 2 * 5800 * 32 / 1e9, rel=1e-12)
    told = {"personal": judged(0.5, 0.5, 1, density=0.5)}
    numbers = dict.fromkeys(("flops_share", "minutes"), 0.25) | {"date": "2026-11-22"}
    entry = {"row": "spafl", "seed": 0, "accuracy": told, "commit": "abc"} | numbers
    row, *_ = rows_of(pages.markdown(declared, [entry | found]))
    assert row["Gbit"] == "0.00 (thresholds alone)"
    finished(
        tmp_path, {}, {}, [dict.fromkeys(("entries_down", "entries_up"), {"w": 9})]
    )
    assert declared.extra(tmp_path) == {}
    alone = [{"entries_down": {"initial": 4_305_000}, "entries_up": {}}]
    finished(tmp_path, {}, {}, alone)
    counted = {"gbit": 0, "counted": "initial weights left out"}
    assert declared.extra(tmp_path) == counted


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


def test_unknown_rows_are_refused():
    with pytest.raises(ValueError, match="only='fedav'"):
        tables.wanted(TABLE, "fedav")
    assert tables.wanted(TABLE, "thin", 1) == [("thin", 0)]


def entry(row, seed=0, final=0.75, **more):
    """Returns the result of a run."""
    found = {"row": row, "seed": seed, "date": "2026-11-21", "commit": "abc"}
    found |= dict.fromkeys(("gbit", "flops_share", "minutes"), 0.25)
    found["versions"] = dict.fromkeys(("jax", "jaxlib", "numpy"), "1.0")
    return found | {"accuracy": {"global": {"final": final, "density": 0.25}}} | more


NEEDING = Table(
    {
        "dense": Row("tiny_config.py:fedavg"),
        "large": Row("tiny_config.py:fedavg", needs="a GPU (12 PFLOP)"),
        "thin": Row("tiny_config.py:pdst"),
        "other": Row("tiny_config.py:pdst", overrides={"density": 0.25}),
        "far": Row("tiny_config.py:pdst", needs="FEMNIST"),
    },
    seeds=2,
)


def test_what_a_row_needs_decides_whether_it_runs(root, monkeypatch):
    rows = [row for row in NEEDING.rows if row != "large"]
    assert tables.wanted(NEEDING) == [(row, seed) for seed in (0, 1) for row in rows]
    assert tables.wanted(NEEDING, "large", 1) == [("large", 0)]
    monkeypatch.setattr(tables.jax, "default_backend", lambda: "gpu")
    assert [row for row, _ in tables.wanted(NEEDING, seeds=1)] == list(NEEDING.rows)
    lines = tables.listing(NEEDING, "tiny", root, seeds=1).splitlines()
    assert [line.split("seed 0")[1].strip() for line in lines] == [
        *("-", "needs a GPU (12 PFLOP)", "-", "-", "needs FEMNIST")
    ]
