"""SSFL beyond the contract: weights of clients, ties, and what stage 1 costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import ssfl
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.wire.packets import Packet
from tests.reference.by_hand import bare, context, merged
from tests.silent import STILL

START = SparseModel(
    {"b": jnp.zeros(1), "w": jnp.ones(4)},
    {"b": jnp.ones(1, bool), "w": jnp.ones(4, bool)},
    {},
)


def chosen(scores, sizes, **kwargs):
    """Returns the mask and the server after clients of some sizes sent some scores."""
    method = ssfl(bare(START.params), STILL, prunable=("w",), **kwargs)
    server, sent = method.init(jax.random.key(0), START), []
    for values, size in zip(scores, sizes, strict=True):
        uplink = {"scores": Packet({"b": None, "w": jnp.array(values, jnp.float32)})}
        sent.append((context(size=size), uplink))
    new, _ = merged(method, server, *sent)
    assert new.mask["b"].all()
    jax.tree.map(np.testing.assert_array_equal, new.params, START.params)
    return new.mask["w"].tolist()


# Means by 1 and 4 samples: 3.2, 2.6, 2.4, 0; with equal weights: 2, 2, 3, 0.
SCORES = [(0.0, 1.0, 4.0, 0.0), (4.0, 3.0, 2.0, 0.0)]


@pytest.mark.parametrize(
    ("kwargs", "mask"),
    [
        ({"density": 0.25}, [True, False, False, False]),
        ({"density": 0.5}, [True, True, False, False]),
        ({"density": 0.74}, [True, True, False, False]),  # int(2.96)
        ({"density": 0.25, "weighting": "uniform"}, [False, False, True, False]),
        ({"density": 0.5, "weighting": "uniform"}, [True, False, True, False]),  # a tie
    ],
)
def test_the_largest_means_stay_and_of_a_tie_the_first(kwargs, mask):
    assert chosen(SCORES, (1, 4), **kwargs) == mask
    silent = [*SCORES, [0.0] * 4]  # a client without a gradient
    assert chosen(silent, (1, 4, 2), **kwargs) == mask


def test_dead_inputs_whose_scores_are_all_0_do_not_make_the_mask_dense():
    found = chosen([(0.0, 0.0, 0.0, 2.0)], (1,), density=0.5)
    assert found == [True, False, False, True]


@pytest.mark.parametrize(("initial", "down"), [("sent", 32 * 8), ("seed", 32)])
def test_the_initial_network_travels_as_it_is_or_as_a_seed(initial, down):
    options = {"prunable": ("w",), "initial": initial}
    method = ssfl(bare(START.params), STILL, density=0.5, **options)
    message = method.broadcast(None, None, START._replace(stats={"s": jnp.ones(3)}))
    sizes = [
        p.bits * sum(map(jnp.size, jax.tree.leaves(p.values))) for p in message.values()
    ]
    assert sum(sizes) == down
    assert message["params"].values is START.params
