"""Judges the models that methods deploy: the server's, and clients' own.

Models that clients have in common, the server's or those of a budget, are evaluated on
all samples, and a client's result is its share of them. Where a client's model is its
own, each is evaluated on the client's samples. If it does not depend on the server
(SpaFL, Local), only the clients that took part since the last evaluation are evaluated
again.
"""

import collections
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.types import ClientInfo, Context, PyTree
from sparsefl_jax.core.used_arguments import reads
from sparsefl_jax.data import flat
from sparsefl_jax.data.federated import FederatedData, Rows
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.measure import Measure, find
from sparsefl_jax.simulation import exchange, inference, initial_state, placement
from sparsefl_jax.simulation.inference import Judged
from sparsefl_jax.simulation.rows import Store
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.system import processes
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.charges import message_bits

METRICS = ("auto", "pooled", "clients")  # the accuracy that counts as that of a run
_BESIDE = "clients", "apart", "classes"  # results that are no mean


class Samples(NamedTuple):
    """Samples to evaluate on, and every client's share of them."""

    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n] or [n, T] int32
    split: Rows


class Exam(NamedTuple):
    """What all models of a run are judged on."""

    model: Model
    info: ClientInfo  # [N]
    layers: PyTree  # of Python bools: whose densities and filters are told
    samples: dict[str, Samples]  # by split: 'test' and perhaps 'val'
    measure: Measure
    evaluator: Callable  # of a split, from `make_evaluator`
    renew: Callable  # (key, sparse) -> sparse, with new static statistics
    devices: Sequence | None

    def common(self, key, models: dict) -> Iterator[tuple]:
        """Yields split, name, model, and what its evaluator found, of all samples."""
        for name, sparse in models.items():
            sparse = self.renew(key, sparse)
            for split in self.samples:
                yield split, name, sparse, self.evaluator(split)(sparse)

    def finish(self, sums: dict, size: np.ndarray) -> np.ndarray:
        """Returns the values of the clients [N] that have samples, from their sums."""
        sums = {k: np.asarray(v, np.float64) for k, v in sums.items()}
        sums = {k: v[size > 0] for k, v in (sums | {"count": size}).items()}
        return np.asarray(self.measure.finish(sums))


