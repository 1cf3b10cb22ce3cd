"""Magnitude pruning: masks by print, and FedAvg's second model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fedavg, magnitude
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.training import local
from tests.reference.by_hand import bare

PARAMS = {
    "a": {"kernel": np.float32([[3, -4, 0.5], [0.1, 2, -2]]), "bias": np.zeros(3)},
    "b": {"kernel": np.float32([[2], [-0.2], [1], [0.3]])},
}
OPTIMIZER = local.make_optimizer()


def start():
    params = jax.tree.map(jnp.float32, PARAMS)
    pruned = jax.tree.map(lambda w: jnp.zeros(w.shape, bool), params)
    return SparseModel(params, pruned, {})  # a mask that is not used


@pytest.mark.parametrize(
    ("kwargs", "a", "b"),
    [
        # Of ten weights 4 and 3, and then the first of three 2s.
        ({"density": 0.39}, "110 010", "0000"),
        ({"density": 0.4}, "110 011", "0000"),
        # Three of six and two of four.
        ({"density": 0.5, "scope": "layer"}, "110 010", "1010"),
        ({"density": 0.5, "prunable": ("b/kernel",)}, "111 111", "1010"),
    ],
)
def test_masks_by_print(kwargs, a, b):
    method = magnitude(bare(PARAMS), OPTIMIZER, **kwargs)
    model = method.deploy(None, method.init(None, start()))["global"]
    for name, text in (("a", a), ("b", b)):
        alive = np.array([c == "1" for c in text.replace(" ", "")])
        alive = alive.reshape(PARAMS[name]["kernel"].shape)
        np.testing.assert_array_equal(model.mask[name]["kernel"], alive)
        kept = np.where(alive, PARAMS[name]["kernel"], 0)
        np.testing.assert_array_equal(model.params[name]["kernel"], kept)
    assert model.mask["a"]["bias"].all()


def test_fedavg_deploys_its_model_pruned_as_well():
    method = fedavg(bare(PARAMS), OPTIMIZER, prune=0.4)
    server = method.init(None, start())
    models = method.deploy(None, server)
    assert [*models] == ["global", "pruned"]
    whole, pruned = models.values()
    jax.tree.map(np.testing.assert_array_equal, whole.params, server.params)
    assert all(mask.all() for mask in jax.tree.leaves(whole.mask))
    kernels = {name: np.asarray(pruned.params[name]["kernel"]) for name in "ab"}
    np.testing.assert_array_equal(kernels["a"], [[3, -4, 0], [0, 2, -2]])
    assert not kernels["b"].any() and not pruned.mask["b"]["kernel"].any()
    assert pruned.mask["a"]["bias"].all()
