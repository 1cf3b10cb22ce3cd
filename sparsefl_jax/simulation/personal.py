"""Evaluates personal models, each on the samples of its own client.

If a client's model does not depend on the server (SpaFL, Local), only the clients that
took part since the last evaluation are evaluated again.
"""

import collections
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.core.types import Array, ClientInfo, PyTree
from sparsefl_jax.core.used_arguments import reads
from sparsefl_jax.data import flat
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.forms import fast
from sparsefl_jax.models.loss import per_sample
from sparsefl_jax.simulation import exchange, observed_masks, placement
from sparsefl_jax.simulation.rows import Store, unpack
from sparsefl_jax.sparsity import masks
from sparsefl_jax.system import processes


class Judged(NamedTuple):
    """The evaluation of one client's model, or of n clients with a leading axis."""

    correct: Array  # shape=(), float32, its samples' shares of correct targets, summed
    loss: Array  # shape=(), float32, nats, summed over the client's samples
    density: Array  # shape=(), float32, share of all entries that are alive
    layer_density: Array  # shape=(), float32, unweighted mean over the layers
    filters: Array  # [F] bool, the layers' outputs that have an alive entry


def kept(algorithm: Algorithm, model: Model) -> bool:
    """Returns whether personal models live in the clients' state."""
    if algorithm.personalize is None:
        return False
    return bool(jax.tree.leaves(_shapes(algorithm, model)[2]))


def _shapes(algorithm, model):
    """Returns the shapes of a key, the server, a client's state, and its facts."""

    def make(key):
        server = algorithm.init(key, masks.dense(*model.init(key)))
        info = ClientInfo(jnp.int32(0), jnp.int32(1), jnp.float32(1))
        return key, server, algorithm.first_state(key, server, info), info

    return jax.eval_shape(make, jax.random.key(0))


def _alone(algorithm, shapes) -> tuple[bool, bool]:
    """Returns whether models depend on the client alone, and on the server alone.

    The former stay as they are until the client takes part again; the latter are the
    same for all clients of a budget.
    """
    key, server, _, info = reads(jax.make_jaxpr(algorithm.personalize)(*shapes), shapes)
    own = jax.tree.leaves(shapes[2]) or info.index or info.num_examples
    return not (key or any(jax.tree.leaves(server))), not (key or own)


