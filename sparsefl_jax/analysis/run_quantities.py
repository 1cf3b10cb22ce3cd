"""Reads from a run's folder the numbers that the theorems need."""

from pathlib import Path
from typing import NamedTuple

from sparsefl_jax.core.check import UserError
from sparsefl_jax.report.load import read_run


class Quantities(NamedTuple):
    """Numbers of a run's last stage.

    What a theorem needs besides these, such as the Lipschitz constant of a gradient,
    no run records: it is measured or assumed, and passed in.
    """

    rounds: int  # T, rounds that were run
    num_clients: int  # N
    num_samples: int  # D, training samples of all clients
    batch_size: int
    learning_rate: float | None  # eta without its schedule; None if there is none
    # After each round: the mean of the clients' models where the method reports it, as
    # SpaFL does; else that of the server's.
    densities: tuple[float, ...]

    @property
    def density(self) -> float:
        """Returns the density after the last round."""
        return self.densities[-1]


def quantities(run_dir: str | Path) -> Quantities:
    """Returns the numbers of a run's last stage.

    Args:
      run_dir: the folder of one run, see `report.load.read_run`.

    Raises:
      ValueError: the folder cannot be read, or lacks the partition, a number of the
        configuration or a round.

    Example:
      >>> quantities("no/such/run")
      Traceback (most recent call last):
      sparsefl_jax.UserError: run_dir='no/such/run' expected a folder with
      metrics.jsonl.
    """
    run = read_run(run_dir)
    last = max((record["stage"] for record in run.train), default=0)
    train = [record for record in run.train if record["stage"] == last]
    size = run.config.get("batch_size")
    if not train or run.partition is None or not isinstance(size, int):
        raise UserError(
            f"run_dir={str(run_dir)!r}, expected a run with rounds, partition.npy and "
            "a batch_size in config.json"
        )
    rate = run.config.get("optimizer", {}).get("learning_rate")
    return Quantities(
        train[-1]["round"],
        len(run.partition),
        int(run.partition.sum()),
        size,
        float(rate) if isinstance(rate, int | float) else None,
        tuple(r.get("client", {}).get("density", r["density"]) for r in train),
    )
