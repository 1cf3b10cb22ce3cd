"""A table's rows run one by one, are resumed, reused and written."""

import importlib
import json

import numpy as np
import pytest

from benchmarks import table as tables
from benchmarks.tables import Row, Table, runs
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import experiment, simulate
from sparsefl_jax.runs.config import build, fields
from sparsefl_jax.system import interrupt
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
    first = ["dense_seed0", "thin_seed0", "thin_seed1"]
    assert calls == first
    assert list(tables.results("tiny", root)) == [("dense", 0), ("thin", 0)]
    listed = tables.listing(table, "tiny", root).splitlines()
    assert [line.split()[3] for line in listed] == ["done", "done", "begun", "-"]

    tables.fill(table, "tiny", root=root)
    assert calls == [*first, "thin_seed1", "dense_seed1"]
    records = read_records(root / "runs/tables/tiny/thin_seed1/metrics.jsonl")
    rounds = [r["round"] for r in records]
    assert sorted(rounds) == [1, 2, 2, 3, 4, 4]  # two of them evaluations

    found = tables.results("tiny", root)
    assert list(found) == [("dense", 0), ("dense", 1), ("thin", 0), ("thin", 1)]
    thin = found["thin", 1]
    assert set(thin) >= {"accuracy", "gbit", "minutes", "date", "commit", "device"}
    dense, sparse = (found[row, 0]["accuracy"]["global"] for row in ("dense", "thin"))
    assert sparse["density"] < 0.5 < dense["density"] == 1
    assert thin["gbit"] < found["dense", 1]["gbit"] and thin["flops_share"] < 0.5
    lines = tables.page("tiny", root).read_text().splitlines()
    assert lines[:2] == ["# Title", "<!-- table tiny -->"] and "old" not in lines
    assert lines[-3:] == ["<!-- end -->", "rest", "<!-- end -->"]
    mean = np.mean([found["thin", s]["accuracy"]["global"]["final"] for s in (0, 1)])
    assert (
        f"| global | 90.0 | {100 * mean:.2f} ± " in lines[5] and "| 0, 1 |" in lines[5]
    )

    assert thin["kept"] == 7.0
    head, _, *rows = (line.strip("| ").split(" | ") for line in lines[2:6])
    assert [row[head.index("shown")] for row in rows] == ["-", "0.750"]
    assert head.index("shown") == head.index("density") + 1

    tables.fill(table, "tiny", root=root)  # nothing is left to do
    assert len(calls) == 5


def finished(folder, accuracy, evaluated, traffic=()):
    """Writes a run of which `evaluated` has the models' densities by round."""
    lines = [
        {"phase": "eval", "stage": 0, "round": round, "gbit_cumulative": 0.0}
        | {"models": models}
        for round, models in evaluated.items()
    ]
    begun = {"phase": "train", "stage": 0, "round": 1, "gbit_cumulative": 0.0}
    begun |= {"flops": 1.0, "flops_dense": 2.0}
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
    )
    return [dict(zip(head, row, strict=True)) for row in rows]


def judged(final, best, best_round, **densities):
    return {"final": final, "best": best, "best_round": best_round} | densities


