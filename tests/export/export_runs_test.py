"""A run's models as files: which of them, what the header says, and the command."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax import export
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.export import __main__
from sparsefl_jax.runs import experiment, records, results
from sparsefl_jax.simulation.inference import make_recalibration
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire import ledger
from tests.networks import same
from tests.refusals import refused
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs a method with personal models; returns the folder and the configuration."""
    folder = tmp_path_factory.mktemp("finished")
    config = tiny_config(folder)
    config.first_stage = {}
    config.algorithm = {"name": "spafl", "alpha": 1.0}
    config.normalize, config.seed = True, 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "draw", lambda path: None)  # plots take seconds
        experiment.run(config, folder / "run", progress=False)
    return folder / "run", config


@pytest.mark.slow
def test_a_client_s_own_model_is_exported(finished, tmp_path):
    run, config = finished
    shutil.copytree(run, tmp_path / "run")
    path, _ = export.export_run(tmp_path / "run", client=3)
    assert path == tmp_path / "run/client_3.safetensors"
    back = sfl.load_sparse(path)
    personal, other = (each["personal"] for each in results.load_clients(run, [3, 4]))
    assert same(back.sparse, personal) and not same(back.sparse, other)
    assert not all(mask.all() for mask in jax.tree.leaves(personal.mask))
    assert back.about["run"]["client"] == 3 and back.about["run"]["name"] == "personal"
    refused(lambda: export.export_run(run, client=8), "clients=8, expected in [0, 7]")
    both = {"client": 3, "best": True}
    refused(lambda: export.export_run(run, **both), "best=True with client=3, expected")


def test_which_of_a_run_s_models(finished, tmp_path, monkeypatch):
    run, config = finished
    found = results.load_run(run)
    (only,) = found.models
    other = jax.tree.map(np.zeros_like, found.models[only])
    best = found.best._replace(models={only: other, "last": found.models[only]})
    monkeypatch.setattr(results, "load_run", lambda run: found._replace(best=best))
    refused(lambda: export.export_run(run), "no trained model, expected a client, or")
    model = build.build_model(freeze(config), build.build_data(freeze(config)))
    rest = 0, model, config.adapter
    refused(lambda: results.start_from(run, "model", *rest), "no trained model")
    results.start_from(run, "mask", *rest)
    at_best = {"path": tmp_path / "model", "best": True}
    for name, want in (("last", found.models[only]), (only, other)):
        path, _ = export.export_run(run, name=name, **at_best)
        assert same(sfl.load_sparse(path).sparse, want)
    refused(lambda: export.export_run(run, name="lost", **at_best), "mean 'last'")


def test_the_command_writes_and_tells(finished, tmp_path, capsys):
    run, config = finished
    out = tmp_path / "model.safetensors"
    start = ["--model", "newcomer"]
    __main__.main([str(run), *start, "-o", str(out), "--index", "coo"])
    back, data = sfl.load_sparse(out), build.build_data(freeze(config))
    assert same(back.sparse, results.load_run(run).models["newcomer"])
    assert back.about["run"]["method"] == "spafl" and back.about["run"]["seed"] == 5
    assert ledger.macs_per_sample(back.model) == 6 * 16 + 16 * 4
    mean = np.float32(back.about["reading"]["mean"])
    np.testing.assert_array_equal(mean, np.float32(data.mean))
    with pytest.raises(SystemExit, match="2"):
        __main__.main([str(run), "--model", "none such"])
    *_, said = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")


@pytest.mark.slow
def test_static_statistics_are_made_before(finished, tmp_path, monkeypatch):
    run, config = finished
    network = {"name": "resnet18", "base": 2, "norm": "static"}
    config = dataclasses.replace(freeze(config), model=network)
    data = build.build_data(freeze(config))
    model = build.build_model(freeze(config), data)
    params, stats = jax.device_get(model.init(jax.random.key(0)))
    blank = sfl.SparseModel(params, masks.full(params), stats)
    result = results.load_run(run)._replace(models={"global": blank})
    monkeypatch.setattr(results, "load_run", lambda run: result)
    monkeypatch.setattr(export.runs.run_folder, "read_config", lambda run: config)
    path, _ = export.export_run(run, tmp_path / "model")
    back = sfl.load_sparse(path).sparse
    x = data.x[data.train.gather()]
    renew = make_recalibration(model, x)
    want = renew(jax.random.key(9), blank)
    assert same(back.params, blank.params) and not same(back.stats, blank.stats)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), back.stats, want.stats
    )


def test_a_table_s_scale_is_planned_kept_and_exported(tmp_path, capsys):
    """The exported network takes raw columns; where there are none is an error."""
    rng, y = np.random.default_rng(0), np.arange(200) % 2
    x = np.array([1000, 0.01]) * (rng.normal(size=(200, 2)) + 2 * y[:, None] + 5)
    arrays = {"x": x[:120], "y": y[:120], "x_test": x[120:], "y_test": y[120:]}
    np.savez(tmp_path / "table.npz", **arrays)
    config = tiny_config(tmp_path)
    config.dataset, config.first_stage = str(tmp_path / "table.npz"), {}
    config.algorithm, config.normalize = {"name": "fedavg"}, True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "draw", lambda path: None)
        summary = experiment.run(config, tmp_path / "run")
    assert "columns   2 columns standardised\n" in capsys.readouterr().err
    path, _ = export.export_run(tmp_path / "run")
    loaded = export.load_sparse(path)
    given = loaded.sparse.params, loaded.sparse.stats, x[120:].astype(np.float32)
    logits, _ = loaded.model.apply(*given, train=False)
    right = np.mean(np.argmax(logits, -1) == y[120:])
    final = next(iter(summary["accuracy"].values()))["final"]
    assert right > 0.8 and right == pytest.approx(final)
    config.dataset, config.normalize = "sentences_sample", False
    told = "normalize=False has no effect here: 'sentences_sample'"
    refused(lambda: experiment.build(config), told)
