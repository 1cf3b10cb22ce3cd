"""Evaluates deployed models on the pooled test set and on every client's share of it.

A global model is evaluated in one pass over the pooled test set; the results of single
clients are sums over rows of that pass. For personal models see `personal`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.algorithm import Stage, target
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.data.federated import FederatedData, Rows
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.forms import fast
from sparsefl_jax.models.loss import per_sample
from sparsefl_jax.simulation import exchange, initial_state, observed_masks, personal
from sparsefl_jax.simulation.batch_statistics import make_recalibration
from sparsefl_jax.simulation.placement import client_info
from sparsefl_jax.sparsity import masks
from sparsefl_jax.system import processes


def make_evaluator(
    model: Model,
    x: np.ndarray,
    y: np.ndarray,
    *,
    batch_size: int = 250,
    devices: Sequence | None = None,
    shapes: SparseModel | None = None,
) -> Callable:
    """Compiles the evaluation of sparse models on a test set.

    Args:
      model: a `Model`.
      x: [n, ...], test samples.
      y: [n] or [n, T] int32, labels.
      batch_size: the largest number of samples that one device processes at a time.
      devices: the devices that share the samples; None for all.
      shapes: of the models to come, for which it compiles at once; None: at the first
        of them.

    Returns:
      `evaluate(sparse_model) -> (correct [n], loss [n])`, NumPy float32 arrays
      with the loss of `model.loss`. Entries outside the mask count as exact zeros.
    """
    mesh = Mesh(np.array(devices or jax.devices()), ("samples",))
    count = len(y)
    batch_size = min(batch_size, -(-count // mesh.size))
    padding = -count % (batch_size * mesh.size)

    def cut(v):
        v = np.concatenate([v, np.repeat(v[:1], padding, 0)])
        v = v.reshape(mesh.size, -1, batch_size, *v.shape[1:])
        return processes.put(v, NamedSharding(mesh, P("samples")))

    x, y = cut(np.asarray(x)), cut(np.asarray(y, np.int32))

    @fast
    def one_device(params, stats, x, y):
        def batch(xy):
            logits, _ = model.apply(params, stats, xy[0], train=False)
            return per_sample(model.loss, logits, xy[1])

        return jax.tree.map(lambda v: v[None], lax.map(batch, (x[0], y[0])))

    in_specs = P(), P(), P("samples"), P("samples")
    sharded = exchange.per_device(one_device, mesh, in_specs, P("samples"))

    @jax.jit
    def run(sparse: SparseModel, x, y):
        return sharded(masks.apply(sparse.params, sparse.mask), sparse.stats, x, y)

    replicated = NamedSharding(mesh, P())
    if shapes is not None:
        like = jax.tree.map(
            lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=replicated),
            shapes,
        )
        run.lower(like, x, y).compile()  # which a call finds

    def evaluate(sparse: SparseModel):
        sparse = processes.put(sparse, replicated)
        results = processes.fetch(run(sparse, x, y))
        return tuple(v.reshape(-1)[:count] for v in results)

    return evaluate


METRICS = ("auto", "pooled", "clients")  # the accuracy that counts as that of a run


class Samples(NamedTuple):
    """Samples to evaluate on, and every client's share of them."""

    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n] or [n, T] int32
    split: Rows


def make_evaluation(
    model: Model,
    data: FederatedData,
    *,
    budgets: np.ndarray | None = None,
    metric: str = "auto",
    devices: Sequence | None = None,
    groups: Mapping[str, np.ndarray] | None = None,
) -> Callable:
    """Prepares the evaluation of the models that methods deploy.

    Args:
      model: a `Model`.
      data: a `FederatedData`.
      budgets: [N], as `simulate.run` takes them.
      metric: 'pooled' for the server's models on all test samples; 'clients' for the
        unweighted mean over clients, each on its own test samples, of personal models
        if the method deploys them, and else of the server's; 'auto' for 'clients' if
        it deploys personal models, else 'pooled'.
      devices: as in `make_evaluator`.
      groups: ids of clients by the name of a tier, whose mean accuracy is reported.

    Returns:
      `for_stage(stage)`, which returns `evaluation(key, state, models, seen)`. `models`
      are those that the server deploys; `seen` are the ids of the clients that took
      part since the last call, or None for all. It returns the fields of an evaluation
      in `metrics.jsonl`, and the filters that are alive: [N, F] bool of the last
      personal model, or [1, F] of the server's at the target density.
    """
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    tested = np.flatnonzero(data.test.size > 0)
    groups = {k: np.isin(tested, ids) for k, ids in (groups or {}).items()}
    samples = {"test": Samples(data.x_test, data.y_test, data.test)}
    if data.val.size.any():
        samples["val"] = _validation(data)

    @functools.cache
    def evaluator(split):  # not before a stage needs it
        part, shapes = samples[split], initial_state.initial_shapes(model)
        return make_evaluator(model, part.x, part.y, devices=devices, shapes=shapes)

    alive = jax.jit(lambda mask: masks.counts(mask, masks.everything(mask)))
    filters = jax.jit(lambda mask: observed_masks.filters(mask, layers))
    renew = lambda key, sparse: sparse  # noqa: E731
    if model.static_stats:  # they come from the pooled training samples
        renew = make_recalibration(
            model, data.x[used_rows(data.train)], devices=devices
        )

    def of_server(key, models):
        results = {split: {} for split in samples}
        models = {name: renew(key, sparse) for name, sparse in models.items()}
        for split, part in samples.items():
            for name, sparse in models.items():
                correct, loss = evaluator(split)(sparse)
                clients = shares(correct, *part.split)
                accuracy = clients if metric == "clients" else correct.astype(float)
                parameters = np.asarray(alive(sparse.mask), np.int64).sum()
                size = sum(leaf.size for leaf in jax.tree.leaves(sparse.mask))
                results[split][name] = {
                    "clients": clients,
                    "accuracy": accuracy,
                    "loss": loss,
                    "density": np.float32(parameters) / np.float32(max(size, 1)),
                    "parameters": parameters,
                }
        return results, np.asarray(filters(target(models).mask))[None]

    def for_stage(stage):
        reported = resolved(metric, [stage])
        if reported == "pooled" or stage.algorithm.personalize is None:
            for split in samples:
                evaluator(split)  # compiles while the stage does
            return lambda key, state, models, seen=None: _record(
                reported, groups, *of_server(key, models)
            )
        rest = model, stage, client_info(data, budgets), layers, renew, devices
        judges = {
            split: personal.make_judge(part, functools.partial(evaluator, split), *rest)
            for split, part in samples.items()
        }

        def evaluation(key, state, models, seen=None):
            results = {split: {} for split in samples}
            for split, judge in judges.items():
                size = samples[split].split.size
                for name, judged in judge(key, state, seen).items():
                    active = judged.filters
                    clients = (judged.correct / np.maximum(size, 1))[size > 0]
                    results[split][name] = {
                        "clients": clients,
                        "accuracy": clients,
                        "loss": (judged.loss / np.maximum(size, 1))[size > 0],
                        "density": judged.density,
                        "layer_density": judged.layer_density,
                    }
            return _record(reported, groups, results, active)

        return evaluation

    return for_stage