def test_the_density_is_that_of_the_round_whose_accuracy_counts(tmp_path):
    told = judged(0.5, 0.75, 2, density=0.1, layer_density=0.3)
    in_round = {2: {"density": 0.1, "layer_density": 0.6}}
    in_round[3] = {"density": 0.1, "layer_density": 0.3}
    models = {round: {"personal": model} for round, model in in_round.items()}
    finished(tmp_path, {"personal": told}, models)

    def shown(best, kept):
        table = Table({"dense": Row("tiny.py:spafl")}, (), best)
        entry = {"row": "dense", "seed": 0} | tables.entry(tmp_path, kept)
        [row] = rows_of(tables.markdown(table, [entry]))
        return row["here, %"], row["density"]

    best = "75.00 (final 50.00)"
    assert shown(best=True, kept=True) == (best, "0.600 (final 0.300)")
    assert shown(best=False, kept=False) == ("50.00", "0.300")
    # A result of which the density in the best round was not kept.
    assert shown(best=True, kept=False) == (best, "(final 0.300)")


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
    table = Table({"nst": Row("tiny.py:nst", "96.2")}, (), best, ("own",))
    rows = rows_of(tables.markdown(table, [found]))
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
    declared = importlib.import_module("benchmarks.tables.spafl_fashion_mnist").TABLE
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
    row, *_ = rows_of(tables.markdown(declared, [entry | found]))
    assert row["Gbit"] == "0.00 (thresholds alone)"
    finished(
        tmp_path, {}, {}, [dict.fromkeys(("entries_down", "entries_up"), {"w": 9})]
    )
    assert declared.extra(tmp_path) == {}


NAMES = sorted(p.stem for p in (tables.ROOT / "benchmarks/tables").glob("[!_]*.py"))


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_row_can_change_what_two_stages_refer_to():
    table = importlib.import_module("benchmarks.tables.flash_mnist").TABLE
    config = tables.row_config(table, "spdst_d05", 0)
    assert config.first_stage.density == 0.05  # follows `density`


def test_unknown_rows_are_refused():
    with pytest.raises(ValueError, match="only='fedav'"):
        tables.wanted(TABLE, "fedav")
    assert tables.wanted(TABLE, "thin", 1) == [("thin", 0)]


def test_what_the_code_left_behind_says_so_and_runs_again(root, monkeypatch):
    """The text follows the accuracy until the row has a new entry."""

    def entry(seed, accuracy, **more):
        told = {"global": {"final": accuracy, "density": 0.25}}
        numbers = dict.fromkeys(("gbit", "flops_share", "minutes"), 0.25)
        told = {"row": "dense", "seed": seed, "accuracy": told, "commit": "abc"}
        return told | numbers | {"date": "2026-11-21"} | more

    old, new = entry(0, 0.75, stale="before the repair"), entry(1, 0.875)
    lines = tables.markdown(TABLE, [old]).splitlines()
    assert "| 75.00 (before the repair) | 0 |" in lines[2]
    lines = tables.markdown(TABLE, [old, new]).splitlines()
    assert "| 87.50 | 1 |" in lines[2] and "75.00" not in lines[2]

    (root / "benchmarks/tables").mkdir(parents=True)
    (root / "benchmarks/tables/tiny.json").write_text(json.dumps([old, new]))
    begun = []
    monkeypatch.setattr(experiment, "run", lambda c, path, **k: begun.append(path.name))
    monkeypatch.setattr(tables, "entry", lambda path, best: entry(0, 0.625))
    tables.fill(TABLE, "tiny", root=root, only="dense")
    assert begun == ["dense_seed0"]
    assert "stale" not in tables.results("tiny", root)["dense", 0]


def test_rows_that_have_not_run_are_a_line_and_not_dashes():
    numbers = dict.fromkeys(("gbit", "flops_share", "minutes"), 0.25)
    entry = {"row": "thin", "seed": 0, "date": "2026-11-21", "commit": "abc"} | numbers
    entry |= {"accuracy": {"global": {"final": 0.75, "density": 0.25}}}
    line = "Rows not run: {} of 2; `--list` names them."
    drawn = tables.markdown(TABLE, [entry]).splitlines()
    assert [part.split(":")[0] for part in drawn[2:]] == [
        "| `tiny_config.py",
        "",
        "Rows not run",
    ]
    assert "75.00" in drawn[2] and drawn[4] == line.format(1)
    assert tables.markdown(TABLE, []).strip() == line.format(2)
    whole = tables.markdown(TABLE, [entry, entry | {"row": "dense"}])
    assert "Rows not run" not in whole and len(whole.splitlines()) == 4
