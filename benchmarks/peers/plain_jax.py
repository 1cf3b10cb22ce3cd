"""FedAvg in plain JAX: `vmap` over a round's clients, `scan` over their minibatches.

It is what a user of JAX, Flax and optax writes without a simulator. With `in_turn`,
clients train one after another (`lax.map`), which suits convolutions on a CPU.
"""

import sys
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks import samples
from benchmarks.own import linen
from benchmarks.peers.turns import Turns, setup


class MLP(nn.Module):
    """The package's `mlp`."""

    @nn.compact
    def __call__(self, x):
        """Returns logits [B, 10] of images."""
        x = x.reshape(len(x), -1)
        for units in (128, 128):
            x = nn.relu(nn.Dense(units)(x))
        return nn.Dense(10)(x)


NETWORKS = linen.NETWORKS | {"mlp": MLP}


def make_round(at: dict, network: nn.Module, each):
    """Returns `(params, key) -> params`, a round; `each` maps over its clients."""
    drawn = samples.draw(at["clients"], at["samples"], at["shape"], at["classes"])
    x, y, rows = map(jnp.asarray, drawn)
    tx, steps = optax.sgd(at["rate"], at["momentum"]), -(-at["samples"] // at["batch"])

    def loss(params, batch):
        logits = network.apply(params, x[batch].astype(jnp.float32) / 255 - 0.5)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y[batch]).mean()

    def train(params, key, client):
        def step(carry, batch):
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params, batch), state)
            return (optax.apply_updates(params, updates), state), None

        order = jax.random.permutation(key, rows[client])
        batches = jnp.resize(order, (steps, at["batch"]))  # as many steps as the others
        return jax.lax.scan(step, (params, tx.init(params)), batches)[0][0]

    @partial(jax.jit, donate_argnums=0)
    def one_round(params, key):
        clients_key, key = jax.random.split(key)
        clients = jax.random.permutation(clients_key, at["clients"])[: at["cohort"]]
        keys = jax.random.split(key, at["cohort"])
        trained = each(lambda given: train(params, *given))((keys, clients))
        return jax.tree.map(lambda v: v.mean(0), trained)

    return one_round


def main():
    """Rounds in turns, see `turns`."""
    turns, at = Turns(), setup()
    in_turn = "in_turn" in sys.argv
    each = (lambda fn: partial(jax.lax.map, fn)) if in_turn else jax.vmap
    network, key = NETWORKS[at["model"]](), jax.random.key(0)
    params = network.init(key, jnp.zeros((1, *at["shape"])))
    one_round = make_round(at, network, each)
    turns.tell(version=f"jax {jax.__version__}", parameters=optax.tree.size(params))
    while turns.wait():
        key = jax.random.fold_in(key, 0)
        params = jax.block_until_ready(one_round(params, key))
        turns.tell()


if __name__ == "__main__":
    main()
