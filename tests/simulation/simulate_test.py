import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fedavg
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import ClientInfo, SparseModel
from sparsefl_jax.data import cohorts
from sparsefl_jax.models import Model
from sparsefl_jax.runs import simulate
from sparsefl_jax.runs.plan import plan
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import initial_state, placement, round_program
from sparsefl_jax.training import local
from sparsefl_jax.wire.packets import Packet
from tests.refusals import refused
from tests.tiny import federation


def test_a_sampler_that_repeats_a_client_or_splits_a_tier_is_refused(key):
    """In round 3, of 4, the ids are 2, 1, 2; empty places may be many."""
    table = jnp.array([[0, 1, 2], [9, 3, 9], [2, 1, 2], [0, 1, 2]], jnp.int32)
    stage = Stage(None, 4, 3, sampler=lambda key, round: table[round])
    draw = cohorts.make_draw(key, stage, 9)
    assert draw(np.arange(2)).tolist() == [[0, 1, 2], [9, 3, 9]]
    with pytest.raises(ValueError, match="draws client 2 twice in round 3, expected"):
        draw(np.arange(4))
    with pytest.raises(ValueError, match="cohort_size=4, .*multiple of 3"):
        cohorts.stratified_sampler([0.1, 0.1, 0.2, 0.2, 0.2, 0.2], 4)


# Two clients, a linear model of two inputs and two classes, all by hand.

X = np.array([[1.0, 2.0], [0.5, -1.0], [-1.0, 0.5], [2.0, 0.0]], np.float32)
Y = np.array([0, 1, 1, 0], np.int32)
PARTS = [[0], [1, 2, 3]]
RATE = 0.5


def linear():
    def init(key):
        del key
        return {"kernel": jnp.zeros((2, 2), jnp.float32)}, {}

    def apply(params, stats, x, *, train, weight=None, key=None):
        return x @ params["kernel"], stats

    return Model(init, apply, {"kernel": 4})


def step(w, rows):
    """Computes a step of softmax regression in NumPy, in float64."""
    x, y = X[rows].astype(np.float64), Y[rows]
    p = np.exp(x @ w)
    p /= p.sum(1, keepdims=True)
    return w - RATE * x.T @ (p - np.eye(2)[y]) / len(rows)


def two_clients(method, ids, mask, *, clock=None, x=X, epochs=1, **how):
    """Returns a stage's program, and its first arguments: a key, clients, the state.

    Args:
      method: on `linear`.
      ids: [R, K], the clients of each round, of which client 0 has one sample.
      mask: of the kernel.
      clock, x: of the population.
      epochs: local ones.
      **how: further arguments of the plan.
    """
    index = np.array([[0, 0, 0], [1, 2, 3]], np.int32)
    facts = np.arange(2, dtype=np.int32), np.array([1, 3], np.int32)
    info = ClientInfo(*facts, np.ones(2, np.float32))
    population = placement.Population(x, Y, index, info, clock)
    stage = Stage(method, *ids.shape, epochs=epochs, batch_size=3)
    plan = placement.make_plan(stage, {"kernel": True}, macs={"kernel": 4}, **how)
    sparse = SparseModel({"kernel": jnp.zeros((2, 2))}, {"kernel": mask}, {})
    state = initial_state.start(jax.random.key(0), plan, sparse, info)
    segment = jax.jit(round_program.make_segment(plan), donate_argnums=2)
    return segment, (jax.random.key(0), population, state)


def test_rounds_of_fedavg_by_hand_and_none_beyond_a_number():
    method = fedavg(linear(), local.make_optimizer("sgd", learning_rate=RATE))
    rounds, ids = np.arange(3, dtype=np.int32), np.array([[1, 0]] * 3, np.int32)
    segment, (key, population, start) = two_clients(method, ids, jnp.ones((2, 2), bool))
    want = np.zeros((2, 2))
    for count in (1, 2, 3):
        state = jax.tree.map(jnp.copy, start)  # as a segment's state is donated
        arguments = key, population, state, rounds, ids, None, np.int32(count)
        state, log = segment(*arguments)
        want = (step(want, PARTS[0]) + 3 * step(want, PARTS[1])) / 4
        np.testing.assert_allclose(state.server.params["kernel"], want, atol=1e-6)
        seen = [[3, 1]] * count + [[0, 0]] * (3 - count)
        assert log.clients.metrics["count"].tolist() == seen
        assert log.executed_steps.tolist() == [2] * count + [0] * (3 - count)
        assert state.last_round.tolist() == [count - 1] * 2
    assert segment._cache_size() == 1


def test_clients_of_equally_many_steps_train_as_by_hand():
    """One of a sample and one of three fill a batch of three each, in each epoch."""
    method = fedavg(linear(), local.make_optimizer("sgd", learning_rate=RATE))
    for batch_size, steps in ((3, 1), (2, None)):
        stage = Stage(method, 1, 2, epochs=2, batch_size=batch_size)
        plan = placement.make_plan(stage, {"kernel": True}, sizes=np.array([1, 3]))
        assert plan.steps == steps
    ids, how = np.array([[1, 0]], np.int32), {"epochs": 2, "sizes": np.array([1, 3])}
    segment, begun = two_clients(method, ids, jnp.ones((2, 2), bool), **how)
    state, log = segment(*begun, np.zeros(1, np.int32), ids)
    one, three = (step(step(np.zeros((2, 2)), rows), rows) for rows in PARTS)
    kernel = state.server.params["kernel"]
    np.testing.assert_allclose(kernel, (one + 3 * three) / 4, atol=1e-6)
    assert log.clients.metrics["count"].tolist() == [[6, 2]]


def test_a_run_ends_at_a_code_that_does_not_fit_its_bits(key):
    """Client 1 sends the code 4 r in round r: the first above 7 is in the third."""
    data, model, (network, optimizer) = federation([6, 6], 20, 4, (2, 3, 1), (5,))
    whole = fedavg(network, optimizer)

    def update(key, ctx, downlink, client, batches):
        uplink, *rest = whole.update(key, ctx, downlink, client, batches)
        code = jnp.where(ctx.client.index == 1, 4 * ctx.round, 0).astype(jnp.int8)
        return uplink | {"level": Packet(code, bits=4)}, *rest

    stage = Stage(whole.replace(update=update), 6, 2)
    told = "packet up/level .* bits=4, in round 3 of clients \\[1\\]"
    seen = []
    with pytest.raises(ValueError, match=told):
        for segment in simulate.segments(key, [stage], model, data, eval_every=6):
            seen += segment.records
    assert [r["round"] for r in seen] == [1, 2]


def test_an_initial_model_of_another_network_is_refused(key):
    (data, model, parts), (_, other, _) = (
        federation([6, 6], 20, 4, (2, 3, 1), (width,)) for width in (5, 7)
    )
    setup = Setup([Stage(fedavg(*parts), 1, 2)], model, data)
    own, another = (initial_state.initial_model(key, m) for m in (model, other))
    plan(setup._replace(initial=own))
    refused(lambda: plan(setup._replace(initial=another)), "initial: [Chex]")
