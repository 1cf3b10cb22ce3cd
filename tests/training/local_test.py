import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.core.types import Batches, EmptyState, SparseModel
from sparsefl_jax.models import Model
from sparsefl_jax.training import local

RATE = 0.25


def network():
    def apply(params, stats, x, *, train, weight=None, key=None):
        return x @ params["w"], {"calls": stats["calls"] + 1}

    return Model(None, apply, {"w": 6})


def linear():
    return local.objective(network())


def begin(tx):
    return local.start(tx, start())


def start():
    params = {"w": jnp.arange(6, dtype=jnp.float32).reshape(2, 3) / 10}
    return SparseModel(params, None, {"calls": jnp.float32(0)})


def client(size, *, steps=None, epochs=1, slots=3):
    """Returns `size` samples in batches of two; padding points to row 0."""
    rng = np.random.default_rng(0)
    order = np.zeros((epochs, slots * 2), np.int32)
    order[:, :size] = np.arange(size)
    weight = (np.arange(slots * 2) < size).astype(np.float32)
    return Batches(
        jnp.asarray(rng.normal(size=(6, 2)), jnp.float32),
        jnp.asarray(rng.integers(3, size=6), jnp.int32),
        jnp.asarray(order.reshape(epochs, slots, 2)),
        jnp.asarray(np.tile(weight, epochs).reshape(epochs, slots, 2)),
        jnp.int32(-(-size // 2) if steps is None else steps),
    )


def sgd(round=0, **kwargs):
    return local.make_optimizer("sgd", learning_rate=RATE, **kwargs)(round)


def by_hand(params, batches, first, last, decay=0.0):
    w = np.asarray(params["w"], np.float64)
    for s in range(first, last):
        valid = np.asarray(batches.weight[0, s]) > 0
        rows = np.asarray(batches.order[0, s])[valid]
        x, y = np.asarray(batches.x, np.float64)[rows], np.asarray(batches.y)[rows]
        p = np.exp(x @ w)
        p /= p.sum(1, keepdims=True)
        w = w - RATE * (x.T @ (p - np.eye(3)[y]) / len(rows) + decay * w)
    return w


def run(key, tx, batches, **span):
    loss_fn = linear()
    return local.train_steps(key, loss_fn, tx, begin(tx), batches, epoch=0, **span)


def test_train_runs_all_epochs_and_sums_over_processed_samples(key):
    tx, batches = sgd(), client(3, epochs=2)
    out = local.train(key, linear(), tx, start(), batches)
    assert out.metrics["count"] == 6 and out.model.stats["calls"] == 4
    still = optax.sgd(0.0)
    frozen = local.train(key, linear(), still, start(), batches)
    logits, y = batches.x[:3] @ start().params["w"], batches.y[:3]
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, y)
    np.testing.assert_allclose(frozen.metrics["loss"], 2 * losses.sum(), rtol=1e-6)
    hits = jnp.sum(jnp.argmax(logits, -1) == y)
    assert frozen.metrics["correct"] == 2 * hits


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_the_loss_is_nan_where_a_weight_is_not_finite(key, bad):
    """Only the last step breaks it, so that no batch has seen it."""

    def spoil(params):
        return {"w": params["w"].at[0, 0].set(bad)}

    for project, finite in ((None, True), (spoil, False)):
        args = key, linear(), sgd(), start(), client(2)
        loss = local.train(*args, project=project).metrics["loss"]
        assert bool(jnp.isfinite(loss)) == finite


def test_steps_beyond_the_data_leave_everything_though_they_hold_nan(key):
    tx, batches = sgd(momentum=0.9), client(2, steps=3)
    x = batches.x.at[5].set(jnp.nan)
    order = batches.order.at[0, 1:].set(5)
    longer = batches._replace(x=x, order=order)
    short, long = (
        local.train(key, linear(), tx, start(), each) for each in (client(2), longer)
    )
    jax.tree.map(np.testing.assert_array_equal, long, short)
    assert np.isfinite(long.model.params["w"]).all()


@pytest.mark.parametrize(
    "size, first, last, decay",
    [(5, 0, 3, 0.0), (5, 1, 2, 0.0), (6, 1, 3, 0.1), (5, 2, 2, 0.0)],
)
def test_train_steps_runs_its_span_and_weight_decay_adds_to_the_gradient(
    key, size, first, last, decay
):
    tx, batches = sgd(weight_decay=decay), client(size)
    out = run(key, tx, batches, first=first, last=last, num_trips=3)
    want = by_hand(begin(tx).params, batches, first, last, decay)
    np.testing.assert_allclose(out.params["w"], want, atol=1e-6)
    assert out.sums["count"] == min(size, 2 * last) - 2 * first
    assert out.stats["calls"] == last - first


def test_the_projection_holds_after_every_step(key):
    tx = sgd(momentum=0.9)
    mask = jnp.array([[1, 0, 1], [0, 1, 1]], bool)

    def project(params):
        return {"w": jnp.where(mask, params["w"], 0.0)}

    for model, options in (
        (start(), {"project": project}),
        (start()._replace(mask={"w": mask}), {}),
    ):
        out = local.train(key, linear(), tx, model, client(5), **options)
        np.testing.assert_array_equal(out.model.params["w"] != 0, mask)
    # Five samples; the mask keeps four of six weights.
    assert float(out.metrics["work"].forward["w"]) == pytest.approx(5 * 4 / 6)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, 1 - 10),  # the gradient (30, 0) is cut to (10, 0)
        ({"gradients": "dense"}, 1 - 6),  # (30, 40) is cut to (6, 8)
        ({"project": lambda params: params}, 1 - 6),
    ],
)
def test_a_norm_that_is_clipped_is_that_of_the_mask(key, options, weight):
    def loss_fn(key, params, stats, x, y, weight):
        loss = 30 * params["w"][0] + 40 * params["w"][1]
        zero = jnp.float32(0)
        return loss, (stats, {"loss": loss, "correct": zero, "count": zero})

    mask = {"w": jnp.array([True, False])}
    model = SparseModel({"w": jnp.array([1.0, 0.0])}, mask, {})
    tx = local.make_optimizer("sgd", learning_rate=1.0, clip=10.0)(0)
    batch = client(2, slots=1)
    trained = local.train(key, loss_fn, tx, model, batch, **options)
    assert trained.model.params["w"][0] == pytest.approx(weight)
    assert ("project" in options) == (trained.model.params["w"][1] != 0)
    with pytest.raises(ValueError, match="gradients='all', expected"):
        local.train(key, loss_fn, tx, model, batch, gradients="all")


