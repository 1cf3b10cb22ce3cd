"""A run resumes with its checkpoint's data and configuration, or says why not."""

import json
import shutil
import zlib

import jax
import numpy as np
import pytest
from absl import flags

import sparsefl_jax as sfl
from sparsefl_jax import data as datasets
from sparsefl_jax import report
from sparsefl_jax.config import build, changes, command_line
from sparsefl_jax.config.defaults import fill_in, freeze, load_config, plain
from sparsefl_jax.runs import checkpoint, experiment, records
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.runs.checkpoint import Snapshot
from sparsefl_jax.system import interrupt, provenance
from tests.runs.checkpoint_test import contents, stop_after
from tests.tiny import network, tiny_config


def four_rounds(folder):
    """Configures a run that evaluates every other round, with a validation split."""
    config = tiny_config(folder)
    config.val_fraction, config.first_stage = 0.2, {}
    config.final_learning_rate, config.lr_horizon = 0.01, 8
    return config


@pytest.fixture(scope="module", autouse=True)
def undrawn():
    """Writes empty pages, because plots take most of a small run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_comparison", lambda comparison, out: [])
        patch.setattr(records, "draw", lambda path: (path / "report.html").touch())
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Makes a finished run of four rounds, with its data set beside it."""
    folder = tmp_path_factory.mktemp("finished")
    experiment.run(four_rounds(folder), folder / "run", progress=False)
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    """Returns a copy of that run with data of its own."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.copy(finished.parent / "tiny.npz", tmp_path)
    config = load_config(str(tmp_path / "run/config.json"))
    config.dataset = str(tmp_path / "tiny.npz")  # the same content in another place
    (tmp_path / "run/config.json").write_text(config.to_json_best_effort())
    return tmp_path / "run"


def files(run):
    return {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}


def resume(run, **how):
    config = load_config(str(run / "config.json"))
    config.update(how.pop("fields", {}))
    return experiment.run(config, run, resume=True, **({"progress": False} | how))


def refused(run, said, **how):
    """Checks that resuming is refused and changes no file."""
    before = files(run)
    with pytest.raises(ValueError, match=said):
        resume(run, **how)
    assert files(run) == before


@pytest.mark.slow
def test_an_extended_run_is_the_longer_one(run, tmp_path, monkeypatch, capsys):
    config = load_config(str(run / "config.json"))
    config.num_rounds = 8
    experiment.run(config, tmp_path / "whole", progress=False)
    stop_after(monkeypatch, 1)
    with pytest.raises(interrupt.StoppedError):
        resume(run, fields={"num_rounds": 8}, progress=True)
    monkeypatch.undo()
    said = capsys.readouterr().err
    assert "after round 4 of stage 0, bit for bit" in said
    assert not (run / "summary.json").exists() and not (run / "report.html").exists()
    told = resume(run)
    assert (told["rounds"], told["ended_by"]) == (8, "rounds")
    assert contents(run) == contents(tmp_path / "whole")  # also the best models
    summary = json.loads((tmp_path / "whole/summary.json").read_text())
    assert told["best"] == summary["best"] and told["accuracy"] == summary["accuracy"]
    assert (run / "report.html").exists()
    assert run_folder.read_config(run).num_rounds == 8


def test_other_data_are_refused(run):
    """One sample differs."""
    path = run.parent / "tiny.npz"
    arrays = dict(np.load(path))
    arrays["x"][7] = 0
    np.savez(path, **arrays)
    (run / "summary.json").unlink()
    for fields in ({}, {"num_rounds": 8}):
        refused(run, "checkpoint: (.*, )?x(,.*)? changed", fields=fields)


def test_every_array_has_a_fingerprint_and_padding_of_the_tables_none():
    x, y = np.zeros((4, 2), np.float32), np.arange(4) % 2
    data = datasets.from_arrays(x, y, num_clients=2, x_test=x, y_test=y)
    index, size = data.train
    old = run_folder.fingerprint(data)
    arrays = {"x", "y", "x_test", "y_test", "mean", "std", "train", "val", "test"}
    assert set(old) == arrays | {"num_classes"}  # what tells of them may change

    def changed(name, value):
        new = run_folder.fingerprint(data._replace(**{name: value}))
        return [field for field in old if old[field] != new[field]]

    for name in ("x", "y", "x_test", "y_test"):
        assert changed(name, getattr(data, name) + 1) == [name]
    padded = datasets.federated.Rows(np.pad(index, ((0, 0), (0, 4))), size)
    assert changed("train", padded) == []
    turned = datasets.federated.Rows(index[::-1], size)
    assert changed("train", turned) == ["train"]


def test_another_setting_or_version_is_no_bit_for_bit(finished, monkeypatch):
    saved, old = checkpoint.read(finished), sfl.__version__
    now = provenance.facts(saved.about["machine"]["chunk"])
    assert run_folder.describe_start(saved, now).endswith(", bit for bit")
    monkeypatch.setattr(sfl, "__version__", "9.9")
    jax.config.update("jax_enable_x64", True)
    try:
        now |= provenance.settings() | provenance.versions()
    finally:
        jax.config.update("jax_enable_x64", False)
    said = run_folder.describe_start(saved, now)
    changed = f"jax_enable_x64 False -> True, sparsefl_jax {old} -> 9.9"
    assert said.endswith(f"not bit for bit: {changed}")


METHOD = "from sparsefl_jax.algorithms import fedavg as mine\n"


@pytest.mark.slow
def test_an_edited_method_of_ones_own_is_no_bit_for_bit(tmp_path, monkeypatch, capsys):
    file = tmp_path / "single_method.py"
    file.write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    config = four_rounds(tmp_path)
    config.algorithm, config.num_rounds = {"name": "single_method:mine"}, 2
    summary = experiment.run(config, tmp_path / "run", progress=False)
    assert summary["code"] == {str(file): zlib.crc32(METHOD.encode())}
    file.write_text(METHOD + "# edited\n")
    resume(tmp_path / "run", fields={"num_rounds": 3}, progress=True)
    assert f"not bit for bit: {file}" in capsys.readouterr().err


def test_an_edited_configuration_is_refused_by_its_field(run):
    told = json.loads((run / "config.json").read_text())
    told["optimizer"]["learning_rate"] = 0.2
    (run / "config.json").write_text(json.dumps(told))
    (run / "summary.json").unlink()
    refused(run, "learning_rate is 0.1 there and 0.2 here")


@pytest.fixture
def settle(tmp_path):
    """`settle(began, now, **snapshot) -> Found`, by fields of a configuration."""

    def asked(began, now, **at):
        old, new = four_rounds(tmp_path), four_rounds(tmp_path)
        for config in (old, new):
            config.update_from_flattened_dict({"lr_horizon": None} | began)
        new.update_from_flattened_dict(now)
        at = {"stage": 0, "round": 2, "state": None, "bits": 10**9, "flops": 0.0} | at
        about = {"config": plain(fill_in(old))}
        saved = checkpoint.Saved(Snapshot(**at), {}, about)
        return run_folder.continue_from(freeze(new), saved)

    return asked


def test_what_was_planned_over_the_rounds_of_old_stays(settle):
    found = settle({}, {"num_rounds": 8})
    assert found.config.lr_horizon == 4
    rate = build.build_optimizer(settle({}, {}).config)
    longer = build.build_optimizer(found.config)
    ones = np.ones(1, np.float32)
    for round in (0, 3):
        old, new = (f(round) for f in (rate, longer))
        assert (
            old.update(ones, old.init(ones))[0] == new.update(ones, new.init(ones))[0]
        )
    assert settle({}, {"num_rounds": 8, "lr_horizon": 6}).config.lr_horizon == 6
    with pytest.raises(ValueError, match="lr_horizon=6, expected 4"):
        settle({}, {"lr_horizon": 6})
    again = settle({"num_rounds": 8, "lr_horizon": 4}, {"lr_horizon": None})
    assert again.config.lr_horizon == 4
    constant = settle({"final_learning_rate": None}, {"num_rounds": 8})
    assert constant.config.lr_horizon is None

    first = {"name": "sensitivity", "density": 0.5}
    found = settle({"first_stage": first}, {"num_rounds": 8})
    assert found.config.first_stage["num_rounds"] == 4
    stages = build.build_stages(found.config, network("mlp"))
    assert [stage.num_rounds for stage in stages] == [4, 8]
    began = {"first_stage": first | {"num_rounds": 4}}
    with pytest.raises(ValueError, match="first_stage.num_rounds=8, expected 4"):
        settle(began, {"first_stage.num_rounds": 8})


@pytest.mark.parametrize(
    ("by", "round", "began", "now", "after"),
    [
        ("rounds", 4, {}, {"num_rounds": 5}, ""),
        ("rounds", 4, {}, {"until.gbit": 2.0}, "rounds"),
        ("gbit", 2, {"until.gbit": 0.5}, {"until.gbit": 1.0}, "gbit"),  # 1 is spent
        ("gbit", 2, {"until.gbit": 0.5}, {"until.gbit": 1.5}, ""),
        ("gbit", 2, {"until.gbit": 0.5}, {"num_rounds": 8}, "gbit"),
        (
            "gbit",
            4,
            {"until.gbit": 0.5},
            {"until.gbit": 2.0},
            "rounds",
        ),  # the end
        ("accuracy", 2, {"until.accuracy": 0.5}, {"until.accuracy": 0.6}, ""),
    ],
)
def test_a_run_goes_on_when_its_end_is_lifted(settle, by, round, began, now, after):
    found = settle(began, now, ended_by=by, round=round)
    assert found.saved.snapshot.ended_by == after


def test_a_run_never_gets_fewer_rounds(settle):
    with pytest.raises(ValueError, match="num_rounds=3, expected at least the 4"):
        settle({}, {"num_rounds": 3})
    assert settle({}, {"num_rounds": 4}).saved.snapshot.ended_by == ""


def test_of_a_finished_run_nothing_is_left(run, capsys):
    before = files(run)
    resume(run, fields={"eval_every": 1}, progress=True)
    assert capsys.readouterr().err == f"report: {run}/report.html\n"
    assert files(run) == before


def test_without_a_checkpoint_nothing_is_extended(run):
    (run / "checkpoint.npz").unlink()
    refused(run, "has no checkpoint to extend", fields={"num_rounds": 8})


def test_what_a_checkpoint_tells_is_under_a_checksum(run):
    path = run / "checkpoint.npz"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"seconds": ', b'"seconds":1'))
    assert path.read_bytes() != whole
    with pytest.raises(ValueError, match="checkpoint.npz cannot be read: Bad CRC"):
        checkpoint.read(run)


def test_overrides_alone_change_the_configuration_of_the_run(run):
    arguments = ["launch.py", "--resume", "--config.num_rounds=8"]
    arguments += ["--config.until.gbit=2", "--config.eval_every=4"]
    for where in ([f"--workdir={run}"], ["--workdir", str(run)]):
        values = flags.FlagValues()
        flags.DEFINE_bool("resume", False, "", flag_values=values)
        flags.DEFINE_string("workdir", None, "", flag_values=values)
        command_line.define_config(values)
        command_line.parse_flags([*arguments, *where], values)
        old, new = (
            run_folder.read_config(run),
            command_line.configuration(values, str(run)),
        )
        changed = ["eval_every", "num_rounds", "until.gbit"]
        assert list(changes.differences(old, fill_in(new))) == changed
        assert new.until.gbit == 2.0 and new.eval_every == 4


@pytest.mark.slow
def test_seeds_are_extended_together(tmp_path):
    config = four_rounds(tmp_path)
    config.update({"seeds": 2, "num_rounds": 1, "eval_every": 1})
    config.lr_horizon = None
    experiment.run(config, tmp_path / "a", progress=False)
    shutil.rmtree(tmp_path / "a/seed_1")  # as if the run had stopped between two seeds
    config.num_rounds = 2
    told = experiment.run(config, tmp_path / "a", resume=True, progress=False)
    assert [(s["seed"], s["rounds"]) for s in told] == [(0, 2), (1, 2)]
    for folder in ("a", "a/seed_0", "a/seed_1"):
        found = run_folder.read_config(tmp_path / folder)
        assert (found.num_rounds, found.lr_horizon) == (2, 1)
