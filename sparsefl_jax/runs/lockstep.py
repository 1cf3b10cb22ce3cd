"""Runs that differ in their seed alone go through their rounds in one program.

Each is a generator of its own, see `loop.steps`, which asks for its rounds and does all
else as it does alone. Of those that ask, the ones that are furthest behind go on; so
runs that a kill has left in different rounds catch up. The program always has a place
for every seed, which repeats another's rounds once its own run has ended: what a run
computes does not depend on which others are left.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.validate import one_line
from sparsefl_jax.runs import loop
from sparsefl_jax.runs.plan import memory
from sparsefl_jax.runs.plan.checks import Traced
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.runs.segments import Asked, Ran, Segment
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import placement, replicas

CHOICES = {  # of seeds_together
    "auto": "together on accelerators, if the memory suffices",
    "yes": "together wherever it is possible",
    "no": "one after another",
}


class ApartError(Exception):
    """Says, in one line, why runs go on one after another."""


def compiled(
    setups: Sequence[Setup],
    traced: Sequence[Traced],
    *,
    first: int = 0,
    asked: bool = False,
    **hooks: Callable,
) -> Programs:
    """Compiles the stages of runs that are to go on together.

    Args:
      setups: the runs, one for each seed.
      traced: what `checks.run` gave for one of them.
      first: the first stage that is left of any.
      asked: whether it was asked for. Else it has to promise more speed: on
        accelerators, with all clients at a time that a single run would take.
      **hooks: `waiting` and `interrupted`, as `Programs` takes them.

    Raises:
      ApartError: they cannot go on together.
    """
    if why := _refusal(setups, traced, asked):
        raise ApartError(why)
    populations = [placement.on_host(s.data, s.budgets) for s in setups]
    together = replicas.of(populations)
    programs = Programs(setups[0], traced, first, replicas=together, **hooks)
    with programs:  # all stages before any round, for then nothing is to be undone
        for stage in range(first, len(traced)):
            try:
                chunk = programs.of(stage).memory.chunk
            except Exception as error:  # whatever cannot be mapped or does not fit
                raise ApartError(f"stage {stage}: {one_line(error)}") from error
            if chunk < traced[stage].memory.chunk and not asked:
                raise ApartError(
                    f"stage {stage} of {len(setups)} seeds fits the memory with "
                    f"{chunk} clients at a time only"
                )
    return programs


def _refusal(setups: Sequence[Setup], traced: Sequence[Traced], asked: bool) -> str:
    """Says why runs cannot go on together as far as shapes tell; '' if they can."""
    first, *others = setups
    devices = placement.stage_devices(first.stages[0], first.devices)
    limit = memory.budget(first.memory_gb, devices)
    if devices[0].platform == "cpu" and not asked:
        return "a CPU gains nothing by seeds_together"
    if first.system is not None:
        return "with a system each seed has a clock of its own"
    for index, one in enumerate(traced):
        if one.pace.where != "device":
            return f"clients' states of stage {index} live on the {one.pace.where}"
        total = memory.of_replicas(one.memory, len(setups)).total()
        if limit is not None and total > limit:
            return f"stage {index} of {len(setups)} seeds does not fit the memory"
    shapes = [jax.tree.map(np.shape, placement.on_host(setup.data)) for setup in setups]
    if any(shape != shapes[0] for shape in shapes):
        return "the data of the seeds differ in shape"
    read = [(s.data.mean, s.data.std, s.data.num_classes) for s in setups]
    if any(each != read[0] for each in read):
        return "the data of the seeds differ in mean, deviation or classes"
    return ""


def simulating(programs: Programs, setups: Sequence[Setup]) -> Callable:
    """Returns the function that simulates rounds of several runs at once.

    Args:
      programs: from `compiled`.
      setups: the runs, by place.

    Returns:
      `simulate(asked) -> ran`, an `Asked` and a `Ran` by place; all ask for the same
      rounds, and as many run as the one that asks for the fewest.
    """
    together = programs.replicas
    populations = [placement.on_host(s.data, s.budgets) for s in setups]
    current: tuple = (None,)

    def prepare(stage, state):
        plan = programs.of(stage).plan
        population = replicas.put(together, plan, populations)
        shardings = placement.shardings(plan, state)
        return stage, population, *replicas.stacking(together, shardings)

    def simulate(asked: dict[int, Asked]) -> dict[int, Ran]:
        nonlocal current
        one = next(iter(asked.values()))
        with memory.explained(programs.memory(one.stage), one.stage):
            if current[0] != one.stage:
                current = (None,)  # which frees the data of the stage before
                current = prepare(one.stage, one.state)
            _, population, stack, unstack = current
            everyone = [asked.get(place, one) for place in range(together.count)]
            count = np.int32(min(each.count for each in asked.values()))
            state = stack([each.state for each in everyone])
            for each in asked.values():
                jax.tree.map(lambda v: v.delete(), each.state)
            state, logs = programs.of(one.stage).segment(
                jnp.stack([each.key for each in everyone]),
                population,
                state,
                one.rounds,
                np.stack([each.ids for each in everyone]),
                None,
                count,
            )
            logs, states = jax.device_get(logs), unstack(state)
        return {
            place: Ran(
                states[place],
                jax.tree.map(lambda v, place=place: v[place], logs),
                int(count),
                each.draw(each.rounds + count),
            )
            for place, each in asked.items()
        }

    return simulate


def go_on(
    runs: dict[int, Iterator], simulate: Callable
) -> Iterator[dict[int, Segment | Exception]]:
    """Goes on with runs until all have ended or failed.

    Args:
      runs: from `loop.steps`, by place. Who closes one takes it out.
      simulate: from `simulating`.

    Yields:
      By place, what the runs came to that were furthest behind: a segment, or the
      error with which a run has ended. The others go on.
    """
    asked, ready = {}, list(runs)
    while True:
        failed = {}
        for place in ready:
            try:
                asked[place] = next(runs[place])
            except StopIteration:
                pass
            except Exception as error:  # whatever it is, the others go on
                failed[place] = error
        if failed:
            yield failed
        if not asked:
            return
        least = min(_place(each) for each in asked.values())
        behind = [place for place, each in asked.items() if _place(each) == least]
        came, ready = {}, []
        try:
            ran = simulate({place: asked.pop(place) for place in behind})
        except Exception as error:  # as when the memory does not suffice
            yield dict.fromkeys(behind, error)
            continue
        for place in behind:
            try:
                came[place] = runs[place].send(ran[place])
            except Exception as error:  # as above
                came[place] = error
        yield came
        ready = [p for p in behind if isinstance(came[p], Segment)]


def _place(asked: Asked) -> tuple[int, int]:
    """Returns how far a run has come."""
    return asked.stage, int(asked.rounds[0])


def steps(seeds: Sequence[int], setups: Sequence[Setup], programs: Programs, at: dict):
    """Returns the runs by place, from where each stands, as `go_on` takes them."""
    return {
        place: loop.steps(jax.random.key(seeds[place]), setups[place], programs, where)
        for place, where in at.items()
    }
