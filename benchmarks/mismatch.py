"""Measures how far successive masks disagree, in FLASH's Figures 2 to 4.

    python -m benchmarks mismatch                      # 60 rounds, 8 CPU minutes
    python -m benchmarks mismatch --density 0.05

The rows are sparse learning by one client that has all images, and by NST and JMWST, on
the data and network of `flash_cifar10.py:mini`. The one client's mask changes once an
epoch. Its prune rate falls linearly from 0.25 to 0 over the run, in the spirit of
Dettmers and Zettlemoyer (2019), or stays at 0.125. NST and JMWST change their masks
once in a round of two epochs, at a prune rate of 0.125 too. The mismatch is
1 - |a & b| / |a | b| of the masks a and b of two successive rounds (Definition 1), at
the target density. The columns named after layers are means over the last tenth of the
rounds.
"""

from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import sparsefl_jax as sfl
from configs import flash_cifar10
from sparsefl_jax.algorithms import masked
from sparsefl_jax.runs import experiment, simulate
from sparsefl_jax.sparsity import masks, regrow
from sparsefl_jax.training import local
from sparsefl_jax.wire.packets import pack_up, unpack_model

ROWS = {
    "one client": "pdst",
    "one client, constant rate": "pdst",
    "NST": "nst",
    "JMWST": "jmwst",
}


def run(density=0.1, rounds=60, seed=0) -> Iterator[dict]:
    """Yields a row for each way to learn a mask.

    Args:
      density: target share of alive prunable weights, in (0, 1].
      rounds: of each run; of the one client also its epochs.
      seed: of each run.
    """
    for name, option in ROWS.items():
        config = flash_cifar10.get_config(f"{option},mini")
        config.density, config.num_rounds, config.seed = density, rounds, seed
        if option == "pdst":
            config.num_clients, config.cohort_size, config.epochs = 1, 1, 1
            config.algorithm = {
                "name": "benchmarks.mismatch:alone",
                "density": density,
                "until": 0 if "constant" in name else rounds,
                "prunable": config.algorithm.prunable,
            }
        setup, _ = experiment.build(config)
        records = simulate.run(jax.random.key(seed), **setup._asdict()).metrics
        records = [r for r in records if r["stage"] == len(setup.stages) - 1]
        trained = [r for r in records if r["phase"] == "train"]
        tenth = max(1, rounds // 10)
        row = {
            "masks by": name,
            "first tenth": mean(r["mismatch"] for r in trained[:tenth]),
            "last tenth": mean(r["mismatch"] for r in trained[-tenth:]),
        }
        for layer in ("conv2", "conv3", "fc1"):  # those that are pruned
            path, last = f"{layer}/kernel", trained[-tenth:]
            row[layer] = mean(r["layer_mismatch"][path] for r in last)
        yield row | {"accuracy, %": 100 * records[-1]["accuracy"]}


def mean(values: Iterable[float]) -> float:
    return float(np.mean([*values]))


@sfl.method
def alone(
    model, optimizer, *, density: float, until: int, prunable: Sequence[str]
) -> sfl.Algorithm:
    """Sparse learning by one client: an epoch within the mask, then prune and regrow.

    Args:
      model, optimizer, density, prunable: as in `nst`.
      until: number of rounds in which the prune rate falls from 0.25 to 0; 0 for a
        constant rate of 0.125.
    """
    start = sfl.pdst(model, optimizer, density=density, prunable=prunable)
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)

    def update(key, ctx, downlink, client, batches):
        train_key, surgery_key = jax.random.split(key)
        received, tx = unpack_model(downlink), optimizer(ctx.round)
        trained = local.train(train_key, loss_fn, tx, received, batches)
        carry = regrow.start_carry(received.params, select, density)
        alive = masks.counts(received.mask, select).sum()
        rate = jnp.float32(0.125)
        if until:  # static branch
            rate = regrow.prune_rate(0.25, ctx.round + 1, until)
        params, mask, _ = regrow.prune_regrow(
            surgery_key,
            trained.model.params,
            received.mask,
            rate,
            select=select,
            carry=carry._replace(growth=carry.target - alive),
        )
        new = sfl.SparseModel(params, mask, trained.model.stats)
        uplink = pack_up(new, received.mask, select, index="bitmap")
        return uplink, client, trained.metrics

    def aggregate(key, ctx, server, total):
        new = masked.mean_on_union(ctx, server.model, total)
        return masked.move(ctx.round, server, new), {}

    return start.replace(
        update=update,
        contribute=masked.summand_with_mask,
        aggregate=aggregate,
    )
