"""The rows of one of FedSparsify's environments: a panel of Figures 2 and 5."""

from benchmarks.tables import Row, Table

METHODS = ("global", "local", "random", "snip", "grasp", "prunefl")
DENSITIES = (".2", ".15", ".1", ".05", ".01")  # 1 - S


def rows(
    config: str, *split: str, printed: dict[str, str] | None = None, needs: str = ""
) -> dict[str, Row]:
    """Returns two dense baselines, and six methods at five densities.

    PruneFL also has the density of 0.7 of Figures 2c, 2d, 5c, 5d and 6.

    Args:
      config: the configuration's file.
      *split: its options of the environment.
      printed: the paper's figure by row.
      needs: as in `Row`.
    """
    pruned = [(m, d) for m in METHODS for d in DENSITIES] + [("prunefl", ".7")]
    densities = {m + d: (m, {"density": float(d)}) for m, d in pruned}
    dense = {method: (method, {}) for method in ("fedavg", "fedprox")}
    return {
        name: Row(
            f"{config}:{','.join((method, *split))}",
            (printed or {}).get(name, ""),
            overrides,
            needs,
        )
        for name, (method, overrides) in (dense | densities).items()
    }


def of_100_clients(config: str) -> Table:
    """Returns the table of 10 of 100 clients a round: Figure 5."""
    found = {
        f"{split}_{name}": row
        for split in ("noniid", "iid")
        for name, row in rows(config, "clients100", split).items()
    }
    return Table(found, seeds=1)
