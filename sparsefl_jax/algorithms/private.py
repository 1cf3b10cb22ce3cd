"""Makes a method's released models differentially private for its clients.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018,
https://arxiv.org/abs/1710.06963: the server clips every client's difference and adds
Gaussian noise to their sum. Here K clients are drawn without replacement, and
neighbours differ in one client's data (replace one): one clipped difference takes the
place of another, so the sum moves by at most 2 clip. `promise` is the accountant.
"""

import functools
import math
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.algorithm import Algorithm, Message
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.core.types import Array, Context, PyTree
from sparsefl_jax.core.used_arguments import reads

_NOISE = 2**32 - 1  # a method's own streams have small numbers


def private(
    algorithm: Algorithm,
    *,
    clip: float,
    noise_multiplier: float,
    delta: float | None = None,
    fingerprint: str = "",
) -> Algorithm:
    """Clips every client's difference and adds Gaussian noise to their sum.

    The method has to sum one `means.weighted_sum` of `{'delta': ...}`, what training
    has changed of the received model, with the weight 1 for every client: 'flasc', and
    with `weighting='uniform'` 'fedavg', 'fedprox', 'compressed', 'fedluar', 'fedmrn'
    and 'fedbat'. A sum of K clipped differences gets noise of deviation
    noise_multiplier * 2 clip in every entry; the weight K is public. An infinite `clip`
    and no noise leave every bit as it is.

    The noise follows from the run's seed, the round, `clip`, `noise_multiplier` and
    `fingerprint`. Runs that agree in all of these have the same noise, and it cancels
    in the difference of their models. A public seed protects nobody: whoever knows it
    can subtract the noise of any run.

    Args:
      algorithm: the method.
      clip: largest L2 norm of a client's difference, over all parameters together.
      noise_multiplier: deviation of the noise over 2 clip, the sensitivity of the sum;
        0 adds none.
      delta: the delta for which epsilon is given, in (0, 1); None: N**-1.1, as
        McMahan et al. have it for N clients.
      fingerprint: any text that other settings, such as a learning rate, change, and
        that a run which is resumed or extended keeps. A configuration's run passes the
        fields that resuming may not change; in Python it is up to the caller.

    Raises:
      ValueError: an argument is out of range, or the method has personal models or is
        private already. When the method is traced: it sums anything else, weighs
        clients by what they have, or may send nothing. Before a run, by
        `runs.setup`: other samplers than the uniform one, budgets, a `system` or
        several stages.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = sfl.fedavg(model, optimizer, weighting="uniform")
      >>> method = private(method, clip=0.5, noise_multiplier=1.0)
    """
    check("clip", clip, "(0, inf]")
    check("noise_multiplier", noise_multiplier, "[0, inf)")
    if delta is not None:
        check("delta", delta, "(0, 1)")
    if noise_multiplier and math.isinf(clip):
        raise UserError(f"clip={clip}, expected a finite number where there is noise")
    if algorithm.privacy is not None:
        raise UserError("method is private already, expected one that is not")
    if algorithm.personalize is not None:
        raise UserError("personalize is set, expected None for a private method")
    settings = repr((float(clip), float(noise_multiplier), fingerprint))
    digest = zlib.crc32(settings.encode())

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = algorithm.update(key, ctx, downlink, client, batches)
        for name, packet in uplink.items():
            if packet.sent is not True:
                # Who sends nothing would show in the sum.
                raise UserError(f"packet {name!r} has a flag sent, expected sent=True")
        return uplink, client, metrics

    def contribute(ctx, uplink):
        summand = algorithm.contribute(ctx, uplink)
        difference = _difference(summand)
        _refuse_weights(algorithm, ctx, uplink)
        norm = optax.tree.norm(difference)
        scale = jnp.minimum(jnp.float32(1), clip / norm)
        clipped = jax.tree.map(lambda v: scale * v, difference)
        return _replace(summand, clipped)

    def aggregate(key, ctx, server, total):
        if noise_multiplier:  # static branch
            deviation = noise_multiplier * 2 * clip
            noise_key = jax.random.fold_in(jax.random.fold_in(key, _NOISE), digest)
            difference = _difference(total)
            noise = optax.tree.random_like(noise_key, difference, jax.random.normal)
            noisy = jax.tree.map(lambda v, n: v + deviation * n, difference, noise)
            total = _replace(total, noisy)
        return algorithm.aggregate(key, ctx, server, total)

    privacy = {"clip": clip, "noise_multiplier": noise_multiplier, "delta": delta}
    privacy |= {"fingerprint": fingerprint}
    known = {"name": algorithm.name, "privacy": privacy}
    known |= {"settings": algorithm.settings | {"privacy": privacy}}
    return algorithm.replace(update, contribute, aggregate, **known)


