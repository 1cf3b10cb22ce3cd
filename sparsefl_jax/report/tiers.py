"""Clients left out: how often each tier of devices was drawn, late, and served."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparsefl_jax.core.formats import MISSING, format_percent
from sparsefl_jax.report.load import Record


def totals(
    train: Sequence[Record], evals: Sequence[Record]
) -> dict[str, dict[str, Any]]:
    """Summarises the tiers of devices of a run; {} if it had no clock.

    Args:
      train: its records of training.
      evals: its evaluations, of which the last counts.

    Returns:
      By the name of a tier: `drawn` and `dropped`, how often its clients were drawn and
      were late, and `accuracy`, the mean over its clients, each on its own test
      samples; None if it has none.

    Example:
      >>> record = {"tiers": {"low": {"drawn": 2, "dropped": 1}}}
      >>> totals([record, record], [{"tier_accuracy": {"low": 0.5}}])
      {'low': {'drawn': 4, 'dropped': 2, 'accuracy': 0.5}}
    """
    recorded = [record["tiers"] for record in train if record.get("tiers")]
    reached = (evals[-1].get("tier_accuracy") if evals else None) or {}
    names = dict.fromkeys(name for tiers in recorded for name in tiers)
    return {
        name: {
            key: sum(tiers[name][key] for tiers in recorded if name in tiers)
            for key in ("drawn", "dropped")
        }
        | {"accuracy": reached.get(name)}
        for name in names
    }


def unheard(train: Sequence[Record]) -> int:
    """Counts the rounds in which no uplink came in time, so that nothing was learned.

    Example:
      >>> late, heard = ({"low": {"drawn": 2, "dropped": n}} for n in (2, 1))
      >>> unheard([{"tiers": late}, {"tiers": heard}, {}])
      1
    """
    tiers = [record["tiers"].values() for record in train if record.get("tiers")]
    return sum(all(t["drawn"] == t["dropped"] for t in of_round) for of_round in tiers)


def tier_rows(tiers: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Returns a head and a row for each tier.

    Args:
      tiers: as `totals` returns them.

    Example:
      >>> tier_rows({"low": {"drawn": 4, "dropped": 2, "accuracy": 0.5}})[1]
      ['low', '4', '2', '50.00 %', '50.00 %']
    """
    rows = [["devices", "drawn", "late", "share late", "accuracy"]]
    for name, tier in tiers.items():
        drawn, dropped = tier["drawn"], tier["dropped"]
        late = format_percent(dropped / drawn) if drawn else MISSING
        accuracy = format_percent(tier.get("accuracy"))
        rows.append([name, f"{drawn:g}", f"{dropped:g}", late, accuracy])
    return rows
