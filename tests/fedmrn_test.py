"""FedMRN: its operators, its identities, and what travels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import compressed, fedavg, fedmrn
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import one_bit, trees
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.training import local, through
from sparsefl_jax.wire import compressors
from tests.by_hand import batches, bits, context, linear_loss, model_of

MODEL, SGD = small_world.tiny_model(), local.make_optimizer(learning_rate=0.1)
ROW = np.array([1.0, -2.0, 0.5, 0.0], np.float32)
VECTOR = model_of(linear_loss, {"w": 1}, {"w": np.zeros(4)})  # its gradient is ROW


def one_client(method, *, steps=2, model=VECTOR, row=ROW):
    """Returns one client's uplink, metrics, and what it moves the server's model by."""
    params, stats = model.init(jax.random.key(0))
    server = method.init(jax.random.key(1), SparseModel(params, None, stats))
    ctx, data = context(size=3), batches(steps, row)
    client = method.first_state(jax.random.key(3), server, ctx.client)

    @jax.jit
    def play(key):
        down = method.broadcast(key, ctx, server)
        up, _, metrics = method.update(key, ctx, down, client, data)
        new, _ = method.aggregate(key, ctx.round, server, method.contribute(ctx, up))
        return up, metrics, jax.tree.map(jnp.subtract, new.params, server.params)

    return play(jax.random.key(2))


def vector(**kwargs):
    return fedmrn(VECTOR, SGD, prunable=("w",), **kwargs)


def test_noise():
    tree = {"a": jnp.zeros(10_000), "b": None, "c": jnp.zeros((100, 100))}
    seed = jnp.uint32(7)
    uniform, normal, signs = (
        one_bit.noise(seed, tree, kind, 0.5) for kind in one_bit.NOISES
    )
    assert uniform["b"] is None and uniform["c"].shape == (100, 100)
    for z, deviation in ((uniform, 0.5 / 3**0.5), (normal, 0.5), (signs, 0.5)):
        assert float(z["a"].std()) == pytest.approx(deviation, rel=0.03)
        assert abs(float(z["a"].mean())) < 4 * deviation / 100
        assert not np.array_equal(z["a"], z["c"].reshape(-1))
    assert 0.499 < float(jnp.abs(uniform["a"]).max()) <= 0.5
    assert set(np.unique(signs["a"])) == {-0.5, 0.5}
    other = one_bit.noise(jnp.uint32(8), tree, "bernoulli", 0.5)
    assert 0.4 < np.mean(other["a"] != signs["a"]) < 0.6
    tiny = one_bit.noise(seed, tree, "gaussian", 1e-12)["a"]
    np.testing.assert_array_equal(tiny, np.float32(1e-8))


def test_bits_by_hand():
    up, *_ = one_client(fedmrn(MODEL, SGD), model=MODEL, row=np.ones(8))
    # 8 * 16 + 16 * 4 entries of kernels, 20 biases, 16 statistics
    assert bits(up) == 192 + 32 + 32 * (20 + 16)


def test_the_server_adds_what_the_client_has_masked():
    method = fedmrn(MODEL, SGD, mask="signed", magnitude=0.05)
    up, *_ = one_client(method, model=MODEL, row=np.ones(8))
    sums = method.contribute(context(size=3), up)["sum"]["delta"]
    kernels = {n: np.zeros(s) for n, s in (("fc1", (8, 16)), ("fc2", (16, 4)))}
    z = one_bit.noise(up["seed"].values, kernels, "uniform", 0.05)
    for name in kernels:
        bit = np.asarray(up["mask"].values[name]["kernel"])
        want = np.float32(3) * (np.asarray(z[name]) * np.where(bit == 1, 1, -1))
        np.testing.assert_array_equal(sums[name]["kernel"], np.float32(want))
        bias = 3 * up["rest"].values[name]["bias"]
        np.testing.assert_array_equal(sums[name]["bias"], bias)


def test_plain_training_is_compression_by_masked_noise():
    given = {"noise": "gaussian", "magnitude": 0.5, "mask": "signed"}
    ours = vector(progressive=False, **given)
    theirs = compressed(VECTOR, SGD, up=compressors.masked_noise(**given))
    (up, _, move), (sent, _, other) = map(one_client, (ours, theirs))
    np.testing.assert_array_equal(up["mask"].values["w"], sent["delta"].values["w"])
    np.testing.assert_array_equal(move["w"], other["w"])
    assert np.abs(move["w"]).min() > 0


@pytest.mark.slow
def test_seeds_are_of_a_client_and_a_round():
    world = small_world.make_world(fedmrn, {})
    seeds = [
        int(p.up["seed"].values)
        for round in range(4)
        for p in plain_loop.passings(world, round)
    ]
    assert len(set(seeds)) == 12


def test_without_masking_it_is_fedavg(key):
    """Noise of one size under signed masks expresses every smaller update."""
    params, stats = MODEL.init(key)
    start, world = SparseModel(params, None, stats), small_world.make_world(fedavg, {})
    data = plain_loop.inputs(world, small_world.start(world), 0, 2)[-1]
    select = jax.tree.map(lambda m: m > 0, MODEL.macs)
    kernels, _ = trees.split(start.params, select)
    z = one_bit.noise(jnp.uint32(1), kernels, "bernoulli", 2.0)

    def clipped(key, step, learnt, kept):
        def show(u, z):
            return one_bit.passed(u, z * jnp.clip(u / z, -1, 1))

        return jax.tree.map(show, learnt.update, z), kept

    loss_fn, tx = local.objective(MODEL), SGD(0)
    ours = through.train(key, loss_fn, tx, start, data, select=select, seen=clipped)
    theirs = local.train(key, loss_fn, tx, start, data)
    change = jax.tree.map(jnp.subtract, theirs.model.params, start.params)
    found = trees.merge(ours.update, ours.rest)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(change), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
        assert np.abs(b).max() > 1e-3
    np.testing.assert_allclose(ours.metrics["loss"], theirs.metrics["loss"], rtol=1e-6)


def test_the_first_of_binary_masks_is_empty():
    """In its only step, a client's u is 0, and the network runs at the received w."""
    for row, sign in ((ROW, 1), (-ROW, -1)):
        (up, ours, _), (_, theirs, _) = (
            one_client(method, steps=1, row=row)
            for method in (vector(), fedavg(VECTOR, SGD))
        )
        assert float(ours["loss"]) == float(theirs["loss"]) == 0
        z = one_bit.noise(up["seed"].values, up["mask"].values, "uniform", 0.01)["w"]
        # u = -0.1 row is beyond the noise, so that signs alone decide.
        want = (np.sign(z) == -np.sign(sign * ROW)).astype(int)
        np.testing.assert_array_equal(up["mask"].values["w"], want)
        assert float(ours["ones"]) == want.mean()


