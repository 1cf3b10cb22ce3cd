"""The rules of the benchmark in docs/benchmark.md, version 1.

Workloads, methods, the settings to try, and the configuration of each run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.presets import methods
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.runs.config.fields import switch

RATE, MOMENTUM = "optimizer.learning_rate", "optimizer.momentum"
LOW, HIGH, DRAW = 0.01, 1.0, 2026  # the range of rates, and the seed of all tries
TUNING_SEEDS = 100, 101  # of the tries, and of the best ones again
DENSITIES, TUNING_DENSITY = (0.2, 0.05), 0.05
QUARTER, EVALUATIONS = 0.25, 40


class Workload(NamedTuple):
    """A task, its budget, and how thoroughly methods are tuned for it."""

    fields: dict[str, Any]  # of its configuration
    gbit: float  # the budget, both ways and all clients together
    dense: int  # the rounds that it pays for if everything travels
    most: int  # the most rounds, which keep a run short
    seeds: int
    tries: int
    tuned_on: str = ""  # the workload whose settings count, but for the rate if tried


class Method(NamedTuple):
    """A method of the benchmark, and what is tuned beside rate and momentum."""

    own: dict[str, tuple] = {}  # at most two fields, with the values to try
    fields: dict[str, Any] = {}  # what differs from its defaults
    name: str = ""  # of `methods.choose`; '' for the key in the table
    density: str = "density"  # the field that takes one; '' if there is none
    momentum: bool = True  # whether its optimizer may have one
    personal: bool = False  # clients are tested with models of their own
    alone: bool = False  # nothing travels, so that rounds alone are limited
    model: str = ""  # whose accuracy counts, if it is not the headline's
    common: str = ""  # the method whose common model all clients train further


_FEDERATED = {"num_clients": 100, "cohort_size": 10, "epochs": 2, "batch_size": 32}
WORKLOADS = {
    "fashion": Workload(
        _FEDERATED
        | {"dataset": "fashion_mnist", "model.name": "mlp"}
        | {"partition.name": "dirichlet", "partition.alpha": 0.1},
        **{"gbit": 2.0, "dense": 26, "most": 450, "seeds": 10, "tries": 8},
    ),
    "cifar10": Workload(
        _FEDERATED
        | {"dataset": "cifar10", "model.name": "benchmarks.v1.network:cnn", "epochs": 1}
        | {"partition.name": "dirichlet", "partition.alpha": 0.3},
        **{"gbit": 3.0, "dense": 52, "most": 80, "seeds": 3, "tries": 3},
        tuned_on="fashion",
    ),
    "writers": Workload(
        _FEDERATED
        | {"dataset": "mnist", "writers": "mnist", "model.name": "lenet5_caffe"}
        | {"partition.name": "natural", "num_clients": 0},
        **{"gbit": 11.0, "dense": 39, "most": 150, "seeds": 3, "tries": 3},
        tuned_on="fashion",
    ),
}
WORKLOADS["fashion_long"] = WORKLOADS["fashion"]._replace(
    **{"gbit": 20.0, "dense": 264, "most": 800, "seeds": 3, "tries": 0},
    tuned_on="fashion",
)


def _dense(**own: tuple) -> Method:
    """Returns a method without a density, by its arguments and their values."""
    return Method({f"algorithm.{name}": v for name, v in own.items()}, density="")


def _submodels(least: float, **own: tuple) -> Method:
    """Returns a method whose clients have budgets: half of them train everything."""
    return _dense(**own)._replace(fields={"budgets": ((least, 0.5), (1.0, 0.5))})


def _compressed(own: dict[str, tuple], density: str = "density", **arguments):
    fields = {f"algorithm.{name}": value for name, value in arguments.items()}
    own = {f"algorithm.{name}": values for name, values in own.items()}
    return Method(own, fields, "compressed", density)


_EPOCHS = {"first_stage.epochs": (2, 5, 10)}
_R_INT = {"algorithm.r_int": (1, 5, 20)}
_SUBMASK = {"algorithm.submask": ("frozen", "magnitude")}
_PRUNE_RATE = {"algorithm.prune_rate": (0.1, 0.2, 0.4)}
_ADJUST = {"algorithm.adjust_every": (5, 10, 20)}
_POWER = {"algorithm.power": (1.0, 2.0, 3.0)}
_SHARE = {"first_stage.share": (0.15, 0.3, 0.5)}  # of the rounds that are paid dense
CORE = {
    "fedavg": _dense(),
    "pdst": Method({"algorithm.allocation": ("uniform", "erk")}),
    "spdst": Method(_EPOCHS),
    "jmwst": Method(_R_INT | _EPOCHS),
    "complement": Method({"algorithm.aggregation_ratio": (1.5, 3.0, 6.0)}),
    "fedsparsify_global": Method(_POWER | {"algorithm.frequency": (1, 5)}),
    "prunefl": Method(
        {"algorithm.reconfigure_every": (10, 25, 50)}
        | {"algorithm.prune_rate": (0.15, 0.3, 0.6)},
        {"fit.pilot": 60},  # longer than its interval
    ),
    "feddst": Method(_ADJUST | {"algorithm.prune_rate": (0.125, 0.25, 0.5)}),
    "zerofl": Method({"algorithm.mask_ratio": (0.0, 0.2)}),
    "topk": _compressed({"scope": ("global", "leaf")}, up="topk"),
    "stc": _compressed({"stale": ("keep", "reset")}, up="stc", down="stc"),
}
SPARSYFED = {"sparsyfed": Method({"algorithm.exponent": (1.25, 1.5, 2.0)})}
OTHERS = {
    "fedprox": _dense(mu=(0.01, 0.1, 1.0)),
    "scaffold": _dense()._replace(momentum=False),
    "fedavg_pruned": Method(name="fedavg", density="algorithm.prune", model="pruned"),
    "magnitude": Method({"algorithm.scope": ("global", "layer")} | _SHARE),
    "nst": Method({"algorithm.prune_rate": (0.125, 0.25, 0.5)}),
    "hetero_spdst": Method(_SUBMASK | _EPOCHS),
    "hetero_jmwst": Method(_SUBMASK | _R_INT),
    "fedsparsify_local": Method(_POWER | {"algorithm.frequency": (1, 5)}),
    "fedtiny": Method(_PRUNE_RATE | _ADJUST),
    "fedrts": Method(_PRUNE_RATE | _ADJUST),
    "fedmef": Method(_PRUNE_RATE | {"algorithm.penalty": (1e-5, 1e-4, 1e-3)}),
    "snip": Method({"first_stage.first_samples": (False, True)}),
    "grasp": Method({"first_stage.temperature": (1.0, 200.0)}),
    "ssfl": Method(
        {"first_stage.weighting": ("examples", "uniform")},
        {"first_stage.initial": "seed"},  # else 100 dense downlinks
    ),
    "pqsu": Method({"algorithm.selective": (True, False)} | _SHARE),
    "fedpm": Method(
        {"algorithm.weights": ("constants", "initial")},
        {"optimizer.name": "adam"},
        density="",
        momentum=False,
    ),
    "heterofl": _submodels(0.5, scaler=(True, False)),
    "fedrolex": _submodels(0.5, scaler=(True, False)),
    "fiarse": _submodels(0.25, gradient=("biased", "masked")),
    "fjord": _dense(draw=("round", "batch")),
    "flasc": Method(
        {"server_optimizer.learning_rate": (0.001, 0.01, 0.1)},
        {"server_optimizer.name": "adam"},
    ),
    "fedluar": _dense(layers=(1, 2)),
    "fedmrn": _dense(magnitude=(0.003, 0.01, 0.03)),
    "fedbat": _dense(warmup=(0.1, 0.5), rho=(3.0, 6.0, 12.0)),
    "qsgd": _compressed({"bits": (4, 8)}, "", up="qsgd"),
    "ef21": _compressed(
        {"scope": ("global", "leaf")}, up="topk", feedback="ef21", clients=100
    ),
}
PERSONAL = {
    "spafl": _dense(alpha=(0.0005, 0.002, 0.008)),
    "fedspa": Method(
        {"algorithm.allocation": ("erk", "uniform")}, {"algorithm.shared": False}
    ),
    "heterofl_own": _dense(scaler=(True, False))._replace(name="heterofl"),
    "fjord_own": _dense(draw=("round", "batch"))._replace(name="fjord"),
    "ditto": _dense(lam=(0.1, 0.5, 2.0)),
    "local_only": _dense(alpha=(0.0, 0.002))._replace(alone=True),
    "fedavg_own": _dense()._replace(name="fedavg"),  # its common model, for comparison
}
for _name, _method in PERSONAL.items():
    PERSONAL[_name] = _method._replace(personal=True)
METHODS = {
    "fashion": CORE | PERSONAL | OTHERS,
    "cifar10": CORE | SPARSYFED,
    "writers": CORE,
    "fashion_long": CORE | OTHERS,
}
LAST = 0.8  # of the budget's rounds, before the last one, which is dense for FedAvg
FINETUNE = {"finetune.scale": (0.1, 0.3, 1.0), "finetune.epochs": (1, 5)}


def finetuned(workload: str, name: str) -> Method:
    """Returns a common method with a last round in which all clients train its model.

    Its own settings stay; `FINETUNE` is tuned.

    Raises:
      ValueError: the method has a first stage or a server's optimizer of its own.
    """
    common = METHODS[workload][name]
    config = configuration(workload, name, common, {})
    if config.first_stage or config.server_optimizer.name:
        raise ValueError(
            f"{name} has a first stage or a server's optimizer, expected neither"
        )
    return common._replace(
        own=FINETUNE, name=common.name or name, personal=True, common=name
    )


def tries(method: Method, count: int) -> list[dict[str, Any]]:
    """Returns the settings to try, the same rates for all methods.

    Args:
      method: of the benchmark.
      count: number of tries, one in each part of the range of rates on a log scale.

    Returns:
      Fields and values. Of every two or three rates in succession, each has another one
      of two or three values of a setting.
    """
    rng = np.random.default_rng(DRAW)
    rates = LOW * (HIGH / LOW) ** ((np.arange(count) + rng.random(count)) / count)
    drawn: dict[str, Sequence] = {RATE: [float(f"{rate:.2g}") for rate in rates]}
    momentum = {MOMENTUM: (None, 0.9)} if method.momentum else {}
    for field, values in (momentum | method.own).items():
        blocks = [rng.permutation(len(values)) for _ in range(count)]
        drawn[field] = [values[i] for i in np.concatenate(blocks)[:count]]
    rows = zip(*drawn.values(), strict=True)
    return [dict(zip(drawn, row, strict=True)) for row in rows]


def beyond(best: Mapping, method: Method, count: int) -> list[dict[str, Any]]:
    """Returns the best settings with one of them a step further, for each at an edge.

    A step of the rate is an eighth of its range, if there are eight tries; that of
    another setting is the ratio of its two last values. Shares stay below 1 and whole
    numbers are at least 1. Only settings with three numbers have an edge.

    Args:
      best: the settings of a try.
      method: of the benchmark.
      count: number of tries from which it was chosen.
    """
    ordered = {
        field: values
        for field, values in method.own.items()
        if len(values) == 3 and all(isinstance(v, int | float) and v for v in values)
    }
    rates = [each[RATE] for each in tries(method, count)]
    step = (HIGH / LOW) ** (1 / count)
    steps = [(RATE, rates[0], 1 / step), (RATE, rates[-1], step)]
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
    seed: int = 0,
    seeds: int = 1,
    density: float | None = None,
    share: float = 1.0,
):
    """Returns the configuration of a run by the rules.

    Args:
      workload: its name.
      name: of the method.
      method: what the benchmark knows of it.
      settings: what tuning tries or has found, by field.
      seed: the first seed.
      seeds: their number.
      density: the share of weights, or of entries that travel; None for none.
      share: of the budget.
    """
    task = WORKLOADS[workload]
    config = defaults.default_config()
    config.seed, config.seeds, config.system = seed, seeds, "mobile"
    config.val_fraction = 0.1
    config.metric = "clients" if method.personal else "pooled"
    config.num_rounds = max(1, round(share * task.dense))  # until a pilot sets it
    _set(config, task.fields)
    config.fit = {
        "gbit": share * task.gbit,
        "most": round(share * task.most),
        "evaluations": EVALUATIONS,
    }
    config.until.gbit = share * task.gbit  # where the pilot measures too little
    if method.alone:
        config.num_rounds = round(share * task.most)
        config.eval_every = max(1, config.num_rounds // EVALUATIONS)
        config.fit, config.until = {}, {}
    sparse = density if method.density == "density" else None
    config = methods.choose(defaults.complete(config), method.name or name, sparse)
    fields = dict(method.fields) | dict(settings)
    last = {
        key.removeprefix("finetune."): fields.pop(key)
        for key in list(fields)
        if key.startswith("finetune.")
    }
    if pilot := fields.pop("fit.pilot", None):
        fields["fit.pilot"] = min(pilot, config.fit.most)
    if part := fields.pop("first_stage.share", None):
        fields["first_stage.num_rounds"] = max(1, round(part * share * task.dense))
    if density and sparse is None:
        fields[method.density] = density
    if method.personal and "weighting" in config.algorithm:
        fields["algorithm.weighting"] = "uniform"  # as the metric weights clients
    _set(config, fields)
    return _with_last_stage(config, **last) if last else config


def _with_last_stage(config, rounds: int, scale: float, epochs: int):
    """Adds a round in which all clients train the common model of `rounds` rounds."""
    stage = {
        "num_rounds": rounds,
        "cohort_size": config.cohort_size,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
    }
    config.num_rounds = rounds  # to which schedules refer
    with config.unlocked(), config.ignore_type():
        config.first_stage = config.algorithm.to_dict() | stage
        config.fit, config.until = {}, {}
    config = switch(config, "algorithm", "finetune")
    config.algorithm.scale = scale
    config.num_rounds, config.epochs = 1, epochs
    config.cohort_size = config.num_clients
    return defaults.complete(config)


def _set(config, fields: Mapping[str, Any]) -> None:
    with config.unlocked(), config.ignore_type():
        config.update_from_flattened_dict(fields)
