"""Quantised values: their error, constants, and the grid of each leaf."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.sparsity import quantization

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def back(values, bits=8):
    codes, grid = quantization.quantize(jnp.asarray(values, jnp.float32), bits)
    assert codes.dtype == jnp.uint8 and grid.zero.dtype == jnp.int32
    return np.asarray(quantization.dequantize(codes, grid)), codes, grid


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 8),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
    st.sampled_from([-3.0, -1.0, 0.0, 0.3, 2.0]),
    st.integers(0, 2**31),
)
def test_no_value_is_off_by_more_than_half_a_step(bits, size, shift, seed):
    rng = np.random.default_rng(seed)
    values = size * (rng.normal(size=40) + shift).astype(np.float32)
    values[0] = 0.0
    found, codes, grid = back(values, bits)
    assert found[0] == 0.0 and int(codes.max()) < 2**bits
    ends = max(values.max(), 0) - min(values.min(), 0)
    assert float(grid.scale) == pytest.approx(ends / (2**bits - 1), rel=1e-5)
    # A few ulp of the largest value beside the half step.
    slack = 1e-5 * float(grid.scale) + 1e-6 * np.abs(values).max()
    assert np.abs(found - values).max() <= float(grid.scale) / 2 + slack


def test_each_leaf_has_its_own_grid_and_none_need_have_entries():
    tree = {"a": jnp.array([3.0, -1.0]), "b": jnp.full((3,), 100.0), "c": jnp.zeros(0)}
    codes, grid = jax.jit(quantization.quantize)(tree)
    assert float(grid.scale["b"]) == pytest.approx(100 / 255)
    assert grid.zero == {"a": 64, "b": 0, "c": 0} and codes["b"].tolist() == [255] * 3
    found = quantization.dequantize(codes, grid)
    assert found["c"].shape == (0,)
    np.testing.assert_allclose(found["b"], 100, rtol=1e-6)
    zeros, _, grid = back(np.zeros(2))
    assert not zeros.any() and grid.scale == 0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_diverged_tensor_shows(wrong):
    assert np.isnan(back([1.0, wrong, 2.0])[0]).all()
