"""Passes over samples that train nothing: results of models, and static statistics.

A model that clients have in common is evaluated in one pass over all samples; its
results of single clients are sums over rows of that pass. A client's own model is
evaluated on the client's samples alone.
"""

import collections
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import AnyArray, Array, Key, PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.forms import fast
from sparsefl_jax.models.layers import is_static
from sparsefl_jax.models.loss import per_sample
from sparsefl_jax.models.measure import MEASURES, Measure
from sparsefl_jax.simulation import exchange
from sparsefl_jax.simulation.rows import unpack
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.system import processes

_BATCH = 100  # samples of a client that its own model takes at a time


def make_evaluator(
    model: Model,
    x: np.ndarray,
    y: np.ndarray,
    *,
    logits: bool = False,
    devices: Sequence | None = None,
    shapes: SparseModel | None = None,
) -> Callable:
    """Compiles the evaluation of sparse models on a test set.

    A device processes at most 50 samples at a time on CPUs, whose caches hold so many,
    and 250 elsewhere.

    Args:
      model: a `Model`.
      x: [n, ...], test samples.
      y: [n] or [n, T] int32, labels, or those of another task.
      logits: whether to return the outputs of the network as well.
      devices: the devices that share the samples; None for all.
      shapes: of the models to come, for which it compiles at once; None: at the first
        of them.

    Returns:
      `evaluate(sparse_model) -> (correct [n], loss [n])`, NumPy float32 arrays
      with the loss of `model.loss`, and perhaps the logits [n, ...]. Entries outside
      the mask count as exact zeros.
    """
    mesh = Mesh(np.array(devices or jax.devices()), ("samples",))
    count = len(y)
    most = 50 if mesh.devices.flat[0].platform == "cpu" else 250
    batch_size = min(most, -(-count // mesh.size))
    shape = mesh.size, -(-count // (batch_size * mesh.size)), batch_size
    replicated, divided = (NamedSharding(mesh, P(*axis)) for axis in ((), ("samples",)))
    x, y = (  # the first samples again where the last batches have room
        processes.put(np.resize(v, (*shape, *v.shape[1:])), divided)
        for v in (np.asarray(x), np.asarray(y))
    )

    @fast
    def one_device(sparse: SparseModel, x, y):
        params = masks.apply(sparse.params, sparse.mask)

        def batch(xy):
            out, _ = model.apply(params, sparse.stats, xy[0], train=False)
            return *per_sample(model.loss, out, xy[1]), *[out] * logits

        return jax.tree.map(lambda v: v[None], lax.map(batch, (x[0], y[0])))

    in_specs = P(), P("samples"), P("samples")
    run = jax.jit(exchange.per_device(one_device, mesh, in_specs, P("samples")))
    if shapes is not None:
        placed = partial(jax.ShapeDtypeStruct, sharding=replicated)
        like = jax.tree.map(lambda v: placed(v.shape, v.dtype), shapes)
        run.lower(like, x, y).compile()  # which a call finds

    def evaluate(sparse: SparseModel):
        sparse = processes.put(sparse, replicated)
        results = processes.fetch(run(sparse, x, y))
        return tuple(v.reshape(-1, *v.shape[3:])[:count] for v in results)

    return evaluate


class Judged(NamedTuple):
    """The evaluation of one client's model, or of n clients with a leading axis."""

    sums: dict[str, AnyArray]  # float32: `correct`, summed, and those of the measure
    loss: AnyArray  # shape=(), float32, nats, summed over the client's samples
    density: AnyArray  # shape=(), float32, share of all entries that are alive
    layer_density: AnyArray  # shape=(), float32, unweighted mean over the layers


def describe(mask: PyTree, layers: PyTree) -> tuple[Array, Array]:
    """Returns the density and the layer density of a `Judged`."""
    density = masks.density(mask, masks.select_all(mask))
    layer_density = jnp.mean(masks.layer_densities(mask, layers))
    return density, layer_density


@partial(jax.jit, static_argnums=0)
def sum_rows(
    measure: Measure, logits: Array, y: Array, index: Array, size: Array
) -> dict[str, Array]:
    """Returns the sums of a measure over rows of samples, with a leading axis [N].

    Args:
      measure: the measure.
      logits, y: [n, ...], of all samples.
      index: [N, M] int32, rows of these, padded.
      size: [N] int32, the number of valid rows.

    Example:
      >>> given = jnp.array([[1.0], [4.0]]), jnp.zeros(2)
      >>> rows = jnp.array([[0, 1], [1, 0]]), jnp.array([2, 1])
      >>> sum_rows(MEASURES["mae"], *given, *rows)["absolute"].tolist()
      [5.0, 4.0]
    """

    def one(rows):
        index, size = rows
        valid = jnp.arange(index.shape[0], dtype=jnp.int32) < size
        return measure(logits[index], y[index], valid.astype(jnp.float32))

    return lax.map(one, (index, size))


def make_own_evaluator(
    model: Model,
    algorithm: Algorithm,
    layers: PyTree,
    mesh: Mesh,
    measure: Measure = MEASURES["accuracy"],
) -> Callable:
    """Returns the program that evaluates clients' own models.

    Returns:
      `evaluate(key, server, (x, y), clients)`, which returns a `Judged` by the name of
      a model. `clients` holds rows as the store keeps them, `ClientInfo`, and the index
      and size of the samples, of a multiple of the devices.
    """

    def judged(sparse, samples, split) -> Judged:
        (x, y), (index, size) = samples, split
        params = masks.apply(sparse.params, sparse.mask)
        padded = jnp.pad(index, (0, -index.shape[0] % _BATCH))

        def batch(i):
            rows = lax.dynamic_slice_in_dim(padded, i * _BATCH, _BATCH)
            logits, _ = model.apply(params, sparse.stats, x[rows], train=False)
            found = per_sample(model.loss, logits, y[rows])
            valid = i * _BATCH + jnp.arange(_BATCH, dtype=jnp.int32) < size
            correct, loss = (jnp.sum(jnp.where(valid, v, 0.0)) for v in found)
            own = measure(logits, y[rows], valid.astype(jnp.float32))
            return {"correct": correct} | own, loss

        zeros = optax.tree.zeros_like(jax.eval_shape(batch, 0))
        add = lambda i, sums: jax.tree.map(jnp.add, sums, batch(i))  # noqa: E731
        sums, loss = lax.fori_loop(0, -(-size // _BATCH), add, zeros)
        return Judged(sums, loss, *describe(sparse.mask, layers))

    @fast
    def on_device(key, server, samples, clients):
        one_info = trees.rows(clients[1], 0)
        like = jax.eval_shape(algorithm.first_state, key, server, one_info)

        def judge(client):
            row, info, split = client
            own_key = keys.of_client(key, info.index)
            models = algorithm.personalize(own_key, server, unpack(row, like), info)
            return collections.OrderedDict(  # a dict leaves JAX in the order of names
                (name, judged(sparse, samples, split))
                for name, sparse in models.items()
            )

        if mesh.devices.flat[0].platform == "cpu":  # one at a time, as in training
            return lax.map(judge, clients)
        return jax.vmap(judge)(clients)

    in_specs = P(), P(), P(), P("clients")
    return jax.jit(exchange.per_device(on_device, mesh, in_specs, P("clients")))


def make_recalibration(
    model: Model,
    x: np.ndarray,
    *,
    batch_size: int = 250,
    devices: Sequence | None = None,
) -> Callable[[Key, SparseModel], SparseModel]:
    """Compiles what averages the static statistics of a model over batches of samples.

    With static normalisation, training normalises a batch by its own statistics and
    keeps no running ones, so clients of different widths never have to average them. A
    deployed model gets its statistics from a pass over the pooled training samples
    (Diao et al., HeteroFL, ICLR 2021, https://arxiv.org/abs/2010.01264).

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
    mesh = Mesh(np.array(devices or jax.devices()), ("batches",))
    everywhere = NamedSharding(mesh, P())
    x = processes.put(x, everywhere)
    num_batches = -(-x.shape[0] // batch_size)
    column = num_batches * np.arange(batch_size, dtype=np.int32)

    def on_device(key, sparse, x, place):
        """Sums the statistics over every D-th batch, beginning with `place`."""
        params = masks.apply(sparse.params, sparse.mask)

        def batch(i, sums):
            index = place[0] + i * mesh.size
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
        sums = lax.fori_loop(0, -(-num_batches // mesh.size), batch, zeros)
        return jax.tree.map(lambda v: v[None], sums)

    in_specs = P(), P(), P(), P("batches")
    dealt = exchange.per_device(on_device, mesh, in_specs, P("batches"))

    @jax.jit
    def renewed(key, sparse, x):
        sums = dealt(key, sparse, x, jnp.arange(mesh.size, dtype=jnp.int32))
        total, count = jax.tree.map(lambda v: jnp.sum(v, 0), sums)
        static, old = is_static(sparse.stats), sparse.stats
        stats = jax.tree.map(lambda s, t, v: t / count if s else v, static, total, old)
        return sparse._replace(stats=stats)

    return lambda key, sparse: renewed(key, processes.put(sparse, everywhere), x)
