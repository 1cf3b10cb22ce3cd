"""The plan of a run before its first round, and the measured cost of a few rounds."""

from collections.abc import Sequence

import jax
import numpy as np

from sparsefl_jax.core.formats import (
    MISSING,
    align,
    format_percent,
    format_seconds,
    format_si,
)
from sparsefl_jax.data.federated import partition_counts
from sparsefl_jax.data.statistics import partition_statistics
from sparsefl_jax.runs.memory import Memory
from sparsefl_jax.runs.plan import Plan
from sparsefl_jax.runs.setup import Setup, guarantee
from sparsefl_jax.simulation import clock, initial_state
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import provenance
from sparsefl_jax.wire import ledger
from sparsefl_jax.wire.packets import assumptions


def text(plan: Plan, memories: Sequence[Memory] | None = None) -> str:
    """Returns the plan of a run: stages, clients and memory.

    Args:
      plan: of the run.
      memories: of its compiled stages; None without their working sets.
    """
    setup = plan.setup
    memories = memories or [stage.memory for stage in plan.stages]
    rounds = sum(stage.num_rounds for stage in setup.stages)
    statement = guarantee(setup, setup.stages[-1].num_rounds).get("statement")
    lines = [
        *_head(setup),
        "",
        *_stages(plan, memories),
        "",
        f"total     {rounds} rounds, {largest(memories)}",
        *_notes(plan),
        *([statement] if statement else []),
    ]
    return "\n".join(lines)


def measured(setup: Setup, rounds: int, found: Sequence[Sequence]) -> str:
    """Returns the cost of some rounds of every stage, and an estimate for the run.

    Args:
      setup: the run.
      rounds: number of rounds of each stage; the last one included an evaluation.
      found: their records and seconds by stage, as `fit_rounds.pilot` returns them.
    """
    columns, total = [], np.zeros(3)
    for stage, records, seconds in zip(setup.stages, *found, strict=True):
        first, *later = ([r["bits_down"] + r["bits_up"], r["flops"]] for r in records)
        each = np.mean(later or [first], axis=0)
        left = stage.num_rounds - len(records)
        took = seconds / len(records)
        spent = np.sum([first, *later], axis=0) + left * each
        total += [*spent, took * stage.num_rounds]
        column = {
            "measured rounds": f"{len(records)} of {stage.num_rounds}",
            "the first: both ways": format_si(first[0], "bit"),
            "a later one": format_si(each[0], "bit"),
            "           training": format_si(each[1], "FLOP"),
            "           time": format_seconds(took),
        }
        columns.append(column)
    bits, flops = format_si(total[0], "bit"), format_si(total[1], "FLOP")
    lines = [
        *_rows(columns),
        "",
        f"follows   {bits}, {flops}, {format_seconds(total[2])}",
        "This assumes that all other rounds cost the same as these. Time includes "
        f"one evaluation in {rounds} rounds, and no compilation.",
    ]
    return "\n".join(lines)


def largest(memories: Sequence[Memory]) -> str:
    """Formats the memory of the largest stage, a lower bound before compilation."""
    known = all(memory.working_set is not None for memory in memories)
    size = format_si(max(memory.total() for memory in memories), "B")
    return size if known else f"at least {size}"


def _head(setup: Setup) -> list[str]:
    """Describes devices, network and clients."""
    devices, model = list(setup.devices or jax.devices()), setup.model
    statistics = partition_statistics(partition_counts(setup.data))
    train = statistics["train"]
    largest = format_percent(statistics["largest_share"], 1)
    weights = trees.num_entries(initial_state.initial_shapes(model).params)
    frozen = model.frozen.entries
    tiers = clock.members(setup.system).items()
    system = ", ".join(f"{len(ids)} {name}" for name, ids in tiers)
    return [
        f"devices   {len(devices)} x {devices[0].device_kind}, {model.dtype}, "
        f"precision {provenance.precision()}",
        f"model     {format_si(weights)} parameters, "
        + (f"{format_si(frozen)} frozen, " if frozen else "")
        + f"{format_si(ledger.macs_per_sample(model))} multiply-adds a sample",
        f"clients   {statistics['number']} with {train['min']} to {train['max']} "
        f"training samples (median {train['median']:g}, the largest {largest} of all), "
        f"{len(setup.data.y_test)} test samples",
        *([f"system    {system}"] if system else []),
    ]


def _stages(plan: Plan, memories: Sequence[Memory]) -> list[str]:
    """Formats the figures of all stages as a table."""
    columns = []
    for index, stage in enumerate(plan.setup.stages):
        planned, memory = plan.stages[index], memories[index]
        down_packets = planned.round.layouts["down"].values()
        under = trees.num_entries([packet.mask for packet in down_packets])
        kept, where = memory.client_store["bytes"], memory.client_store["where"]
        column = {
            "stage": str(index),
            "rounds, clients in each": f"{stage.num_rounds}, {stage.cohort_size}",
            "epochs, batch, chunk": f"{stage.epochs}, {stage.batch_size}, "
            f"{memory.chunk}",
            "weights under a mask": format_si(under),
        }
        if planned.clock is not None and np.isfinite(planned.clock.deadline):
            column["a round ends after"] = format_seconds(float(planned.clock.deadline))
        rows = f"{format_si(kept, 'B')}, {where}" if kept else MISSING
        column["all clients' rows"] = rows
        sizes = memory.parts().items()
        column |= {f"memory: {part}": format_si(size, "B") for part, size in sizes}
        columns.append(column)
    return _rows(columns)


def _rows(columns: Sequence[dict[str, str]]) -> list[str]:
    return align([[name, *(each[name] for each in columns)] for name in columns[0]])


def _notes(plan: Plan) -> list[str]:
    """Names the packets that an assumption leaves uncharged."""
    return [
        f"Not charged: {packet} in stage {index} ({reason})."
        for index, stage in enumerate(plan.stages)
        for packet, reason in assumptions(stage.round.layouts).items()
    ]
