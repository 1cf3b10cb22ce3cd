"""FedSparsify: the schedule, the options of both methods."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax import Stage, from_arrays, pdst, run
from sparsefl_jax.algorithms import fedsparsify_global, fedsparsify_local, jmwst
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks, schedules
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import local
from sparsefl_jax.wire.packets import pack_up, unpack_model
from tests.reference import by_hand
from tests.reference.by_hand import KEY, bare, context, merged
from tests.reference.fedsparsify_by_hand import DENSITY, ROUNDS

SCHEDULE = {"density": DENSITY, "rounds": ROUNDS}


def test_schedule_begins_later_and_moves_every_few_rounds_only():
    """With S = .8 between rounds 250 and 750: .8 (1 - .98^3), .8 (1 - .5^3)."""
    s = schedules.polynomial(0.2, 750, frequency=10, begin=250)
    assert not s[:259].any()
    wanted = [0.0470464, 0.7, 0.8]  # after rounds 260, 500 and 750
    np.testing.assert_allclose(s[[259, 499, 749]], wanted, rtol=1e-12)


def test_a_density_of_ten_entries_leaves_as_many_as_by_hand():
    """1 - 0.8, 1 - 0.9 and 100 (1 - 0.71) are a little below 0.2, 0.1 and 29."""
    rows = (0.8, 10, 8), (0.9, 10, 9), (0.7, 10, 7), (0.75, 10, 8), (0.71, 100, 71)
    for density, size, left in rows:
        assert schedules.count_kept(schedules.polynomial(density, 2), size)[-1] == left


@pytest.mark.parametrize("factory", [fedsparsify_global, fedsparsify_local, jmwst])
def test_a_first_stage_prunes_no_leaf_that_stays_dense(factory):
    model = bare({"fc": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}})
    given = {} if factory is jmwst else SCHEDULE
    given = {"prunable": ("*kernel",), "density": 0.5} | given
    method = factory(model, local.make_optimizer(), **given)
    mask = {"kernel": jnp.eye(2, dtype=bool), "bias": jnp.array([True, False])}
    start = SparseModel(model.init(KEY)[0], {"fc": mask}, {})
    sent = unpack_model(method.broadcast(KEY, context(), method.init(KEY, start)))
    assert sent.mask["fc"]["bias"].all() and not sent.mask["fc"]["kernel"].all()
    assert sent.params["fc"]["bias"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("merge", "voters", "least"),
    [("majority", 4, 2), ("majority", 3, 2), ("average", 4, 1)],
)
def test_the_votes_that_an_entry_needs(merge, voters, least):
    """Entry i is kept by i clients; zeros count in the mean."""
    method = fedsparsify_local(bare({"w": 1}), None, merge=merge, **SCHEDULE)
    ones = SparseModel({"w": jnp.ones(5)}, {"w": jnp.ones(5, bool)}, {})
    sent, written = [], {"index": "bitmap", "optional": True}
    for i in range(voters):
        kept = ones._replace(mask={"w": jnp.arange(5) > i})
        sent.append((context(), pack_up(kept, ones.mask, {"w": True}, **written)))
    new, _ = merged(method, method.init(None, ones), *sent)
    kept, mean = np.arange(5) >= least, np.minimum(np.arange(5), voters) / voters
    np.testing.assert_array_equal(new.model.mask["w"], kept)
    np.testing.assert_allclose(new.model.params["w"], kept * mean, rtol=1e-6)


AT_ONCE = {"density": 0.5, "rounds": 1, "begin": 0}  # half, after the first round


def begun(start, **options):
    """Returns the method on these weights, and its first server."""
    method = fedsparsify_global(bare(start), None, **AT_ONCE | options)
    return method, method.init(KEY, masks.dense(jax.tree.map(jnp.float32, start), {}))


def sent_back(method, server, round, **trained):
    """Returns the server after a round in which one client sends these weights."""
    params = {name: jnp.array(value, jnp.float32) for name, value in trained.items()}
    select = dict.fromkeys(params, True)
    sent = server.model._replace(params=params)
    uplink = pack_up(sent, server.model.mask, select, index="bitmap")
    return merged(method, server, (context(round), uplink), round=round)[0]


@pytest.mark.parametrize(
    ("scope", "wanted"),
    [
        ("layer", {"a": [0, 0, 3, 4], "b": [0, 7, 8]}),
        ("global", {"a": [0, 0, 0, 4], "b": [6, 7, 8]}),
    ],
)
def test_the_entries_that_are_compared(scope, wanted):
    """int(.5 * 4) and int(.5 * 3) entries of the layers go, or int(.5 * 7) of all."""
    method, server = begun({"a": np.zeros(4), "b": np.zeros(3)}, scope=scope)
    server = sent_back(method, server, 0, a=[1, 2, 3, 4], b=[6, 7, 8])
    for name, values in wanted.items():
        np.testing.assert_array_equal(server.model.params[name], values)


def test_a_random_order_ignores_magnitude():
    method, server = begun({"w": np.zeros(40)}, criterion="random")
    each = np.arange(1.0, 41.0), np.arange(40.0, 0.0, -1)
    one, other = (sent_back(method, server, 0, w=w).model.mask["w"] for w in each)
    assert one.sum() == 20 and 0 < one[:20].sum() < 20
    np.testing.assert_array_equal(one, other)


def test_what_a_first_stage_has_pruned_does_not_grow_back():
    """The schedule keeps three of four; of two that are alive, the others tie at 0."""
    method, server = begun({"w": np.zeros(4)}, density=0.75)
    mask = jnp.array([True, True, False, False])
    server = method.init(KEY, server.model._replace(mask={"w": mask}))
    server = sent_back(method, server, 0, w=[4, 3, 0, 0])
    np.testing.assert_array_equal(server.model.mask["w"], mask)


def test_the_momentum_of_what_is_purged_has_no_effect():
    """Round 2 would move the third entry to 2.25, above the second."""
    start, momentum = np.array([4.0, 3.0, -2.0, 1.0]), optax.sgd(1.0, momentum=0.5)
    method, server = begun({"w": start}, server_optimizer=momentum)
    server = sent_back(method, server, 0, w=[4, 3.5, 2.5, 1])
    by_hand.close(server.model.params, {"w": np.array([4, 3.5, 0, 0])})
    server = sent_back(method, server, 1, w=[5, 0.25, 0, 0])
    # Momentum adds half of the first round's step, 0.5, to the second entry.
    by_hand.close(server.model.params, {"w": np.array([5, 0.5, 0, 0])})


def test_what_stays_alive_by_hand():
    """All at first, at the end the density; of voted masks twice that, or all."""
    given = {"density": 0.1, "rounds": 20}
    parts = small_world.tiny_model(), local.make_optimizer()
    by_server = fedsparsify_global(*parts, **given)
    voted, joined = (
        fedsparsify_local(*parts, **given, merge=merge)
        for merge in ("majority", "average")
    )
    for method, share in ((by_server, 0.1), (voted, 0.2), (joined, 1.0)):
        found = [method.density_after(round) for round in (0, 20, 30)]
        assert found == pytest.approx([1.0, share, share])


def test_a_client_keeps_no_more_than_it_received():
    """A schedule that keeps 9 of 10 weights, after a stage that has kept a tenth."""
    x = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    data = from_arrays(
        x, np.arange(40) % 4, num_clients=2, x_test=x[:4], y_test=[0] * 4
    )
    parts = small_world.tiny_model(), local.make_optimizer()
    first = Stage(pdst(*parts, density=0.1), num_rounds=1, cohort_size=2)
    method = fedsparsify_local(*parts, density=0.9, rounds=4, frequency=1)
    second = Stage(method, num_rounds=1, cohort_size=2)
    (before,) = run(KEY, [first], parts[0], data).models.values()
    after = run(KEY, [first, second], parts[0], data).models["global"]
    jax.tree.map(np.testing.assert_array_equal, after.mask, before.mask)
