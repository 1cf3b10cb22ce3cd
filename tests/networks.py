"""What tests of networks share: draws, quick compilation, and sizes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# Programs here run once or twice, so compiling is all the time there is.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def normal(seed, *shape):
    """Draws by NumPy, which compiles nothing."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mostly_slow(names, quick, argument="name"):
    """Returns the mark of a test of these names, which is quick for some of them."""
    slow = pytest.mark.slow
    rows = [n if n in quick else pytest.param(n, marks=slow) for n in names]
    return pytest.mark.parametrize(argument, rows)


def gradients(model, params, stats, x, **options):
    """Returns the gradients of the sum of the logits' squares by parameters and x."""

    def loss(params, x):
        logits, _ = model.apply(params, stats, x, train=True, **options)
        return jnp.sum(logits**2)

    return jax.device_get(quick_jit(jax.grad(loss, (0, 1)))(params, x))


def same(a, b) -> bool:
    """Returns whether two trees are the same bit for bit."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(*(map(np.asarray, jax.tree.leaves(m)) for m in (a, b)), strict=True)
    return all(
        (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        for x, y in pairs
    )


def num_entries(tree):
    return sum(v.size for v in jax.tree.leaves(tree))