def check_metric(
    metric: str, stages: Sequence[Stage], model: Model, data: FederatedData
) -> None:
    """Refuses a metric that the data cannot give.

    Raises:
      ValueError: the metric is unknown; clients have no test samples of their own; or
        clients keep models whose statistics have to come from all samples.
    """
    check("metric", metric, METRICS)
    kept = any(personal.kept(stage.algorithm, model) for stage in stages)
    if model.static_stats and kept and metric != "pooled":
        raise UserError("norm='static', expected another where clients keep models")
    if resolved(metric, stages) == "clients" and not data.test.size.any():
        raise UserError(f"{metric=} needs test samples of clients, see test_split")


def resolved(metric: str, stages: Sequence[Stage]) -> str:
    """Returns a run's metric; for 'auto', 'clients' if a stage has personal models.

    Evaluations of a stage without personal models still report 'pooled' with 'auto'.
    """
    if metric != "auto":
        return metric
    personal_models = any(stage.algorithm.personalize is not None for stage in stages)
    return "clients" if personal_models else "pooled"


def _validation(data) -> Samples:
    """Returns the held-out samples, client after client."""
    index, size = data.val
    rows = used_rows(data.val)
    first = np.cumsum(size) - size
    new_index = first[:, None] + np.arange(index.shape[1])
    split = Rows(np.minimum(new_index, len(rows) - 1).astype(np.int32), size)
    return Samples(data.x[rows], data.y[rows], split)


def used_rows(split: Rows) -> np.ndarray:
    """Returns the rows of all clients, client after client, [n] int32."""
    valid = np.arange(split.index.shape[1]) < split.size[:, None]
    return split.index[valid]


def _record(metric: str, groups: dict, results: dict, filters: np.ndarray):
    """Returns the fields of an evaluation, and the active filters."""
    models = {
        name: {k: float(np.mean(v)) for k, v in fields.items() if k != "clients"}
        for name, fields in results["test"].items()
    }
    headline, *_ = models
    clients = results["test"][headline]["clients"]
    record = {
        "models": models,
        "accuracy": models[headline]["accuracy"],
        "metric": metric,
        "client_accuracy": over_clients(clients),
    }
    tiers = {k: float(clients[own].mean()) for k, own in groups.items() if own.any()}
    if tiers:
        record["tier_accuracy"] = tiers
    if "val" in results:
        record["val_accuracy"] = float(np.mean(results["val"][headline]["accuracy"]))
    return record, filters


def shares(correct: np.ndarray, index: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns the share of correct rows of every client that has rows.

    Args:
      correct: [n], the share of each row's targets that are correct.
      index: [N, M] int32, rows of `correct`, padded.
      size: [N] int32, the number of valid rows; clients with none are left out.

    Example:
      >>> index, size = np.array([[0], [1]]), np.array([1, 1])
      >>> shares(np.array([True, False]), index, size).tolist()
      [1.0, 0.0]
    """
    valid = np.arange(index.shape[1])[None] < size[:, None]
    hits = np.sum(correct[index] * valid, axis=1, dtype=np.float64)[size > 0]
    return hits / size[size > 0]


def over_clients(share: np.ndarray) -> dict:
    """Returns `mean`, `p10` (the tenth percentile) and `median` of clients' shares.

    Without any share it returns {}.

    Example:
      >>> over_clients(np.array([1.0, 0.0]))
      {'mean': 0.5, 'p10': 0.1, 'median': 0.5}
    """
    if not share.size:
        return {}
    p10, median = np.percentile(share, [10, 50])
    return {"mean": float(share.mean()), "p10": float(p10), "median": float(median)}
