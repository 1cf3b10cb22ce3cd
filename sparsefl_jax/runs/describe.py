"""Describes a run before its first round: as a text, and by fields of a configuration.

The text is the plan that `--dry_run` and every run print. The fields are those of a run
made in Python, whose parts are told by the names and settings that decorated factories
give them.
"""

import dataclasses
import json
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from sparsefl_jax.core import formats
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.formats import format_percent, format_seconds, format_si
from sparsefl_jax.data.federated import FederatedData, names, partition_counts
from sparsefl_jax.data.statistics import partition_statistics
from sparsefl_jax.models.measure import find
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.runs.plan import Plan
from sparsefl_jax.runs.setup import OF_CONFIG, Memory, Setup, guarantee
from sparsefl_jax.simulation import clock, initial_state
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import provenance
from sparsefl_jax.wire import ledger
from sparsefl_jax.wire.packets import assumptions

_PLAIN = (bool, int, float, str, type(None))


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
        f"total     {rounds} rounds, {describe_largest(memories)}",
        *(
            f"Not charged: {packet} in stage {index} ({reason})."
            for index, stage in enumerate(plan.stages)
            for packet, reason in assumptions(stage.round.layouts).items()
        ),
        *([statement] if statement else []),
    ]
    return "\n".join(lines)


def describe_largest(memories: Sequence[Memory]) -> str:
    """Formats the memory of the largest stage, a lower bound before compilation."""
    known = all(memory.working_set is not None for memory in memories)
    size = format_si(max(memory.total() for memory in memories), "B")
    return size if known else f"at least {size}"


def _head(setup: Setup) -> list[str]:
    """Describes devices, network and clients."""
    devices, model = list(setup.devices or jax.devices()), setup.model
    counts = partition_counts(setup.data)
    statistics, per_class = partition_statistics(counts), counts.sum(0)
    known = names(setup.data)
    empty = np.count_nonzero(per_class == 0)
    clients, classes = (
        f": {formats.tally(known[kind], sums)}" if kind in known else ""
        for kind, sums in (("clients", counts.sum(1)), ("classes", per_class))
    )
    train = statistics["train"]
    largest = format_percent(statistics["largest_share"], 1)
    weights = trees.num_entries(initial_state.initial_shapes(model).params)
    frozen = model.frozen.entries
    measure = find(setup.measure, setup.data.y).name
    tiers = clock.members(setup.system).items()
    told = {
        "devices": f"{len(devices)} x {devices[0].device_kind}, {model.dtype}, "
        f"precision {provenance.precision()}",
        "model": f"{format_si(weights)} parameters, "
        + (f"{format_si(frozen)} frozen, " if frozen else "")
        + f"{format_si(ledger.macs_per_sample(model))} multiply-adds a sample",
        "clients": f"{statistics['number']} with {train['min']} to {train['max']} "
        f"training samples (median {train['median']:g}, the largest {largest} of all), "
        f"{len(setup.data.y_test)} test samples{clients}",
        "test": setup.data.tests,
        "columns": _columns(setup.data),
        "classes": f"{setup.data.num_classes}{classes}"
        + (f", {empty} without a training sample" if empty else ""),
        "system": ", ".join(f"{len(ids)} {name}" for name, ids in tiers),
        "measure": measure if measure != "accuracy" else "",
    }
    return [f"{name:10}{text}" for name, text in told.items() if text]


def _columns(data: FederatedData) -> str:
    """Describes which columns were read, and how many are standardised."""
    count = sum(pair != (0, 1) for pair in zip(*data.scaling or ((), ()), strict=True))
    scaled = f"{count} columns standardised" if count else ""
    return "; ".join(filter(None, [data.columns, scaled]))


def _stages(plan: Plan, memories: Sequence[Memory]) -> list[str]:
    """Formats the figures of all stages as a table."""
    columns = []
    for index, stage in enumerate(plan.setup.stages):
        planned, memory = plan.stages[index], memories[index]
        down_packets = planned.round.layouts["down"].values()
        under = trees.num_entries([packet.mask for packet in down_packets])
        kept, where = memory.client_store["bytes"], memory.client_store["where"]
        work = f"{n} steps" if (n := stage.local_steps) else stage.epochs
        column = {
            "stage": str(index),
            "rounds, clients in each": f"{stage.num_rounds}, {stage.cohort_size}",
            "epochs, batch, chunk": f"{work}, {stage.batch_size}, {memory.chunk}",
            "weights under a mask": format_si(under),
        }
        if planned.clock is not None and np.isfinite(planned.clock.deadline):
            column["a round ends after"] = format_seconds(float(planned.clock.deadline))
        rows = f"{format_si(kept, 'B')}, {where}" if kept else formats.MISSING
        column["all clients' rows"] = rows
        sizes = memory.parts().items()
        column |= {f"memory: {part}": format_si(size, "B") for part, size in sizes}
        columns.append(column)
    table = [[name, *(each[name] for each in columns)] for name in columns[0]]
    return formats.align(table)