def make_evaluation(
    model: Model,
    data: FederatedData,
    *,
    budgets: np.ndarray | None = None,
    metric: str = "auto",
    measure: Measure | str | None = None,
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
      measure: what is reported, see `measure.find`.
      devices: as in `make_evaluator`.
      groups: ids of clients by the name of a tier, whose mean accuracy is reported.

    Returns:
      `for_stage(stage)`, which returns `evaluation(key, state, models, seen, round)`.
      `models` are those that the server deploys; `seen` are the ids of the clients that
      took part since the last call, or None for all; `round` is that of the stage. It
      returns the fields of an evaluation in `metrics.jsonl`.
    """
    tested = np.flatnonzero(data.test.size > 0)
    groups = {k: np.isin(tested, ids) for k, ids in (groups or {}).items()}
    unseen, measure = data.train.size == 0, find(measure, data.y)
    samples = {"test": Samples(data.x_test, data.y_test, data.test)}
    if data.val.size.any():
        samples["val"] = _validation(data)

    @functools.cache
    def evaluator(split):  # not before a stage needs it
        part, shapes = samples[split], initial_state.initial_shapes(model)
        given = {"logits": measure.sums is not None, "devices": devices}
        return inference.make_evaluator(model, part.x, part.y, shapes=shapes, **given)

    renew = lambda key, sparse: sparse  # noqa: E731
    if model.static_stats:  # they come from the pooled training samples
        pooled = data.x[data.train.gather()]
        renew = inference.make_recalibration(model, pooled, devices=devices)
    info = placement.client_info(data, budgets)
    exam = Exam(model, info, model.layers, samples, measure, evaluator, renew, devices)

    def for_stage(stage):
        reported = resolve_metric(metric, [stage])
        downlink, apart = None, {}
        if unseen.any():
            downlink = _downlink(exam, stage, unseen)
            apart = {"seen_accuracy": ~unseen, "unseen_accuracy": unseen}
        if reported == "pooled" or stage.algorithm.personalize is None:
            for split in samples:
                evaluator(split)  # compiles while the stage does
            judge = functools.partial(_of_server, exam, reported, apart)
        else:
            judge = _of_clients(exam, stage)

        def evaluation(key, state, models, seen=None, round=0):
            results = judge(key, state, models, seen)
            each = {name: ids[tested] for name, ids in apart.items()}
            record = _record(reported, groups, each, results)
            if downlink is not None:
                record["unseen_bits_down"] = downlink(key, state.server, round)
            return measure.record(record)

        return evaluation

    return for_stage


@jax.jit
def _count_alive(mask: PyTree) -> jax.Array:
    return masks.counts(mask, masks.select_all(mask))


def _of_server(
    exam: Exam, metric: str, apart: dict, key, state, models: dict, seen
) -> dict:
    """Judges the models of the server."""
    results = collections.defaultdict(dict)
    for split, name, sparse, found in exam.common(key, models):
        (_, y, rows), (correct, loss, *_) = exam.samples[split], found
        sums, together = over_rows(exam.measure, found, y, rows), {}
        clients = value = exam.finish(sums, rows.size)
        if metric == "pooled":
            for part, ids in apart.items():
                own, count = _sum_over(sums, ids), rows.size[ids].sum(keepdims=True)
                together[part] = exam.finish(own, count)
            rows = Rows(np.arange(len(y))[None], np.array([len(y)]))
            value = exam.finish(over_rows(exam.measure, found, y, rows), rows.size)
        parameters = np.asarray(_count_alive(sparse.mask), np.int64).sum()
        size = sum(leaf.size for leaf in jax.tree.leaves(sparse.mask))
        results[split][name] = {
            "clients": clients,
            "accuracy": value,
            "apart": together,
            "classes": by_class(correct, y),
            "loss": loss,
            "density": np.float32(parameters) / np.float32(max(size, 1)),
            "parameters": parameters,
        }
    return results


def _sum_over(sums: dict, ids: np.ndarray) -> dict:
    """Returns the sums over some clients, [1, ...]."""
    return {k: np.asarray(v)[ids].sum(0, float, keepdims=True) for k, v in sums.items()}


def _of_clients(exam: Exam, stage: Stage) -> Callable:
    """Returns what judges the personal models of a stage."""
    lasting, by_server = dependence(stage.algorithm, exam.model)
    by_budget = functools.partial(_by_budget, exam, stage.algorithm)
    enter = by_budget if by_server else _one_by_one(exam, stage)
    num_clients, known = len(exam.info.index), {}

    def blank(leaf):
        return np.zeros((num_clients, *leaf.shape[1:]), leaf.dtype)

    def judge(key, state, models, seen):
        again = lasting and known
        ids = np.arange(num_clients) if seen is None or not again else np.unique(seen)
        for split, name, judged, some in enter(key, state, ids):
            if (split, name) not in known:
                known[split, name] = jax.tree.map(blank, judged)
            pairs = map(jax.tree.leaves, (known[split, name], judged))
            for old, new in zip(*pairs, strict=True):
                old[some] = new[: len(some)]
        results = collections.defaultdict(dict)
        for (split, name), judged in known.items():
            size = exam.samples[split].split.size
            clients = exam.finish(judged.sums, size)
            results[split][name] = {
                "clients": clients,
                "accuracy": clients,
                "loss": (judged.loss / np.maximum(size, 1))[size > 0],
                "density": judged.density,
                "layer_density": judged.layer_density,
            }
        return results

    return judge


def _by_budget(exam: Exam, algorithm: Algorithm, key, state, ids) -> Iterator[tuple]:
    """Judges models that depend on the server and a budget, one pass per budget.

    Yields:
      Split, name, `Judged` and the ids of its clients.
    """
    for budget in np.unique(exam.info.budget):
        ids = np.flatnonzero(exam.info.budget == budget)
        info = trees.rows(exam.info, ids[0])
        client = algorithm.first_state(key, state.server, info)
        models = algorithm.personalize(key, state.server, client, info)
        for split, name, sparse, found in exam.common(key, models):
            _, y, rows = exam.samples[split]
            rows = Rows(*(v[ids] for v in rows))
            sums = over_rows(exam.measure, found, y, rows, np.float32)
            facts = inference.describe(sparse.mask, exam.layers)
            loss = sum_valid(found[1], *rows, np.float32)
            yield split, name, Judged(sums, loss, *(v[None] for v in facts)), ids


def _one_by_one(exam: Exam, stage: Stage) -> Callable:
    """Judges models of clients' own, each on the samples of its client."""
    devices = placement.stage_devices(stage, exam.devices)
    group = -(-stage.cohort_size // len(devices)) * len(devices)
    mesh = Mesh(np.array(devices), ("clients",))
    given = exam.model, stage.algorithm, exam.layers, mesh, exam.measure
    evaluate = inference.make_own_evaluator(*given)

    @jax.jit
    def read(rows, ids):
        """Reads the rows of clients on devices, among which they are divided."""
        way = exchange.routes(ids.reshape(mesh.size, -1), rows)
        divided = exchange.spec(rows, mesh.size), P()
        mapped = exchange.per_device(exchange.read, mesh, divided, P("clients"))
        return mapped(rows, way)

    placed = processes.put(
        {split: (flat.flat(part.x), part.y) for split, part in exam.samples.items()},
        NamedSharding(mesh, P()),
    )

    def entries(key, state, ids):
        """Yields split, name, `Judged` and the ids of its clients."""
        rows = state.clients
        take = rows.take if isinstance(rows, Store) else functools.partial(read, rows)
        for first in range(0, len(ids), group):
            members = ids[first : first + group]
            padded = np.resize(members, group)  # one shape, so one program
            kept = take(padded)
            for split, part in exam.samples.items():
                facts = trees.rows((exam.info, part.split), padded)
                judged = evaluate(key, state.server, placed[split], (kept, *facts))
                for name, one in processes.fetch(judged).items():
                    yield split, name, one, members

    return entries


def _downlink(exam: Exam, stage: Stage, unseen: np.ndarray) -> Callable:
    """Returns what counts the bits of a first downlink to every unseen client."""
    algorithm, frozen, layout = stage.algorithm, exam.model.frozen, {}

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, None, None, 0))
    def count(key, server, round, info):
        new = Context(round, jnp.int32(-1), info)
        down, *_ = keys.of_exchange(keys.of_client(key, info.index))
        received = packets.pack_once(
            algorithm.send_once(server), new.last_round, frozen
        )
        received |= algorithm.broadcast(down, new, server)
        layout.update(packets.layout(received))
        return packets.count(received)

    info = trees.rows(exam.info, unseen)

    def bits(key, server, round):
        counts = jax.device_get(count(key, server, jnp.int32(round), info))
        return int(message_bits(layout, counts).total.sum())

    return bits


