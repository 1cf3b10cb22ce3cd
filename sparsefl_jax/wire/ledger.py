"""What a run cost: bits from the packets that travelled, FLOPs from the real masks.

A multiply-add is two FLOPs. Counted are the three passes of every layer that
multiplies (forward, input gradient, weight gradient) and what an algorithm adds for its
masks; activations, pooling, normalisation and the optimizer are not. `flops` skips what
the masks remove; `flops_dense` is the same samples through the dense network;
`flops_executed` is what the hardware was given, padding included, as masks save no time
in dense arithmetic.

The named views at the end state how a paper arrives at a figure that it prints; the
ledger's own totals are in every record.
"""

import fnmatch
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sparsefl_jax.core.types import PyTree, Work
from sparsefl_jax.wire import packets as codec


def flops(macs: PyTree, work: Work) -> float:
    """FLOPs of summed `Work`, float64.

    Args:
      macs: multiply-adds per sample of each leaf, a tree of ints.
      work: sums over samples; leaves of any shape are summed too.

    Example:
      >>> work = Work({'w': 2.0}, {'w': 2.0}, {'w': 1.0}, 0.0)
      >>> flops({'w': 100}, work)
      1000.0
    """
    passes = (work.forward, work.input_grad, work.weight_grad)
    total = sum(
        float(m) * float(np.sum(np.asarray(share, np.float64)))
        for tree in passes
        for m, share in zip(jax.tree.leaves(macs), jax.tree.leaves(tree), strict=True)
    )
    return 2.0 * total + float(np.sum(np.asarray(work.extra, np.float64)))


def macs_per_sample(macs: PyTree) -> int:
    """Multiply-adds of one sample through the dense network."""
    return sum(jax.tree.leaves(macs))


def _traffic(direction: str, layout, count, cohort: int) -> dict:
    bits = codec.bits(layout, count)
    entries = {
        name: int(np.sum(np.where(c.sent, np.sum(c.entries, -1, dtype=np.int64), 0)))
        for name, c in count.items()
    }
    per_client = np.broadcast_to(bits.total, (cohort,))
    return {
        f"bits_{direction}": int(np.sum(per_client)),
        f"bits_{direction}_values": int(np.sum(bits.values)),
        f"bits_{direction}_positions": int(np.sum(bits.positions)),
        f"bits_{direction}_by_client": [int(b) for b in per_client],
        f"entries_{direction}": entries,
    }


def round_record(
    log: Any, layouts: dict, macs: PyTree, names: list[str], batch_size: int
) -> dict[str, Any]:
    """One round's line of `metrics.jsonl`, a dict of plain Python values.

    The ledger's fields stand at the top. A method's own metrics stand in `client`,
    means over the cohort, and in `server`, so that none can take a field's place;
    `assumed` says what packets leave uncharged, if any do.

    Args:
      log: a `simulate.RoundLog` of one round, as NumPy arrays.
      layouts: `{'down': ..., 'up': ...}` as `packets.layout` returns them.
      macs: as `Model.macs`.
      names: paths of the layers whose masks are logged, [L].
      batch_size: samples of a minibatch, for what was executed.
    """
    own = dict(log.clients)
    work = own.pop("work")
    count, loss, correct = (
        float(np.sum(own.pop(name), dtype=np.float64))
        for name in ("count", "loss", "correct")
    )
    per_sample = 6 * macs_per_sample(macs)
    record = {
        "loss": loss / max(count, 1.0),
        "train_accuracy": correct / max(count, 1.0),
        "samples": int(count),
        "clients": np.asarray(log.ids).tolist(),
        **_traffic("down", layouts["down"], log.down, len(log.ids)),
        **_traffic("up", layouts["up"], log.up, len(log.ids)),
        "flops": flops(macs, work),
        "flops_dense": per_sample * count,
        "flops_executed": float(per_sample * int(log.executed_steps) * batch_size),
        "density": float(log.density),
        "layer_density": dict(zip(names, map(float, log.layer_density), strict=True)),
        "mismatch": float(log.mismatch),
        "layer_mismatch": dict(zip(names, map(float, log.layer_mismatch), strict=True)),
    }
    own = {k: float(np.mean(v, dtype=np.float64)) for k, v in own.items()}
    server = {name: float(value) for name, value in log.server.items()}
    assumed = codec.assumptions(layouts)
    return record | {
        name: value
        for name, value in (("client", own), ("server", server), ("assumed", assumed))
        if value
    }


def values_only_bits(layout: dict, count: dict, packets: Any, *, words: int = 1) -> int:
    """View: bits of the values of some packets, no positions, over all clients.

    FLASH (TMLR 2023) prints its savings so: "CSR" without the indices, normalisation
    statistics left out. ZeroFL's figures, which it quotes, charge two words a value.

    Args:
      layout: as `packets.layout` returns it.
      count: as `packets.count` returns it, any leading axes.
      packets: names of the packets that the figure charges.
      words: words charged per value.
    """
    chosen = {name: layout[name] for name in packets}
    return words * int(np.sum(codec.bits(chosen, count).values))


