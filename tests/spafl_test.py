"""SpaFL: the estimator's gradients, eq. (13), resets, recursion, and what travels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms import local_only, spafl
from sparsefl_jax.algorithms.spafl.spafl import moved_by_importance
from sparsefl_jax.core.types import Batches, ClientInfo, Context, SparseModel
from sparsefl_jax.sparsity import masks, straight_through
from sparsefl_jax.wire import packets, paper_counts
from sparsefl_jax.wire.charges import message_bits
from tests.by_hand import bare, model_of


def test_gradients_of_hand_computed_vectors():
    """Importances .2 and .3 against thresholds .25: filter 0 pruned, filter 1 alive."""
    kernel = jnp.array([[0.3, 0.4], [-0.1, 0.2]])
    g = jnp.array([[1.0, 2.0], [3.0, -1.0]])

    def loss(kernel, threshold):
        return jnp.sum(g * straight_through.prune({"w": kernel}, {"w": threshold})["w"])

    value = loss(kernel, jnp.array([0.25, 0.25]))
    assert float(value) == pytest.approx(2 * 0.4 - 0.2)
    for_kernel, for_threshold = jax.grad(loss, (0, 1))(kernel, jnp.full(2, 0.25))
    np.testing.assert_allclose(for_threshold, [-(0.3 - 0.3), -(0.8 - 0.2)], atol=1e-6)
    want = [[0.0, 2.0 + 0.3], [0.0, -1.0 + 0.3]]  # through: 0 and .6; n = 2
    np.testing.assert_allclose(for_kernel, want, atol=1e-6)


def test_a_weight_of_zero_has_no_slope_through_its_importance():
    """Of filter 0 (importance .15) w = 0 and .3 have g = 2 and 1: through it 0.3 / 2
    for the 0.3 alone; the pruned filter 1 passes nothing but that, 0 at a zero.
    """
    kernel = jnp.array([[0.0, 0.0], [0.3, -0.2]])
    g = jnp.array([[2.0, 5.0], [1.0, 4.0]])
    found = jax.grad(
        lambda k: jnp.sum(
            g * straight_through.prune({"w": k}, {"w": jnp.array([0.1, 0.3])})["w"]
        )
    )(kernel)
    want = [[2.0, 0.0], [1.0 + 0.3 / 2, 0.8 / 2]]  # -1 / 2 times 4 * -0.2
    np.testing.assert_allclose(found, want, atol=1e-6)


def test_gradients_are_finite_differences_where_the_step_is_replaced_by_its_argument():
    """On the smooth part: S(d) = S0 + d, with S0 constant, has the same gradient."""
    key = jax.random.key(0)
    kernel = jax.random.normal(key, (3, 3, 2, 4))
    threshold = jnp.array([0.1, 2.0, 0.3, 1.5])
    g = jax.random.normal(jax.random.fold_in(key, 1), kernel.shape)
    alive = np.asarray(straight_through.importance(kernel) > threshold, np.float64)
    assert 0 < alive.sum() < 4

    def smooth(kernel, threshold):
        kernel = np.asarray(kernel, np.float64)
        moved = np.abs(kernel).mean((0, 1, 2)) - threshold
        step = alive + moved - (np.abs(start).mean((0, 1, 2)) - tau)
        return float(np.sum(np.asarray(g) * kernel * step))

    start, tau = np.asarray(kernel, np.float64), np.asarray(threshold, np.float64)
    for_kernel, for_threshold = jax.grad(
        lambda k, t: jnp.sum(g * straight_through.prune({"w": k}, {"w": t})["w"]),
        (0, 1),
    )(kernel, threshold)
    eps = 1e-5
    for at in [(0, 0, 0, 0), (1, 2, 1, 1), (2, 2, 0, 3)]:
        shift = np.zeros_like(start)
        shift[at] = eps
        slope = (smooth(start + shift, tau) - smooth(start - shift, tau)) / (2 * eps)
        assert float(for_kernel[at]) == pytest.approx(slope, rel=1e-3, abs=1e-4)
    for i in range(4):
        shift = eps * np.eye(4)[i]
        slope = (smooth(start, tau + shift) - smooth(start, tau - shift)) / (2 * eps)
        assert float(for_threshold[i]) == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_the_window_estimator_passes_far_from_the_threshold_only():
    slopes = jax.vmap(jax.grad(lambda d: straight_through.unit_step(d, "window")))
    got = slopes(jnp.array([-1.5, -0.5, 0.0, 0.5, 1.5]))
    np.testing.assert_array_equal(got, [1, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("column", "delta", "want"),
    [
        ([0.3, -0.1], 0.02, [0.29, -0.11]),
        ([0.3, -0.1], -0.02, [0.31, -0.09]),
        ([-0.3, 0.1], 0.02, [-0.29, 0.11]),
        ([0.3, -0.1], 0.0, [0.3, -0.1]),
        ([0.25, -0.25], 0.02, [0.25, -0.25]),
    ],
)
def test_equation_13(column, delta, want):
    params = {"w": jnp.array(column)[:, None]}
    moved = moved_by_importance(params, {"w": jnp.array([delta])})
    np.testing.assert_allclose(moved["w"][:, 0], want, atol=1e-7)


@pytest.mark.parametrize(("divisor", "n"), [("inputs", 50), ("kernel", 25)])
def test_the_divisor_of_equation_13(divisor, n):
    conv, dense = jnp.ones((5, 5, 2, 3)), jnp.ones((7, 3))
    params = {"c": conv, "d": dense, "other": jnp.ones(3)}
    delta = {"c": jnp.array([1.0, 0, -1]), "d": jnp.array([1.0, 0, 0])}
    moved = moved_by_importance(params, delta, divisor)
    np.testing.assert_allclose(moved["c"][0, 0, 0], [1 - 1 / n, 1, 1 + 1 / n])
    np.testing.assert_allclose(moved["d"][0], [1 - 1 / 7, 1, 1], rtol=1e-6)
    np.testing.assert_array_equal(moved["other"], 1)


def test_a_dead_layer_is_revived_and_a_threshold_equal_to_importance_prunes():
    kernel = jnp.ones((2, 200))
    one_alive = jnp.full(200, 2.0).at[0].set(0.5)  # 0.5 % of the filters
    three_alive = one_alive.at[:3].set(0.5)  # 1.5 %

    def count(threshold):
        masks = straight_through.filter_masks({"w": kernel}, {"w": threshold})
        return int(masks["w"][0].sum())

    assert count(one_alive) == 200
    assert count(three_alive) == 3
    assert count(jnp.ones(200).at[:5].set(0.5)) == 5


@pytest.mark.parametrize("filters", [100, 500, 1000, 1200, 2048])
def test_one_percent_of_the_filters_is_dead_and_one_filter_more_is_not(filters):
    """A mean in float32 took 5 of 500 for more than 0.01, which PyTorch does not."""
    kernel, most = jnp.ones((2, filters)), filters // 100
    is_dead = jax.jit(straight_through.is_dead)
    for alive in (0, most, most + 1):
        threshold = jnp.full(filters, 2.0).at[:alive].set(0.5)
        assert bool(is_dead(kernel, threshold)) == (alive <= most)


def quiet_loss(key, params, stats, x, y, weight):
    """A loss that tells nothing: the regulariser alone moves thresholds."""
    del key, x, y
    zero = jnp.zeros((), jnp.float32)
    sums = {"loss": zero, "correct": zero, "count": jnp.sum(weight)}
    return 0.0 * sum(jnp.sum(p) for p in jax.tree.leaves(params)), (stats, sums)


@pytest.mark.parametrize("variant", ["paper", "release_cifar10"])
def test_thresholds_follow_the_regularisers_recursion(variant):
    """methods.md 1.2: 155 steps a round, rate 0.01, alpha 0.00015, fresh momentum."""
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.01, momentum=0.9)
    method = spafl(
        model_of(quiet_loss, {"w": 1}),
        optimizer,
        alpha=0.00015,
        prunable=("w",),
        variant=variant,
    )
    model = SparseModel({"w": jnp.full((4, 3), 5.0)}, {"w": jnp.ones((4, 3), bool)}, {})
    info = ClientInfo(jnp.int32(0), jnp.int32(31), jnp.float32(1))
    key = jax.random.key(0)
    data = Batches(
        jnp.zeros((31, 1)),
        jnp.zeros(31, jnp.int32),
        jnp.zeros((5, 31, 1), jnp.int32),
        jnp.ones((5, 31, 1)),
        jnp.int32(31),
    )

    @jax.jit
    def round_fn(server, round):
        ctx = Context(round, jnp.int32(-1), info)
        client = method.first_state(key, server, info)
        down = method.broadcast(key, ctx, server)
        up, _, _ = method.update(key, ctx, down, client, data)
        total = method.contribute(ctx, up)
        return method.aggregate(key, round, server, total)[0]

    server, seen = method.init(key, model), {}
    for round in range(500):
        server = round_fn(server, jnp.int32(round))
        seen[round + 1] = float(server.thresholds["w"][0])
    want = {1: 0.0022, 10: 0.0217, 40: 0.084, 150: 0.284, 500: 0.740}
    for round, threshold in want.items():
        assert seen[round] == pytest.approx(threshold, abs=6e-4 if round > 10 else 6e-5)


@pytest.mark.parametrize("variant", ["paper", "release_fashion_mnist"])
@pytest.mark.parametrize("factory", [spafl, local_only])
def test_a_layer_that_died_is_alive_when_the_next_round_begins(factory, variant):
    """The official code evaluates every client in between, which revives it there."""

    def loss(key, params, stats, *batch):
        value, told = quiet_loss(key, params, stats, *batch)
        return value + jnp.sum(params["w"]), told

    optimizer = sfl.training.make_optimizer(learning_rate=0.5)
    settings = {"prunable": ("w",), "variant": variant, "initial": "sent"}
    method = factory(model_of(loss, {"w": 1}), optimizer, **settings)
    model = SparseModel({"w": jnp.full((4, 3), 5.0)}, {"w": jnp.ones((4, 3), bool)}, {})
    info = ClientInfo(jnp.int32(0), jnp.int32(1), jnp.float32(1))
    ctx, key = Context(jnp.int32(1), jnp.int32(0), info), jax.random.key(0)
    ones = jnp.ones((1, 1, 1))
    data = Batches(ones[0], jnp.zeros(1, jnp.int32), ones.astype(int) * 0, ones, 1)
    server = method.init(key, model)
    if factory is spafl:
        server = server._replace(thresholds={"w": jnp.full(3, 0.5)})
    down = method.broadcast(key, ctx, server)
    fresh = method.first_state(key, server, info)
    dead = fresh.trained._replace(thresholds={"w": jnp.full(3, 9.0)})
    after = [
        method.update(key, ctx, down, client, data)[1].trained
        for client in (fresh, fresh._replace(trained=dead))
    ]
    assert not np.array_equal(after[0].params["w"], model.params["w"])
    jax.tree.map(np.testing.assert_array_equal, *after)


def test_the_warm_up_silences_round_0():
    losses = [_penalty("release_fashion_mnist", round) for round in (0, 1, 9)]
    np.testing.assert_allclose(losses, [3 * 0.006693, 3 * 0.993307, 3.0], rtol=1e-4)
    losses = [_penalty("release_cifar10", round) for round in (0, 1, 9)]
    np.testing.assert_allclose(losses, 3.0)


def _penalty(variant, round):
    """Three times the slope of the penalty at 0, from one step of plain SGD."""
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.125)
    settings = {"alpha": 1.0, "prunable": ("w",), "variant": variant}
    settings |= {"initial": "sent"}
    method = local_only(model_of(quiet_loss, {"w": 1}), optimizer, **settings)
    mask = {"w": jnp.ones((2, 3), bool)}
    server = method.init(None, SparseModel({"w": jnp.ones((2, 3))}, mask, {}))
    zero = jnp.zeros((1, 1, 1), jnp.int32)
    data = Batches(jnp.zeros((1, 1)), zero[0, 0], zero, jnp.ones((1, 1, 1)), 1)
    ctx = Context(jnp.int32(round), jnp.int32(-1), None)
    client = method.first_state(None, server, None)
    _, client, _ = method.update(jax.random.key(0), ctx, {}, client, data)
    return float(client.trained.thresholds["w"].sum()) / 0.125


def test_eq_13_needs_as_many_words_as_there_are_thresholds():
    """They are charged, or assumed to be free; the paper's bits are a view of both."""
    kernel = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    model, bits = SparseModel(kernel, masks.full(kernel), {}), {}
    for charged in (False, True):
        settings = {} if charged else {"charge_delta": False}
        method = spafl(bare(kernel), None, prunable=("w",), **settings)
        down = method.broadcast(None, None, method.init(None, model))
        layout, count = packets.layout(down), packets.count(down)
        bits[charged] = int(message_bits(layout, count).total)
        assert bool(layout["delta"].assumed) != charged
        assert paper_counts.values_only_bits(layout, count, ("thresholds",)) == 3 * 32
    assert bits == {False: 3 * 32, True: 2 * 3 * 32}


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"alpha": -1.0}, "alpha=-1.0, expected in [0, inf)"),
        ({"alpha": float("inf")}, "alpha=inf, expected in [0, inf)"),
        ({"alpha": float("nan")}, "alpha=nan, expected in [0, inf)"),
        (
            {"variant": "release_cifar"},
            "variant='release_cifar' (did you mean 'release_cifar10'?), "
            "expected one of paper, release_fashion_mnist, release_cifar10, "
            "release_cifar100",
        ),
    ],
)
@pytest.mark.parametrize("factory", [spafl, local_only])
def test_what_is_refused(factory, kwargs, told):
    with pytest.raises(ValueError) as error:
        factory(None, None, **kwargs)
    assert str(error.value) == told


