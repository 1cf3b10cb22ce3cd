"""Seeds in one program: each leaves what it leaves when it runs alone."""

import contextlib
import json
import shutil

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.report import read_records, read_summary
from sparsefl_jax.runs import experiment, lockstep, loop, recording
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.runs.setup import make
from sparsefl_jax.studies import runner
from sparsefl_jax.system import interrupt
from tests.tiny import ctrl_c, tiny_config
from tests.tiny_study import points, write_study

MODEL = sfl.models.build("mlp", 4, (2, 3, 1), widths=(8,))
X = np.random.default_rng(0).normal(0, 0.3, (240, 2, 3, 1)).astype(np.float32)
Y = np.arange(240) % 4
X[:, 0, 0, 0] += Y


def data(seed, poisoned=None):
    """Returns data whose partition, and so the widths of tables, differ by seed.

    In that of the poisoned seed, a sample of client 4 is too large for a finite loss.
    """
    arrays = dict(x_test=X[160:], y_test=Y[160:], name="tiny")
    how = dict(num_clients=8, partition="dirichlet", alpha=0.5, seed=seed)
    found = sfl.from_arrays(X[:160].copy(), Y[:160], **arrays, **how)
    if seed == poisoned:
        found.x[found.train.index[4, 0]] = 3e38
    return found


def stages(rounds=4, method=sfl.fedavg, **arguments):
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.1)
    algorithm = method(MODEL, optimizer, **arguments)
    return [sfl.Stage(algorithm, rounds, 3, batch_size=8)]


def run(parts, data=data, **settings):
    settings = dict(seeds=2, progress=False, seeds_together="yes") | settings
    return sfl.experiment(parts, MODEL, data, **settings)


def near(one, other):
    """Compares trees, records among them, to 1e-6; counts and words exactly."""
    jax.tree.map(
        lambda a, b: (
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
            if isinstance(a, float | np.ndarray | jax.Array)
            else np.testing.assert_equal(a, b)
        ),
        one,
        other,
    )


@pytest.fixture(autouse=True)
def no_pages(monkeypatch):
    monkeypatch.setattr(recording, "draw", lambda path: None)
    monkeypatch.setattr(experiment.report, "write_comparison", lambda *a, **k: None)


@pytest.fixture
def programs(monkeypatch):
    """Returns a list that gets the number of seeds of each program that is made."""
    made, compiled = [], lockstep.compiled

    def compile(setups, *args, **options):
        found = compiled(setups, *args, **options)
        made.append(len(setups))
        return found

    monkeypatch.setattr(lockstep, "compiled", compile)
    return made


@pytest.mark.slow
def test_a_round_of_two_seeds_is_that_of_each(programs):
    found = run(stages(1), devices=jax.devices()[:1])
    assert programs == [2]
    for seed, one in enumerate(found):
        parts = make(stages(1), MODEL, data(seed), devices=jax.devices()[:1])
        alone = loop.run(jax.random.key(seed), *parts[:3], devices=parts.devices)
        near(one.metrics, alone.metrics)
        near(one.server, alone.server)
    assert found[0].metrics != found[1].metrics


