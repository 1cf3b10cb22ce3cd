"""FedProx: the pull by hand; the contract compares it with FedAvg."""

import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithms import fedprox
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from tests.reference.by_hand import batches, context, linear_loss, model_of, one_client


def test_the_gradient_of_the_pull_is_mu_times_the_distance():
    """Takes two steps at rate 0.1 on a slope of 1: the second is 1 - 0.5 * 0.1."""
    optimizer = local.make_optimizer("sgd", learning_rate=0.1)
    method = fedprox(model_of(linear_loss, {"w": 1}), optimizer, mu=0.5)
    start = {"w": jnp.arange(40, dtype=jnp.float32)}
    server = method.init(None, masks.dense(start, {}))
    _, up, _ = one_client(method, server, context(size=4), batches(2, np.ones(40)))
    np.testing.assert_allclose(up["delta"].values["w"], -0.195, atol=1e-5)