@pytest.mark.slow
def test_clients_keep_weights_that_never_travel_and_are_judged_by_their_own():
    data = sfl.federate(
        sfl.data.load("fashion_mnist_sample"), "dirichlet", 6, alpha=0.5
    )
    model = sfl.models.build("mlp", 10, (28, 28, 1), widths=(16,))
    model = model.reading(sfl.data.make_preprocess(data.mean, data.std))
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.05, momentum=0.9)
    method = spafl(model, optimizer, alpha=0.001)
    run = sfl.run(
        jax.random.key(0),
        [sfl.Stage(method, 6, 2, epochs=2)],
        model,
        data,
        eval_every=2,
    )
    last = run.metrics[-1]
    kernels = run.clients.trained.params["fc1"]["kernel"]
    assert len(np.unique(np.asarray(kernels).reshape(6, -1).sum(1))) > 2
    personal = []
    for i in range(6):
        row = jax.tree.map(lambda v, i=i: v[i], run.clients)
        info = ClientInfo(jnp.int32(i), jnp.int32(1), jnp.float32(1))
        sparse = method.personalize(jax.random.key(0), run.server, row, info)[
            "personal"
        ]
        rows = data.test.index[i, : data.test.size[i]]
        params = masks.apply(sparse.params, sparse.mask)
        logits, _ = model.apply(params, {}, data.x_test[rows], train=False)
        personal.append(float(np.mean(np.argmax(logits, -1) == data.y_test[rows])))
    assert last["accuracy"] == pytest.approx(np.mean(personal), abs=1e-6)
    assert last["client_accuracy"]["median"] == pytest.approx(np.median(personal))
    assert last["accuracy"] > 0.3 and last["metric"] == "clients"
