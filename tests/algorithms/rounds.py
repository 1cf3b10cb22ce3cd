"""Rounds of a few clients, without the simulator: a method's functions in turn."""

import sys

import jax
import optax
import pytest

from sparsefl_jax.wire.packets import Packet
from tests.reference.by_hand import context, server_context


@pytest.fixture
def given_updates(monkeypatch):
    """Takes what stands in the place of a client's samples for what it sends."""

    def fit(key, loss_fn, tx, downlink, opt_state, batches):
        delta, stats = batches
        return {"delta": Packet(delta), "stats": Packet(stats)}, opt_state, {}

    monkeypatch.setattr(sys.modules["sparsefl_jax.algorithms.fedavg"], "fit", fit)


def play(method, starts, data, cohorts, *, sizes=(1, 1, 1), lost=()):
    """Yields each round: server, clients, downlinks, uplinks, new server, metrics.

    Args:
      method: an algorithm.
      starts: the model that each client begins from; the server has the first.
      data: `(round, client) -> batches`.
      cohorts: the clients of each round.
      sizes: the clients' numbers of samples.
      lost: pairs of a round and a client whose uplink does not arrive.
    """
    key = jax.random.key(0)
    servers = [jax.jit(method.init)(key, start) for start in starts]
    pairs = zip(servers, sizes, strict=False)
    infos = [(s, context(index=i, size=n).client) for i, (s, n) in enumerate(pairs)]
    clients, last = [method.first_state(key, *of) for of in infos], [-1] * len(starts)
    server = servers[0]

    @jax.jit
    def exchange(key, ctx, server, client, batches):
        down = method.broadcast(key, ctx, server)
        up, client, _ = method.update(key, ctx, down, client, batches)
        return down, up, client, method.contribute(ctx, up)

    for round, cohort in enumerate(cohorts):
        before, downs, ups, summands = server, {}, {}, []
        for i in cohort:
            ctx = context(round, last[i], index=i, size=sizes[i])
            own = jax.random.fold_in(jax.random.fold_in(key, round), i)
            args = own, ctx, server, clients[i], data(round, i)
            downs[i], ups[i], after, one = exchange(*args)
            if (round, i) in lost:
                after = method.drop_uplink(ctx, clients[i], after)
                one = optax.tree.zeros_like(one)
            clients[i], last[i] = after, round
            summands.append(one)
        total = jax.tree.map(lambda *v: sum(v[1:], v[0]), *summands)
        heard = sum((round, i) not in lost for i in cohort)
        own, ctx = jax.random.fold_in(key, 100 + round), server_context(round, heard)
        server, metrics = jax.jit(method.aggregate)(own, ctx, server, total)
        yield before, list(clients), downs, ups, server, metrics
