"""Times a whole run, from the start of its process to the last evaluation.

    python -m benchmarks.whole                          # pfl's 1500 rounds
    python -m benchmarks.whole --only pfl femnist --rounds 100 --eval_every 50

Each set-up of `benchmarks.throughput` runs in a process of its own without a
compilation cache: imports, random data, compilation, rounds, and evaluations on 10,000
test samples. `launch.py` would add a checkpoint every few minutes and the plots.
"""

import itertools
import json
import time
from functools import partial

import jax

import sparsefl_jax as sfl
from benchmarks import measure, throughput, workload
from sparsefl_jax.report.figure import COLORS
from sparsefl_jax.runs import progress

TESTS = 10_000
HEAD = (
    *("set-up", "clients, cohort, batch", "rounds", "seconds in all", "compiling"),
    *("to the first evaluation", "rounds/s after it", "client steps/s after it"),
)


def run(name: str, rounds: int, eval_every: int, chunk, begun: float) -> dict:
    """Times a whole run in this process, which its parent started at `begun`."""
    setup = throughput.SETUPS[name]
    data = workload.make_data(setup, TESTS)
    model = workload.make_model(setup, data)
    stage = workload.make_stage(setup, model, rounds)
    course = []

    def note(records):
        if "accuracy" in records[-1]:
            course.append((records[-1]["round"], time.time() - begun))

    settings = {"eval_every": eval_every, "chunk": chunk, "callback": note}
    with progress.compiling() as taken:
        sfl.run(jax.random.key(0), [stage], model, data, **settings)
        compile_seconds = taken()
    steps = setup.drawn * -(-setup.samples // setup.batch)
    return {
        "name": name,
        "setup": f"{setup.clients}, {setup.drawn}, {setup.batch}",
        "tests": len(data.x_test),
        "rounds": rounds,
        "eval_every": eval_every,
        "steps_per_round": steps,
        "seconds": course[-1][1],
        "compile_seconds": compile_seconds,
        "course": course,
    }


def rate(r: dict) -> float | None:
    """Returns rounds per second after the first evaluation, including evaluations."""
    (first, early), (last, late) = r["course"][0], r["course"][-1]
    return (last - first) / (late - early) if last > first else None


def row(r: dict) -> list[str]:
    after = rate(r)
    return [
        r["name"],
        r["setup"],
        f"{r['rounds']:,}, evaluated every {r['eval_every']}",
        f"{r['seconds']:.1f}",
        f"{r['compile_seconds']:.1f}",
        f"{r['course'][0][1]:.1f}",
        "-" if after is None else f"{after:.2f}",
        "-" if after is None else f"{after * r['steps_per_round']:,.0f}",
    ]


def draw(results: list[dict], figure) -> None:
    """Plots the rounds done by the seconds since the process started."""
    ax = figure.subplots()
    names = dict.fromkeys(r["name"] for r in results)
    for color, name in zip(itertools.cycle(COLORS), names, strict=False):
        courses = [r["course"] for r in results if r["name"] == name]
        for i, course in enumerate(courses):
            rounds, seconds = zip(*course, strict=True)
            label = None if i else name  # once in the legend
            ax.plot(seconds, rounds, color=color, label=label)
    ax.set(title="A whole run", xlabel="seconds since its start", ylabel="rounds")
    ax.set_xlim(left=0)
    ax.legend()


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__, repeats=1)
    setups = throughput.SETUPS
    parser.add_argument("--only", nargs="+", choices=setups, default=["pfl"])
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--eval_every", type=int, default=10)
    parser.add_argument("--chunk", default="auto")
    parser.add_argument("--inner", type=json.loads, help="used by itself")
    args = parser.parse_args()
    if args.inner:
        return measure.tell(run(*args.inner))
    if args.rounds < 1 or args.eval_every < 1:
        parser.error(f"rounds={args.rounds}, eval_every={args.eval_every}: at least 1")
    results = []
    for name in args.only:
        for _ in range(args.repeats):
            inner = name, args.rounds, args.eval_every, args.chunk, time.time()
            told = measure.apart("whole", inner, JAX_ENABLE_COMPILATION_CACHE="false")
            results.append(told["result"])
            print(*row(results[-1]), sep="  ", flush=True)
    table = measure.markdown(HEAD, map(row, results))
    draws = partial(draw, results)
    about = {"repeats": args.repeats} | told["machine"]
    measure.publish("whole", args.out, about, results, table, draws)


if __name__ == "__main__":
    main()
