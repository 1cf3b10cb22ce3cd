"""Complement Sparsification: its invariants."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import complement
from sparsefl_jax.algorithms.complement import _kept
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from tests.reference.by_hand import bare, batches, context, one_client, server_context
from tests.reference.complement_by_hand import DENSITY


def test_zeros_are_not_kept_where_they_reach_the_quantile():
    """Six of eight are zeros, so that the median is 0, which all reach."""
    w = jnp.array([0.0, -3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    assert np.flatnonzero(_kept(w, 0.5)).tolist() == [1, 4]


@pytest.mark.parametrize(
    ("pruned", "ratio", "density", "whole"),
    [
        (False, 1.5, 0.5, [0.0, 1.5, -0.5, 0.0]),
        (True, 1.5, 0.5, [4.0, 2.25, -0.75, -1.0]),
        (True, 2.0, 0.5, [4.0, 3.0, -1.0, -1.0]),
        (True, 2.0, 1.0, [0.0, 1.5, -0.5, 0.0]),
    ],
)
def test_the_mean_replaces_the_model_once_and_is_then_added_with_a_factor(
    pruned, ratio, density, whole
):
    """Also if no uplink of round 0 arrived, so that round 3 is the first of them."""
    given = {"density": density, "aggregation_ratio": ratio}
    method = complement(bare({"w": 1}), None, **given)
    params = {"w": jnp.array([4.0, 0.0, 0.0, -1.0])}
    alive = {"w": params["w"] != 0}
    server = method.init(None, SparseModel(params, alive, {}))
    if pruned:
        server = server._replace(model=SparseModel(params, alive, {}))
    sums = {"w": 3 * jnp.array([0.0, 2, -1, 0]) + jnp.array([0.0, 0, 1, 0])}
    total = {"sum": (sums, {}), "weight": jnp.float32(4)}
    new, _ = method.aggregate(None, server_context(3), server, total)
    np.testing.assert_allclose(new.unpruned["w"], whole, rtol=1e-6)
    least = np.quantile(np.abs(whole), 1 - density)
    kept = np.where(np.abs(whole) >= least, whole, 0)
    np.testing.assert_allclose(new.model.params["w"], kept, rtol=1e-6)


def test_weights_that_training_leaves_at_zero_are_not_sent(key):
    """Nobody trains: clients send what is not 0 at first, nothing to a pruned model."""

    model = small_world.tiny_model()
    method = complement(model, lambda round: optax.set_to_zero(), density=DENSITY)
    params, stats = model.init(key)
    mask = masks.bernoulli(key, params, 0.5, masks.prunable(params))
    server = method.init(key, SparseModel(params, mask, stats))
    data = batches(2, np.ones(small_world.FEATURES))

    @jax.jit
    def sent(server):
        return one_client(method, server, context(round=1), data)[2]

    pruned = server._replace(model=server.model._replace(mask=mask))
    first, then = sent(server), sent(pruned)
    kept = masks.density(mask, masks.prunable(params))
    found = first["client_density"], then["client_density"]
    np.testing.assert_allclose(found, [kept, 0], rtol=1e-6)
    layer = first["client_density/fc1/kernel"]
    np.testing.assert_allclose(layer, np.mean(mask["fc1"]["kernel"]), rtol=1e-6)
