"""The benchmark of sparse models: the results of its engines and its tables."""

import functools
import json
import sys

import jax
import numpy as np
import pytest

from benchmarks import engines, inference
from sparsefl_jax import models
from sparsefl_jax.runs import experiment
from sparsefl_jax.runs.config import defaults
from tests.tiny import tiny_config

pytestmark = pytest.mark.slow


def quick(case, x):
    """Returns the logits of the package's own network, compiled quickly."""
    apply = functools.partial(models.build(**case.network).apply, train=False)
    options = {"xla_backend_optimization_level": 0}
    apply = jax.jit(apply, compiler_options=options)
    return np.asarray(apply(case.sparse.params, case.sparse.stats, x)[0])


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("mlp", tuple(engines.ENGINES)),
        ("fedsparsify_cnn", ("CSR, SciPy",)),
        pytest.param("small_cnn", tuple(engines.ENGINES), marks=pytest.mark.slow),
        pytest.param("fedsparsify_cnn", tuple(engines.ENGINES), marks=pytest.mark.slow),
    ],
)
def test_an_engine_gives_the_logits_of_the_network(name, some):
    case = inference.random_case(name, 0.9)
    sizes = [m.size for m in jax.tree.leaves(case.sparse.mask)]
    alive = sum(int(m.sum()) for m in jax.tree.leaves(case.sparse.mask))
    assert alive == sum(sizes) - int(0.9 * sum(sizes))
    x = np.random.default_rng(3).normal(size=(2, *case.network["input_shape"]))
    x = x.astype(np.float32)
    want = quick(case, x)
    assert np.abs(want).max() > 0.01 and np.ptp(want) > 0.01
    for engine in some:
        got = engines.ENGINES[engine](case)(x)
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_logits_that_differ_end_the_program():
    logits = np.array([[1.0, -2.0]])
    inference.check("one", logits, logits * (1 + 9e-6))
    with pytest.raises(SystemExit, match="the logits of one differ by 5.0e-05"):
        inference.check("one", logits + np.array([[0, 1e-4]]), logits)


def test_bcoo_is_left_out_where_it_would_fill_the_memory():
    case = inference.random_case("small_cnn", 0.0)  # conv2: 4,608 weights, 256 places
    fits = engines._LIMIT // (4 * 4608 * 256)
    assert not engines.too_large("BCOO, JAX", case, fits)
    assert engines.too_large("BCOO, JAX", case, fits + 1)
    assert not engines.too_large("CSR, SciPy", case, fits + 1)


def test_a_run_s_model_is_measured(tmp_path, monkeypatch, capsys):
    config = tiny_config(tmp_path)
    config.model.widths, config.first_stage = (8, 7), {}
    config.algorithm = {"name": "fedavg"}
    config = defaults.complete(config)
    config.num_rounds, config.eval_every = 1, 1
    experiment.run(config, tmp_path / "run", progress=False)
    monkeypatch.setattr(inference, "SECONDS", 0.01)
    out = tmp_path / "out"
    argv = ["inference", "--runs", str(tmp_path / "run"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", argv + ["--repeats", "2"])
    inference.main()
    told = json.loads((out / "inference.json").read_text())
    (result,) = told["results"]
    assert result["parameters"] == 6 * 8 + 8 + 8 * 7 + 7 + 7 * 4 + 4
    assert result["bytes"]["dense"] == 4 * result["parameters"]
    assert result["engines"].keys() == engines.ENGINES.keys()
    for engine in result["engines"].values():
        for timed in engine.values():
            assert 0 < timed["minimum_seconds"] <= timed["median_seconds"]
    dense = result["engines"][engines.DENSE]["throughput"]
    assert (dense["batch"], dense["times_dense"]) == (256, 1.0)
    printed = capsys.readouterr().out
    assert told["machine"]["scipy"] in printed
    assert f"{256 / dense['median_seconds']:,.0f}" in printed
    assert (out / "inference.png").stat().st_size > 10_000
