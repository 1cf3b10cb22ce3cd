"""What tests of networks share: draws, quick compilation, and sizes."""

from functools import partial

import jax
import numpy as np
import pytest

# Programs here run once or twice, so compiling is all the time there is.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def normal(seed, *shape):
    """Draws by NumPy, which compiles nothing."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mostly_slow(names, quick):
    """Returns the mark of a test of these names, which is quick for some of them."""
    slow = pytest.mark.slow
    rows = [n if n in quick else pytest.param(n, marks=slow) for n in names]
    return pytest.mark.parametrize("name", rows)


def num_entries(tree):
    return sum(v.size for v in jax.tree.leaves(tree))
