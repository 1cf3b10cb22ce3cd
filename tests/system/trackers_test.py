"""Weights & Biases: what a run leaves there."""

import json
import sys
from types import SimpleNamespace

import pytest

from sparsefl_jax.system import sinks
from tests.system.sinks_test import LOSSES, write

CONFIG = {"seed": 3, "optimizer": {"name": "sgd", "learning_rate": 0.1}}


def interrupted(workdir, name):
    """Writes a run that is saved after one segment and killed after two."""
    (workdir / "config.json").write_text(json.dumps(CONFIG))
    position = write(workdir, [name], last=1)
    write(workdir, [name], position, first=1, last=2)  # lost by a kill
    changed = CONFIG | {"num_rounds": 9, "seed": 4}
    (workdir / "config.json").write_text(json.dumps(changed))
    summary = {"method": "m", "rounds": 6, "accuracy": {"global": {"final": 0.5}}}
    write(workdir, [name], position, first=1, summary=summary)


def test_wandb_goes_on_in_one_run_and_has_no_round_twice(tmp_path, monkeypatch):
    """What W&B is given, by another module in its place."""
    begun, rows, ended = [], [], []
    run = SimpleNamespace(
        id="an id",
        config={},
        summary={},
        log=lambda row, step, commit: rows.append((step, row)),
        finish=lambda exit_code: ended.append(exit_code),
    )
    init = lambda **how: begun.append(how["id"]) or run  # noqa: E731
    wandb = SimpleNamespace(Settings=dict, init=init)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    interrupted(tmp_path, "wandb")
    assert begun == [None, "an id", "an id"] and ended == [1, 1, 0]
    assert [step for step, _ in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["train/loss"] for _, row in rows] == pytest.approx(LOSSES)
    assert [row["stage"] for _, row in rows] == [0, 0, 1, 1, 1, 1]
    evaluated = [row.get("eval/accuracy") for _, row in rows]
    assert evaluated[::2] == [None] * 3
    assert evaluated[1::2] == pytest.approx([0.1, 0.2, 0.4])
    assert [row.get("seconds") for _, row in rows] == [None, 0.5, None, 1.0, None, 1.5]
    assert run.config["seed"] == 4 and run.config["num_rounds"] == 9
    assert run.summary["accuracy"] == {"global": {"final": 0.5}}


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
