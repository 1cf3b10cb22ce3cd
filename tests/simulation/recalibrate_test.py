"""Statistics that are computed before an evaluation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.models import Model, layers
from sparsefl_jax.simulation.inference import make_recalibration
from sparsefl_jax.sparsity import masks, width
from tests.reference.by_hand import close, same

KEY = jax.random.key(0)


class _Net(nn.Module):
    norm: str

    @nn.compact
    def __call__(self, x, train, weight=None):
        for i in (1, 2):
            x = nn.Dense(6, name=f"fc{i}")(x)
            x = layers.norm(x, self.norm, name=f"bn{i}", train=train, weight=weight)
            x = nn.relu(x)
        return nn.Dense(3, name="fc3")(x)


def make(norm):
    return Model.from_flax(_Net(norm), jax.ShapeDtypeStruct((1, 5), jnp.float32))


@pytest.fixture(scope="module")
def case():
    """Returns a network with static normalisation at half width, and 11 samples."""
    model = make("static")
    params, stats = model.init(KEY)
    x = 2 + np.random.default_rng(0).normal(size=(11, 5)).astype(np.float32)
    return model, SparseModel(params, width.window(params, 0.5), stats), x


def test_training_gives_back_the_statistics_of_the_batch(case):
    model, sparse, x = case
    assert model.static_stats and not make("batch").static_stats
    layer = sparse.params["fc1"]
    outputs = x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
    for count, weight in ((11, None), (9, jnp.array([1.0] * 9 + [0.0] * 2))):
        _, stats = model.apply(
            sparse.params, sparse.stats, x, train=True, weight=weight
        )
        got, seen = stats["bn1"], outputs[:count]
        np.testing.assert_allclose(got["batch_mean"], seen.mean(0), atol=1e-5)
        np.testing.assert_allclose(got["batch_var"], seen.var(0), atol=1e-5)
    nobody = jnp.zeros(11)
    _, stats = model.apply(sparse.params, sparse.stats, x, train=True, weight=nobody)
    jax.tree.map(np.testing.assert_array_equal, stats, sparse.stats)


@pytest.mark.parametrize("batch_size", [4, 250])
def test_statistics_are_the_mean_over_batches(case, batch_size):
    """The plain mean over m batches, each of every m-th image."""
    model, sparse, x = case
    params = masks.apply(sparse.params, sparse.mask)
    batches = -(-len(x) // batch_size)
    each = [
        model.apply(params, sparse.stats, x[i::batches], train=True)[1]
        for i in range(batches)
    ]
    want = jax.tree.map(lambda *v: np.mean(v, 0), *each)
    # On one device, on several, and on more of them than there are batches.
    for devices in (jax.devices()[:1], None):
        renew = make_recalibration(model, x, batch_size=batch_size, devices=devices)
        got = renew(KEY, sparse)
        same(got.params, sparse.params)
        close(got.stats, want, 1e-5)
