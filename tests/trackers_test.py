"""Weights & Biases and MLflow: what a run leaves there, read back."""

import json
import struct

import pytest

from sparsefl_jax.runs import experiment, sinks
from tests.sinks_test import segments, write
from tests.tiny import tiny_config

LOSSES = [1, 1 / 2, 1 / 11, 1 / 12, 1 / 13, 1 / 14]
CONFIG = {"seed": 3, "optimizer": {"name": "sgd", "learning_rate": 0.1}}


def leveldb_records(content):
    """Yields the records of a LevelDB log behind the 7 bytes of W&B's header.

    A record lies in one or more pieces, each with checksum, length and type; no piece
    crosses a block of 32 KiB.
    """
    at, record = 7, b""
    while at + 7 <= len(content):
        if 0 < (left := -at % 2**15) < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        record += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


@pytest.fixture
def wandb_rows(monkeypatch):
    """Reads the offline runs of a folder: ids, history, configuration, summary."""
    pytest.importorskip("wandb", reason="needs the extra [wandb]")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")

    def name(item):
        return "/".join(item.nested_key) or item.key

    def read(workdir):
        ids, history, config, summary, groups = set(), [], {}, {}, set()
        for path in sorted(workdir.glob("wandb/offline-run-*/run-*.wandb")):
            for data in leveldb_records(path.read_bytes()):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                kind = record.WhichOneof("record_type")
                if kind == "run":
                    ids.add(record.run.run_id)
                    groups.add((record.run.run_group, record.run.display_name))
                    update = record.run.config.update
                    config |= {name(u): json.loads(u.value_json) for u in update}
                if kind == "config":
                    update = record.config.update
                    config |= {name(u): json.loads(u.value_json) for u in update}
                if kind == "history":
                    items = record.history.item
                    history.append({name(i): json.loads(i.value_json) for i in items})
                if kind == "summary":
                    items = record.summary.update
                    summary |= {name(i): json.loads(i.value_json) for i in items}
        return ids, history, config, summary, groups

    return read


@pytest.fixture
def mlflow_run(monkeypatch, tmp_path_factory):
    """Reads the only run of a local store by MLflow's client."""
    pytest.importorskip("mlflow", reason="needs the extra [mlflow]")
    from mlflow import MlflowClient, set_tracking_uri

    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    set_tracking_uri(None)

    def read():
        client = MlflowClient()
        (found,) = [e for e in client.search_experiments() if e.name == "sparsefl_jax"]
        (run,) = client.search_runs([found.experiment_id])

        def history(key):
            values = client.get_metric_history(run.info.run_id, key)
            return sorted((m.step, m.value) for m in values)

        return run, history

    return read


def interrupted(workdir, name):
    """Writes a run that is saved after one segment and killed after two."""
    (workdir / "config.json").write_text(json.dumps(CONFIG))
    position = write(workdir, [name], last=1)
    write(workdir, [name], position, first=1, last=2)  # lost by a kill
    changed = CONFIG | {"num_rounds": 9, "seed": 4}
    (workdir / "config.json").write_text(json.dumps(changed))
    with sinks.open_sinks([name], workdir, **position) as (log, _):
        for index, records in list(enumerate(segments()))[1:]:
            log(records, 0.5 * (index + 1))
        (workdir / "summary.json").write_text(
            json.dumps(
                {"method": "m", "rounds": 6, "accuracy": {"global": {"final": 0.5}}}
            )
        )


