"""Measures rounds per second and peak memory by the number of clients in a round.

    python -m benchmarks cohort                       # 1 to 10,000 clients, 3 minutes
    python -m benchmarks cohort --models mlp --cohorts 10 1000 --repeats 9

FedAvg trains 10,000 clients of one minibatch each. The server sees only a sum, so a
round holds only a chunk of clients: memory must not grow with the cohort, except for
the log of some hundred bytes per client. Every cohort runs in a process of its own. Its
peak includes imports, data and compilation; the table also has the temporary buffers
that XLA plans. One client runs on one device, and every device holds a copy of the
samples.
"""

from collections.abc import Iterator

import jax

from benchmarks import measure, workload
from benchmarks.workload import Workload
from sparsefl_jax.system import hardware

MODELS = {
    "tiny": Workload("mlp", 10_000, 20, widths=(8,), batch_size=20),
    "mlp": Workload("mlp", 10_000, 20, batch_size=20),
}
CHOICES = {"models": MODELS}


def run(
    models=tuple(MODELS), cohorts=(1, 10, 100, 1000, 10_000), chunk="auto", repeats=3
) -> Iterator[dict]:
    """Yields a row for each network and number of clients."""
    for name in models:
        for cohort in cohorts:
            yield measure.apart(one, name, cohort, chunk, repeats)


def one(name: str, cohort: int, chunk, repeats: int) -> dict:
    """Returns the row of a cohort, measured in this process."""
    made = workload.prepare(MODELS[name]._replace(cohort=cohort), chunk)
    seconds = workload.seconds(made, repeats)
    peak = hardware.peak_memory(jax.devices()[:1])
    return (
        {"model": name, "clients a round": cohort}
        | measure.rates("rounds/s", 1, seconds)
        | measure.rates("steps/s", made.steps, seconds)
        | {"peak, MB": (peak["devices"] or peak["process"]) / 1e6}
        | {"temporaries, MB": made.bytes["temporaries"] / 1e6}
        | {"compile s": made.compile_seconds}
    )
