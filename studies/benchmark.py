"""Sparse methods, their baselines and compression at equal bits, six tries for each.

python launch.py --study=studies/benchmark.py:tune --workdir=runs/benchmark_tune
python -m studies.benchmark runs/benchmark_tune        # writes studies/benchmark.json
python launch.py --study=studies/benchmark.py --workdir=runs/benchmark

`:tune_more` and `:more` tune and run what is not in the core, `:alone` runs clients
that exchange nothing. docs/benchmark.md explains the rules and what they cost.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax.presets import methods
from sparsefl_jax.runs.config.defaults import complete, default_config
from sparsefl_jax.studies.points import Point
from sparsefl_jax.system import files

CHOSEN = Path(__file__).with_suffix(".json")  # the settings that tuning has chosen
GBIT, DENSE_ROUNDS, MOST = 2.0, 26, 600  # the budget, what it pays for, the cap
PILOT = 60  # rounds, by when a mask has changed and most clients have taken part
DENSITIES, MORE_DENSITIES = (0.2, 0.05, 0.01), (0.5, 0.1)
RATES = (0.03, 0.1, 0.3)
SEEDS, TUNING_SEED, TUNING_DENSITY = 3, 3, 0.05  # seeds 0 to 2 are evaluated
RATE = "optimizer.learning_rate"


class Method(NamedTuple):
    """A method of the benchmark, and the two values of its own hyperparameter."""

    field: str
    values: tuple
    name: str = ""  # of `methods.choose`; '' for the key in the table
    settings: dict = {}  # other fields, by name
    sparse: bool = True  # whether it has a density


def _compressed(field: str, values: tuple, *, sparse: bool = True, **arguments):
    settings = {f"algorithm.{name}": value for name, value in arguments.items()}
    return Method(f"algorithm.{field}", values, "compressed", settings, sparse)


CORE = {
    "fedavg": Method("algorithm.weighting", ("examples", "uniform"), sparse=False),
    "spdst": Method("first_stage.epochs", (10, 2)),
    "jmwst": Method("algorithm.r_int", (1, 5)),
    "spafl": Method("algorithm.alpha", (0.002, 0.0005), sparse=False),
    "complement": Method("algorithm.aggregation_ratio", (1.5, 3.0)),
    "fedsparsify_global": Method("algorithm.power", (3.0, 1.0)),
    "prunefl": Method("algorithm.reconfigure_every", (50, 20)),
    "feddst": Method("algorithm.adjust_every", (10, 5)),
    "zerofl": Method("algorithm.mask_ratio", (0.2, 0.0)),
    "sparsyfed": Method("algorithm.exponent", (1.25, 1.5)),
    "topk": _compressed("scope", ("global", "leaf"), up="topk"),
    "stc": _compressed("stale", ("keep", "reset"), up="stc", down="stc"),
}
OTHERS = {
    "fedprox": Method("algorithm.mu", (0.01, 0.1), sparse=False),
    "pdst": Method("algorithm.allocation", ("uniform", "erk")),
    "nst": Method("algorithm.prune_rate", (0.25, 0.5)),
    "hetero_spdst": Method("algorithm.submask", ("frozen", "magnitude")),
    "hetero_jmwst": Method("algorithm.r_int", (1, 5)),
    "fedspa": Method("algorithm.allocation", ("erk", "uniform")),
    "fedrts": Method("algorithm.prune_rate", (0.4, 0.2)),
    "fedtiny": Method("algorithm.prune_rate", (0.4, 0.2)),
    "fedmef": Method("algorithm.penalty", (1e-4, 1e-2)),
    "fedsparsify_local": Method("algorithm.power", (3.0, 1.0)),
    "fedpm": Method(
        "algorithm.weights",
        ("constants", "initial"),
        settings={"optimizer.name": "adam"},
        sparse=False,
    ),
    "heterofl": Method("algorithm.scaler", (True, False), sparse=False),
    "fjord": Method("algorithm.draw", ("round", "batch"), sparse=False),
    "fedluar": Method("algorithm.layers", (1, 2), sparse=False),
    "fedmrn": Method("algorithm.magnitude", (0.01, 0.003), sparse=False),
    "fedbat": Method("algorithm.warmup", (0.5, 0.1), sparse=False),
    "snip": Method("first_stage.first_samples", (False, True)),
    "grasp": Method("first_stage.temperature", (200.0, 1.0)),
    "ssfl": Method("first_stage.weighting", ("examples", "uniform")),
    "pqsu": Method("algorithm.selective", (True, False)),
    "randomk": _compressed("feedback", ("ef", "none"), up="randomk"),
    "ef21": _compressed("scope", ("global", "leaf"), feedback="ef21", clients=100),
    "sign": _compressed("feedback", ("ef", "none"), up="sign", sparse=False),
    "qsgd": _compressed("bits", (4, 8), up="qsgd", sparse=False),
}
METHODS = CORE | OTHERS


def get_study(arg: str = "") -> list[Point]:
    """Returns the points of a part of the benchmark.

    Args:
      arg: '' for the core, 'tune' for its tuning; 'more' and 'tune_more' for the rest;
        'alone' for clients of SpaFL's settings that exchange nothing, 600 rounds.

    Raises:
      ValueError: there is no such part, or tuning has not chosen a method's settings.
    """
    if arg in ("tune", "tune_more"):
        return _tries(CORE if arg == "tune" else OTHERS)
    if arg == "alone":
        return [Point("local_only", _alone(_chosen(["spafl"])["spafl"]))]
    if arg not in ("", "more"):
        raise ValueError(
            f"studies/benchmark.py:{arg}, expected nothing, more, tune, tune_more or "
            "alone"
        )
    if not arg:
        return _points(CORE, DENSITIES)
    points = _points(CORE, MORE_DENSITIES, "more")
    points = [point for point in points if point.config.density is not None]
    points += _points(CORE, DENSITIES, "alpha=0.5", alpha=0.5)
    points += _points(CORE, DENSITIES, "cifar10", images=True)
    return points + _points(OTHERS, DENSITIES)


def choose(workdir: str | Path) -> dict[str, dict]:
    """Chooses the settings of the methods of a tuning study that has ended.

    The best round of each try, by accuracy on the validation split, is its score. A try
    that failed, as one that diverges does, has none. Of equal scores the first counts.

    Args:
      workdir: the folder of the study.

    Returns:
      For each method `settings`, and the `scores` of all tries by their names.

    Raises:
      ValueError: a try has not ended, all of a method failed, or a score is not of the
        validation split.
    """
    chosen = {}
    for name, method in METHODS.items():
        scores, settings = {}, {}
        for point, tried in _tried(name, method):
            summary = Path(workdir) / point / f"seed_{TUNING_SEED}" / "summary.json"
            failed = Path(workdir) / "failed" / f"{point}.txt"
            if summary.exists():
                best = files.read_json(summary)["best"]
                if best["chosen_by"] != "validation":
                    raise ValueError(f"{summary}: chosen by {best['chosen_by']}")
                scores[point], settings[point] = best["score"], tried
            elif failed.exists():
                scores[point] = None
        if not scores:
            continue  # of the other study
        if len(scores) < len(_tried(name, method)):
            raise ValueError(f"{workdir}: the tries of {name} have not all ended")
        if not settings:
            raise ValueError(f"{workdir}: all tries of {name} failed")
        best = max(settings, key=lambda point: scores[point])
        chosen[name] = {"settings": settings[best], "scores": scores}
    if not chosen:
        raise ValueError(f"{workdir}: expected the folder of a tuning study")
    return chosen


def _tried(name: str, method: Method) -> list[tuple[str, dict]]:
    """Returns the names and settings of a method's six tries."""
    short = method.field.rpartition(".")[2]
    return [
        (f"{name}-rate={rate:g}-{short}={value}", {RATE: rate, method.field: value})
        for rate in RATES
        for value in method.values
    ]


