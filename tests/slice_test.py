"""Half of a small network's channels by hand: masks, scales, refusals."""

import jax.numpy as jnp
import pytest

from sparsefl_jax.sparsity import width


def network():
    """Returns two inputs, four normalised hidden channels and three classes."""
    return {
        "fc1": {"kernel": jnp.ones((2, 4)), "bias": jnp.ones(4)},
        "bn1": {"scale": jnp.ones(4), "bias": jnp.ones(4)},
        "fc2": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)},
    }


def test_a_slice_keeps_the_first_channels_and_every_input_and_class():
    mask = width.window(network(), 0.5)
    half = [True, True, False, False]
    assert mask["fc1"]["kernel"].tolist() == [half, half]
    assert mask["fc2"]["kernel"].tolist() == [[kept] * 3 for kept in half]
    for module, leaf in (("fc1", "bias"), ("bn1", "scale"), ("bn1", "bias")):
        assert mask[module][leaf].tolist() == half
    assert mask["fc2"]["bias"].all()


def test_the_scaler_divides_hidden_layers_alone():
    scaled = width.scale(network(), 0.25)
    assert (scaled["fc1"]["kernel"] == 4).all() and (scaled["fc1"]["bias"] == 4).all()
    for module in ("bn1", "fc2"):
        assert all((leaf == 1).all() for leaf in scaled[module].values())


def test_what_cannot_be_sliced_is_named():
    strange = network() | {"bn1": {"scale": jnp.ones(5)}}
    with pytest.raises(ValueError, match=r"'bn1/scale' of shape \(5,\), expected"):
        width.window(strange, 0.5)
    with pytest.raises(ValueError, match="there is no dense layer"):
        width.window({"bn1": {"scale": jnp.ones(4)}}, 0.5)
    with pytest.raises(ValueError, match=r"statistic 'mean' has shape \(2, 2\)"):
        width.window_of_stats({"mean": jnp.zeros((2, 2))}, 0.5)
