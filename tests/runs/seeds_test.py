"""Seeds run one after another: each costs only itself, and they share programs."""

import contextlib
import json

import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.config import build
from sparsefl_jax.config.fields import Config
from sparsefl_jax.report import read_summary
from sparsefl_jax.runs import experiment, programs
from sparsefl_jax.system import interrupt
from tests.tiny import tiny_config

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


def run(data, folder, rounds=2):
    method = sfl.fedavg(MODEL, sfl.training.make_optimizer(learning_rate=0.1))
    stages = [sfl.Stage(method, rounds, 3, batch_size=8)]
    return sfl.experiment(stages, MODEL, data, workdir=folder, seeds=3, progress=False)


@pytest.fixture
def fate(monkeypatch):
    """Replaces the run of a seed by its fate; returns fates by seed, and who ran."""
    fates, ran = {}, []

    def one_seed(config, path, resume, *how):
        ran.append(config.seed)
        if error := fates.get(config.seed):
            raise error
        return {"seed": config.seed}

    monkeypatch.setattr(experiment, "run_seed", one_seed)
    return fates, ran


@pytest.mark.parametrize(
    "errors",
    [
        {1: (FloatingPointError, "training loss nan")},
        {0: (ValueError, "no"), 2: (TypeError, "mine")},
    ],
)
def test_the_first_error_is_raised_after_all_seeds(fate, tmp_path, capsys, errors):
    fates, ran = fate
    fates |= {seed: kind(text) for seed, (kind, text) in errors.items()}
    first = min(fates)
    with pytest.raises(errors[first][0]) as raised:
        run(data, tmp_path / "run")
    assert raised.value is fates[first]
    assert raised.value.__notes__ == [f"seed {first}"]
    assert ran == [0, 1, 2] and not (tmp_path / "run/report.html").exists()
    said = "".join(f"seed {seed} failed: {e}\n" for seed, e in sorted(fates.items()))
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "then"),
    [(OSError("full"), [0, 1, 2]), (interrupt.StoppedError("ended", 2), [0, 1])],
)
def test_other_errors_are_raised_as_they_are(fate, tmp_path, error, then):
    """After the other seeds, which only a signal leaves out."""
    fates, ran = fate
    fates[1] = error
    with pytest.raises(type(error)) as raised:
        run(data, tmp_path / "run")
    assert raised.value is error and ran == then
    ran.clear()
    runs = [(Config(seed=i, partition_seed=0), tmp_path) for i in range(3)]
    with contextlib.suppress(interrupt.StoppedError):  # else a study goes on
        assert list(map(type, experiment.run_each(runs))) == [dict, type(error), dict]
    assert ran == then


def test_seeds_read_their_data_set_once(tmp_path, monkeypatch):
    """They differ in the partition; widths are those of all before the first runs."""
    config = tiny_config(tmp_path)
    config.seeds = 3
    load, loaded, rows = build.datasets.load, [], []

    def counted(*args, **kwargs):
        loaded.append(args)
        return load(*args, **kwargs)

    def one_seed(config, path, resume, progress, read, parts_of):
        rows.append(read(config).train.index)
        raise OSError("here each seed ends")

    monkeypatch.setattr(build.datasets, "load", counted)
    monkeypatch.setattr(experiment, "run_seed", one_seed)
    with pytest.raises(OSError, match="here each seed ends"):
        experiment.run(config, tmp_path / "run", progress=False)
    assert len(loaded) == len({row.shape for row in rows}) == 1
    assert len({row.tobytes() for row in rows}) == 3


NAMED = r"^training loss \w+ in round \d+ of clients \["


@pytest.mark.slow
def test_one_of_three_diverges(tmp_path):
    with pytest.raises(FloatingPointError, match=NAMED):
        run(lambda seed: data(seed, poisoned=1), tmp_path, rounds=8)
    done = {path.parent.name for path in tmp_path.glob("*/summary.json")}
    assert done == {"seed_0", "seed_2"}
    assert read_summary(tmp_path / "seed_2")["ended_by"] == "rounds"
    kept = (tmp_path / "seed_1/metrics.jsonl").read_text()
    assert "NaN" not in kept and "Infinity" not in kept
    assert 0 < json.loads(kept.splitlines()[-1])["round"] < 8


@pytest.mark.slow
@pytest.mark.parametrize("files", [True, False])
def test_all_seeds_have_the_same_programs(tmp_path, monkeypatch, files):
    """So that the cache has that of the second seed, whose split is another."""
    tables, texts = [data(seed).train.index.shape for seed in range(3)], set()
    assert len(set(tables)) > 1
    compile_stage = programs.compile_stage

    def compiled(*arguments):
        found = compile_stage(*arguments)
        texts.add(found.segment.as_text())
        return found

    monkeypatch.setattr(programs, "compile_stage", compiled)
    run(data, tmp_path if files else None)
    assert len(texts) == 1
