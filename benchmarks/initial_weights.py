"""Charges SpaFL's initial weights in results from before they were charged.

    python -m benchmarks.initial_weights

A client's first downlink holds the weights that all clients begin from (Algorithm 1),
32 bits each. The benchmark's runs of commit 4c9d2da left these bits out. Which clients
take part for the first time in a round follows from the seed, and so does what a run
has cost after each round; no training is needed.

What is reached within a budget is then read again from `benchmarks/tables/
benchmark.json`, which has it for some numbers of rounds only. If validation chose the
same round among fewer rounds and among more, it is the choice in between too; else the
place is `UNKNOWN`. So are hours, to which a slow client's first downlink adds.
"""

import sys
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from benchmarks import study_tables
from benchmarks.study_tables import BUDGETS, UNKNOWN
from sparsefl_jax import models
from sparsefl_jax.core import keys
from sparsefl_jax.data import cohorts
from sparsefl_jax.simulation import initial_state
from studies import benchmark

PACKETS = 3  # of thresholds: themselves and their change down, themselves up


def newcomers(
    seed: int, num_clients: int, cohort_size: int, num_rounds: int
) -> list[list[int]]:
    """Returns, for each round of a run of one stage, who takes part for the first time.

    Args:
      seed: of the run.
      num_clients: of whom `cohort_size` are drawn in a round.
      cohort_size: K.
      num_rounds: of the run.
    """
    root = keys.of_stage(keys.of_run(jax.random.key(seed))[1], 0)
    draw = cohorts.uniform_sampler(num_clients, cohort_size)
    rounds = np.arange(num_rounds)
    drawn = jax.vmap(lambda round: draw(keys.of_cohorts(root), round))(rounds)
    seen, new = set(), []
    for cohort in np.asarray(drawn).tolist():
        new.append([client for client in cohort if client not in seen])
        seen.update(cohort)
    return new


def paid(bits: Sequence[int], gbit: float, every: int) -> int:
    """Returns the last evaluated round that a budget pays for; 0 if there is none.

    Args:
      bits: of each round.
      gbit: the budget.
      every: rounds from one evaluation to the next; the last round has one.

    Example:
      >>> paid([600_000_000] * 7, 3.0, 2), paid([1] * 7, 3.0, 2), paid([4], 3e-9, 1)
      (4, 7, 0)
    """
    rounds = int(np.sum(np.cumsum(bits) <= gbit * 1e9))
    return rounds if rounds == len(bits) else rounds - rounds % every


def read_again(known: Mapping[int, list], rounds: int) -> list | str | None:
    """Returns what validation chooses among a number of rounds, or `UNKNOWN`.

    Args:
      known: what it chooses, by the number of rounds; 0 and all of them among these.
      rounds: the number.

    Example:
      >>> known = {0: None, 4: [0.7, 0.6, 1.0], 6: [0.7, 0.6, 1.0], 9: [0.8, 0.7, 1.0]}
      >>> read_again(known, 5), read_again(known, 7), read_again(known, 0)
      ([0.7, 0.6, 1.0], 'unknown', None)
    """
    fewer = known[max(number for number in known if number <= rounds)]
    more = known[min(number for number in known if number >= rounds)]
    return fewer if fewer == more else UNKNOWN


def charged(found: dict, config, weights: int, thresholds: int) -> dict:
    """Returns the entry of SpaFL with the bits of initial weights.

    Args:
      found: the entry.
      config: of its point.
      weights: bits of the initial weights.
      thresholds: bits of one packet of thresholds.

    Raises:
      ValueError: its runs have cost other bits than those of thresholds.
    """
    each = PACKETS * thresholds * config.cohort_size
    within = {key: [] for key in found["within"]}
    totals = {key: list(numbers) for key, numbers in found["totals"].items()}
    for place, seed in enumerate(found["seeds"]):
        before = {key: triples[place] for key, triples in found["within"].items()}
        rounds, gbit = (totals[key][place] for key in ("rounds", "gbit"))
        if round(gbit * 1e9) != each * rounds:
            raise ValueError(
                f"seed {seed} has cost {gbit} Gbit, expected {each * rounds / 1e9} of "
                "thresholds alone; its initial weights may be charged already"
            )
        new = newcomers(seed, config.num_clients, config.cohort_size, rounds)
        bits = [each + weights * len(clients) for clients in new]
        known = {
            paid([each] * rounds, budget, config.eval_every): before[f"gbit {budget:g}"]
            for budget in BUDGETS["gbit"]
        }
        for axis, budgets in BUDGETS.items():
            for key, budget in ((f"{axis} {budget:g}", budget) for budget in budgets):
                if axis == "pflop":
                    now = before[key]
                elif axis == "hours":
                    now = UNKNOWN
                else:
                    affordable = paid(bits, budget, config.eval_every)
                    now = read_again({0: None} | known, affordable)
                within[key].append(now)
        totals["gbit"][place] = totals["gbit_values"][place] = sum(bits) / 1e9
        totals["hours"][place] = UNKNOWN
    return found | {"within": within, "totals": totals}


def main() -> None:
    """Charges them in the benchmark's results and draws its tables."""
    (found,) = (e for e in study_tables.published() if e["point"] == "spafl")
    (point,) = (point for point in benchmark.get_study() if point.name == "spafl")
    start = initial_state.initial_shapes(models.build("mlp", 10, (28, 28, 1)))
    numbers = jax.tree.leaves((start.params, start.stats))
    kernels = [leaf for leaf in numbers if leaf.ndim > 1]
    weights = 32 * sum(leaf.size for leaf in numbers)
    thresholds = 32 * sum(kernel.shape[-1] for kernel in kernels)
    study_tables.publish([charged(found, point.config, weights, thresholds)])


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(str(error))