METHODS = {
    "fedavg": {"keep_optimizer": True},
    "jmwst": {"density": 0.5, "r_int": 2},
    "spafl": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_a_round_to_rounding(name, devices, programs):
    assert jax.device_count() >= 2
    parts = stages(1, sfl.ALGORITHMS[name], **METHODS[name])
    how = dict(seeds=3, devices=jax.devices()[:devices])
    together = run(parts, **how)
    alone = run(parts, seeds_together="no", **how)
    assert programs == [3]
    for one, other in zip(together, alone, strict=True):
        near(one, other)


@pytest.mark.slow
def test_two_stages_and_their_files(tmp_path):
    config = tiny_config(tmp_path)
    config.partition = {"name": "dirichlet", "alpha": 0.5}
    config.seeds, config.num_rounds, config.observe_rounds = 3, 2, (2,)
    defaults.complete(config)
    for config.seeds_together in ("yes", "no"):
        folder = tmp_path / config.seeds_together
        experiment.run(config, folder, progress=False)
    for seed in range(3):
        both = [tmp_path / name / f"seed_{seed}" for name in ("yes", "no")]
        near(*(read_records(path / "metrics.jsonl") for path in both))
        names = [{p.relative_to(path) for p in path.rglob("*.np*")} for path in both]
        assert names[0] == names[1] and len(names[0]) > 2
        near(*(sfl.load_run(path).models for path in both))
        kept = [json.loads((path / "config.json").read_text()) for path in both]
        assert kept[0] == kept[1]
    both = [read_summary(tmp_path / name) for name in ("yes", "no")]
    near(*(told["accuracy"] for told in both))


def ends(folder):
    """Returns the last round of each seed, and what ended it."""
    found = {}
    for path in sorted(folder.glob("seed_*")):
        last = read_records(path / "metrics.jsonl")[-1]["round"]
        done = (path / "summary.json").exists()
        found[path.name] = last, read_summary(path)["ended_by"] if done else None
    return found


@pytest.mark.slow
def test_a_seed_that_reaches_its_limit_stops_no_other(tmp_path):
    runs = run(stages(12), seeds=3, seeds_together="no")
    curves = [
        [(r["round"], r["accuracy"]) for r in one.metrics if r["phase"] == "eval"]
        for one in runs
    ]
    best = [max(accuracy for _, accuracy in curve) for curve in curves]
    limit = sorted(best)[1] - 1e-3  # which two of the three reach, one does not
    expected = {}
    for seed, curve in enumerate(curves):
        first = [(r, "accuracy") for r, accuracy in curve if accuracy >= limit]
        expected[f"seed_{seed}"] = (first or [(12, "rounds")])[0]
    assert len(set(expected.values())) > 1
    until = sfl.runs.setup.Limits(accuracy=limit)
    run(stages(12), seeds=3, until=until, workdir=tmp_path / "run")
    assert ends(tmp_path / "run") == expected


@pytest.mark.slow
def test_a_budget_ends_each_seed_in_its_own_round(tmp_path):
    """Masks that clients vote on differ by seed, and so do their bits."""
    parts = stages(8, sfl.jmwst, density=0.5, r_int=2)
    alone = run(parts, seeds=3, seeds_together="no", eval_every=8)
    spent = [
        [r["gbit_cumulative"] for r in one.metrics if r["phase"] == "train"]
        for one in alone
    ]
    limit = min(curve[4] for curve in spent) * (1 + 1e-9)
    expected = {
        f"seed_{i}": (1 + next(r for r in range(8) if curve[r] >= limit), "gbit")
        for i, curve in enumerate(spent)
    }
    until = sfl.runs.setup.Limits(gbit=limit)
    run(parts, seeds=3, until=until, workdir=tmp_path / "run", eval_every=8)
    assert ends(tmp_path / "run") == expected


@pytest.mark.slow
def test_a_seed_that_diverges_stops_no_other(tmp_path):
    def poisoned(seed):
        return data(seed, poisoned=1)

    for how in ("yes", "no"):
        with pytest.raises(FloatingPointError, match=r"seed 1: training loss \w+ in"):
            folder = tmp_path / how
            run(stages(8), poisoned, seeds=3, seeds_together=how, workdir=folder)
        assert not (folder / "summary.json").exists()
    assert ends(tmp_path / "yes") == ends(tmp_path / "no")
    assert ends(tmp_path / "yes")["seed_2"] == (8, "rounds")
    last, ended_by = ends(tmp_path / "yes")["seed_1"]
    assert 0 < last < 8 and ended_by is None
    for seed in range(3):
        both = [tmp_path / how / f"seed_{seed}/metrics.jsonl" for how in ("yes", "no")]
        near(*map(read_records, both))


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("metrics.jsonl"))}


class KilledError(BaseException):
    """Ends a run as a kill does: nothing more is written."""


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["signal", "kill"])
def test_what_was_stopped_goes_on_bit_for_bit(tmp_path, monkeypatch, stop):
    """A kill comes between the checkpoints of two seeds; one has ended before."""
    parts = stages(6, sfl.jmwst, density=0.5, r_int=2)
    minutes = {"kill": 0.0, "signal": 60.0}[stop]
    how = dict(seeds=3, checkpoint_minutes=minutes)
    run(parts, workdir=tmp_path / "whole", **how)
    send, written = ctrl_c(monkeypatch), recording.recording

    @contextlib.contextmanager
    def stopping(path, *args):
        with written(path, *args) as recorder:

            def record(segment):
                if path.name == "seed_1" and segment.snapshot.round == 3:
                    if stop == "kill":
                        raise KilledError
                    send()
                return recorder.record(segment)

            yield recorder._replace(record=record)

    with monkeypatch.context() as patch:
        patch.setattr(recording, "recording", stopping)
        with pytest.raises((KilledError, interrupt.StoppedError)):
            run(parts, workdir=tmp_path / "cut", **how)
    if stop == "kill":
        rounds = [last for last, _ in ends(tmp_path / "cut").values()]
        assert rounds == [3, 2, 2]
    run(parts, workdir=tmp_path / "cut", **how)
    whole, cut = (list(contents(tmp_path / n).values()) for n in ("whole", "cut"))
    assert cut == whole and len(whole) == 3


@pytest.mark.slow
def test_a_seed_that_is_missing_runs_as_among_all(tmp_path, programs):
    parts = stages(3)
    run(parts, seeds=3, workdir=tmp_path / "run")
    before = contents(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/seed_1")
    (tmp_path / "run/summary.json").unlink()
    run(parts, seeds=3, workdir=tmp_path / "run")
    assert programs == [3, 3]
    assert contents(tmp_path / "run") == before


@pytest.mark.slow
def test_a_study_runs_seeds_together(tmp_path, programs):
    write_study(tmp_path)
    study = points(tmp_path, rounds=2)
    for point in study:
        point.config.seeds_together = "yes"
    with study[0].config.ignore_type():
        study[0].config.optimizer.learning_rate = 1e30
    states = runner.run(study, tmp_path / "out", show=False)
    assert programs == [2, 2]
    assert states["fedprox"].done == 2 and not states["fedprox"].failed
    reasons = states["fedavg"].failed.splitlines()
    assert [reason[:16] for reason in reasons[:2]] == [
        "seed 0: training",
        "seed 1: training",
    ]
    programs.clear()
    runner.run(study[1:], tmp_path / "out", show=False)
    assert programs == []