def test_an_update_beyond_the_noise_is_clipped():
    _, metrics, _ = one_client(vector(magnitude=1e-3, mask="signed"), steps=5)
    assert float(metrics["clipped"]) == 0.75  # a gradient of 0 leaves u at 0
    _, metrics, _ = one_client(vector(magnitude=1e3, mask="signed"), steps=5)
    assert float(metrics["clipped"]) == 0


def test_the_network_sees_no_more_than_the_noise():
    """After the first step |u| > |z|: masks and clipping alike show z or 0."""
    wide = model_of(linear_loss, {"w": 1}, {"w": np.zeros(64)})
    method = fedmrn(wide, SGD, prunable=("w",), magnitude=0.05)
    up, metrics, _ = one_client(method, steps=5, model=wide, row=np.ones(64))
    z = one_bit.noise(up["seed"].values, up["mask"].values, "uniform", 0.05)["w"]
    # u is 0 in the first step and at most -0.1 in the others, of two samples each.
    want = 2 * 4 * np.minimum(z, 0).sum()
    assert float(metrics["loss"]) == pytest.approx(want, rel=1e-5)


def test_refuses():
    for given, said in (
        ({"index": "bitmap"}, "index='bitmap', expected one of none, entropy"),
        ({"noise": "normal"}, "noise='normal' .*expected one of uniform, gaussian"),
    ):
        with pytest.raises(ValueError, match=said):
            fedmrn(MODEL, SGD, **given)
