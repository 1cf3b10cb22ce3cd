"""Feature shifts: by hand, for every split of a client, in the samples' dtype."""

import numpy as np
import pytest

from sparsefl_jax.data import federated
from sparsefl_jax.data.shifts import Shift
from sparsefl_jax.runs.config import build, defaults


def numbered(num, num_test=8):
    """Images [n, 2, 2, 1] whose pixels tell sample, row and column."""
    pixels = np.array([0, 1, 2, 3], np.uint8).reshape(1, 2, 2, 1)
    x = 4 * np.arange(num + num_test, dtype=np.uint8)[:, None, None, None] + pixels
    y = np.arange(num + num_test) % 2
    return {"x": x[:num], "y": y[:num], "x_test": x[num:], "y_test": y[num:]}


TURNED = ([0, 1, 2, 3], [1, 3, 0, 2], [3, 2, 1, 0], [2, 0, 3, 1])  # to the left


@pytest.mark.parametrize("test_split", ["partition", "overlap", "within"])
def test_rotation_turns_all_samples_of_a_client(test_split):
    arrays = numbered(40)
    if test_split == "within":
        arrays = {key: arrays[key] for key in ("x", "y")}
    arrays |= {"num_clients": 5, "test_split": test_split, "val_fraction": 0.25}
    fed = federated.from_arrays(**arrays, feature_shift="rotation")
    plain = federated.from_arrays(**arrays)
    assert fed.x.dtype == np.uint8
    for split in ("train", "val", "test"):
        x, y = (fed.x_test, fed.y_test) if split == "test" else (fed.x, fed.y)
        whole = plain.x_test if split == "test" else plain.x
        tables, old = getattr(fed, split), getattr(plain, split)
        assert tables.size.tolist() == old.size.tolist()
        for client in range(5):
            rows = tables.index[client, : tables.size[client]]
            images, labels = x[rows].reshape(-1, 4), y[rows]
            before = whole[old.index[client, : old.size[client]]]
            np.testing.assert_array_equal(
                images, before.reshape(-1, 4)[:, TURNED[client % 4]]
            )
            # The sample's number is in its pixels, and its label with it.
            assert (images.min(1) // 4 % 2 == labels).all()


def test_a_sample_of_two_clients_becomes_two_and_one_of_none_goes():
    parts = [[0, 1], [1, 2]]
    fed = federated.from_arrays(
        **numbered(4), partition=parts, feature_shift="rotation"
    )
    assert fed.x[:, 0, 0, 0].tolist() == [0, 4, 5, 9]  # the last two are turned
    assert fed.y.tolist() == [0, 1, 1, 0]
    assert fed.train.index.tolist() == [[0, 1], [2, 3]]


def test_contrast_by_hand():
    strength = Shift("contrast", 0.8, 3).strength_of(2)
    assert 0 < strength < 0.8
    # The mean is that of an image and a channel: the second ones are even.
    x = np.full((2, 2, 2, 2), 7, np.uint8)
    x[0, :, :, 0] = [[0, 100], [100, 200]]
    shifted = Shift("contrast", 0.8, 3).of(x, 2)
    low, high = (round(100 + sign * 100 * (1 - strength)) for sign in (-1, 1))
    assert shifted.dtype == np.uint8
    assert shifted[0, :, :, 0].tolist() == [[low, 100], [100, high]]
    assert (shifted[1] == 7).all() and (shifted[0, :, :, 1] == 7).all()


def test_strengths_are_spread_evenly_over_clients():
    found = [Shift("blur", 0.6, 0).strength_of(client) for client in range(300)]
    counts, _ = np.histogram(found, 3, (0, 0.6))
    assert counts.sum() == 300 and counts.min() > 70  # of 100, 3.7 deviations below


def test_blur_spreads_a_point_as_a_gaussian_and_not_into_other_images_or_channels():
    x = np.zeros((2, 21, 21, 2), np.float32)
    x[0, 10, 10, 1] = 1
    shift = Shift("blur", 1.0, 0)
    deviation = 2 * shift.strength_of(0)
    shifted = shift.of(x, 0)
    weights = np.exp(-0.5 * (np.arange(-10, 11) / deviation) ** 2)
    weights /= weights.sum()
    np.testing.assert_allclose(
        shifted[0, :, :, 1], np.outer(weights, weights), atol=1e-4
    )
    assert not shifted[1].any() and not shifted[0, :, :, 0].any()


def test_noise_has_the_clients_deviation_and_differs_by_split():
    x, shift = np.full((50, 16, 16, 1), 0.5, np.float32), Shift("noise", 0.5, 0)
    for client in (0, 7):
        train, test = shift.of(x, client), shift.of(x, client, 1)
        assert np.std(train - x) == pytest.approx(shift.strength_of(client), rel=0.03)
        assert abs(np.mean(train - x)) < 0.02
        assert np.corrcoef(train.ravel(), test.ravel())[0, 1] < 0.05
        np.testing.assert_array_equal(train, shift.of(x, client))


def test_noise_on_integers_is_clipped_and_does_not_wrap_around():
    x = np.repeat(np.array([0, 255], np.uint8), 200).reshape(2, 20, 10, 1)
    shifted = Shift("noise", 0.2, 0).of(x, 1).astype(int)
    assert shifted[0].max() < 255 / 2 < shifted[1].min()
    assert (shifted[0] == 0).mean() == pytest.approx(0.5, abs=0.15)


def test_corruption_takes_turns():
    x = np.random.default_rng(0).random((3, 8, 8, 1), np.float32)
    shift = Shift("corruption", 0.5, 0)
    for client, name in enumerate(["noise", "contrast", "blur", "noise"]):
        expected = shift._replace(name=name).of(x, client)
        np.testing.assert_array_equal(shift.of(x, client), expected)
    others = [Shift("corruption", 0.5, seed).strength_of(1) for seed in range(3)]
    assert len(set(others)) == 3


def test_a_configuration_sets_the_shift_of_any_partition():
    def built(**shift):
        config = defaults.default_config()
        config.partition, config.num_clients = {"name": "quantity", **shift}, 4
        return build.build_data(defaults.complete(config))

    shifted, plain = built(feature_shift="rotation"), built()
    for client in range(4):
        one, other = (d.x[d.train.index[client, 0]] for d in (shifted, plain))
        np.testing.assert_array_equal(one, np.rot90(other, client))


@pytest.mark.parametrize(
    "shift, kwargs, message",
    [
        ("rotate", {}, "did you mean 'rotation'"),
        ("blur", {"shift_strength": 0.0}, "shift_strength=0.0"),
        ("rotation", {"shift_strength": 0.5}, "has no effect here: feature_shift='rot"),
        ("blur", {"test_split": "pooled"}, "test_split='pooled'"),
        ("blur", {"x": np.ones((40, 4))}, r"needs images.*\(4,\)"),
        ("rotation", {"x": np.ones((40, 2, 3, 1))}, r"needs square im.*\(2, 3, 1\)"),
    ],
)
def test_bad_arguments_are_named(shift, kwargs, message):
    arrays = numbered(40) | {"num_clients": 4, "feature_shift": shift} | kwargs
    if "x" in kwargs:
        del arrays["x_test"], arrays["y_test"]
    with pytest.raises(ValueError, match=message) as caught:
        federated.from_arrays(**arrays)
    assert "\n" not in str(caught.value)