def _tries(table: dict[str, Method]) -> list[Point]:
    return [
        Point(point, _config(name, method, TUNING_DENSITY, tried, TUNING_SEED, 1))
        for name, method in table.items()
        for point, tried in _tried(name, method)
    ]


def _points(
    table: dict[str, Method],
    densities: Iterable[float],
    part: str = "",
    **data,
) -> list[Point]:
    """Returns each method at its densities, with the settings that tuning chose."""
    chosen, points = _chosen(table), []
    for name, method in table.items():
        for density in densities if method.sparse else (None,):
            parts = [name, part, f"density={density:g}" if density else ""]
            settings = chosen[name]["settings"]
            config = _config(name, method, density, settings, 0, SEEDS, **data)
            points.append(Point("-".join(filter(None, parts)), config))
    return points


def _config(
    name: str,
    method: Method,
    density: float | None,
    settings: dict,
    seed: int,
    seeds: int,
    *,
    alpha: float = 0.1,
    images: bool = False,
):
    """Returns a configuration by the rules.

    What a method brings may follow from the number of rounds, as the readjustments of
    FedDST do, which stop halfway. The number is known after the pilot only; before, it
    is that of a method whose messages are `density` of the dense ones.
    """
    density = density if method.sparse else None
    config = default_config()
    config.seed, config.seeds = seed, seeds
    config.dataset, config.model.name = "fashion_mnist", "mlp"
    config.num_clients, config.cohort_size, config.fit.gbit = 100, 10, GBIT
    if images:
        config.dataset, config.model.name = "cifar10_sample", "small_cnn"
        config.num_clients, config.cohort_size, config.fit.gbit = 20, 5, 0.75
    config.partition = {"name": "dirichlet", "alpha": alpha}
    config.val_fraction, config.metric = 0.1, "clients"
    config.system = "mobile"  # for the hours; without deadlines it changes no result
    config.epochs, config.batch_size, config.eval_every = 2, 32, 5
    config.fit.pilot, config.fit.most = PILOT, MOST
    config.until.gbit = config.fit.gbit  # where the pilot measures too little
    config.num_rounds = min(MOST, round(DENSE_ROUNDS / (density or 1.0)))
    config = methods.choose(complete(config), method.name or name, density)
    with config.unlocked(), config.ignore_type():
        for field, value in (method.settings | settings).items():
            section, _, key = field.partition(".")
            config[section][key] = value
    return config


def _alone(chosen: dict):
    """Returns the configuration of clients that train by themselves."""
    alone, settings = Method("", (), sparse=False), chosen["settings"]
    config = _config("local_only", alone, None, settings, 0, SEEDS)
    config.num_rounds = MOST
    with config.ignore_type():
        config.fit.update(gbit=None, pilot=None, most=None)
        config.until.gbit = None
    return config


def _chosen(names: Iterable[str]) -> dict[str, dict]:
    """Returns what tuning chose; refuses methods that were not tuned."""
    chosen = files.read_json(CHOSEN) if CHOSEN.exists() else {}
    if missing := [name for name in names if name not in chosen]:
        raise ValueError(
            f"{CHOSEN.name} has no settings of {', '.join(missing)}; tune them first, "
            "see docs/benchmark.md"
        )
    return chosen


def main(workdir: str) -> None:
    """Writes the settings that a tuning study chooses beside those of the other."""
    known = files.read_json(CHOSEN) if CHOSEN.exists() else {}
    found = choose(workdir)
    files.write_text(CHOSEN, json.dumps(known | found, indent=2) + "\n")
    print(f"{CHOSEN}: settings of {', '.join(found)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("expected the folder of a tuning study")
    try:
        main(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
