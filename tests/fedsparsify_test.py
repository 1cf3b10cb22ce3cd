"""FedSparsify: the schedule, the paper's counts, the options of both methods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax import contract_world as at
from sparsefl_jax import costs
from sparsefl_jax.algorithms import fedsparsify_global, fedsparsify_local
from sparsefl_jax.models import build
from sparsefl_jax.sparsity import masks, schedules
from sparsefl_jax.types import Context, SparseModel
from tests.fedsparsify_by_hand import DENSITY, ROUNDS, flat

# The paper's Tables 1 and 2: non-zero parameters after round 200 and millions sent.
CIFAR = {
    0.8: (322_370, 2596),
    0.85: (241_874, 2356),
    0.9: (161_377, 2116),
    0.95: (80_881, 1875),
    0.99: (16_484, 1683),
}
FASHION = {
    0.8: (23_657, 190),
    0.85: (17_743, 173),
    0.9: (11_829, 155),
    0.95: (5_915, 137),
    0.99: (1_183, 123),
}
DENSE = {"fedsparsify_cnn": 6441, "mlp": 473}
NETWORKS = {"fedsparsify_cnn": ((32, 32, 3), CIFAR), "mlp": ((28, 28, 1), FASHION)}
SCHEDULE = {"density": DENSITY, "rounds": ROUNDS}


def test_schedule_has_the_values_of_equation_1():
    s = schedules.polynomial(0.1, 200)
    printed = {1: 0, 2: 0.0135, 10: 0.1167, 50: 0.5146, 100: 0.7858, 150: 0.8857}
    for t, value in printed.items():
        assert s[t - 1] == pytest.approx(value, abs=5e-5)
    assert s[-1] == 0.9 and (np.diff(s) > 0).all()


def test_schedule_moves_every_few_rounds_only():
    s = schedules.polynomial(0.1, 40, frequency=10)
    steps = np.flatnonzero(np.diff(s)) + 2  # the round that begins a step
    np.testing.assert_array_equal(steps, [10, 20, 30, 40])
    assert s[8] == 0 and s[9] == schedules.polynomial(0.1, 40)[9]


@pytest.mark.parametrize(
    "kwargs, named",
    [
        ({"density": 0.0}, "density=0.0"),
        ({"rounds": 1}, "rounds=1"),
        ({"frequency": 0}, "frequency=0"),
        ({"power": 0.0}, "power=0.0"),
    ],
)
def test_refuses(kwargs, named):
    with pytest.raises(ValueError, match=named):
        fedsparsify_global(None, None, **{"density": 0.1, "rounds": 10} | kwargs)
    with pytest.raises(ValueError, match="criterion='size'"):
        fedsparsify_global(None, None, density=0.1, rounds=10, criterion="size")
    with pytest.raises(ValueError, match="merge='sum'"):
        fedsparsify_local(None, None, density=0.1, rounds=10, merge="sum")


@pytest.mark.parametrize("name", NETWORKS)
def test_counts_of_tables_1_and_2(name):
    """From the server's own aggregation: a mean without ties, purged 200 times."""
    shape, printed = NETWORKS[name]
    model = build(name, 10, shape)
    shapes, stats = jax.eval_shape(model.init, jax.random.key(0))
    leaves, structure = jax.tree.flatten(shapes)
    ends, size = np.cumsum([x.size for x in leaves]), sum(x.size for x in leaves)
    values = np.random.default_rng(0).permutation(size).astype("f") + 1  # no ties
    cut = np.split(values, ends[:-1])
    params = jax.tree.unflatten(
        structure, [v.reshape(x.shape) for v, x in zip(cut, leaves, strict=True)]
    )
    stats = jax.tree.map(lambda x: np.zeros(x.shape, "f"), stats)
    moving = flat(stats).size if stats else 0
    total = {"sum": (params, stats), "weight": np.float32(1)}
    assert costs.exchanged([size + moving] * 201, 10) // 10**6 == DENSE[name]
    for sparsity, (alive, millions) in printed.items():
        method = fedsparsify_global(None, None, density=1 - sparsity, rounds=200)
        server = method.init(
            jax.random.key(0), SparseModel(params, masks.full(params), stats)
        )

        def left(round, method=method, server=server):
            ctx = Context(jnp.int32(round), None, None)
            new, _ = method.aggregate(None, ctx, server, total)
            return flat(new.model.mask).sum() + moving

        wanted = schedules.alive(schedules.polynomial(1 - sparsity, 200), size)
        assert left(199) == alive and left(57) == wanted[57] + moving
        sizes = [size + moving, *(int(n) + moving for n in wanted)]
        assert costs.exchanged(sizes, 10) // 10**6 == millions


def test_random_order_is_drawn_once_and_ignores_magnitude():
    world = at.make_world(fedsparsify_global, SCHEDULE | {"criterion": "random"})
    states = [s.server for s in at.path(world)[0]]
    before = flat(states[0].model.mask)
    for server in states[1:]:
        mask = flat(server.model.mask)
        assert not (mask & ~before).any()
        before = mask
        np.testing.assert_array_equal(flat(server.scores), flat(states[0].scores))
    lowest = np.argsort(flat(server.scores))[: int((1 - DENSITY) * mask.size)]
    assert not mask[lowest].any() and len(states) == 5


def test_majority_keeps_the_sparsity_that_averaging_loses():
    worlds = [
        at.make_world(fedsparsify_local, SCHEDULE | {"merge": merge})
        for merge in ("majority", "average")
    ]
    vote, union = (flat(at.path(w)[0][-1].server.model.mask).mean() for w in worlds)
    assert vote < union and union > DENSITY


def test_masked_entries_do_not_come_back_by_momentum():
    world = at.make_world(fedsparsify_global, SCHEDULE)
    for round in range(1, 4):
        for passing in at.passings(world, round):
            alive = flat(passing.down["weights"].mask)
            assert not flat(passing.up["weights"].values)[~alive].any()
            assert not alive.all()
