"""Costs as papers count them, so that their printed figures can be compared.

The ledger's own totals stand in every record of a run; these functions view the same
packets, masks and rounds in the way of one paper each.
"""

import fnmatch
import math
from collections.abc import Iterable, Sequence

import numpy as np

from sparsefl_jax.wire import golomb
from sparsefl_jax.wire.arithmetic import entropy_bits
from sparsefl_jax.wire.charges import message_bits
from sparsefl_jax.wire.packets import Count, Layout


def values_only_bits(
    layout: dict[str, Layout],
    count: dict[str, Count],
    names: Iterable[str],
    *,
    words: int = 1,
) -> int:
    """Views the bits of some packets' values, without positions, over all clients.

    FLASH (TMLR 2023) computes its savings this way: "CSR" without the indices, and
    without normalisation statistics. ZeroFL's figures, which it quotes, charge two
    words a value.

    Args:
      layout: as `packets.layout` returns it.
      count: as `packets.count` returns it, any leading axes.
      names: the packets that the figure charges.
      words: words charged per value.

    Example:
      >>> layout = {'up': Layout(('w',), ((3,),), 32, 'bitmap', True)}
      >>> count = Count(np.array([[2]]), np.array([True]), np.array([True]))
      >>> values_only_bits(layout, {'up': count}, ['up'])
      64
    """
    chosen = {name: layout[name] for name in names}
    return words * int(np.sum(message_bits(chosen, count).values))


def exchanged(alive: Sequence[int], cohort: int) -> int:
    """Views the parameters sent both ways, as FedSparsify's column C.C. counts them.

    The column charges an upload at the size *after* its round's purge, and no
    positions: it sums K (n_{t-1} + n_t) over the rounds t.

    Args:
      alive: n_0 to n_T, non-zero parameters and statistics after each round.
      cohort: K, clients of a round.

    Example:
      >>> exchanged([10, 10, 5], 2)
      70
    """
    return cohort * (sum(alive[:-1]) + sum(alive[1:]))


def complement_flops(macs: int, outputs: int) -> int:
    """Views one sample's FLOPs through a dense layer, as Complement Sparsification.

    The forward pass and the derivatives of hidden state and weights take 2 MAC + n_out
    each.

    Args:
      macs: multiply-adds of one sample through the layer.
      outputs: n_out, its outputs.

    Example:
      >>> complement_flops(96, 3)
      585
    """
    return 3 * (2 * macs + outputs)


