"""Statistics of normalisation: which run along, which are made before an evaluation."""

import jax

from sparsefl_jax.core.types import PyTree

# A statistic of one of these names is that of a batch, and never sent.
STATIC_NAMES = ("batch_mean", "batch_var")


def is_static(stats: PyTree) -> PyTree:
    """Tells which statistics are made before an evaluation; a tree of Python bools.

    Example:
      >>> is_static({'bn1': {'batch_mean': 0}, 'bn2': {'mean': 0}})
      {'bn1': {'batch_mean': True}, 'bn2': {'mean': False}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in STATIC_NAMES, stats
    )