def promise(
    privacy: Mapping[str, Any], num_clients: int, cohort_size: int, rounds: int
) -> dict[str, Any]:
    """Returns what the released models of a private method promise.

    Args:
      privacy: as `Algorithm.privacy`.
      num_clients: N, all clients.
      cohort_size: K, clients of a round.
      rounds: number of rounds that were run.

    Returns:
      Facts for the summary. The plan and the page print `statement`; `noise`, if any,
      is appended to the error of a run that diverges.
    """
    clip, multiplier, at = (privacy[k] for k in ("clip", "noise_multiplier", "delta"))
    at = num_clients**-1.1 if at is None else at
    spent = epsilon(num_clients, cohort_size, rounds, multiplier, at)
    finite = math.isfinite(spent)  # the page and the summary have None if not
    said = f"epsilon={spent:.4g} at delta={at:.3g}" if finite else "no epsilon"
    facts = {
        **{"epsilon": spent if finite else None, "delta": at, "clip": clip},
        **{"noise_multiplier": multiplier, "rounds": rounds},
        "statement": (
            f"Differential privacy of clients (one replaced by another) after "
            f"{rounds} rounds: {said}, clip={clip:g}, noise_multiplier={multiplier:g}. "
            "This is of the released models, not of metrics.jsonl, whose losses and "
            "accuracies come from samples without noise."
        ),
    }
    if multiplier:
        deviation = multiplier * 2 * clip / cohort_size
        facts["noise"] = (
            f"each round adds noise of deviation {deviation:.3g} to "
            f"the mean change of a weight: noise_multiplier={multiplier:g}, "
            f"clip={clip:g}, {cohort_size=}"
        )
    return facts


@functools.cache  # plan, run and summary call it
def epsilon(
    num_clients: int,
    cohort_size: int,
    rounds: int,
    noise_multiplier: float,
    delta: float,
) -> float:
    """Returns the epsilon of the models that some rounds release.

    Google's `dp-accounting` computes it: Renyi differential privacy of the Gaussian
    mechanism on K of N clients drawn without replacement, which is Theorem 27 of Wang,
    Balle and Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical
    Moments Accountant", AISTATS 2019, https://arxiv.org/abs/1808.00087, in its
    docstring and takes neighbours to differ in one replaced client. Its
    noise multiplier is "the ratio of the standard deviation of the Gaussian noise to
    the l2-sensitivity of the function to which it is added", as it is here.

    Args:
      num_clients: N.
      cohort_size: K, clients of a round.
      rounds: number of rounds that were run.
      noise_multiplier: deviation of the noise over the sensitivity of the sum, 2 clip.
      delta: in (0, 1).

    Returns:
      Epsilon; infinite without noise, 0 without rounds.

    Raises:
      ValueError: `dp-accounting` is not installed (extra `privacy`).
    """
    if not noise_multiplier:
        return math.inf
    if not rounds:
        return 0.0
    dp_accounting = import_extra("dp_accounting", "privacy", "noise_multiplier")
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    noise = dp_accounting.GaussianDpEvent(noise_multiplier)
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(
        num_clients, cohort_size, noise
    )
    accountant.compose(sampled, rounds)
    return float(accountant.get_epsilon(delta))


def _difference(summand: PyTree) -> PyTree:
    """Returns the differences that a method sums; refuses any other sum."""
    known = isinstance(summand, Mapping) and set(summand) == {"sum", "weight"}
    sums, weight = (summand["sum"], summand["weight"]) if known else (None, None)
    named = sums.items() if isinstance(sums, Mapping) else ()
    names = [name for name, tree in named if jax.tree.leaves(tree)]
    if names != ["delta"] or jax.tree.structure(weight) != jax.tree.structure(0):
        raise UserError(
            f"the method sums {', '.join(names) or 'no delta'}, expected one "
            "weighted_sum of {'delta': ...} alone for a private method: no votes, "
            "models or covered_sum, no running statistics (model.norm='group')"
        )
    return sums["delta"]


def _replace(summand: PyTree, difference: PyTree) -> PyTree:
    return summand | {"sum": summand["sum"] | {"delta": difference}}


def _refuse_weights(algorithm: Algorithm, ctx: Context, uplink: Message) -> None:
    """Refuses a weight that depends on the client or on what it has sent."""

    def weight(ctx: Context, uplink: Message) -> Array:
        return algorithm.contribute(ctx, uplink)["weight"]

    traced = jax.make_jaxpr(weight)(ctx, uplink)
    if any(jax.tree.leaves(reads(traced, (ctx, uplink), steps=False))):
        raise UserError("weighting='examples', expected 'uniform' for a private method")
