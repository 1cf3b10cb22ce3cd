"""The rules of the benchmark in docs/benchmark_rules.md, version 2.

Written on 2026-11-28, before any run of version 2. Until then the records of version 1
had been seen, which are those of the seeds 0 to 9, and an untuned small dense network
on the seeds 3 to 5. Each run carries the checksum of these rules and of its settings; a
mistake in them is mended on the seeds 20 to 29.
"""

import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.config import defaults
from sparsefl_jax.presets import methods

# The outcome, see outcome.py.
BUDGETS = 10  # evenly spaced in log bits, over the last decade of the budget
SLACK = 1.005  # a budget may be spent by so much, as a pilot may be half a percent off
TAIL, LEAST = 0.2, 3  # the last rounds, whose evaluations are averaged if so many
FEW = 15  # rounds below which two runs are compared by their last evaluations too
CHANCE = 0.1  # the accuracy of a run that diverges, or has no model within a budget
LEVEL, MARGIN = 0.05, 0.01  # of Holm's p, and of equivalence
EVALUATIONS = 150  # of a run, or one in each round

# Tuning.
RATE, MOMENTUM, DECAY = "optimizer.learning_rate", "optimizer.momentum", "decay"
LOW, HIGH, DRAW, DRAWN = 0.01, 1.0, 2026, 8  # rates with and without momentum
PLAIN = (0.12, 0.18, 0.27, 0.41, 0.62)  # rates without
AGAIN = (0.032, 0.056, 0.1, 0.18)  # where other settings are known
FIRST_SEED, QUARTER, BEST = 100, 0.25, 2


class Workload(NamedTuple):
    """A task, its budget, the seeds that count, and those of the second tries."""

    fields: dict[str, Any]  # of its configuration
    gbit: float  # the budget, both ways and all clients together
    dense: int  # the rounds that it pays for if everything travels
    most: int  # the most rounds, which keep a run short
    seeds: range
    tuning_seeds: range  # none where the first tries decide
    targets: tuple[float, ...]  # accuracies whose least bits are reported
    tuned_on: str = ""  # the workload whose settings count, but for the rate


class Method(NamedTuple):
    """A method of the benchmark, and what is tuned beside rate and momentum."""

    own: dict[str, tuple] = {}  # at most two fields, with the values to try
    fields: dict[str, Any] = {}  # what differs from its defaults
    name: str = ""  # of `methods.choose`; '' for the key in the table
    density: float | None = 0.05  # of weights, or of entries that travel; None: dense
    dense: bool = False  # whether a direction carries about 32 bits for each weight
    momentum: bool = True  # whether its optimizer may have one
    like: str = ""  # on the workload that it is tuned on; '' for the same name
    across: str = ""  # a field whose values all get the plain rates, and second tries


_FEDERATED = {"num_clients": 100, "cohort_size": 10, "batch_size": 32}
WORKLOADS = {
    "fashion": Workload(
        _FEDERATED
        | {"dataset": "fashion_mnist", "model.name": "mlp", "epochs": 2}
        | {"partition.name": "dirichlet", "partition.alpha": 0.1},
        **{"gbit": 2.0, "dense": 26, "most": 450, "targets": (0.65, 0.7, 0.75, 0.8)},
        **{"seeds": range(10, 20), "tuning_seeds": range(101, 104)},
    ),
    "cifar10": Workload(
        _FEDERATED
        | {"dataset": "cifar10", "model.name": "benchmarks.v2.network:cnn", "epochs": 1}
        | {"partition.name": "dirichlet", "partition.alpha": 0.3}
        | {"fit.evaluations": 60},  # which take as long as the rounds between
        **{"gbit": 17.27, "dense": 300, "most": 300, "targets": (0.4, 0.5, 0.55, 0.6)},
        **{"seeds": range(10, 15), "tuning_seeds": range(0)},
        tuned_on="fashion",
    ),
}


def _arguments(density: float | None = 0.05, **own: tuple) -> Method:
    """Returns a method by its arguments that are tuned, and their values."""
    own = {f"algorithm.{name}": values for name, values in own.items()}
    return Method(own, density=density)


def _compressed(own: dict[str, tuple], dense: bool = False, **arguments) -> Method:
    fields = {f"algorithm.{name}": value for name, value in arguments.items()}
    return Method(own, fields, "compressed", dense=dense)


def _fedavg(own: dict[str, tuple] | None = None, **fields) -> Method:
    return Method(own or {}, fields, "fedavg", None, dense=True)


def _quantized(bits: int, dense: bool = False) -> Method:
    return Method({}, {"algorithm.bits": bits}, "quantized", None, dense)


def _server(name: str, *rates: float, **arguments) -> Method:
    fields = {f"server_optimizer.{key}": value for key, value in arguments.items()}
    own = {"server_optimizer.learning_rate": rates}
    return _fedavg(own, **{"server_optimizer.name": name} | fields)


