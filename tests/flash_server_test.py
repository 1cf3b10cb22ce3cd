"""What FLASH's servers make of uneven clients' messages, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import jmwst, nst
from sparsefl_jax.message import pack_model
from sparsefl_jax.types import ClientInfo, Context, SparseModel

SELECT = {"a": True, "b": True, "bias": False}
LAYERS = ("a", "b")
EXAMPLES = (300, 100)


def client_model(seed, densities):
    """100 weights in both layers, of which shares are alive, and a bias."""
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=100).astype(np.float32) for name in LAYERS}
    mask = {name: rng.permutation(100) < 100 * densities[name] for name in LAYERS}
    params = {name: params[name] * mask[name] for name in LAYERS}
    params["bias"], mask["bias"] = np.full(3, seed, np.float32), np.ones(3, bool)
    return SparseModel(params, mask, {})


def sent(method, *models, budgets=(1.0, 1.0)):
    """The new server once these models came up, by `contribute` and `aggregate`."""
    total, none = None, jnp.int32(0)
    for index, (model, budget) in enumerate(zip(models, budgets, strict=True)):
        info = ClientInfo(
            jnp.int32(index), jnp.int32(EXAMPLES[index]), jnp.float32(budget)
        )
        uplink = pack_model(jax.tree.map(jnp.asarray, model), SELECT)
        one = method.contribute(Context(none, none, info), uplink)
        total = one if total is None else jax.tree.map(jnp.add, total, one)
    blank = jax.tree.map(jnp.zeros_like, models[0])
    old = method.init(jax.random.key(0), blank)
    server, _ = method.aggregate(
        jax.random.key(1), Context(none, None, None), old, total
    )
    return server


def largest(values, count):
    """The mask of the largest magnitudes."""
    return np.isin(np.arange(len(values)), np.argsort(-np.abs(values))[:count])


@pytest.mark.parametrize("factory", [nst, jmwst])
@pytest.mark.parametrize(
    ("density", "counts"),
    [
        (0.3, (20, 10)),  # 0.3 * 200 / 30 = 2, which raises nothing
        (0.075, (10, 5)),  # 0.5
        (0.11, (14, 7)),  # 22 / 30 of 20 and 10, cut off
    ],
)
def test_the_servers_mask_is_equation_3_of_the_mean_densities(factory, density, counts):
    """Of clients, not of examples: these would make 25 and 12 of 20 and 10."""
    one = client_model(1, {"a": 0.3, "b": 0.15})
    two = client_model(2, {"a": 0.1, "b": 0.05})
    method = factory(None, None, density=density, prunable=LAYERS)
    server = sent(method, one, two)
    for name, count in zip(LAYERS, counts, strict=True):
        mean = (300 * one.params[name] + 100 * two.params[name]) / 400
        union = one.mask[name] | two.mask[name]
        np.testing.assert_allclose(server.model.params[name], mean, rtol=1e-6)
        np.testing.assert_array_equal(server.model.mask[name], union)
        np.testing.assert_array_equal(server.mask[name], largest(mean, count))
    np.testing.assert_allclose(server.model.params["bias"], 1.25)
    assert server.mask["bias"].all()