def dependence(algorithm: Algorithm, model: Model) -> tuple[bool, bool]:
    """Returns whether models depend on the client alone, and on the server alone.

    The former stay as they are until the client takes part again; the latter are the
    same for all clients of a budget.
    """

    def make(key):
        server = algorithm.init(key, masks.dense(*model.init(key)))
        info = ClientInfo(jnp.int32(0), jnp.int32(1), jnp.float32(1))
        return key, server, algorithm.first_state(key, server, info), info

    shapes = jax.eval_shape(make, jax.random.key(0))
    program = jax.make_jaxpr(lambda *given: algorithm.personalize(*given))(*shapes)
    key, server, _, info = reads(program, shapes)
    own = jax.tree.leaves(shapes[2]) or info.index or info.num_examples
    return not (key or any(jax.tree.leaves(server))), not (key or own)


def check_metric(
    metric: str, stages: Sequence[Stage], model: Model, data: FederatedData
) -> None:
    """Refuses a metric that the data cannot give.

    Raises:
      ValueError: the metric is unknown; clients have no test samples of their own; or
        clients keep models whose statistics have to come from all samples.
    """
    check("metric", metric, METRICS)
    methods = [s.algorithm for s in stages if s.algorithm.personalize is not None]
    if (
        model.static_stats
        and metric != "pooled"
        and not all(dependence(method, model)[1] for method in methods)
    ):
        raise UserError("norm='static', expected another where clients keep models")
    if resolve_metric(metric, stages) == "clients" and not data.test.size.any():
        raise UserError(f"{metric=} needs test samples of clients, see test_split")