def test_a_given_optimizer_state_is_continued(key):
    tx = sgd(momentum=0.9)
    velocity = jax.tree.map(jnp.ones_like, tx.init(begin(tx).params))
    kept = local.train(key, linear(), tx, start(), client(5), opt_state=velocity)
    assert jax.tree.structure(kept.opt_state) == jax.tree.structure(velocity)
    anew = local.train(key, linear(), tx, start(), client(5))
    assert anew.opt_state == EmptyState()
    moved = (np.asarray(t.model.params["w"]) for t in (kept, anew))
    assert not np.allclose(*moved)


def orthogonalized(matrix):
    """Returns five steps of Newton-Schulz, which has at least as many columns as rows.

    The momentum of a first step is a multiple of the gradient, which drops out.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / np.linalg.norm(wide)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x if wide is matrix else x.T


def test_muon_within_a_mask_steps_along_its_part_of_the_orthogonalized_gradient(key):
    """A first step of 2 x 3 weights is -rate sqrt(3 / 2) times that of the mask.

    The optimizer's update is dense although it sees the mask alone; the mask then cuts
    it. Clients are vmapped.
    """
    tx = local.make_optimizer("muon", learning_rate=RATE)(0)
    mask = np.array([[1, 0, 1], [0, 1, 1]], bool)
    begun = start().params["w"]
    model = start()._replace(params={"w": jnp.where(mask, begun, 0)}, mask={"w": mask})
    clients = [client(size, slots=1) for size in (1, 2)]
    stacked = jax.tree.map(lambda *v: jnp.stack(v), *clients)
    num_steps = stacked.num_steps[0]  # which clients of a round share

    def train(key, batches):
        batches = batches._replace(num_steps=num_steps)
        return local.train(key, linear(), tx, model, batches).model.params["w"]

    found = jax.vmap(train)(jax.random.split(key, 2), stacked)
    for weights, batches in zip(found, clients, strict=True):
        moved = by_hand(model.params, batches, 0, 1)
        gradient = np.where(mask, (model.params["w"] - moved) / RATE, 0)
        step = -RATE * np.sqrt(3 / 2) * orthogonalized(gradient)
        assert (step[~mask] != 0).any()
        assert (np.asarray(weights)[~mask] == 0.0).all()
        change = np.asarray(weights - model.params["w"])
        assert (change[~mask] == 0.0).all()
        np.testing.assert_allclose(change[mask], step[mask], rtol=2e-3, atol=1e-5)


def test_muon_orthogonalizes_matrices_and_embeddings_and_leaves_all_else_to_adam():
    """Adam's first step with Nesterov's momentum is rate (1 + .09 / .19) times a sign.

    The mask leaves of a convolution its first row of filters.
    """
    rng = np.random.default_rng(1)
    shapes = {"bias": (4,), "kernel": (3, 3, 2, 4), "embedding": (7, 3)}
    grads = {k: np.float32(rng.normal(size=shape)) for k, shape in shapes.items()}
    mask = {k: np.ones(shape, bool) for k, shape in shapes.items()}
    mask["kernel"][1:] = False
    tx = local.within(local.make_optimizer("muon", learning_rate=0.5)(0), mask)
    params = jax.tree.map(jnp.zeros_like, grads)
    update, _ = tx.update(grads, tx.init(params), params)
    sign = -0.5 * (1 + 0.09 / 0.19)
    for name in ("bias", "kernel"):
        want = np.where(mask[name], sign * np.sign(grads[name]), 0)
        np.testing.assert_allclose(update[name], want, rtol=1e-4)
    want = -0.5 * orthogonalized(np.float64(grads["embedding"]))
    np.testing.assert_allclose(update["embedding"], want, rtol=2e-3, atol=1e-5)


def test_weight_decay_is_that_of_an_optimizer_with_its_own():
    # Adam's first step has the size of the rate; AdamW's own default would be 1e-4.
    params, grads = {"w": jnp.float32([2.0])}, {"w": jnp.float32([1.0])}
    for decay, step in ((0.0, -0.5), (0.1, -0.5 * (1 + 0.1 * 2))):
        make = local.make_optimizer("adamw", learning_rate=0.5, weight_decay=decay)
        tx = make(0)
        updates, _ = tx.update(grads, tx.init(params), params)
        np.testing.assert_allclose(updates["w"], [step], rtol=1e-5)


def test_clip_bounds_the_gradient_before_weight_decay():
    tx = local.make_optimizer("sgd", learning_rate=1.0, clip=1.0, weight_decay=1.0)(0)
    params = jnp.array([10.0, 0.0])
    step, _ = tx.update(jnp.array([3.0, 4.0]), tx.init(params), params)
    np.testing.assert_allclose(step, [-10.6, -0.8], rtol=1e-6)


def test_make_optimizer_refuses_what_is_none_and_names_unknown_arguments():
    for name in ("sgdd", "apply_updates"):
        with pytest.raises(ValueError, match=rf"optimizer\.name='{name}'"):
            local.make_optimizer(name)
    with pytest.raises(ValueError, match=r"optimizer\.name='sgd': .*beta"):
        local.make_optimizer("sgd", beta=0.9)
