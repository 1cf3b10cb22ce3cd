"""Complement Sparsification: its invariants."""

import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import complement
from sparsefl_jax.core.types import SparseModel
from tests.reference.by_hand import bare, server_context


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
    """Also if no uplink of round 0 arrived, so that round 3 is the first of them.

    At density 1 the quantile is 0, which zeros reach; they are not kept.
    """
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
    np.testing.assert_array_equal(new.model.mask["w"], kept != 0)
