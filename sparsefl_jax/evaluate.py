"""Accuracy of deployed models: on the pooled test set and on every client's share.

A global model is evaluated in one pass over the pooled test set; what single clients
see of it are sums over the rows of that pass.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.sparsity import masks
from sparsefl_jax.types import SparseModel


def make_evaluator(model, x, y, *, batch_size: int = 250, devices=None) -> Callable:
    """Prepares the evaluation of sparse models on a test set.

    Args:
      model: a `Model`.
      x: test samples [n, ...].
      y: labels [n] int32.
      batch_size: samples that one device holds at a time.
      devices: devices over which the samples are spread; None: all.

    Returns:
      `evaluate(sparse_model) -> (correct [n] bool, loss [n] float32)`, NumPy arrays,
      the loss in nats. Entries outside the model's mask are taken as exact zeros.
    """
    mesh = Mesh(np.array(devices or jax.devices()), ("samples",))
    count = len(y)
    batch_size = min(batch_size, -(-count // mesh.size))
    padding = -count % (batch_size * mesh.size)

    def cut(v):
        v = np.concatenate([v, np.repeat(v[:1], padding, 0)])
        v = v.reshape(mesh.size, -1, batch_size, *v.shape[1:])
        return jax.device_put(v, NamedSharding(mesh, P("samples")))

    x, y = cut(np.asarray(x)), cut(np.asarray(y, np.int32))

    def one_device(params, stats, x, y):
        def batch(xy):
            logits, _ = model.apply(params, stats, xy[0], train=False)
            loss = optax.losses.softmax_cross_entropy_with_integer_labels(logits, xy[1])
            return jnp.argmax(logits, -1) == xy[1], loss

        return jax.tree.map(lambda v: v[None], lax.map(batch, (x[0], y[0])))

    sharded = jax.shard_map(
        one_device,
        mesh=mesh,
        in_specs=(P(), P(), P("samples"), P("samples")),
        out_specs=P("samples"),
        check_vma=False,
    )

    @jax.jit
    def run(sparse: SparseModel, x, y):
        return sharded(masks.apply(sparse.params, sparse.mask), sparse.stats, x, y)

    def evaluate(sparse: SparseModel):
        sparse = jax.device_put(sparse, NamedSharding(mesh, P()))
        return tuple(np.asarray(v).reshape(-1)[:count] for v in run(sparse, x, y))

    return evaluate


def make_evaluation(model, data, devices=None) -> Callable:
    """Prepares the evaluation of what a server deploys.

    Args:
      model: a `Model`.
      data: a `FederatedData`.
      devices: as in `make_evaluator`.

    Returns:
      `evaluation(models) -> dict`, the fields of an evaluation in `metrics.jsonl`:
      every model on the pooled test set, the first also by client and, where there is
      a validation split, pooled over that.
    """
    tested = make_evaluator(model, data.x_test, data.y_test, devices=devices)
    index, size = data.val
    rows = index[np.arange(index.shape[1]) < size[:, None]]
    validated = None
    if rows.size:
        validated = make_evaluator(model, data.x[rows], data.y[rows], devices=devices)

    def evaluation(models: dict[str, SparseModel]) -> dict:
        results = {name: tested(sparse) for name, sparse in models.items()}
        (headline, _), *_ = results.values()
        told = {}
        for name, sparse in models.items():
            everything = jax.tree.map(lambda _: True, sparse.mask)
            density = float(masks.density(sparse.mask, everything))
            told[name] = pooled(*results[name]) | {"density": density}
        record = {
            "models": told,
            "accuracy": next(iter(told.values()))["accuracy"],
            "client_accuracy": by_client(headline, *data.test),
        }
        if validated is not None:
            first = next(iter(models.values()))
            record["val_accuracy"] = pooled(*validated(first))["accuracy"]
        return record

    return evaluation


def pooled(correct: np.ndarray, loss: np.ndarray) -> dict:
    """Accuracy (share) and loss (nats per sample) over all samples.

    Example:
      >>> pooled(np.array([True, False]), np.array([1.0, 3.0]))
      {'accuracy': 0.5, 'loss': 2.0}
    """
    return {"accuracy": float(np.mean(correct)), "loss": float(np.mean(loss))}


def by_client(correct: np.ndarray, index: np.ndarray, size: np.ndarray) -> dict:
    """Accuracy over clients, each on its own rows of the test set.

    Args:
      correct: [n] bool.
      index: [N, M] int32, rows of `correct`, padded.
      size: [N] int32, valid rows; clients with none are left out.

    Returns:
      `mean`, `p10` (the worst tenth lies below), `median`; {} where nobody has samples.

    Example:
      >>> by_client(np.array([True, False]), np.array([[0], [1]]), np.array([1, 1]))
      {'mean': 0.5, 'p10': 0.1, 'median': 0.5}
    """
    valid = np.arange(index.shape[1])[None] < size[:, None]
    hits = np.sum(correct[index] & valid, axis=1)[size > 0]
    if not hits.size:
        return {}
    share = hits / size[size > 0]
    percentiles = np.percentile(share, [10, 50])
    return {
        "mean": float(share.mean()),
        "p10": float(percentiles[0]),
        "median": float(percentiles[1]),
    }