def describe(setup: Setup, name: str | None = None) -> dict:
    """Describes a run with the fields of a configuration, except its seeds.

    Args:
      setup: the run.
      name: of the last stage's method; by default that of its factory.

    Returns:
      Plain values of a `Described`, from which the run cannot be built.

    Raises:
      ValueError: a method, the network or a setting has no name.
    """
    *earlier, (main, numbers) = map(_stage, setup.stages)
    sections = [more | method for method, more in earlier]
    optimizer, model = main.pop("optimizer", {}), setup.model
    sizes = [leaf.size for leaf in jax.tree.leaves(model.shapes()[0])]
    facts = {"dtype": model.dtype, "parameters": sum(sizes), "loss": model.loss}
    return {
        "dataset": setup.data.name,
        "scaling": setup.data.scaling,
        "num_clients": len(setup.data.train.size),
        "partition": {"name": "python"},
        "model": plain_value("model", model) | plain_value("model", facts),
        "algorithm": main | ({} if name is None else {"name": name}),
        "optimizer": optimizer if isinstance(optimizer, dict) else {"name": optimizer},
        "first_stage": sections[0] if sections else {},
        "middle_stages": {str(i): s for i, s in enumerate(sections) if i},
        **numbers,
        **{field: getattr(setup, field) for field in OF_CONFIG},
        "measure": getattr(setup.measure, "name", setup.measure),
        "budgets": plain_value("budgets", setup.budgets) or (),
        "initial": plain_value("initial", setup.initial),
        "until": setup.until._asdict(),
        "system": plain_value("system", setup.system),
    }


def _stage(stage: Stage) -> tuple[dict, dict]:
    """Returns the method's name and arguments, and the numbers of the stage."""
    numbers = stage._asdict()
    method = plain_value("algorithm", numbers.pop("algorithm"))
    method.pop("model", None)
    sampler = plain_value("sampler", numbers.pop("sampler"))
    return method, numbers | ({"sampler": sampler} if sampler else {})


def plain_value(field: str, value: Any) -> Any:
    """Describes a setting: plain values are kept, and anything else must have a name.

    Args:
      field: of the setting, in the message.
      value: a plain value; a tuple, list or dict of settings; the result of a decorated
        factory; a flax module; a function or class that can be imported; or a tree of
        arrays, which is described by a checksum.

    Returns:
      Plain values.

    Raises:
      ValueError: the value is none of these, such as a function within a function.

    Example:
      >>> from sparsefl_jax.training import make_optimizer
      >>> found = plain_value("optimizer", make_optimizer("sgd", learning_rate=0.5))
      >>> found["name"], found["learning_rate"]
      ('sgd', 0.5)
      >>> plain_value("by", [0.1, np.zeros(3)]), plain_value("by", np.sum)
      ((0.1, 'ndarray a596f96a'), 'numpy:sum')
      >>> plain_value("loss", lambda logits: 0.0)
      Traceback (most recent call last):
      sparsefl_jax.UserError: loss is a function without a name, expected plain values,
      a function
      that can be imported, or what a function decorated with @sfl.method returns
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {k: plain_value(f"{field}.{k}", v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return tuple(plain_value(field, v) for v in value)
    if getattr(value, "name", None) and hasattr(value, "settings"):
        return {"name": value.name} | plain_value(field, value.settings)
    if isinstance(value, nn.Module):
        given = {
            item.name: getattr(value, item.name, None)
            for item in dataclasses.fields(value)
            if item.name not in ("parent", "name")
            and getattr(value, item.name, None) is not item.default
        }
        return {"name": type(value).__name__} | plain_value(field, given)
    module, name = (getattr(value, key, "") for key in ("__module__", "__name__"))
    if value is getattr(sys.modules.get(module), name, None):
        return f"{module}:{name}"
    leaves, tree = jax.tree.flatten(value)
    arrays = np.ndarray, jax.Array
    sums = [checkpoint.checksum(v) if isinstance(v, arrays) else v for v in leaves]
    try:
        digest = zlib.crc32(json.dumps([str(tree), sums]).encode())
    except TypeError:
        raise UserError(
            f"{field} is a {type(value).__name__} without a name, expected plain "
            "values, a function that can be imported, or what a function decorated "
            "with @sfl.method returns"
        ) from None
    return f"{type(value).__name__} {digest:08x}"
