"""Rounds in which updates that a test gives take the place of the clients' training."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.wire.packets import Packet
from tests.reference.by_hand import context, server_context


@pytest.fixture
def given_updates(monkeypatch):
    """Takes what stands in the place of a client's samples for what it sends."""

    def fit(key, loss_fn, tx, downlink, opt_state, batches):
        delta, stats = batches
        return {"delta": Packet(delta), "stats": Packet(stats)}, opt_state, {}

    monkeypatch.setattr(sys.modules["sparsefl_jax.algorithms.fedavg"], "fit", fit)


def play(method, params, updates, *, cohorts=None, sizes=(1, 3, 2), lost=()):
    """Yields each round: server, clients, downlinks, uplinks, new server, metrics.

    Args:
      params: the initial weights.
      updates: [round][client], a change of the weights and the statistics after it.
      cohorts: the clients of each round, by default all.
      sizes: their numbers of samples.
      lost: rounds in which nobody is heard.
    """
    key, stats = jax.random.key(0), jax.tree.map(np.zeros_like, updates[0][0][1])
    start = jax.tree.map(jnp.asarray, SparseModel(params, None, stats))
    server = jax.jit(method.init)(key, start)
    info = [context(index=i, size=n).client for i, n in enumerate(sizes)]
    clients = [method.first_state(key, server, one) for one in info]
    last = [-1] * len(sizes)

    @jax.jit
    def exchange(key, ctx, server, client, update):
        down = method.broadcast(key, ctx, server)
        up, client, _ = method.update(key, ctx, down, client, update)
        return down, up, client, method.contribute(ctx, up)

    for round, cohort in enumerate(cohorts or [range(len(sizes))] * len(updates)):
        downs, ups, total, before = {}, {}, None, server
        for i in cohort:
            ctx = context(round, last[i], index=i, size=sizes[i])
            own = jax.random.fold_in(jax.random.fold_in(key, round), i)
            args = own, ctx, server, clients[i], updates[round][i]
            downs[i], ups[i], clients[i], one = exchange(*args)
            total = one if total is None else jax.tree.map(jnp.add, total, one)
            last[i] = round
        heard = 0 if round in lost else len(cohort)
        total = total if heard else optax.tree.zeros_like(total)
        own, ctx = jax.random.fold_in(key, 100 + round), server_context(round, heard)
        server, metrics = jax.jit(method.aggregate)(own, ctx, server, total)
        yield before, list(clients), downs, ups, server, metrics
