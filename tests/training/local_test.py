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