@pytest.mark.slow
def test_wandb_goes_on_in_one_run_and_has_no_round_twice(tmp_path, wandb_rows):
    workdir = tmp_path / "a" / "seed_3"
    workdir.mkdir(parents=True)
    interrupted(workdir, "wandb")
    ids, history, config, summary, groups = wandb_rows(workdir)
    assert ids == {json.loads((workdir / "wandb.json").read_text())["id"]}
    assert groups == {("a", "a/seed_3")}
    assert [row["_step"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert [row["train/loss"] for row in history] == pytest.approx(LOSSES)
    assert [row["stage"] for row in history] == [0, 0, 1, 1, 1, 1]
    evaluated = {
        r["_step"]: r["eval/accuracy"] for r in history if "eval/accuracy" in r
    }
    assert evaluated == pytest.approx({2: 0.1, 4: 0.2, 6: 0.4})
    assert [r.get("seconds") for r in history] == [None, 0.5, None, 1.0, None, 1.5]
    assert config["seed"] == 4 and config["num_rounds"] == 9
    assert config["optimizer"] == {"name": "sgd", "learning_rate": 0.1}
    assert summary["method"] == "m"
    assert summary["accuracy"] == {"global": {"final": 0.5}}


@pytest.mark.slow
def test_mlflow_goes_on_in_one_run_and_has_no_round_twice(tmp_path, mlflow_run):
    interrupted(tmp_path, "mlflow")
    run, history = mlflow_run()
    assert run.info.run_id == json.loads((tmp_path / "mlflow.json").read_text())["id"]
    assert run.info.status == "FINISHED" and run.info.run_name == tmp_path.name
    assert [step for step, _ in history("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in history("train/loss")] == pytest.approx(LOSSES)
    evaluated = [(2, pytest.approx(0.1)), (4, pytest.approx(0.2))]
    assert history("eval/accuracy") == [*evaluated, (6, pytest.approx(0.4))]
    assert [v for _, v in history("stage")] == [0, 0, 1, 1, 1, 1]
    assert history("train/layer_density/conv1/kernel")[0] == (1, 0.5)
    assert run.data.params == {
        "seed": "3",  # as it began: a parameter cannot change
        "optimizer.name": "sgd",
        "optimizer.learning_rate": "0.1",
    }
    assert history("summary/accuracy/global/final") == [(6, 0.5)]


@pytest.mark.slow
def test_an_interrupted_run_is_not_finished_in_mlflow(tmp_path, mlflow_run):
    write(tmp_path, ["mlflow"], last=1)
    assert mlflow_run()[0].info.status == "KILLED"


@pytest.mark.slow
def test_a_run_that_mlflow_does_not_know_is_one_line(tmp_path, mlflow_run):
    (tmp_path / "mlflow.json").write_text(json.dumps({"id": "gone", "rounds": 0}))
    with pytest.raises(OSError, match="^sinks='mlflow': Run with id=gone not found$"):
        write(tmp_path, ["mlflow"])


@pytest.mark.slow
def test_a_configuration_logs_to_both(tmp_path, wandb_rows, mlflow_run):
    config = tiny_config(tmp_path)
    config.sinks = ("wandb", "mlflow")
    summary = experiment.run(config, tmp_path / "run", progress=False)
    _, rows, logged, written, _ = wandb_rows(tmp_path / "run")
    run, history = mlflow_run()
    rounds = summary["rounds"]
    assert len(rows) == rounds == len(history("train/bits_up"))
    bits = sum(value for _, value in history("train/bits_up"))
    assert bits == sum(stage["bits_up"] for stage in summary["stages"])
    assert logged["dataset"] == config.dataset == run.data.params["dataset"]
    assert written["method"] == config.algorithm.name
    assert json.loads((tmp_path / "run/wandb.json").read_text())["rounds"] == rounds


def test_rounds_that_were_logged_are_left_out(tmp_path, monkeypatch):
    logged, asked = [], []

    def tool(workdir, step, id):
        asked.append((step, id))
        return sinks.Sink(logged.extend, lambda summary: None, "an id")

    monkeypatch.setitem(sinks.TOOLS, "x", tool)
    first = sinks.opened("x", tmp_path, 0)
    first.write({1: {}, 2: {}})
    first.write({3: {}, 4: {}})  # and then it is killed, with a checkpoint of round 2
    again = sinks.opened("x", tmp_path, 2)
    again.write({3: {}, 4: {}})
    again.write({5: {}, 6: {}})
    assert logged == [1, 2, 3, 4, 5, 6] and asked == [(0, None), (2, "an id")]
    told = json.loads((tmp_path / "x.json").read_text())
    assert told == {"id": "an id", "rounds": 6}


@pytest.mark.parametrize("error", [FloatingPointError("loss nan"), None])
def test_the_error_of_a_run_is_not_hidden_by_that_of_a_tool(
    tmp_path, monkeypatch, error
):
    def close(summary):
        raise ConnectionError("no network")

    sink = sinks.Sink(lambda rows: None, close)
    monkeypatch.setitem(sinks.TOOLS, "json", lambda *of: sink)  # a name to import
    told = "^loss nan$" if error else "^sinks='json': no network$"
    with (
        pytest.raises(type(error) if error else OSError, match=told),
        sinks.open_sinks(["json"], tmp_path),
    ):
        if error:
            raise error


@pytest.mark.parametrize("text", ['{"id": 3', "[3]"])
def test_a_damaged_id_is_one_line(tmp_path, text):
    (tmp_path / "wandb.json").write_text(text)
    with pytest.raises(ValueError, match=r"wandb\.json ") as caught:
        sinks.opened("wandb", tmp_path, 0)
    assert "\n" not in str(caught.value)