def complement_saving(
    macs: int, outputs: int, density: float, client_density: float
) -> float:
    """Views the share of `complement_flops` that Complement Sparsification saves.

    Tables 4 and 5 charge the forward pass at the server's density, the derivative of
    the hidden state in full, and that of the weights at the sum of both densities,
    although a client's weights are dense after its first step.

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


def clipped_entropy_bits(
    count: dict[str, Count], names: Iterable[str], *, epsilon: float = 0.01
) -> float:
    """Views the bits of zeros and ones by the entropy of their *clipped* mean.

    FedPM's official code charges a client n H(f) + log2(n) for its mask, where f is the
    mean of n entries and zeros count as epsilon, ones as 1 - epsilon: even a mask of
    ones alone is then not free. The ledger charges what an arithmetic coder needs.

    Args:
      count: as `packets.count` returns it, any leading axes.
      names: the packets that the figure charges, of index 'entropy'.
      epsilon: what a zero counts as.

    Example:
      >>> one = np.array(True)
      >>> count = Count(np.array([8]), fresh=one, sent=one, measured=np.array([8]))
      >>> clipped_entropy_bits({'mask': count}, ['mask'], epsilon=0.25)  # 8 H + 3
      9.4902
    """
    bits = 0.0
    for name in names:
        n, ones = (
            np.asarray(v, np.float64).sum(-1)
            for v in (count[name].entries, count[name].measured)
        )
        charged = entropy_bits(n, epsilon * n + (1 - 2 * epsilon) * ones)
        sent = np.asarray(count[name].sent) & (n > 0)
        bits += np.sum(np.where(sent, charged + np.log2(np.maximum(n, 1)), 0.0))
    return float(bits)


def official_stc_bits(
    layout: dict[str, Layout], count: dict[str, Count], names: Iterable[str]
) -> float:
    """Views the bits of ternary values as the official code of STC counts them.

    It charges a bit for a sign, and for a position one bit more than its Golomb code
    takes; neither the leaf's number of entries nor its magnitude is charged. Where more
    than 0.62 of a leaf travels, that code's b falls below 0; here it is 0.

    Args:
      layout: as `packets.layout` returns it.
      count: as `packets.count` returns it, any leading axes.
      names: the packets that the figure charges, of index 'golomb'.

    Returns:
      Bits over all messages that were sent.

    Example:
      >>> layout = {'up': Layout(('w',), ((100,),), 1, 'golomb', True)}
      >>> k, unary, sent = np.array([[5]] * 2), np.array([[9]] * 2), np.arange(2) > 0
      >>> count = Count(k, fresh=sent, sent=sent, measured=unary)  # b = 3: 25 + 9
      >>> official_stc_bits(layout, {'up': count}, ('up',))
      34.0
    """
    bits = 0.0
    for name in names:
        one, entries = count[name], np.asarray(count[name].entries, np.int64)
        for leaf, shape in enumerate(layout[name].shapes):
            nnz, unary = entries[..., leaf], one.measured[..., leaf]
            charged = golomb.position_bits(shape, nnz, unary) + 2 * nnz
            bits += float(np.sum(np.where(one.sent, charged, 0)))
    return bits


def missed_updates(clients: Sequence[Sequence[int]], step: float) -> float:
    """Views the downlinks of a run as STC's paper serves clients that missed rounds.

    They fetch the steps of all rounds since they last took part, or since the start,
    for at most the bits of one times their number. `compressed` sends every entry that
    has changed since instead, and a new client the model.

    Args:
      clients: those of each round, in order, as the field `clients` of the records.
      step: bits of the server's step of a round.

    Returns:
      Bits over all rounds, without the initial model.

    Example:
      >>> missed_updates([[0, 1], [0], [2, 1]], step=10)  # 0; 1; 2 and 2 steps
      50
    """
    last, steps = {}, 0
    for round, cohort in enumerate(clients):
        steps += sum(round - last.get(client, 0) for client in cohort)
        last |= dict.fromkeys(cohort, round)
    return steps * step


def linear_p_accounting(
    layout: dict[str, Layout],
    count: dict[str, Count],
    names: Iterable[str],
    rate: np.ndarray | float,
    *,
    leaves: Iterable[str] = ("*",),
) -> float:
    """Views the bits of messages as if a slice at rate p were p of the network.

    SpaFL (NeurIPS 2024, Table 2) charges HeteroFL this way: half of FedAvg at p = 0.5,
    although both sides of a hidden layer shrink, and the slice holds about a quarter.

    Args:
      layout: as `packets.layout` returns it.
      count: as `packets.count` returns it, any leading axes.
      names: the packets that the figure charges.
      rate: p, or an array over the leading axes.
      leaves: globs of the leaf paths that the figure charges.

    Returns:
      Bits over all messages that were sent.

    Example:
      >>> layout = {'up': Layout(('w', 'b'), ((3, 2), (2,)), 32, 'none', True)}
      >>> count = Count(np.array([[2, 1]]), np.array([False]), np.array([True]))
      >>> linear_p_accounting(layout, {'up': count}, ('up',), 0.5, leaves=('w',))
      96.0
    """
    total = 0.0
    for name in names:
        one = layout[name]
        size = sum(
            math.prod(shape)
            for path, shape in zip(one.paths, one.shapes, strict=True)
            if any(fnmatch.fnmatchcase(path, glob) for glob in leaves)
        )
        total += one.bits * size * float(np.sum(rate * np.asarray(count[name].sent)))
    return total