_EPOCHS = {"first_stage.epochs": (2, 5, 10)}
_DECAY = {DECAY: (0.1, 0.01)}  # the last rate over the first
_WIDTHS = {"model.widths": ((8, 8), (16, 16), (28, 28))}  # 5, 11, 20 % of the weights
_CHANNELS = {"model.channels": (4, 5, 7)}  # 7, 10, 20 %
_STALE = {"algorithm.stale": ("keep", "reset")}
_STC = _compressed(_STALE, up="stc", down="stc")
_SMALL = {"dense": False, "across": "model.widths"}
_PDST = _arguments(allocation=("uniform", "erk"))
FEDAVG, SMALL, RANDOM = "fedavg", "fedavg_small", "pdst"
CORE = {
    "pdst": _PDST,
    "spdst": Method(_EPOCHS),
    "jmwst": Method({"algorithm.r_int": (1, 5, 20)} | _EPOCHS),
    "complement": _arguments(aggregation_ratio=(1.5, 3.0, 6.0))._replace(dense=True),
    "fedsparsify_global": _arguments(power=(1.0, 2.0, 3.0), frequency=(1, 5))._replace(
        dense=True
    ),
    "prunefl": Method(
        {"algorithm.reconfigure_every": (10, 25, 50)}
        | {"algorithm.prune_rate": (0.15, 0.3, 0.6)},
        {"fit.pilot": 110},  # longer than its interval, also one beyond the edge
    ),
    "feddst": _arguments(adjust_every=(5, 10, 20), prune_rate=(0.125, 0.25, 0.5)),
    "zerofl": _arguments(mask_ratio=(0.0, 0.2))._replace(dense=True),
    "topk": _compressed({"algorithm.scope": ("global", "leaf")}, True, up="topk"),
    "stc": _STC,
}
CONTROLS = {
    "fedavg": _fedavg(),
    "fedavg_small": _fedavg(_WIDTHS)._replace(**_SMALL),
    "fedavg_8bit": _quantized(8),
    "fedavg_16bit": _quantized(16, dense=True),
    "small_stc": _STC._replace(own=_WIDTHS | _STALE, **_SMALL),
    "fedavg_decay": _fedavg(_DECAY),
    "fedavg_momentum": _server("sgd", 0.3, 1.0, momentum=0.9),
    "fedadam": _server("adam", 0.001, 0.01, 0.1),
}
OTHERS = {
    "pqsu": Method(  # density 0.2, at which version 1 has it above FedAvg
        {"algorithm.selective": (True, False)}
        | {"first_stage.share": (0.15, 0.3, 0.5)},  # of the rounds that are paid dense
        density=0.2,
    ),
    # Added on 2026-11-29, after the runs that count: exploratory.
    "topk_2bit": _compressed(_STALE, up="topk", down="topk", bits=2),
}
METHODS = {
    "fashion": CONTROLS | CORE | OTHERS,
    "cifar10": {  # the rate of all of them decays to a tenth
        "fedavg_decay": _fedavg(decay=0.1)._replace(like="fedavg"),
        "fedavg_small": _fedavg(_CHANNELS, decay=0.1)._replace(
            like="fedavg", across="model.channels"
        ),
        **{
            name: method._replace(fields=method.fields | {DECAY: 0.1})
            for name, method in (CONTROLS | CORE).items()
            if name in ("fedavg_8bit", "pdst", "spdst", "stc", "topk")
        },
    },
}
FAMILIES = {  # primary, on fashion, opened in this order; the baseline is no member
    base: tuple(name for name in CORE if name != base)
    for base in (SMALL, RANDOM, FEDAVG)
}


def checksum(workload: str, method: Method, settings: Mapping) -> str:
    """Returns eight hexadecimal digits of all rules of a run, and of its settings."""
    outcome = BUDGETS, SLACK, TAIL, LEAST, FEW, CHANCE, LEVEL, MARGIN, EVALUATIONS
    tuning = LOW, HIGH, DRAW, DRAWN, PLAIN, FIRST_SEED, QUARTER, BEST
    given = {k: v for k, v in method._asdict().items() if v != getattr(Method(), k)}
    if WORKLOADS[workload].tuned_on:
        tuning += (AGAIN,)
    rules = WORKLOADS[workload], given, FAMILIES, outcome, tuning
    text = repr(rules) + json.dumps(settings, sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x}"


def budgets(gbit: float) -> np.ndarray:
    """Returns the budgets at which a run's accuracy is looked at, [10] float.

    Example:
      >>> budgets(2.0).round(2).tolist()
      [0.2, 0.26, 0.33, 0.43, 0.56, 0.72, 0.93, 1.2, 1.55, 2.0]
    """
    return np.geomspace(gbit / 10, gbit, BUDGETS)


def first_share(workload: str, method: Method) -> float:
    """Returns the share of the budget of the first tries.

    It is a quarter, or all where a quarter pays for less than `FEW` dense rounds.
    """
    short = QUARTER * WORKLOADS[workload].dense < FEW
    return 1.0 if method.dense and short else QUARTER


