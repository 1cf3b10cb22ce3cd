"""Simulated rounds of a network that learns nothing, for what can be counted.

Clients have one sample each and the network answers zeros, so that a round costs no
more than handing over its messages. Bits and FLOPs do not know the difference.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax import models
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.data import from_arrays
from sparsefl_jax.runs.plan import trace
from sparsefl_jax.simulation import initial_state, placement, round_program
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.training import local
from sparsefl_jax.wire import ledger
from sparsefl_jax.wire.charges import message_bits

STILL = local.make_optimizer("sgd", learning_rate=0.0)


class Rounds(NamedTuple):
    """Rounds of one stage, as NumPy arrays and plain Python values."""

    records: list[dict]  # of every round, as `metrics.jsonl` has them
    logs: round_program.RoundLog  # stacked [R]
    layouts: dict  # {'down': ..., 'up': ...}

    def total(self, *fields):
        """Sums some fields of the records over all rounds."""
        return sum(record[field] for record in self.records for field in fields)

    def entries(self, direction, packet):
        """Returns the entries sent of every leaf, [R, K] by path."""
        count = getattr(self.logs.clients, direction)[packet]
        paths = trees.leaf_paths(self.layouts[direction][packet].values)
        return {path: count.entries[..., i] for i, path in enumerate(paths)}

    def view(self, function, packets, *args, **kwargs):
        """Applies a view of bits to the messages of both directions."""
        counts = self.logs.clients._asdict()
        return sum(
            function(self.layouts[way], counts[way], names, *args, **kwargs)
            for way, names in packets.items()
        )


def values_only_bits(layout, count, names, *, words=1):
    """Bits of some packets' values, without positions, over all clients.

    FLASH (TMLR 2023) computes its savings this way: "CSR" without the indices, and
    without normalisation statistics. ZeroFL's figures, which it quotes, charge two
    words a value.
    """
    chosen = {name: layout[name] for name in names}
    return words * int(np.sum(message_bits(chosen, count).values))


def network(name, num_classes, shape, **kwargs):
    """Returns a network's parameters and multiply-adds, with logits of 0."""

    def apply(params, stats, x, *, train, weight=None, key=None):
        del params, train, weight, key
        return jnp.zeros((x.shape[0], num_classes), jnp.float32), stats

    return models.build(name, num_classes, shape, **kwargs)._replace(apply=apply)


def shapes(model) -> SparseModel:
    """Returns the shapes of a network's initial model."""
    return jax.eval_shape(lambda: initial_state.initial_model(jax.random.key(0), model))


def size(model, prunable=("*",)) -> int:
    """Counts the entries of the leaves that globs name."""
    params = shapes(model).params
    return int(trees.layer_sizes(params, masks.prunable(params, prunable)).sum())


def macs(model, prunable=("*",)) -> int:
    """Counts a sample's multiply-adds in the leaves that globs name."""
    select = masks.prunable(shapes(model).params, prunable)
    pairs = zip(jax.tree.leaves(model.macs), jax.tree.leaves(select), strict=True)
    return sum(m for m, chosen in pairs if chosen)


def distinct(model, seed=0) -> SparseModel:
    """Returns unpruned weights in (0, 1], all different."""
    params, mask, stats = shapes(model)
    leaves, structure = jax.tree.flatten(params)
    sizes = [leaf.size for leaf in leaves]
    order = np.random.default_rng(seed).permutation(sum(sizes)) + 1
    values = np.split((order / 2**24).astype(np.float32), np.cumsum(sizes)[:-1])
    values = [v.reshape(x.shape) for v, x in zip(values, leaves, strict=True)]
    ones = (jax.tree.map(lambda v: np.ones(v.shape, v.dtype), v) for v in (mask, stats))
    return SparseModel(structure.unflatten(values), *ones)


def simulator(
    model, method, number, *, clients=10, epochs=1, budget=1.0
) -> Callable[[SparseModel], Rounds]:
    """Simulates rounds of a method in which all clients take part.

    Args:
      model: a `Model`; the label of a client's only sample is the client's number.
      method: an `Algorithm`.
      number: of rounds.
      clients: how many there are.
      epochs: local ones.
      budget: of every client.

    Returns:
      `run(initial) -> Rounds`, which compiles once.
    """
    stage = Stage(method, number, clients, epochs=epochs, batch_size=1)
    own, x = np.arange(clients), np.zeros((clients, 1), np.float32)
    data = from_arrays(x, own, x_test=x, y_test=own, users=own, users_test=own,
                       partition="natural")  # fmt: skip
    key, layers = jax.random.key(0), jax.tree.map(lambda m: m > 0, model.macs)
    plan = placement.make_plan(stage, layers)
    segment = jax.jit(round_program.make_segment(plan), donate_argnums=2)
    people = placement.make_population(plan, data, np.full(clients, budget))
    rounds = np.arange(number, dtype=np.int32)
    ids = np.tile(np.arange(clients, dtype=np.int32), (number, 1))

    layouts = trace(stage, shapes(model), data).layouts

    def run(initial):
        state = initial_state.start(key, plan, initial, people.info)
        _, logs = jax.device_get(segment(key, people, state, rounds, ids))
        each = (jax.tree.map(lambda v, i=i: v[i], logs) for i in rounds)
        how = layouts, model, trees.layer_paths(layers), 1
        return Rounds([ledger.round_record(log, *how) for log in each], logs, layouts)

    return run


def rounds(model, method, number, *, initial=None, **kwargs) -> Rounds:
    """Runs `simulator` once, by default from `distinct` weights."""
    initial = distinct(model) if initial is None else initial
    return simulator(model, method, number, **kwargs)(initial)
