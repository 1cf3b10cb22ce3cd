"""What a private method promises in a run: epsilon, and the noise of a weight.

Accounting: Wang, Balle and Kasiviswanathan, "Subsampled Renyi Differential Privacy and
Analytical Moments Accountant", AISTATS 2019, https://arxiv.org/abs/1808.00087.
"""

import functools
import math
from typing import Any

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.extras import imported


def guarantee(stage: Stage, num_clients: int, rounds: int) -> dict[str, Any]:
    """Returns what the released models of a private stage promise.

    Args:
      stage: a stage of a method that `private` has made.
      num_clients: N, all clients.
      rounds: number of rounds that were run.

    Returns:
      Facts for the summary. The plan and the page print `statement`; `noise`, if any,
      is appended to the error of a run that diverges.
    """
    privacy, size = stage.algorithm.privacy, stage.cohort_size
    clip, multiplier, at = (privacy[k] for k in ("clip", "noise_multiplier", "delta"))
    at = num_clients**-1.1 if at is None else at
    spent = epsilon(num_clients, size, rounds, multiplier, at)
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
        facts["noise"] = (
            f"each round adds noise of deviation {multiplier * 2 * clip / size:.3g} to "
            f"the mean change of a weight: noise_multiplier={multiplier:g}, "
            f"clip={clip:g}, cohort_size={size}"
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
    mechanism on K of N clients drawn without replacement, which is Theorem 27 of Wang
    et al. in its docstring and takes neighbours to differ in one replaced client. Its
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
    dp_accounting = imported("dp_accounting", "privacy", "noise_multiplier")
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    noise = dp_accounting.GaussianDpEvent(noise_multiplier)
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(
        num_clients, cohort_size, noise
    )
    accountant.compose(sampled, rounds)
    return float(accountant.get_epsilon(delta))
