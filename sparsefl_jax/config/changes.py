"""What may change in a configuration when its run goes on."""

import dataclasses
import json
from collections.abc import Container

from sparsefl_jax.config.defaults import plain
from sparsefl_jax.config.fields import Config, Limits
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.data.hub import FIELDS, LOOKS

# Fields that change a run's results by rounding at most. The location of the data is
# one of them, because the checkpoint has a checksum of their content.
FREE = (
    *("checkpoint_minutes", "chunk", "client_store", "data_dir", "dataset"),
    *("memory_gb", "sinks", "task", "writers"),
    *(f"hf.{option}" for option in (*FIELDS, "columns")),
    *(f"image.{option}" for option in LOOKS),
)
# Fields that set how often a run is evaluated and when it ends.
LATER = (
    *("eval_every", "first_stage.num_rounds", "lr_horizon", "num_rounds"),
    *(f"until.{limit}" for limit in Limits._fields),
)


def differences(old, new) -> dict[str, tuple]:
    """Returns all fields that differ, by dotted name, with both values.

    A field that is missing in one of them, because it is newer, has its default there.
    A budget comes first, because the number of rounds depends on it.

    Example:
      >>> differences({"num_rounds": 4, "seed": 1}, {"num_rounds": 8, "seed": 1})
      {'num_rounds': (4, 8)}
    """
    default, old, new = (flatten(plain(c)) for c in (Config(), old, new))
    pairs = {
        name: tuple(c.get(name, default.get(name)) for c in (old, new))
        for name in sorted(old | new, key=lambda name: (name[:4] != "fit.", name))
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def difference(old, new, free: Container[str] = (*FREE, *LATER)) -> str:
    """Describes the first field that differs but may not change; '' if there is none.

    Args:
      old, new: configurations, as `plain` takes them.
      free: the fields that may change.

    Example:
      >>> difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
      'b.c is 2 there and 3 here'
    """
    for name, (there, here) in differences(old, new).items():
        if name not in free:
            return f"{name} is {there!r} there and {here!r} here"
    return ""


def fixed_fields(config) -> str:
    """Returns as text the fields that a resumed run may not change, except the seed.

    Fields at their defaults are left out, and 1 is written as 1.0, so that
    configurations between which `difference` finds nothing have the same text.

    Example:
      >>> fixed_fields(Config(epochs=3, num_rounds=7, seed=5))
      '{"epochs": 3.0}'
    """
    fields = {
        name: here
        for name, (_, here) in differences(Config(), config).items()
        if name not in (*FREE, *LATER, "seed")
    }
    return json.dumps(json.loads(json.dumps(fields), parse_int=float))


def keep_schedule(config: Config, old: dict) -> Config:
    """Keeps the old values of fields that depend on a changed `num_rounds`.

    A first stage with as many rounds as the run keeps its number of rounds, and a
    learning rate that falls over the run keeps its horizon.

    Args:
      config: the configuration with which a run continues.
      old: its configuration so far, as `plain` returns it.

    Returns:
      The configuration with these fields set.

    Raises:
      ValueError: the configuration sets one of them to another value; `lr_horizon` may
        change together with `num_rounds`.
    """
    refusal = "{}={}, expected {}, as the run began with"
    if config.first_stage:
        before = old["first_stage"].get("num_rounds") or old["num_rounds"]
        now = config.first_stage.get("num_rounds")
        if now not in (None, before):
            raise UserError(refusal.format("first_stage.num_rounds", now, before))
        if config.num_rounds != before:
            first = config.first_stage | {"num_rounds": before}
            config = dataclasses.replace(config, first_stage=first)
    decays = config.final_learning_rate is not None and config.lr_decay is None
    if not (decays or config.schedule):
        return config
    before = old["lr_horizon"] or old["num_rounds"]
    if config.lr_horizon is None and config.num_rounds != before:
        return dataclasses.replace(config, lr_horizon=before)
    now = config.lr_horizon or config.num_rounds
    if now != before and config.num_rounds == old["num_rounds"]:
        raise UserError(refusal.format("lr_horizon", now, before))
    return config
