"""Static batch normalisation: statistics are computed before an evaluation.

Training normalises a batch by its own statistics and keeps no running ones, so clients
of different widths never have to average them. A deployed model gets its statistics
from a pass over the pooled training samples.

Source: Diao et al., HeteroFL, ICLR 2021, https://arxiv.org/abs/2010.01264.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.types import Key, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.norm import is_static
from sparsefl_jax.simulation import exchange
from sparsefl_jax.sparsity import masks
from sparsefl_jax.system import processes


def make_recalibration(
    model: Model,
    x: np.ndarray,
    *,
    batch_size: int = 250,
    devices: Sequence | None = None,
) -> Callable[[Key, SparseModel], SparseModel]:
    """Compiles what averages the static statistics of a model over batches of samples.

    Each of m batches takes every m-th sample, so that sorted samples do no harm. All
    batches have the same weight and pass as in training, with augmentation and dropout.

    Args:
      model: a `Model`.
      x: [n, ...], the pooled training samples, raw as the model reads them.
      batch_size: the largest number of samples in a batch.
      devices: the devices that share the batches; None for all.

    Returns:
      `recalibrated(key, sparse) -> sparse`, the model with new static statistics;
      running ones do not change. The key is that of augmentation and dropout, and
      entries outside the mask count as exact zeros.

    Example:
      >>> from sparsefl_jax.models import Model
      >>> def apply(params, stats, x, *, train, weight=None, key=None):
      ...     return x, {'batch_mean': jnp.sum(x * weight) / jnp.sum(weight)}
      >>> blank = SparseModel({}, {}, {'batch_mean': jnp.float32(0)})
      >>> model = Model(None, apply, {}, static_stats=True)
      >>> x = np.arange(5, dtype=np.float32)
      >>> new = make_recalibration(model, x, batch_size=3)(jax.random.key(0), blank)
      >>> new.stats['batch_mean'].item()  # of 0, 2, 4 and of 1, 3
      2.0
    """
    devices = list(devices or jax.devices())
    mesh = Mesh(np.array(devices), ("batches",))
    x = processes.put(x, NamedSharding(mesh, P()))

    def on_device(key, sparse, x, place):
        out = _sums(key, model, batch_size, len(devices), sparse, x, place[0])
        return jax.tree.map(lambda v: v[None], out)

    in_specs = P(), P(), P(), P("batches")
    dealt = exchange.per_device(on_device, mesh, in_specs, P("batches"))

    @jax.jit
    def renewed(key, sparse, x):
        sums = dealt(key, sparse, x, jnp.arange(len(devices), dtype=jnp.int32))
        total, count = jax.tree.map(lambda v: jnp.sum(v, 0), sums)
        stats = jax.tree.map(
            lambda static, new, old: new / count if static else old,
            is_static(sparse.stats),
            total,
            sparse.stats,
        )
        return sparse._replace(stats=stats)

    def recalibrated(key, sparse):
        return renewed(key, processes.put(sparse, NamedSharding(mesh, P())), x)

    return recalibrated


def _sums(key, model, batch_size: int, stride: int, sparse, x, place):
    """Sums the statistics over every `stride`-th batch, beginning with `place`."""
    num_batches = -(-x.shape[0] // batch_size)
    params = masks.apply(sparse.params, sparse.mask)
    column = num_batches * jnp.arange(batch_size, dtype=jnp.int32)

    def batch(i, sums):
        index = place + i * stride
        exists = index < num_batches
        rows = index + column
        weight = ((rows < x.shape[0]) & exists).astype(jnp.float32)
        samples = x[jnp.minimum(rows, x.shape[0] - 1)]
        batch_key = jax.random.fold_in(key, index)
        _, stats = model.apply(
            params, sparse.stats, samples, train=True, weight=weight, key=batch_key
        )
        new = jax.tree.map(jnp.add, sums, (stats, jnp.float32(1)))
        return jax.tree.map(partial(jnp.where, exists), new, sums)

    zeros = jax.tree.map(jnp.zeros_like, sparse.stats), jnp.float32(0)
    return lax.fori_loop(0, -(-num_batches // stride), batch, zeros)