def tries(method: Method) -> list[dict[str, Any]]:
    """Returns the settings to try first, the same rates for all methods.

    Returns:
      Fields and values, of which some may be alike: eight rates, one in each eighth of
      their range on a log scale, one of every two with momentum, and `PLAIN` without.
      Of every two or three rates in succession, each has another one of two or three
      values of a setting. Of `across`, all values are tried with all of `PLAIN`.
    """
    rng = np.random.default_rng(DRAW)
    parts = (np.arange(DRAWN) + rng.random(DRAWN)) / DRAWN
    rates = LOW * (HIGH / LOW) ** parts
    drawn: dict[str, Sequence] = {RATE: [float(f"{r:.2g}") for r in rates] + [*PLAIN]}
    count = len(drawn[RATE])
    momentum = {MOMENTUM: (None, 0.9)} if method.momentum else {}
    for field, values in (momentum | method.own).items():
        blocks = [rng.permutation(len(values)) for _ in range(count)]
        drawn[field] = [values[i] for i in np.concatenate(blocks)[:count]]
    if momentum:
        drawn[MOMENTUM][DRAWN:] = [None] * len(PLAIN)
    rows = zip(*drawn.values(), strict=True)
    found = [dict(zip(drawn, row, strict=True)) for row in rows]
    if method.across:
        values = method.own[method.across]
        found += [one | {method.across: v} for one in found[DRAWN:] for v in values]
    return found


def rates_again(method: Method, found: Mapping) -> list[dict[str, Any]]:
    """Returns the settings to try where others were found on another workload.

    Args:
      method: of the benchmark.
      found: settings of which all but rate and momentum are kept.

    Returns:
      All of `AGAIN`, with each value of what was not tuned there.
    """
    kept = {field: found[field] for field in method.own if field in found}
    new = {field: values for field, values in method.own.items() if field not in found}
    momentum = {MOMENTUM: None} if method.momentum else {}
    return [
        {RATE: rate} | momentum | kept | dict(zip(new, values, strict=True))
        for rate in AGAIN
        for values in itertools.product(*new.values())
    ]


def beyond(
    best: Mapping, tried: Sequence[Mapping], own: Mapping[str, tuple]
) -> list[dict[str, Any]]:
    """Returns the best settings with one of them a step further, for each at an edge.

    A step of the rate is an eighth of its range; that of another setting is the ratio
    of its two last values. Shares stay below 1 and whole numbers are at least 1. Only
    settings with three numbers have an edge.

    Args:
      best: the settings of a try.
      tried: the settings of all tries.
      own: values that were tried of what is tuned beside rate and momentum.
    """
    ordered = {
        field: values
        for field, values in own.items()
        if len(values) == 3 and all(isinstance(v, int | float) and v for v in values)
    }
    rates = [each[RATE] for each in tried]
    step = (HIGH / LOW) ** (1 / DRAWN)
    steps = [(RATE, min(rates), 1 / step), (RATE, max(rates), step)]
    for field, (first, middle, last) in ordered.items():
        steps += [(field, first, first / middle), (field, last, last / middle)]
    found = []
    for field, edge, ratio in steps:
        further = float(f"{edge * ratio:.2g}")
        if isinstance(edge, int):
            further = max(1, round(further))
        share = max(ordered.get(field, (1,))) < 1 and "learning_rate" not in field
        if best[field] == edge != further and not (share and further >= 1):
            found.append({**best, field: further})
    return found


def configuration(
    workload: str,
    name: str,
    method: Method,
    settings: Mapping[str, Any],
    *,
    seed: int,
    share: float = 1.0,
):
    """Returns the configuration of a run by the rules.

    Args:
      workload: its name.
      name: of the method.
      method: what the benchmark knows of it.
      settings: what tuning tries or has found, by field.
      seed: of the run.
      share: of the budget.
    """
    task = WORKLOADS[workload]
    config = defaults.default_config()
    config.seed, config.val_fraction, config.metric = seed, 0.1, "pooled"
    config.num_rounds = max(1, round(share * task.dense))  # until a pilot sets it
    config.fit = {"gbit": share * task.gbit, "most": round(share * task.most)}
    config.fit.evaluations = EVALUATIONS
    _set(config, task.fields)
    if task.tuned_on and share < 1:
        config.fit.evaluations = round(share * EVALUATIONS)
    config.until.gbit = share * task.gbit  # where the pilot measures too little
    config = methods.choose(config, method.name or name, method.density)
    fields = dict(method.fields) | {
        key: tuple(value) if isinstance(value, list) else value  # as JSON has it
        for key, value in settings.items()
    }
    if pilot := fields.pop("fit.pilot", None):
        fields["fit.pilot"] = min(pilot, config.fit.most)
    if part := fields.pop("first_stage.share", None):
        fields["first_stage.num_rounds"] = max(1, round(part * share * task.dense))
    if decay := fields.pop(DECAY, None):
        fields["final_learning_rate"] = decay * fields[RATE]
    _set(config, fields)
    return config


def _set(config, fields: Mapping[str, Any]) -> None:
    config.update_from_flattened_dict(fields)
