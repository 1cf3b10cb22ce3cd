"""What passes between server and clients in a run of the simulator."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import sparsefl_jax as sfl
from sparsefl_jax.wire.packets import Message, settle_flags

FEATURES, HIDDEN, CLASSES, SAMPLES = 6, 6, 3, 24
CLIENTS = "ABC"


class Exchange(NamedTuple):
    """One client's part of a round."""

    client: int
    mask: dict  # of the model that the server deploys before the round
    down: Message
    up: Message


def tiny_model() -> sfl.Model:
    """Returns two dense layers with 54 weights and 9 biases."""
    return sfl.models.build("mlp", CLASSES, (FEATURES,), widths=(HIDDEN,))


def tiny_data() -> sfl.data.FederatedData:
    """Returns three clients, each of whom lacks one of the three classes."""
    rng = np.random.default_rng(0)
    y = np.array([(k + i % 2) % CLASSES for k in range(3) for i in range(SAMPLES)])
    x = rng.normal(0, 0.5, (len(y), FEATURES)) + np.eye(CLASSES, FEATURES)[y]
    x = x.astype(np.float32)
    parts = np.split(np.arange(len(y)), 3)
    return sfl.from_arrays(x, y, x_test=x, y_test=y, partition=parts)


def record(
    stages: Sequence[sfl.Stage],
    cohorts: Sequence[Sequence[Sequence[int]]],
    model: sfl.Model | None = None,
    **settings,
) -> dict[tuple[int, int], list[Exchange]]:
    """Runs stages among three clients and keeps what is sent.

    Args:
      stages: what runs.
      cohorts: the clients of each round, from 0, for each stage; they come again after
        the last.
      model: the network of the stages; None: `tiny_model`.
      **settings: of `sfl.run`.

    Returns:
      The exchanges of a cohort, in its order, by stage and round, both from 0.
    """
    heard = {}

    def hear(stage, way, ctx, *packets):
        place = stage, int(ctx.round), int(ctx.client.index)
        heard.setdefault(place, {})[way] = packets

    def watched(number, stage, cohorts):
        algorithm = stage.algorithm

        def broadcast(key, ctx, server):
            down = algorithm.broadcast(key, ctx, server)
            received = algorithm.send_once(server)
            first = {
                f"handed/{n}": jax.tree.map(jnp.asarray, p) for n, p in received.items()
            }
            deployed = next(iter(algorithm.deploy(key, server).values()))
            seen = settle_flags(first), settle_flags(down), deployed.mask
            jax.debug.callback(partial(hear, number, "down"), ctx, *seen)
            return down

        def update(key, ctx, downlink, client, batches):
            up, *rest = algorithm.update(key, ctx, downlink, client, batches)
            jax.debug.callback(partial(hear, number, "up"), ctx, settle_flags(up))
            return up, *rest

        listening = algorithm.replace(broadcast=broadcast, update=update)
        drawn = jnp.array(cohorts, jnp.int32)
        return stage._replace(
            algorithm=listening,
            sampler=lambda key, round: drawn[round % len(cohorts)],
            cohort_size=len(cohorts[0]),
        )

    numbered = zip(range(len(stages)), stages, cohorts, strict=True)
    watching = [watched(*stage) for stage in numbered]
    sfl.run(jax.random.key(0), watching, model or tiny_model(), tiny_data(), **settings)
    jax.effects_barrier()
    exchanges, seen = {}, set()
    for stage, round, client in sorted(heard):
        first, down, mask = heard[stage, round, client]["down"]
        (up,) = heard[stage, round, client]["up"]
        down = (first if (stage, client) not in seen else {}) | down
        seen.add((stage, client))
        exchange = Exchange(client, mask, down, up)
        exchanges.setdefault((stage, round), []).append(exchange)
    return exchanges
