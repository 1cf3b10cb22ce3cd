"""Facts about masks that follow from a method's program alone."""

import jax
import jax.numpy as jnp
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.runs.plan import checks, structure
from sparsefl_jax.wire.packets import Packet
from tests.store_test import make_world


@pytest.fixture(scope="module")
def read():
    data, model, parts = make_world(4)
    start = jax.eval_shape(lambda k: checks.initial_model(k, model), jax.random.key(0))

    def read(factory, change=lambda method: method, **arguments):
        method = change(factory(*parts, **arguments))
        *_, work = checks.trace(sfl.Stage(method, 2, 2), start, data)
        return structure.read(method, work, start)

    return read


def known(told):
    return told.first, told.inherits, told.stays, told.deployed, told.reads_start


def test_masks_that_stay_begin_or_change(read):
    assert known(read(sfl.spdst)) == (True, True, True, True, True)
    assert known(read(sfl.pdst, density=0.5)) == (True, False, True, True, False)
    # A union of clients' masks; a mask of the largest weights.
    assert known(read(sfl.nst, density=0.5)) == (True, False, False, False, False)
    assert known(read(sfl.pqsu, density=0.5))[:3] == (False, False, True)
    # A slice follows from the budget, unless the server draws it.
    assert known(read(sfl.heterofl))[:3] == (True, False, True)
    assert known(read(sfl.fjord, draw="round"))[:3] == (False, False, False)


def test_masks_that_come_back(read):
    assert read(sfl.spdst).up["weights"] == (True, None, "weights")
    assert read(sfl.nst, density=0.5).up["weights"].mask_of is None
    assert read(sfl.complement, density=0.5).up["weights"] == (True, None, None)
    told = read(sfl.prunefl).up
    assert told["weights"].mask_of == "weights"
    assert told["squared_gradients"].sent is None


def test_a_mask_that_depends_on_the_round_does_not_stay(read):
    def in_turn(method):
        def broadcast(key, ctx, server):
            mask = jax.tree.map(
                lambda w: jnp.full(w.shape, ctx.round % 2 == 0), server.params
            )
            return {"params": Packet(server.params, mask, False, index="bitmap")}

        def update(key, ctx, downlink, client, batches):
            told = {"params": downlink["params"], "stats": Packet({})}
            return method.update(key, ctx, told, client, batches)

        return method._replace(broadcast=broadcast, update=update)

    told = read(sfl.fedavg, in_turn)
    assert not told.stays and not told.first
    assert told.down["params"] == (True, False, "params")


def test_constants_that_are_arrays_are_seen(read):
    def never(method):
        def broadcast(key, ctx, server):
            message = method.broadcast(key, ctx, server)
            return message | {"more": Packet(jnp.zeros(3), sent=jnp.bool_(False))}

        return method._replace(broadcast=broadcast)

    assert read(sfl.fedavg, never).down["more"].sent is False
