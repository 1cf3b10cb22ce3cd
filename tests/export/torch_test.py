"""State dicts of PyTorch, exports of runs made in Python, and starts from files."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax import lax
from safetensors import numpy as safetensors

import sparsefl_jax as sfl
from sparsefl_jax import export
from sparsefl_jax.runs import experiment, records
from sparsefl_jax.sparsity import masks
from tests.networks import same
from tests.refusals import refused
from tests.tiny import tiny_config, write_images


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(4, (3, 2), padding="VALID", name="conv1")(x)
        x = nn.BatchNorm(use_running_average=not train, name="bn1")(x)
        return nn.Dense(3, name="fc1")(x.reshape(len(x), -1))


def test_torch_computes_the_same_from_its_state_dict(tmp_path):
    """The layers are written as PyTorch defines them: NCHW, OIHW, x W^T + b."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 5, 2)).astype(np.float32)
    model = sfl.Model.from_flax(Net(), x)
    params, stats = jax.tree.map(
        lambda v: np.float32(rng.uniform(0.5, 1, v.shape)), model.shapes()
    )
    mask = jax.tree.map(lambda p: p > 0.6, params)
    sfl.export.save_torch(tmp_path / "m", sfl.SparseModel(params, mask, stats))
    state = safetensors.load_file(tmp_path / "m")
    given = np.moveaxis(x, 3, 1), state["conv1.weight"]
    out = np.asarray(lax.conv(*given, (1, 1), "VALID"))
    out = out + state["conv1.bias"][:, None, None]
    mean, variance, scale, shift = (
        state[f"bn1.{name}"][:, None, None]
        for name in ("running_mean", "running_var", "weight", "bias")
    )
    out = (out - mean) / np.sqrt(variance + 1e-5) * scale + shift
    out = np.moveaxis(out, 1, 3).reshape(2, -1)  # PyTorch would permute
    out = out @ state["fc1.weight"].T + state["fc1.bias"]
    kept = masks.apply(params, mask)
    want, _ = model.apply(kept, stats, x, train=False)
    np.testing.assert_allclose(out, want, rtol=1e-5)


@pytest.fixture
def in_python(tmp_path, monkeypatch):
    """Returns a function that runs a network with `sfl.experiment` into a folder."""
    monkeypatch.setattr(records, "draw", lambda path: None)  # plots take seconds
    write_images(tmp_path / "tiny.npz", 240)
    data = sfl.federate(sfl.data.load(str(tmp_path / "tiny.npz")), "iid", 8)
    preprocess = sfl.data.make_preprocess((0.5,), (0.25,))

    def run(model, name):
        model = model.with_preprocess(preprocess)
        method = sfl.magnitude(model, sfl.training.make_optimizer(), density=0.5)
        stages = [sfl.Stage(method, 1, 2)]
        given = {"workdir": tmp_path / name, "progress": False}
        return tmp_path / name, sfl.experiment(stages, model, data, **given), model

    return run


def test_a_run_made_in_python_is_exported_and_others_start_from_the_file(
    in_python, tmp_path
):
    built = sfl.models.build("mlp", 4, (2, 3, 1), widths=(16,))
    folder, run, model = in_python(built, "run")
    exported = sfl.load_sparse(export.export_run(folder)[0])
    assert same(exported.sparse, run.models["global"])
    assert "HWIO" in exported.about["axes"]
    x = np.random.default_rng(0).normal(size=(3, 2, 3, 1)).astype(np.float32)
    params, _, stats = exported.sparse
    want, _ = model.apply(params, stats, x, train=False)
    got, _ = exported.model.apply(params, stats, x, train=False)
    np.testing.assert_array_equal(got, want)
    config = tiny_config(tmp_path)
    config.first_stage, config.init_from = {}, str(folder / "model.safetensors")
    start = experiment.build(config).setup.initial
    assert same(jax.device_get(start), exported.sparse)
    config.model.widths = (8,)
    refused(lambda: experiment.build(config), "expected (")
    (folder / "model.safetensors").write_bytes(b"no file of an export")
    refused(lambda: experiment.build(config), "init_from=")


def test_of_an_own_network_made_in_python_the_weights_are_exported(in_python):
    x = np.zeros((1, 2, 3, 1), np.float32)
    own = sfl.Model.from_flax(nn.Sequential([_flat, nn.Dense(4)]), x)
    folder, run, _ = in_python(own, "own")
    exported = sfl.load_sparse(export.export_run(folder)[0])
    assert exported.model is None and same(exported.sparse, run.models["global"])


def _flat(x):
    return x.reshape(len(x), -1)