def saving(dense_bits: int, sparse_bits: int) -> float:
    """View: how many times fewer bits, as in FLASH, section 4.2.

    Example:
      >>> saving(640, 32)
      20.0
    """
    return dense_bits / sparse_bits


def exchanged(alive: Sequence[int], cohort: int) -> int:
    """View: parameters sent both ways, as FedSparsify's column C.C. counts them.

    An upload is charged at the size *after* its round's purge, and positions are free:
    sum over rounds t of K (n_{t-1} + n_t).

    Args:
      alive: n_0 to n_T, non-zero parameters and statistics after each round.
      cohort: K, clients of a round.

    Example:
      >>> exchanged([10, 10, 5], 2)
      70
    """
    return cohort * (sum(alive[:-1]) + sum(alive[1:]))


def complement_flops(macs: int, outputs: int) -> int:
    """View: FLOPs of one sample through a dense layer as Complement Sparsification has.

    Forward pass, hidden state's and weights' derivatives: 2 MAC + n_out each.

    Example:
      >>> complement_flops(96, 3)
      585
    """
    return 3 * (2 * macs + outputs)


def complement_saving(
    macs: int, outputs: int, density: float, client_density: float
) -> float:
    """View: the share of `complement_flops` that Complement Sparsification saves.

    The forward pass is charged at the server's density, the hidden state's derivative
    whole, the weights' at the sum of both densities (Tables 4 and 5), though a client's
    weights are dense after its first step.

    Args:
      macs: multiply-adds of one sample through the layer.
      outputs: its outputs, of which each has a bias.
      density: 1 - p, of the server's model.
      client_density: 1 - c, of what the client sends.

    Example:
      >>> round(complement_saving(96, 3, 0.5, 0.113), 3)
      0.291
    """
    saved = 2 * macs * (2 - 2 * density - client_density)
    return saved / complement_flops(macs, outputs)


def clipped_entropy_bits(count: dict, packets: Any, *, epsilon: float = 0.01) -> float:
    """View: bits of zeros and ones by the entropy of their *clipped* mean.

    FedPM's official code charges n H(f) + log2(n) a client for its mask, f the mean of
    n entries of which zeros count as epsilon and ones as 1 - epsilon: even a mask of
    ones only is then not free. The ledger charges what an arithmetic coder needs.

    Args:
      count: as `packets.count` returns it, any leading axes.
      packets: names of the packets that the figure charges, of index 'entropy'.
      epsilon: what a zero counts as.

    Example:
      >>> import jax.numpy as jnp
      >>> message = {'mask': codec.Packet(jnp.ones(8, bool), bits=1, index='entropy')}
      >>> clipped_entropy_bits(codec.count(message), ['mask'], epsilon=0.25)  # 8 H + 3
      9.4902
    """
    bits = 0.0
    for name in packets:
        n, ones = (
            np.asarray(v, np.float64).sum(-1)
            for v in (count[name].entries, count[name].ones)
        )
        charged = codec.entropy_bits(n, epsilon * n + (1 - 2 * epsilon) * ones)
        sent = np.asarray(count[name].sent) & (n > 0)
        bits += np.sum(np.where(sent, charged + np.log2(np.maximum(n, 1)), 0.0))
    return float(bits)


def linear_p_accounting(
    layout: dict, count: dict, packets: Any, rate: float, *, leaves: Any = ("*",)
) -> float:
    """View: bits of messages as if a slice at rate p were p of the network.

    SpaFL (NeurIPS 2024, Table 2) prints HeteroFL so, half of FedAvg at p = 0.5, though
    both sides of a hidden layer shrink and the slice has nearer a quarter.

    Args:
      layout: as `packets.layout` returns it.
      count: as `packets.count` returns it, any leading axes.
      packets: names of the packets that the figure charges.
      rate: p, or an array over the leading axes.
      leaves: globs of the leaf paths that the figure charges.

    Returns:
      Bits over all messages that were sent.

    Example:
      >>> told = {'up': codec.Layout(('w', 'b'), ((3, 2), (2,)), 32, 'none', True)}
      >>> seen = {'up': codec.Count(np.array([[2, 1]]), np.array([False]),
      ...                           np.array([True]))}
      >>> linear_p_accounting(told, seen, ('up',), 0.5, leaves=('w',))
      96.0
    """
    total = 0.0
    for name in packets:
        one = layout[name]
        size = sum(
            math.prod(shape)
            for path, shape in zip(one.paths, one.shapes, strict=True)
            if any(fnmatch.fnmatchcase(path, glob) for glob in leaves)
        )
        total += one.bits * size * float(np.sum(rate * np.asarray(count[name].sent)))
    return total