def make_judge(
    samples: Any,
    evaluator: Callable,
    model: Model,
    stage: Stage,
    info: ClientInfo,
    layers: PyTree,
    renew: Callable,
    devices: Sequence | None = None,
) -> Callable:
    """Prepares the evaluation of all personal models.

    Args:
      samples: an `evaluate.Samples`.
      evaluator: returns that of `evaluate.make_evaluator` for these samples.
      model: a `Model`.
      stage: a `Stage` whose algorithm deploys personal models.
      info: the facts of all clients, [N].
      layers: tree of Python bools, the layers whose densities and filters are returned.
      renew: `(key, sparse) -> sparse`, which is applied before its evaluation to a
        model that depends on the server and the client's budget alone.
      devices: the devices that share the clients; None for all.

    Returns:
      `judge(key, state, seen)`, which returns a `Judged` of NumPy arrays [N, ...] by
      the name of a model. `seen` are the ids of the clients that took part since the
      last call, or None for all.
    """
    shapes = _shapes(stage.algorithm, model)
    lasting, by_server = _alone(stage.algorithm, shapes)
    if by_server:
        return _by_budget(
            stage.algorithm, info, samples.split, layers, evaluator(), renew
        )
    devices = placement.stage_devices(stage, devices)
    group = -(-stage.cohort_size // len(devices)) * len(devices)
    mesh = Mesh(np.array(devices), ("clients",))
    judge = _judge_group(model, stage.algorithm, layers, mesh)
    x, y = flat.flat(samples.x), np.asarray(samples.y, np.int32)
    on_devices = processes.put((x, y), NamedSharding(mesh, P()))
    known, reader = {}, exchange.make_reader(mesh)

    def judge_all(key, state, seen=None):
        ids = np.arange(len(samples.split.size))
        if known and lasting and seen is not None:
            ids = np.unique(seen)
        for first in range(0, len(ids), group):
            members = ids[first : first + group]
            padded = np.resize(members, group)  # one shape, so one program
            facts = jax.tree.map(
                lambda v, ids=padded: v[ids], (info, tuple(samples.split))
            )
            stored = isinstance(state.clients, Store)
            read = state.clients.take if stored else partial(reader, state.clients)
            clients = read(padded), *facts
            results = judge(key, state.server, on_devices, clients)
            for name, judged in processes.fetch(results).items():
                _enter(known, name, judged, members, len(samples.split.size))
        return known

    return judge_all


def _enter(known: dict, name: str, judged: Judged, ids: np.ndarray, count: int) -> None:
    """Writes the evaluation of some clients into a model's table of `count` clients."""
    if name not in known:
        blank = (np.zeros((count, *v.shape[1:]), v.dtype) for v in judged)
        known[name] = Judged(*blank)
    for old, new in zip(known[name], judged, strict=True):
        old[ids] = new[: len(ids)]


def _by_budget(algorithm, info, split, layers: PyTree, evaluator, renew):
    """Evaluates models that depend on the server and a budget, one pass per budget."""

    def judge_all(key, state, seen=None):
        valid = np.arange(split.index.shape[1]) < split.size[:, None]
        known = {}
        for budget in np.unique(info.budget):
            ids = np.flatnonzero(info.budget == budget)
            one_info = jax.tree.map(lambda v, i=ids[0]: v[i], info)
            client = algorithm.first_state(key, state.server, one_info)
            models = algorithm.personalize(key, state.server, client, one_info)
            for name, sparse in models.items():
                every = masks.everything(sparse.mask)
                correct, loss = evaluator(renew(key, sparse))
                rows, used = split.index[ids], valid[ids]
                judged = Judged(
                    np.sum(correct[rows] * used, 1, dtype=np.float32),
                    np.sum(np.where(used, loss[rows], 0), 1, dtype=np.float32),
                    np.asarray(masks.density(sparse.mask, every))[None],
                    np.mean(masks.layer_densities(sparse.mask, layers))[None],
                    np.asarray(observed_masks.filters(sparse.mask, layers))[None],
                )
                _enter(known, name, judged, ids, len(split.size))
        return known

    return judge_all


def _judge_group(model, algorithm, layers: PyTree, mesh, batch_size: int = 100):
    """Returns the program that evaluates a group of clients, a multiple of the devices.

    Returns:
      `judge(key, server, (x, y), clients)`, which returns a `Judged` by the name of a
      model. `clients` holds rows as the store keeps them, `ClientInfo`, and the index
      and size of the samples.
    """

    def judged(sparse, x, y, index, size) -> Judged:
        params = masks.apply(sparse.params, sparse.mask)
        padded = jnp.pad(index, (0, -index.shape[0] % batch_size))

        def batch(i, sums):
            rows = lax.dynamic_slice_in_dim(padded, i * batch_size, batch_size)
            logits, _ = model.apply(params, sparse.stats, x[rows], train=False)
            correct, losses = per_sample(model.loss, logits, y[rows])
            valid = i * batch_size + jnp.arange(batch_size, dtype=jnp.int32) < size
            num_correct = jnp.sum(jnp.where(valid, correct, 0.0))
            loss = jnp.sum(jnp.where(valid, losses, 0.0))
            return sums[0] + num_correct, sums[1] + loss

        zeros = jnp.float32(0), jnp.float32(0)
        correct, loss = lax.fori_loop(0, -(-size // batch_size), batch, zeros)
        every = masks.everything(sparse.mask)
        return Judged(
            correct,
            loss,
            masks.density(sparse.mask, every),
            jnp.mean(masks.layer_densities(sparse.mask, layers)),
            observed_masks.filters(sparse.mask, layers),
        )

    @fast
    def on_device(key, server, samples, clients):
        one_info = jax.tree.map(lambda v: v[0], clients[1])
        like = jax.eval_shape(algorithm.first_state, key, server, one_info)

        def judge(client):
            row, info, (index, size) = client
            own_key = keys.of_client(key, info.index)
            state = unpack(row, like)
            models = algorithm.personalize(own_key, server, state, info)
            return collections.OrderedDict(  # a dict leaves JAX in the order of names
                (name, judged(sparse, *samples, index, size))
                for name, sparse in models.items()
            )

        if mesh.devices.flat[0].platform == "cpu":  # one at a time, as in training
            return lax.map(judge, clients)
        return jax.vmap(judge)(clients)

    in_specs = P(), P(), P(), P("clients")
    return jax.jit(exchange.per_device(on_device, mesh, in_specs, P("clients")))
