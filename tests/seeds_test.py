"""Seeds run one after another: each costs only itself, and they share programs."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.runs import experiment, programs
from sparsefl_jax.system import interrupt

MODEL = sfl.models.build("mlp", 4, (2, 3, 1), widths=(8,))
X = np.random.default_rng(0).normal(0, 0.3, (240, 2, 3, 1)).astype(np.float32)
Y = np.arange(240) % 4
X[:, 0, 0, 0] += Y


def data(seed):
    """Returns data whose partition, and so the widths of tables, differ by seed."""
    arrays = dict(x_test=X[160:], y_test=Y[160:], name="tiny")
    how = dict(num_clients=8, partition="dirichlet", alpha=0.5, seed=seed)
    return sfl.from_arrays(X[:160], Y[:160], **arrays, **how)


def run(folder):
    method = sfl.fedavg(MODEL, sfl.training.make_optimizer(learning_rate=0.1))
    stages = [sfl.Stage(method, 2, 3, batch_size=8)]
    return sfl.experiment(stages, MODEL, data, workdir=folder, seeds=3, progress=False)


@pytest.fixture
def fate(monkeypatch):
    """Replaces the run of a seed by its fate; returns fates by seed, and who ran."""
    fates, ran = {}, []

    def one_seed(config, path, resume, source, progress, accept=False):
        ran.append(config.seed)
        if error := fates.get(config.seed):
            raise error
        return {"seed": config.seed}

    monkeypatch.setattr(experiment, "one_seed", one_seed)
    return fates, ran


def test_a_seed_that_diverges_fails_after_the_others(fate, tmp_path):
    fates, ran = fate
    fates[1] = FloatingPointError("training loss nan")
    with pytest.raises(FloatingPointError, match="^seed 1: training loss nan$"):
        run(tmp_path / "run")
    assert ran == [0, 1, 2] and not (tmp_path / "run/report.html").exists()


@pytest.mark.parametrize(
    ("error", "then"),
    [(OSError("full"), [0, 1, 2]), (interrupt.StoppedError("ended", 2), [0, 1])],
)
def test_other_errors_are_raised_as_they_are(fate, tmp_path, error, then):
    """A disk that is full is said at once, a signal leaves the seeds that are left."""
    fates, ran = fate
    fates[1] = error
    with pytest.raises(type(error)) as raised:
        run(tmp_path / "run")
    assert raised.value is error and ran == [0, 1]
    ran.clear()
    runs = [(SimpleNamespace(seed=i, partition_seed=0), tmp_path) for i in range(3)]
    with contextlib.suppress(interrupt.StoppedError):  # else a study goes on
        assert list(map(type, experiment.run_each(runs))) == [dict, type(error), dict]
    assert ran == then


@pytest.mark.slow
def test_all_seeds_have_the_same_programs(tmp_path, monkeypatch):
    """So that the cache has that of the second seed, whose split is another."""
    tables, texts = [data(seed).train.index.shape for seed in range(3)], set()
    assert len(set(tables)) > 1
    compile_stage = programs.compile_stage

    def compiled(*arguments):
        found = compile_stage(*arguments)
        texts.add(found.segment.as_text())
        return found

    monkeypatch.setattr(programs, "compile_stage", compiled)
    run(tmp_path)
    assert len(texts) == 1
