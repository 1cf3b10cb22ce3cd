"""Running statistics of normalisation, and those computed before an evaluation."""

import jax

from sparsefl_jax.core.types import PyTree

# Statistics of these names are those of one batch. They are never sent.
STATIC_NAMES = ("batch_mean", "batch_var")


def is_static(stats: PyTree) -> PyTree:
    """Marks the statistics that an evaluation computes first, a tree of Python bools.

    Example:
      >>> is_static({'bn1': {'batch_mean': 0}, 'bn2': {'mean': 0}})
      {'bn1': {'batch_mean': True}, 'bn2': {'mean': False}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in STATIC_NAMES, stats
    )
