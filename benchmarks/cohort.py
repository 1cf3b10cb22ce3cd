"""Measures rounds per second and peak memory by the number of clients in a round.

    python -m benchmarks.cohort                       # 1 to 10,000 clients, 3 minutes
    python -m benchmarks.cohort --models mlp --cohorts 10 1000 --repeats 9

FedAvg trains 10,000 clients of one minibatch each. The server sees only a sum, so a
round holds only a chunk of clients: memory must not grow with the cohort, except for
the log of some hundred bytes per client. Every cohort runs in a process of its own. Its
peak includes imports, data and compilation; the table also has the temporary buffers
that XLA plans. One client runs on one device, and every device holds a copy of the
samples.
"""

import json
from functools import partial

from benchmarks import measure, workload
from benchmarks.workload import Workload
from sparsefl_jax.report.figure import COLORS

MODELS = {
    "tiny": Workload("mlp", 10_000, 20, widths=(8,), batch_size=20),
    "mlp": Workload("mlp", 10_000, 20, batch_size=20),
}
COHORTS = (1, 10, 100, 1000, 10_000)
HEAD = (
    *("model", "clients a round", "rounds/s: best", "median", "steps/s: best"),
    *("median", "peak of the process, MB", "temporaries, MB", "compile s"),
)


def run(name: str, cohort: int, repeats: int, chunk="auto") -> dict:
    """Returns all figures of a cohort, measured in this process."""
    one = workload.prepare(MODELS[name]._replace(cohort=cohort), chunk)
    timed = measure.summary(measure.in_turns({"": workload.going(one)}, repeats)[""])
    return timed | {
        "model": name,
        "cohort": cohort,
        "rounds_per_second": 1 / timed["minimum_seconds"],
        "rounds_per_second_median": 1 / timed["median_seconds"],
        "steps_per_second": one.steps / timed["minimum_seconds"],
        "steps_per_second_median": one.steps / timed["median_seconds"],
        "peak_bytes": measure.peak_memory(),
        "planned_bytes": one.bytes,
        "compile_seconds": one.compile_seconds,
    }


def row(r: dict) -> list[str]:
    return [
        r["model"],
        f"{r['cohort']:,}",
        f"{r['rounds_per_second']:.2f}",
        f"{r['rounds_per_second_median']:.2f}",
        f"{r['steps_per_second']:,.0f}",
        f"{r['steps_per_second_median']:,.0f}",
        f"{r['peak_bytes'] / 1e6:,.0f}",
        f"{r['planned_bytes']['temporaries'] / 1e6:,.2f}",
        f"{r['compile_seconds']:.1f}",
    ]


def draw(results: list[dict], figure) -> None:
    """Plots steps per second, and memory, by cohort."""
    rates, memory = figure.subplots(1, 2)
    measured = dict.fromkeys(r["model"] for r in results)
    for color, name in zip(COLORS, measured, strict=False):
        of_model = [r for r in results if r["model"] == name]
        cohorts = [r["cohort"] for r in of_model]
        style = {"color": color, "label": name}
        rates.plot(cohorts, [r["steps_per_second"] for r in of_model], "o-", **style)
        memory.plot(cohorts, [r["peak_bytes"] / 1e6 for r in of_model], "o-", **style)
    rates.set(xscale="log", yscale="log", title="Client steps a second")
    memory.set(xscale="log", title="Peak memory of the process [MB]")
    memory.set_ylim(0, 1.2 * max(r["peak_bytes"] for r in results) / 1e6)
    for ax in (rates, memory):
        ax.set_xlabel("clients a round")
    rates.legend()


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__, repeats=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cohorts", nargs="+", type=int, default=COHORTS)
    parser.add_argument("--chunk", default="auto")
    parser.add_argument("--inner", type=json.loads, help="used by itself")
    args = parser.parse_args()
    if args.inner:
        return measure.tell(run(*args.inner))
    largest = min(setup.clients for setup in MODELS.values())
    if not all(1 <= cohort <= largest for cohort in args.cohorts):
        parser.error(f"cohorts={args.cohorts}, expected each from 1 to {largest}")
    results = []
    for name in args.models:
        for cohort in args.cohorts:
            inner = name, cohort, args.repeats, args.chunk
            output = measure.apart("cohort", inner)
            results.append(output["result"])
            print(*row(results[-1]), sep="  ", flush=True)
    about = {"repeats": args.repeats} | output["machine"]
    table = measure.markdown(HEAD, map(row, results))
    draws = partial(draw, results)
    measure.publish("cohort", args.out, about, results, table, draws, (10, 4))


if __name__ == "__main__":
    main()
