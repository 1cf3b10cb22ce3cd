"""One client's batches for one round: its rows, in a new order for every epoch.

This is pure JAX with static shapes. A client has M rows, of which the first `size` are
valid. Valid samples come first in every epoch, so the steps that hold padding alone
come last. With `local_steps`, so many steps of as many epochs as they need are one
epoch of the round.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import AnyArray, Array, Batches, Key


def steps_per_epoch(size: Any, batch_size: int, drop_last: bool = False) -> Any:
    """Counts the steps that a client's samples fill.

    Args:
      size: the number of samples, an integer or an integer array of NumPy or JAX.
      batch_size: B.
      drop_last: leave a partial batch out, unless it is the client's only one.

    Returns:
      The number of steps, of the type and shape of `size`.

    Example:
      >>> steps_per_epoch(70, 32), steps_per_epoch(70, 32, True)
      (3, 2)
      >>> steps_per_epoch(jnp.array([0, 5, 64], jnp.int32), 32, True).tolist()
      [0, 1, 2]
    """
    if not drop_last:
        return -(-size // batch_size)
    # A partial batch counts only where there is no full one.
    only_partial = (size > 0) & (size < batch_size)
    return size // batch_size + only_partial


def steps_per_pass(stage: Stage, size: Any) -> Any:
    """Counts a client's steps in an epoch, or its `local_steps`; 0 without samples.

    Arguments and result are those of `steps_per_epoch`; the stage has the others.

    Example:
      >>> steps_per_pass(Stage(None, 1, 1, batch_size=32), 70)
      3
      >>> steps_per_pass(Stage(None, 1, 1, local_steps=10), np.array([0, 70])).tolist()
      [0, 10]
    """
    if stage.local_steps is None:
        return steps_per_epoch(size, stage.batch_size, stage.drop_last)
    return stage.local_steps * (size > 0)


def samples_per_round(stage: Stage, sizes: np.ndarray) -> np.ndarray:
    """Counts the samples that clients train on in a round, each as often as it is seen.

    Of epochs, samples that `drop_last` leaves out count too.

    Args:
      stage: of the run.
      sizes: [N], the clients' training samples.

    Returns:
      [N] int64.

    Example:
      >>> stage = Stage(None, 1, 1, batch_size=4, local_steps=5)
      >>> samples_per_round(stage, np.array([3, 10])).tolist()  # 5 x 3; 10 + 4 + 4
      [15, 18]
    """
    sizes = np.asarray(sizes, np.int64)
    if stage.local_steps is None:
        return stage.epochs * sizes
    steps = np.maximum(steps_per_epoch(sizes, stage.batch_size, stage.drop_last), 1)
    epochs, rest = np.divmod(stage.local_steps, steps)
    used = np.minimum(sizes, steps * stage.batch_size)
    return epochs * used + rest * stage.batch_size


def batches(
    key: Key,
    x: Array,
    y: Array,
    index: Array,
    size: Array,
    *,
    stage: Stage,
    num_steps: AnyArray,
) -> Batches:
    """Gathers a client's rows and shuffles them once for each epoch.

    Args:
      key: the key of this client and round.
      x: [n, ...], all training samples.
      y: [n] int32, all labels.
      index: [M] int32, the client's rows of x; entries from `size` on are padding.
      size: shape=(), int32, the number of valid entries of `index`.
      stage: has E `epochs`, the `batch_size` B, and `drop_last`, as `steps_per_epoch`,
        or `local_steps`.
      num_steps: shape=(), int32, the steps to run per epoch. Clients that run together
        share it; it is at least the client's own `steps_per_pass`.

    Returns:
      `Batches` with S = steps_per_epoch(M, B, drop_last), or S = local_steps and E = 1.
      Padding has weight 0 and points to row 0.

    Example:
      >>> x, y = jnp.arange(9, dtype=jnp.float32), jnp.arange(9, dtype=jnp.int32)
      >>> stage = Stage(None, 1, 1, epochs=1, batch_size=2)
      >>> out = batches(jax.random.key(0), x, y, y[:5], jnp.int32(3), stage=stage,
      ...               num_steps=jnp.int32(2))
      >>> out.order.shape, out.weight.ravel().tolist()
      ((1, 3, 2), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    """
    epochs, batch_size, drop_last = stage.epochs, stage.batch_size, stage.drop_last
    capacity = index.shape[0]
    num_slots = int(steps_per_epoch(capacity, batch_size, drop_last)) * batch_size
    used = size
    if drop_last:
        used = jnp.minimum(size, steps_per_epoch(size, batch_size, True) * batch_size)

    def epoch_order(key):
        draws = jax.random.bits(key, (capacity,), jnp.uint32) >> 1
        valid = jnp.arange(capacity, dtype=jnp.int32) < size
        # The top bit sends padding behind all valid rows in the same sort.
        draws = jnp.where(valid, draws, jnp.uint32(1 << 31))
        rows = jnp.argsort(draws).astype(jnp.int32)[:num_slots]
        return jnp.pad(rows, (0, num_slots - rows.shape[0]))

    weight = jnp.arange(num_slots, dtype=jnp.int32) < used
    if stage.local_steps is None:
        order = jax.vmap(epoch_order)(jax.random.split(key, epochs))
    else:
        places = stage.local_steps * batch_size
        own = jnp.maximum(steps_per_epoch(size, batch_size, drop_last), 1) * batch_size

        def add_epoch(epoch, order):
            rows = epoch_order(jax.random.fold_in(key, epoch))
            return jax.lax.dynamic_update_slice(order, rows, (epoch * own,))

        order = jnp.zeros(places + num_slots, jnp.int32)  # room for a whole last epoch
        order = jax.lax.fori_loop(0, -(-places // own), add_epoch, order)[None, :places]
        weight = weight[jnp.arange(places, dtype=jnp.int32) % own]
    order = jnp.where(weight, order, 0).reshape(epochs, -1, batch_size)
    weight = weight.astype(jnp.float32).reshape(1, -1, batch_size)
    weight = jnp.broadcast_to(weight, order.shape)
    return Batches(x[index], y[index], order, weight, num_steps)
