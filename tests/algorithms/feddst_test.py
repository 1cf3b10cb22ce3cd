"""FedDST beyond the contract: when it readjusts, the released code, what travels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import feddst
from sparsefl_jax.algorithms.masked import Server
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.training import local
from sparsefl_jax.wire import packets
from tests.reference.by_hand import bare, batches, context, merged, one_client
from tests.reference.regrowth_by_hand import halved


def linear(**kwargs):
    """Returns FedDST on 16 weights, 8 of them alive, and its first server."""
    still = local.make_optimizer(learning_rate=0.0)
    return halved(feddst, np.arange(16, 0, -1), still, **kwargs)


# The gradient is largest at the largest weights, and grows among the holes.
STEEP = [9.0, 8.0, *([0.1] * 6), *np.arange(1.0, 9.0) / 10]


def uplinks(method, server, at):
    """Returns the alive positions and values that a client sends in some rounds."""
    data, sent = batches(3, STEEP), []
    update = jax.jit(lambda ctx: one_client(method, server, ctx, data)[1]["weights"])
    for round in at:
        up = update(context(round, size=6))
        alive = np.flatnonzero(up.mask["w"]).tolist()
        sent.append((alive, up.values["w"], bool(up.fresh)))
    return sent


@pytest.mark.parametrize("given", [{"adjust_until": 21}, {"rounds": 43}])
def test_clients_readjust_in_rounds_1_11_and_21_below_the_end(given):
    """By default that is half of the rounds, 21 of 43."""
    method, server = linear(**given)
    at = (0, 1, 2, 10, 11, 20, 21, 31)
    fresh = [new for *_, new in uplinks(method, server, at)]
    assert fresh == [r in (1, 11) for r in at]


def test_what_a_client_of_the_released_code_prunes_and_grows():
    """.5: 4 stay, and the four steepest of all are 0, two survivors and two holes."""
    alive, zeros = [0, 1, 2, 3, 14, 15], [0, 1, 14, 15]
    method, server = linear(adjust_until=2, variant="release")
    ((found, values, _),) = uplinks(method, server, (1,))
    assert found == alive
    kept = [i for i in alive if i not in zeros]
    np.testing.assert_array_equal(values[np.array(kept)], 16 - np.array(kept))
    assert not values[np.array(zeros)].any()


@pytest.mark.parametrize(
    ("variant", "held", "alive"),
    [("paper", 10, 8), ("paper", 7, 7), ("release", 10, 8)],  # 7: sparse enough
)
def test_the_server_prunes_the_union_to_the_density(variant, held, alive):
    """Entry i is held by one of two clients, of 1 and 3 samples, or by both."""
    method, server = linear(adjust_until=2, variant=variant)
    values = jnp.arange(16, dtype=jnp.float32) + 1
    key, sent = jax.random.key(0), []
    for number, part in ((1, jnp.arange(16) < held), (3, jnp.arange(16) < held // 2)):
        one = Server(SparseModel({"w": number * values}, {"w": part}, {}), jnp.int32(0))
        ctx = context(size=number)
        sent.append((ctx, packets.settle_flags(method.broadcast(key, ctx, one))))
    new, _ = merged(method, server, *sent, round=4)
    # Both: (1 + 3 * 3) / 4 = 2.5 times the value; one of them: once.
    mean = np.where(np.arange(16) < held // 2, 2.5, 1.0) * np.asarray(values)
    mean[held:] = 0
    best = np.sort(np.argsort(-mean, kind="stable")[:alive])
    assert np.flatnonzero(new.model.mask["w"]).tolist() == best.tolist()
    np.testing.assert_allclose(new.model.params["w"][best], mean[best])
    assert new.changed_at == 5


@pytest.mark.parametrize(("variant", "first"), [("paper", 4), ("release", 6)])
def test_the_released_server_counts_all_layers_together(variant, first):
    """7 of 16 entries are alive, 6 of 8 in the first layer: too many by the paper."""
    model = bare({"a": jnp.zeros(8), "b": jnp.zeros(8)})
    options = {"density": 0.5, "adjust_until": 2, "allocation": "uniform"}
    method = feddst(model, None, variant=variant, prunable=("a", "b"), **options)
    values = {name: jnp.arange(8, 0, -1, dtype=jnp.float32) for name in "ab"}
    held = {"a": jnp.arange(8) < 6, "b": jnp.arange(8) < 1}
    server = Server(SparseModel(values, held, {}), jnp.int32(0))
    ctx = context()
    up = packets.settle_flags(method.broadcast(jax.random.key(0), ctx, server))
    new, _ = merged(method, server, (ctx, up), round=4)
    alive = {name: np.flatnonzero(m).tolist() for name, m in new.model.mask.items()}
    assert alive == {"a": [*range(first)], "b": [0]}
