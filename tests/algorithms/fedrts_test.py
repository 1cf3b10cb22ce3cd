"""FedRTS beyond the contract: its schedule, draws, arguments and printed counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fedrts, fedtiny
from sparsefl_jax.algorithms.adjusting import beta_logits, in_doubt
from sparsefl_jax.sparsity import layer_densities, masks, schedules, trees
from sparsefl_jax.training import local
from tests.reference.by_hand import server_context
from tests.reference.printed_spafl import CIFAR, CONVOLUTIONS
from tests.reference.regrowth_by_hand import halved
from tests.silent import network, shapes


def test_the_schedule_of_the_paper():
    rates = schedules.cosine(0.4, 300)
    assert rates[10] == pytest.approx(0.39890, abs=5e-6)
    assert rates[290] == pytest.approx(0.0010956, abs=5e-8)
    assert rates[10:300:10].sum() == pytest.approx(5.8) and rates[300] == 0


def test_the_entries_of_resnet18():
    """The paper's density counts all 11,173,962 parameters; 14,730 are always dense.

    The released code rounds n d of each layer before it finds ERK's scale, so that its
    sums, these, are a few entries lower.
    """
    params = shapes(network("resnet18", 10, CIFAR)).params
    select = masks.prunable(params, CONVOLUTIONS)
    sizes = trees.layer_sizes(params, select)
    rates = schedules.cosine(0.4, 300)[10:11]
    for density, kept, doubt in ((0.2, 2220049, 753740), (0.1, 1102647, 412895)):
        budget = int(density * 11173962) - (11173962 - int(sizes.sum()))
        shares = layer_densities.erk(params, select, budget / sizes.sum())
        alive = layer_densities.counts(shares, sizes)
        assert budget - len(sizes) < alive.sum() <= budget
        assert alive.sum() == pytest.approx(kept, abs=20)
        assert in_doubt(rates, alive, sizes).sum() == pytest.approx(doubt, abs=20)


def drawing(start="random", key=0, factory=fedrts, **kwargs):
    """Returns a method on 16 weights, 8 of them alive, and its first server."""
    parts = factory, np.arange(16, 0, -1), local.make_optimizer(), jax.random.key(key)
    return halved(*parts, start=start, **kwargs)


def votes(server, number=4.0):
    """Returns the sum over a cohort that sends the server's weights and no votes."""
    blank = {"sum": {"w": jnp.zeros(16)}, "weight": jnp.float32(number)}
    mean = jax.tree.map(lambda w: number * w, server.model.params)
    return {
        "mean": {"sum": (mean, {}), "weight": jnp.float32(number)},
        "grown": blank,
        "core": blank,
    }


def test_the_server_draws_from_the_posteriors_in_rounds_that_adjust():
    """Eight entries are all but certain; they replace the mask in rounds 10 and 290."""
    method, server = drawing(start="magnitude")
    assert np.flatnonzero(server.model.mask["w"]).tolist() == list(range(8))
    sure = jnp.arange(16) % 2 == 1
    large, small = jnp.float32(1e4), jnp.float32(1.0)
    a, b = jnp.where(sure, large, small), jnp.where(sure, small, large)
    server = server._replace(a={"w": a}, b={"w": b})
    aggregate = jax.jit(method.aggregate)
    for round, drawn in ((0, 0), (9, 0), (10, 1), (290, 1), (300, 0)):
        new, _ = aggregate(
            jax.random.key(1), server_context(round), server, votes(server)
        )
        want = sure if drawn else server.model.mask["w"]
        np.testing.assert_array_equal(new.model.mask["w"], want)
        assert new.changed_at == (round + 1 if drawn else 0)
        # Weights that stay keep their values; what has grown starts at 0.
        stay = want & server.model.mask["w"]
        weights = np.where(stay, 16.0 - np.arange(16), 0)
        np.testing.assert_allclose(new.model.params["w"], weights)


def test_what_grows_by_the_gradient_starts_at_0_also_where_it_was_just_pruned():
    """Of 8 entries int(0.3989 * 8) = 3 go; without a gradient the first holes grow."""
    method, server = drawing(start="magnitude", factory=fedtiny)
    args = jax.random.key(0), server_context(10), server, votes(server)
    model = jax.jit(method.aggregate)(*args)[0].model
    assert np.flatnonzero(model.mask["w"]).tolist() == list(range(8))
    assert model.params["w"][:9].tolist() == [16, 15, 14, 13, 12, 0, 0, 0, 0]


def test_draws_have_the_frequencies_of_beta():
    """Beta(3, 1) beats Beta(1, 1) with 3/4: x^3 is the chance that it is below x."""
    a = {"w": jnp.concatenate([jnp.full((1, 5000), 3.0), jnp.ones((1, 5000))])}
    b = {"w": jnp.ones((2, 5000))}
    first, second = beta_logits(jax.random.key(0), a, b)["w"]
    assert float(jnp.mean(first > second)) == pytest.approx(0.75, abs=0.03)
    assert float(jnp.mean(second > 0)) == pytest.approx(0.5, abs=0.03)
