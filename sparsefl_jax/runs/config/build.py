"""Builds what a configuration names: data, model, optimizer, stages.

Every name is looked up, and every argument checked, before anything is compiled.
"""

import inspect
import math
from typing import Any

import jax
import numpy as np
import optax

from sparsefl_jax import data as datasets
from sparsefl_jax import models
from sparsefl_jax.algorithms.private import private
from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.core.validate import above, in_range
from sparsefl_jax.data import cohorts
from sparsefl_jax.runs import folder
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.runs.config.defaults import naming, unknown_field
from sparsefl_jax.runs.config.fields import all_read
from sparsefl_jax.runs.config.methods import refuse_others
from sparsefl_jax.runs.config.plain import refuse_python
from sparsefl_jax.runs.setup import reading
from sparsefl_jax.simulation import clock, systems
from sparsefl_jax.simulation.clock import System
from sparsefl_jax.system import hardware
from sparsefl_jax.training import local


def build_algorithm(
    name: str, settings: dict, model, optimizer, field: str = "algorithm"
):
    """Builds an algorithm from its name and arguments; `field` names the section.

    Raises:
      ValueError: on an unknown name, a missing or unknown argument, or a value that the
        factory refuses.
    """
    found = defaults.factory("algorithm", name)
    try:
        inspect.signature(found).bind(model, optimizer, **settings)
    except TypeError as error:
        known = defaults.signature(found)
        for key in settings.keys() - known.keys():
            refuse_others(field, settings | {"name": name}, key)
            taken = defaults.parameters("algorithm", name)
            raise ValueError(unknown_field(f"{field}.{key}", taken)) from None
        raise ValueError(f"{field}.name={name!r}: {error}") from None
    with naming(field, settings):
        algorithm = found(model, optimizer, **settings)
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"{field}.name={name!r}, expected to return an Algorithm")
    return algorithm


@all_read("lr_decay", "lr_delay", "lr_horizon")
def build_optimizer(config):
    """Builds the clients' optimizer, with its schedule over the main stage.

    `final_learning_rate` decays exponentially from `optimizer.learning_rate` at round
    `lr_delay` to that value `lr_horizon` rounds later (default: `num_rounds`); with
    `lr_decay` by that factor a round, and never below it.
    """
    name, settings = _settings(config.optimizer)
    final = config.final_learning_rate
    if final is not None:
        above("final_learning_rate", final, 0)
        begin = settings.setdefault("learning_rate", 0.1)
        above("optimizer.learning_rate", begin, 0)
        decay, end = config.lr_decay, None
        if decay is None:
            rounds, factor = config.lr_horizon or config.num_rounds, final / begin
        else:
            in_range("lr_decay", decay, "(0, 1)")
            in_range("final_learning_rate", final, f"(0, {begin}]")
            rounds, factor, end = 1, decay, final
        settings["schedule"] = optax.schedules.exponential_decay(
            begin, rounds, factor, transition_begin=config.lr_delay, end_value=end
        )
    return local.make_optimizer(name, **settings)


@all_read("writers")
def build_data(config):
    """Builds the federated data of a configuration."""
    refuse_python(config)
    name, settings = _settings(config.partition)
    partition = defaults.factory("partition", name)
    by_user = "users" in defaults.signature(partition)
    dataset = datasets.load(
        config.dataset,
        data_dir=config.data_dir,
        writers=config.writers if by_user else None,
        num_classes=config.num_classes,
        hf=dict(config.hf),
        tokenizer=config.tokenizer,
        max_tokens=config.max_tokens,
        text_encoder=config.text_encoder,
    )
    return datasets.federate(
        dataset,
        partition,
        config.num_clients or None,
        seed=config.seed if config.partition_seed is None else config.partition_seed,
        val_fraction=config.val_fraction,
        test_split=config.test_split,
        **settings,
    )


@all_read("augment", "input_scale", "scramble")
def build_model(config, data):
    """Builds the network of a configuration; it reads raw samples of `data`.

    Raises:
      ValueError: in one line, whatever the network fails with on one of these.
    """

    def make():
        model = models.build(**describe_network(config, data))
        given = describe_reading(config, data, model)
        if not model.tokens and config.augment:
            given["augment"] = config.augment
        return model.reading(datasets.make_preprocess(**given))

    return reading(data, make, f"model.name={config.model['name']!r}")


def describe_network(config, data) -> dict:
    """Returns the arguments of `models.build`."""
    name, settings = _settings(config.model)
    sizes = {"num_classes": data.num_classes, "input_shape": data.x.shape[1:]}
    return {"name": name} | sizes | settings


def describe_reading(config, data, model) -> dict:
    """Returns the arguments of `make_preprocess`, but for augmentations."""
    if model.tokens:
        _check_tokens(data, model)
        return {"tokens": True}
    return {
        "mean": data.mean if config.normalize else None,
        "std": data.std if config.normalize else None,
        "scramble": config.scramble,
    } | ({"scale": config.input_scale} if data.x.dtype == "uint8" else {})


def _check_tokens(data, model) -> None:
    """Refuses samples that a network of tokens cannot read."""
    if data.x.dtype.kind not in "iu" or data.x.ndim != 2 or data.x.min() < 0:
        raise ValueError("it reads tokens, expected a data set of integers [n, T]")
    most = max(int(x.max(initial=0)) for x in (data.x, data.x_test))
    largest = np.full((1, *data.x.shape[1:]), most, np.int32)

    def forward(key):
        return model.apply(*model.init(key), largest, train=False)[0]

    logits = jax.jit(forward, compiler_options=hardware.UNOPTIMIZED)(jax.random.key(0))
    if not np.isfinite(logits).all():  # flax looks up NaN beyond the end of a table
        raise ValueError(
            f"it has no row for token {most}, the largest of {data.name!r}; expected "
            f"{most + 1} rows, by model.vocabulary or num_classes, or the tokenizer of "
            "the network's own folder"
        )


