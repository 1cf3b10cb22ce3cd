"""Times a whole run, from the start of its process to the last evaluation.

    python -m benchmarks whole                          # pfl's 1500 rounds
    python -m benchmarks whole --only pfl femnist --rounds 100 --eval_every 50

Each set-up of `workload` runs in a process of its own without a compilation cache:
imports, random data, compilation, rounds, and evaluations on 10,000 test samples.
`launch.py` would add a checkpoint every few minutes and the plots.
"""

import time
from collections.abc import Iterator

import jax

import sparsefl_jax as sfl
from benchmarks import measure, workload

TESTS = 10_000
CHOICES = {"only": workload.SETUPS}


def run(
    only=("pfl",), rounds=1500, eval_every=10, chunk="auto", repeats=1
) -> Iterator[dict]:
    """Yields a row for each run."""
    for name in only:
        for _ in range(repeats):
            how = name, rounds, eval_every, chunk, time.time()
            yield measure.apart(one, *how, JAX_ENABLE_COMPILATION_CACHE="false")


def one(name: str, rounds: int, eval_every: int, chunk, begun: float) -> dict:
    """Times a whole run in this process, which its parent started at `begun`."""
    setup, course = workload.SETUPS[name], []
    data = workload.make_data(setup, TESTS)
    model = workload.make_model(setup, data)
    stage = workload.make_stage(setup, model, rounds)

    def note(records):
        if "accuracy" in records[-1]:
            course.append((records[-1]["round"], time.time() - begun))

    settings = {"eval_every": eval_every, "chunk": chunk, "callback": note}
    with measure.compiling() as taken:
        sfl.run(jax.random.key(0), [stage], model, data, **settings)
        compile_seconds = taken()
    after = rate(course)
    return {
        "set-up": name,
        "clients, cohort, batch": setup.sizes,
        "rounds": f"{rounds:,}, evaluated every {eval_every}",
        "seconds in all": course[-1][1],
        "compiling": compile_seconds,
        "to the first evaluation": course[0][1],
        "rounds/s after it": after,
        "client steps/s after it": after and after * setup.steps,
    }


def rate(course: list[tuple[int, float]]) -> float | None:
    """Returns rounds per second after the first evaluation, including evaluations.

    Args:
      course: the round and the seconds of each evaluation.

    Example:
      >>> rate([(2, 10.0), (4, 11.0), (5, 11.5)]), rate([(2, 10.0)])
      (2.0, None)
    """
    (first, early), (last, late) = course[0], course[-1]
    return (last - first) / (late - early) if last > first else None