def resolve_metric(metric: str, stages: Sequence[Stage]) -> str:
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
    rows = data.val.gather()
    first = np.cumsum(size) - size
    new_index = first[:, None] + np.arange(index.shape[1])
    split = Rows(np.minimum(new_index, len(rows) - 1).astype(np.int32), size)
    return Samples(data.x[rows], data.y[rows], split)


def _record(metric: str, groups: dict, apart: dict, results: dict) -> dict:
    """Returns the fields of an evaluation."""
    models = {}
    for name, fields in results["test"].items():
        facts = {k: v for k, v in fields.items() if k not in _BESIDE}
        models[name] = {k: float(np.mean(v)) for k, v in facts.items()}
        each = {part: fields["clients"][ids] for part, ids in apart.items()}
        each |= {"accuracy": fields["accuracy"]} | fields.get("apart", {})
        models[name] |= {k: _mean(v) for k, v in each.items()}
    headline, *_ = models
    clients = results["test"][headline]["clients"]
    record = {
        "models": models,
        "accuracy": models[headline]["accuracy"],
        "metric": metric,
        "client_accuracy": over_clients(clients),
        **{part: models[headline][part] for part in apart},
    }
    if len(of_classes := results["test"][headline].get("classes", [])):
        record["accuracy_by_class"] = of_classes
    if tiers := {k: _mean(clients[own]) for k, own in groups.items() if own.any()}:
        record["tier_accuracy"] = tiers
    if "val" in results:
        record["val_accuracy"] = _mean(results["val"][headline]["accuracy"])
    return record


def _mean(values: np.ndarray) -> float:
    """Returns the mean of the values that are known; clients may lack a measure."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def over_rows(measure: Measure, found: Sequence, y, rows: Rows, dtype: type = float):
    """Returns `correct` and the sums of a measure over clients' rows, [N, ...].

    Args:
      measure: the measure.
      found: of all samples, as an evaluator returns it.
      y: [n, ...], their labels.
      rows: of N clients.
      dtype: in which `correct` is summed.
    """
    sums = {"correct": sum_valid(found[0], *rows, dtype)}
    return sums | (
        inference.sum_rows(measure, found[2], y, *rows) if measure.sums else {}
    )


def sum_valid(values: np.ndarray, index, size, dtype: type = float) -> np.ndarray:
    """Returns the sums of values over each client's rows, [N].

    Args:
      values: [n], of all samples.
      index: [N, M] int32, rows of `values`, padded.
      size: [N] int32, the number of valid rows.
      dtype: of the sums.

    Example:
      >>> index, size = np.array([[0, 1], [1, 1]]), np.array([1, 2])
      >>> sum_valid(np.array([1.0, 0.5]), index, size).tolist()
      [1.0, 1.0]
    """
    valid = np.arange(index.shape[1])[None] < size[:, None]
    return np.sum(values[index] * valid, axis=1, dtype=dtype)


def by_class(correct: np.ndarray, y: np.ndarray) -> list[float | None]:
    """Returns the accuracy of each class; None of one without samples.

    Without one class a sample it returns [].

    Example:
      >>> by_class(np.array([1.0, 0.0, 1.0]), np.array([0, 0, 2]))
      [0.5, None, 1.0]
    """
    if y.ndim > 1 or y.dtype.kind != "i":
        return []
    pairs = zip(np.bincount(y, correct).tolist(), np.bincount(y), strict=True)
    return [float(hits / count) if count else None for hits, count in pairs]


def over_clients(share: np.ndarray) -> dict:
    """Returns `mean`, `p10` (the tenth percentile) and `median` of clients' shares.

    Without any share it returns {}.

    Example:
      >>> over_clients(np.array([1.0, 0.0]))
      {'mean': 0.5, 'p10': 0.1, 'median': 0.5}
    """
    share = share[~np.isnan(share)]
    if not share.size:
        return {}
    p10, median = np.percentile(share, [10, 50])
    return {"mean": float(share.mean()), "p10": float(p10), "median": float(median)}