def build_system(config, num_clients: int) -> System | None:
    """Builds the devices of a configuration's clients; None if it names none."""
    if config.system is None:
        return None
    closing = config.deadline
    return systems.make_system(
        config.system,
        num_clients,
        seed=config.seed,
        deadline=closing.get("seconds"),
        quantile=closing.get("quantile"),
    )


def build_budgets(config, system: System | None = None):
    """Returns every client's share of the model, [N] float32.

    The seed shuffles them; with a system, the slowest clients have the smallest.
    """
    if not config.budgets:
        return None
    if not config.num_clients:
        raise ValueError("num_clients=0, expected their number where there are budgets")
    pairs = all(len(pair) == 2 for pair in config.budgets)
    budgets, shares = np.array(config.budgets, float).T if pairs else np.zeros((2, 1))
    good = (budgets > 0) & (budgets <= 1) & (shares > 0)
    if abs(shares.sum() - 1) > 1e-6 or not good.all():
        raise ValueError(
            f"budgets={config.budgets}, expected pairs (budget in (0, 1], share of the "
            "clients) whose shares sum to 1"
        )
    ends = np.round(np.cumsum(shares) * config.num_clients).astype(int)
    if (empty := np.diff(ends, prepend=0) == 0).any():
        raise ValueError(
            f"budgets={config.budgets}, expected a client of {config.num_clients} for "
            f"each, but none has {budgets[empty][0]:g}"
        )
    tiers = np.repeat(budgets, np.diff(ends, prepend=0)).astype(np.float32)
    if system is not None:
        ordered = np.empty_like(tiers)
        ordered[systems.slowest_first(system)] = np.sort(tiers)
        return ordered
    return np.random.default_rng(config.seed).permutation(tiers)


@all_read("server_optimizer")
def build_stages(config, model, budgets=None, system=None) -> list[Stage]:
    """Builds the stages: `first_stage` if there is one, then the main stage.

    Args:
      config: the configuration.
      model: its network.
      budgets: as `build_budgets` returns them.
      system: as `build_system` returns it.
    """
    optimizer, stages, sampler = build_optimizer(config), [], None
    main = {key: getattr(config, key) for key in defaults.STAGE}
    if config.first_stage:
        name, settings = _settings(config.first_stage)
        chosen = main | {
            key: settings.pop(key) for key in defaults.STAGE if key in settings
        }
        chosen["cohort_size"] = _drawn(config, chosen["cohort_size"], system)
        first = build_algorithm(name, settings, model, optimizer, "first_stage")
        stages.append(Stage(first, **chosen))
    main["cohort_size"] = _drawn(config, main["cohort_size"], system)
    name, settings = _settings(config.algorithm)
    if "server_optimizer" in defaults.signature(defaults.factory("algorithm", name)):
        chosen, arguments = _settings(config.server_optimizer)
        if chosen is not None:
            settings["server_optimizer"] = local.make_optimizer(chosen, **arguments)(0)
    if budgets is not None:
        if "densities" in settings:
            _check_budgets(config, settings, budgets)
        drawn, present = main["cohort_size"], clock.presence(system)
        sampler = cohorts.stratified_sampler(budgets, drawn, present)
    algorithm = build_algorithm(name, settings, model, optimizer)
    algorithm = _make_private(config, algorithm)
    return [*stages, Stage(algorithm, **main, sampler=sampler)]


def _make_private(config, algorithm: Algorithm) -> Algorithm:
    """Returns the method with clipping and noise, if the configuration asks for it."""
    given = {k: v for k, v in config.privacy.items() if v is not None}
    if not given:
        return algorithm
    for name in {"clip", "noise_multiplier"} - given.keys():
        raise ValueError(f"privacy.{name} is missing: {', '.join(given)} needs it")
    with naming("privacy", given):
        return private(algorithm, **given, fingerprint=folder.fixed(config))


def _drawn(config, cohort_size: int, system: System | None) -> int:
    """Returns how many clients are drawn: a cohort of one is that client alone."""
    over = config.deadline.get("over")
    if over is None or system is None or cohort_size == 1:
        return cohort_size
    drawn, num_clients = math.ceil(round(over * cohort_size, 6)), len(system.tier)
    if cohort_size <= num_clients < drawn:
        raise ValueError(
            f"deadline.over={over:g} draws {drawn} clients for "
            f"cohort_size={cohort_size}, expected at most all {num_clients}"
        )
    return drawn


def _check_budgets(config, settings: dict, budgets) -> None:
    """Checks that budgets, the method's densities and stage 1's density agree."""
    densities = np.asarray(settings.get("densities", ()), np.float32)
    if set(densities) != set(budgets):
        raise ValueError(
            f"budgets={config.budgets}, expected the budgets to be "
            f"algorithm.densities={tuple(settings.get('densities', ()))}"
        )
    first = config.first_stage.get("density")
    if first is not None and not np.isclose(first, densities.max()):
        raise ValueError(
            f"first_stage.density={first}, expected the largest of "
            f"algorithm.densities={tuple(settings['densities'])}"
        )


def _settings(section) -> tuple[Any, dict[str, Any]]:
    """Returns the name of a section, if it has one, and the arguments that are set."""
    settings = {key: value for key, value in section.items() if value is not None}
    return settings.pop("name", None), settings
