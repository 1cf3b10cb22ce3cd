"""Complement Sparsification: its invariants."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import complement
from sparsefl_jax.algorithms.complement import _densities, _kept
from sparsefl_jax.testing import plain_loop, small_world
from tests.complement_by_hand import DENSITY


def test_the_density_of_an_uplink_is_that_of_its_kernels():
    sent = {
        "a": {"kernel": np.array([[True, False], [False, False]]), "bias": np.ones(2)},
        "b": {"kernel": np.array([[True, True]]), "bias": np.zeros(1)},
    }
    sent = jax.tree.map(lambda m: jnp.asarray(m, bool), sent)
    found = {name: float(share) for name, share in _densities(sent).items()}
    layers = {"client_density/a/kernel": 0.25, "client_density/b/kernel": 1.0}
    assert found == {"client_density": 0.5} | layers  # 3 of 6, biases left out


def test_zeros_are_not_kept_where_they_reach_the_quantile():
    """Six of eight are zeros, so that the median is 0, which all reach."""
    w = jnp.array([0.0, -3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    assert np.flatnonzero(_kept(w, 0.5)).tolist() == [1, 4]


def test_weights_that_training_leaves_at_zero_are_not_sent():
    """Nobody trains: clients send what their mask keeps in round 0, nothing later."""

    def frozen(model, optimizer):
        return complement(model, lambda round: optax.set_to_zero(), density=DENSITY)

    world = small_world.make_world(frozen, {})
    first, later = (plain_loop.passings(world, round)[0] for round in (0, 1))
    starts = [leaf for leaf in jax.tree.leaves(world.model.mask) if leaf.ndim == 2]
    kept, size = sum(m.sum() for m in starts), sum(m.size for m in starts)
    assert first.metrics["client_density"] == pytest.approx(kept / size)
    assert later.metrics["client_density"] == 0


def test_both_models_are_deployed_the_pruned_one_first():
    world = small_world.make_world(complement, {"density": DENSITY})
    server = small_world.path(world)[0][-1].server
    deployed = world.algorithm.deploy(world.key, server)
    assert list(deployed) == ["global", "unpruned"]
    pruned, whole = (m.params["fc1"]["kernel"] for m in deployed.values())
    assert np.mean(pruned != 0) < DENSITY + 0.05 < np.mean(whole != 0)
