"""Batches of one client, and the preprocessing of images."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.data.augment import make_preprocess
from sparsefl_jax.data.batching import batches, steps_per_epoch
from tests.refusals import refused

# --- batching


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("capacity, batch_size", [(1, 4), (13, 4), (9, 20)])
def test_each_valid_row_once_an_epoch(capacity, batch_size, drop_last):
    index = np.random.default_rng(0).permutation(100)[:capacity].astype(np.int32)
    x = jnp.arange(100, dtype=jnp.float32)
    sizes = np.arange(capacity + 1, dtype=np.int32)

    def client(key, size):
        stage = Stage(None, 1, 1, 3, batch_size, drop_last=drop_last)
        arrays = x, x.astype(jnp.int32), jnp.asarray(index), size
        return batches(key, *arrays, stage=stage, num_steps=jnp.int32(1))

    keys = jax.random.split(jax.random.key(0), capacity + 1)
    out = jax.jit(jax.vmap(client))(keys, jnp.asarray(sizes))
    num_slots = steps_per_epoch(capacity, batch_size, drop_last)
    assert out.order.shape == out.weight.shape == (len(sizes), 3, num_slots, batch_size)
    np.testing.assert_array_equal(out.x[-1], index)
    np.testing.assert_array_equal(out.y[-1], index)
    for size, orders, weights in zip(sizes, *map(np.asarray, out[2:4]), strict=True):
        steps = steps_per_epoch(size, batch_size, drop_last)
        whole = size // batch_size * batch_size
        expected = whole if drop_last and whole else size
        for order, weight in zip(orders, weights, strict=True):
            seen = order[weight > 0]
            assert len(seen) == len(np.unique(seen)) == expected
            assert (seen < size).all() and (seen >= 0).all()
            assert (order[weight == 0] == 0).all()
            assert (weight.any(axis=1) == (np.arange(num_slots) < steps)).all()


@partial(jax.jit, static_argnames="epochs")
def one_client(key, epochs=2):
    rows, stage = jnp.arange(64, dtype=jnp.int32), Stage(None, 1, 1, epochs, 8)
    given = {"stage": stage, "num_steps": jnp.int32(8)}
    return batches(key, rows, rows, rows, jnp.int32(50), **given)


def test_orders_differ_between_epochs_and_keys(key):
    first, second = one_client(key).order
    other = one_client(jax.random.key(1)).order[0]
    assert (first != second).any() and (first != other).any()
    np.testing.assert_array_equal(first, one_client(key).order[0])


def test_order_is_uniform():
    keys = jax.random.split(jax.random.key(0), 2000)
    first = jax.vmap(lambda k: one_client(k, epochs=1).order[0, 0, 0])(keys)
    counts = np.bincount(first, minlength=50)
    assert counts.shape == (50,)
    # 49 degrees of freedom: 95 has a chance of 1e-4.
    assert ((counts - 40) ** 2 / 40).sum() < 95


# --- augmentation


def augmented(key, x, mean=None, std=None, **kwargs):
    preprocess = make_preprocess(mean, std, **kwargs)
    return jax.jit(lambda key, x: preprocess(key, x, True))(key, x)


def images(num=16, size=6, seed=0):
    x = np.random.default_rng(seed).integers(1, 256, (num, size, size, 3))
    return jnp.asarray(x, jnp.uint8)


def candidates(image, pad, flips):
    """Returns all possible results of pad-crop and flip for one image."""
    size = image.shape[0]
    out = []
    for source in [image, image[:, ::-1]][: 1 + flips]:
        padded = np.pad(source, ((pad, pad), (pad, pad), (0, 0)))
        for i in range(2 * pad + 1):
            for j in range(2 * pad + 1):
                out.append(padded[i : i + size, j : j + size])
    return np.stack(out)


@pytest.mark.parametrize("augment", [("crop",), ("flip",), ("crop", "flip")])
def test_augmentation_is_pad_crop_and_flip(key, augment):
    x = images(num=1000)
    out = augmented(key, x, scale=1.0, augment=augment)
    pad, flips = 4 * ("crop" in augment), "flip" in augment
    seen = []
    for image, result in zip(np.asarray(x), np.asarray(out), strict=True):
        same = (candidates(image, pad, flips) == result).all(axis=(1, 2, 3))
        assert same.any()
        seen.append(int(np.flatnonzero(same)[0]))
    possible = (2 * pad + 1) ** 2 * (1 + flips)
    # 1000 draws leave a fifth of 162 cases unseen with a chance below 1e-4.
    assert len(set(seen)) > 0.8 * possible


def test_cutout_drops_a_square_round_a_pixel(key):
    """What lies in the image of 16 x 16 pixels, from 8 before the centre to 7 after."""
    dropped = np.asarray(augmented(key, images(400, 32), augment=("cutout",)) == 0)
    rows, columns = dropped.any((2, 3)), dropped.any((1, 3))
    np.testing.assert_array_equal(
        dropped, (rows[:, :, None] & columns[:, None])[..., None].repeat(3, 3)
    )
    possible = np.array([[c - 8 <= i < c + 8 for i in range(32)] for c in range(32)])
    for found in rows, columns:  # all 32 centres, each about as often
        counts = (possible[:, None] == found).all(2).sum(1)
        assert counts.sum() == 400 and counts.min() > 0 and counts.max() < 30
    assert (rows.sum(1) != columns.sum(1)).any()


@pytest.mark.parametrize("augment, pixels", [("crop", [-1, 1]), ("cutout", [0, 1])])
def test_padding_is_normalised_and_what_is_cut_out_is_not(key, augment, pixels):
    x = jnp.full((64, 32, 32, 1), 255, jnp.uint8)
    out = augmented(key, x, (0.5,), (0.5,), augment=(augment,))
    np.testing.assert_array_equal(np.unique(np.round(out, 5)), pixels)


def test_evaluation_only_normalises():
    x, mean, std = images(), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    out = make_preprocess(mean, std, augment=("crop", "cutout"))(None, x, False)
    assert out.dtype == jnp.float32
    expected = (np.asarray(x) / 255 - mean) / std
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_floats_are_not_scaled_and_bad_preprocessing_is_named(key):
    features = jnp.asarray([[1.5, -2.0]], jnp.float32)
    np.testing.assert_array_equal(make_preprocess()(key, features, True), features)
    refused(lambda: make_preprocess(std=(0.0,)), "std=")
    preprocess = make_preprocess(augment=("crop",))
    refused(lambda: preprocess(key, features, True), "needs images, x has 2 axes")
