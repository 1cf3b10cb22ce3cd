"""Measures rounds by the length of their segment, and seeds that share a program.

    python -m benchmarks segments                     # pfl's set-up, one device
    python -m benchmarks segments --setup mlp --lengths 1 20 --seeds 5
    python -m benchmarks segments --lengths 50 --seeds 1 --rounds 1500  # all of pfl's

A segment is the rounds between two returns to the host, which then fetches their logs.
Seeds run one after another in a run, so a row of one seed is also that of seeds in
turn. The last row, in segments of the largest length, maps all seeds in one program, as
`examples/seeds.ipynb` does. Evaluation, accounting and files are left out.
"""

import time
from collections.abc import Iterator

import jax

from benchmarks import workload

CHOICES = {"setup": workload.SETUPS}


def run(setup="pfl", lengths=(1, 10, 50), seeds=3, rounds=100) -> Iterator[dict]:
    """Yields a row for each length, and one for several seeds together.

    Args:
      setup: of `SETUPS`.
      lengths: rounds of a segment.
      seeds: how many run together.
      rounds: of every seed, rounded up to whole segments.
    """
    for length in lengths:
        yield row(setup, length, 0, rounds)
    if seeds > 1:
        yield row(setup, max(lengths), seeds, rounds)


def row(name: str, length: int, seeds: int, rounds: int) -> dict:
    """Times the rounds of one seed, or of `seeds` in one program."""
    setup = workload.SETUPS[name]._replace(rounds=length, seeds=seeds)
    one = workload.prepare(setup, devices=jax.devices()[:1])
    call, calls = workload.going(one), -(-rounds // length)
    jax.device_get(call())  # untimed
    begun = time.perf_counter()
    for _ in range(calls):
        jax.device_get(call())
    seconds, count = time.perf_counter() - begun, max(seeds, 1)
    return {
        "set-up": name,
        "rounds a segment": length,
        "seeds together": count,
        "rounds of each": calls * length,
        "seconds": seconds,
        "ms a round and seed": 1e3 * seconds / (calls * length * count),
        "steps/s": calls * one.steps / seconds,
        "compile s": one.compile_seconds,
    }
