"""The types of a run's files, as far as reports read them; see `load` for the files.

A field may be absent where it has a default, and null where its type has None.
"""

from typing import Any

from msgspec import Struct

from sparsefl_jax.system.files import Count, Number

Value = Number | None  # null: not finite, or not measured


class _Record(Struct, kw_only=True, tag_field="phase"):
    stage: Count
    round: Count
    gbit_cumulative: Number
    pflop_cumulative: Number
    hours_cumulative: Value = None


class Drawn(Struct):
    """The clients of a tier that were drawn, and those that were dropped."""

    drawn: Number
    dropped: Number
    accuracy: Value = None


class Train(_Record, kw_only=True, tag="train"):
    """A round."""

    clients: list[Count]
    flops: Number
    flops_dense: Number
    bits_up: Number
    bits_up_values: Number
    bits_up_positions: Number
    bits_down: Number
    bits_down_values: Number
    bits_down_positions: Number
    entries_up: dict[str, Number] = {}
    entries_down: dict[str, Number] = {}
    density: Value = None
    layer_density: dict[str, Value] = {}
    mismatch: Value = None
    layer_mismatch: dict[str, Value] = {}
    train_accuracy: Value = None
    client: dict[str, Value] = {}
    server: dict[str, Value] = {}
    assumed: dict[str, str] = {}
    tiers: dict[str, Drawn] = {}
    dropped: Count | None = None


class Eval(_Record, kw_only=True, tag="eval"):
    """An evaluation."""

    models: dict[str, dict[str, Value]]
    client_accuracy: dict[str, Value] = {}
    tier_accuracy: dict[str, Value] = {}
    accuracy: Value = None
    val_accuracy: Number = 0.0
    metric: str | None = None


class Stage(Struct, kw_only=True):
    """The totals of a stage."""

    name: str
    rounds: Number
    compile_seconds: Value = None
    bits_up: Number
    bits_down: Number
    bits_values: Number
    bits_positions: Number
    flops: Number
    flops_dense: Number
    flops_executed: Number


class Best(Struct):
    """The evaluation that did best."""

    chosen_by: str
    accuracy: Number
    round: Count
    stage: Count | None = None


class Guarantee(Struct):
    """The guarantee of a private run."""

    statement: str


class Summary(Struct, kw_only=True):
    """The totals of a run."""

    method: str | None = None
    device: str | None = None
    commit: str | None = None
    ended_by: str | None = None
    metric: str | None = None
    stages: list[Stage] | None = None
    accuracy: dict[str, dict[str, Value]] | None = None
    best: Best | None = None
    client_accuracy: dict[str, Value] | None = None
    memory: dict[str, Value] | None = None
    versions: dict[str, Any] | None = None
    data: dict[str, Count] | None = None
    guarantee: Guarantee | None = None
    seconds: Value = None
    rounds_per_second: Value = None
    hours: Value = None
    unheard: Value = None
    tiers: dict[str, Drawn] | None = None


class Named(Struct):
    """A section of a configuration."""

    name: str | None = None


class Fit(Struct):
    """What determined the number of rounds."""

    by: str | None = None


class Config(Struct):
    """A configuration."""

    seed: Count | None = None
    algorithm: Named | None = None
    first_stage: Named | None = None
    partition: Named | None = None
    server_optimizer: Named | None = None
    fit: Fit | None = None


class Layers(Struct):
    """The layers of packed masks, `masks/layers.json`."""

    names: list[str]
    sizes: list[Count]


class Seeds(Struct):
    """The seeds of a point's configuration."""

    seed: Count
    seeds: Count


class Study(Struct):
    """The points of a study, `study.json`, and which of them reports show."""

    points: dict[str, Seeds]
    labels: dict[str, str] = {}
    shown: list[str] | None = None
