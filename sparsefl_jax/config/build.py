"""Builds the parts of a run from a configuration: data, model, optimizer, stages.

All names are looked up and all arguments checked before a round is compiled.
"""

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sparsefl_jax import data as datasets
from sparsefl_jax import models
from sparsefl_jax.algorithms.private import private
from sparsefl_jax.config import fields
from sparsefl_jax.config.changes import fixed_fields
from sparsefl_jax.config.defaults import check_unset, name_section
from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.core.check import UserError, blame, check, integer
from sparsefl_jax.core.types import NonNegative
from sparsefl_jax.data import cohorts
from sparsefl_jax.models.registry import try_network
from sparsefl_jax.models.task import target_statistics, with_loss_for
from sparsefl_jax.simulation import clock, systems
from sparsefl_jax.simulation.clock import System
from sparsefl_jax.sparsity import layer_densities, masks, trees
from sparsefl_jax.system import hardware
from sparsefl_jax.training import local
from sparsefl_jax.wire import model_files

OF_SPLIT = ("val_fraction", "max_samples", "unseen_fraction", "test_split")
OF_DATA_SET = ("data_dir", "writers", "num_classes", "task", "tokenizer", "max_tokens")


def build_algorithm(
    name: str, settings: dict, model, optimizer, field: str = "algorithm"
):
    """Builds an algorithm from its name and arguments; `field` names the section.

    Raises:
      ValueError: the name is unknown, an argument is missing or unknown, or the factory
        raises a ValueError.
    """
    if name in fields.TABLES["algorithm"]:  # a user's own may mean another density
        _check_densities(settings, model, field)
    algorithm = _make(field, name, settings, model, optimizer)
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"{field}.name={name!r}, expected to return an Algorithm")
    return algorithm


def build_optimizer(config):
    """Builds the clients' optimizer, with its schedule over the main stage.

    With `final_learning_rate`, the rate decays exponentially from
    `optimizer.learning_rate` at round `lr_delay` to this value `lr_horizon` rounds
    later (default: `num_rounds`). With `lr_decay` it decays by this factor in every
    round, but not below `final_learning_rate`. A `schedule` takes the place of both.
    """
    name, settings = _settings(config.optimizer)
    begin, final = settings.setdefault("learning_rate", 0.1), config.final_learning_rate
    rounds, factor, end = config.lr_horizon or config.num_rounds, config.lr_decay, None
    if config.schedule:
        settings["schedule"] = _build_schedule(config, begin, rounds)
    if final is not None:
        check("optimizer.learning_rate", begin, "(0, inf)")
        if factor is None:
            factor = final / begin
        else:
            check("final_learning_rate", final, f"(0, {begin}]")
            rounds, end = 1, final
        settings["schedule"] = optax.schedules.exponential_decay(
            begin, rounds, factor, transition_begin=config.lr_delay, end_value=end
        )
    return local.make_optimizer(name, **settings)


def _build_schedule(config, learning_rate: float, rounds: int):
    """Builds the schedule that a configuration names, and checks its rates."""
    name, settings = _settings(config.schedule)
    warmup = settings.pop("warmup", 0)
    check("schedule.warmup", warmup, integer(0, rounds - 1))
    named = _make("schedule", name, settings, learning_rate, rounds)

    def schedule(round):
        return named(round) * jnp.minimum(1.0, (round + 1) / (warmup + 1))

    rates = jax.vmap(schedule)(jnp.arange(config.num_rounds, dtype=jnp.int32))
    for rate in (rates.min(), rates.max()):
        check(f"schedule.name={name!r}: a rate", float(rate), NonNegative)
    return schedule


def _make(section: str, name: str, settings: dict, *given):
    """Calls the factory that a section names; its errors name the section."""
    found = fields.factory(section, name)
    with blame(f"{section}.name={name!r}"):
        inspect.signature(found).bind(*given, **settings)
    with name_section(section, settings):
        return found(*given, **settings)


def load(config):
    """Reads the data set of a configuration."""
    settings = {field: getattr(config, field) for field in OF_DATA_SET}
    named = config.hf | {"columns": None}  # what an earlier run read
    given = {"hf": named, "image": dict(config.image)}
    return datasets.load(config.dataset, **given, **settings)


def build_data(config, read=load):
    """Builds the federated data of a configuration, whose data set `read` returns."""
    name, settings = _settings(config.partition)
    partition = fields.factory("partition", name)
    if "users" not in inspect.signature(partition).parameters:
        check_unset(config, "writers")
    settings |= {field: getattr(config, field) for field in OF_SPLIT}
    return datasets.federate(
        read(config),
        partition,
        config.num_clients or None,
        seed=config.seed if config.partition_seed is None else config.partition_seed,
        standardize=config.normalize,
        **settings,
    )


def build_model(config, data):
    """Builds the network of a configuration; it reads raw samples of `data`.

    Raises:
      ValueError: the network fails on such a sample.
    """

    def make():
        model = models.build(**describe_network(config, data))
        _, adapter = _settings(config.adapter)
        if "rank" in adapter:
            with name_section("adapter", adapter):
                if path := adapter.get("base"):
                    with blame(f"base={path!r}"):
                        _, base = model_files.read_file(path)
                    adapter["base"] = base.params
                model = model.with_adapters(**adapter)
        given = describe_reading(config, data, model)
        if not model.tokens and config.augment:
            given["augment"] = config.augment
        model = model.with_preprocess(datasets.make_preprocess(**given))
        return with_loss_for(model, data, config.error)

    if data.y.dtype.kind != "f":
        check_unset(config, "error")
    model = try_network(data, make, f"model.name={config.model['name']!r}")
    if model.tokens:
        check_unset(config, "augment", "input_scale", "scramble")
    elif data.x.dtype != "uint8":
        check_unset(config, "input_scale")
    return model


def describe_network(config, data) -> dict:
    """Returns the arguments of `models.build`."""
    name, settings = _settings(config.model)
    sizes = {"num_classes": data.num_classes, "input_shape": data.x.shape[1:]}
    if data.y.dtype.kind == "f":
        sizes["outputs"] = target_statistics(data)
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
    """Checks that a network of tokens can read the samples."""
    if data.x.dtype.kind not in "iu" or data.x.ndim != 2 or data.x.min() < 0:
        raise UserError("it reads tokens, expected a data set of integers [n, T]")
    most = max(int(x.max(initial=0)) for x in (data.x, data.x_test))
    largest = np.full((1, *data.x.shape[1:]), most, np.int32)

    def forward(key):
        return model.apply(*model.init(key), largest, train=False)[0]

    logits = jax.jit(forward, compiler_options=hardware.UNOPTIMIZED)(jax.random.key(0))
    if not np.isfinite(logits).all():  # flax looks up NaN beyond the end of a table
        raise UserError(
            f"it has no row for token {most}, the largest of {data.name!r}; expected "
            f"{most + 1} rows, by model.vocabulary or num_classes, or the tokenizer of "
            "the network's own folder"
        )


def build_system(config, num_clients: int) -> System | None:
    """Builds the devices of a configuration's clients; None if it has no system."""
    if config.system is None:
        return None
    closing = {"deadline": "seconds", "quantile": "quantile"}
    given = {name: config.deadline.get(field) for name, field in closing.items()}
    return systems.make_system(config.system, num_clients, seed=config.seed, **given)


def build_budgets(config, system: System | None = None):
    """Returns every client's share of the model, [N] float32; None without budgets.

    They are shuffled by the seed; with a system, the slowest clients have the smallest.
    """
    if not config.budgets:
        return None
    if not config.num_clients:
        raise UserError("num_clients=0, expected their number where there are budgets")
    pairs = all(len(pair) == 2 for pair in config.budgets)
    budgets, shares = np.array(config.budgets, float).T if pairs else np.zeros((2, 1))
    good = (budgets > 0) & (budgets <= 1) & (shares > 0)
    if abs(shares.sum() - 1) > 1e-6 or not good.all():
        raise UserError(
            f"budgets={config.budgets}, expected pairs (budget in (0, 1], share of the "
            "clients) whose shares sum to 1"
        )
    ends = np.round(np.cumsum(shares) * config.num_clients).astype(int)
    if (empty := np.diff(ends, prepend=0) == 0).any():
        raise UserError(
            f"budgets={config.budgets}, expected a client of {config.num_clients} for "
            f"each, but none has {budgets[empty][0]:g}"
        )
    tiers = np.repeat(budgets, np.diff(ends, prepend=0)).astype(np.float32)
    if system is not None:
        ordered = np.empty_like(tiers)
        ordered[systems.slowest_first(system)] = np.sort(tiers)
        return ordered
    return keys.on_host(config.seed, keys.BUDGETS).permutation(tiers)


def build_stages(config, model, budgets=None, system=None, sizes=1) -> list[Stage]:
    """Builds the stages: `first_stage` if there is one, then the main stage.

    Args:
      config: the configuration.
      model: its network.
      budgets: as `build_budgets` returns them.
      system: as `build_system` returns it.
      sizes: [N], the clients' training samples.
    """
    optimizer, stages, sampler = build_optimizer(config), [], None
    main = {key: getattr(config, key) for key in fields.STAGE}
    if config.first_stage:
        name, settings = _settings(config.first_stage)
        usual = main | (fields.WORK if fields.WORK.keys() & settings.keys() else {})
        chosen = {key: settings.pop(key, value) for key, value in usual.items()}
        chosen["cohort_size"] = _num_drawn(config, chosen["cohort_size"])
        first = build_algorithm(name, settings, model, optimizer, "first_stage")
        stages.append(Stage(first, **chosen))
    main["cohort_size"] = _num_drawn(config, main["cohort_size"])
    name, settings = _settings(config.algorithm)
    chosen, arguments = _settings(config.server_optimizer)
    taken = inspect.signature(fields.factory("algorithm", name)).parameters
    if "server_optimizer" not in taken:
        check_unset(config, "server_optimizer.name")
    elif chosen is not None:
        settings["server_optimizer"] = local.make_optimizer(chosen, **arguments)(0)
    if budgets is not None:
        if "densities" in settings:
            _check_budgets(config, settings, budgets)
        drawn, present = main["cohort_size"], clock.presence(system, sizes)
        sampler = cohorts.stratified_sampler(budgets, drawn, present)
    algorithm = build_algorithm(name, settings, model, optimizer)
    _, given = _settings(config.privacy)
    if given:  # clipping and noise
        for name in {"clip", "noise_multiplier"} - given.keys():
            raise UserError(f"privacy.{name} is missing: {', '.join(given)} needs it")
        with name_section("privacy", given):
            algorithm = private(algorithm, **given, fingerprint=fixed_fields(config))
    return [*stages, Stage(algorithm, **main, sampler=sampler)]


def _check_densities(settings: dict, model, field: str) -> None:
    """Checks that each density leaves at least one weight of the network."""
    params, _ = model.shapes()
    with name_section(field, ("prunable",)):
        layers = masks.prunable(params, tuple(settings.get("prunable", "*")))
    size = int(trees.layer_sizes(params, layers).sum())
    for key in ("density", "max_density", "densities"):
        least = np.min(settings.get(key) or 1.0)
        if layer_densities.counts(least, size) < 1:
            raise UserError(
                f"{field}.{key}={least:g}, expected at least 1/{size} to leave one of "
                f"{size} weights"
            )


def _num_drawn(config, cohort_size: int) -> int:
    """Returns how many clients are drawn; a cohort of one is never enlarged."""
    over = config.deadline.get("over")
    if over is None or cohort_size == 1:
        return cohort_size
    return math.ceil(round(over * cohort_size, 6))


def _check_budgets(config, settings: dict, budgets) -> None:
    """Checks that budgets, the method's densities and the first stage's agree."""
    densities = np.asarray(settings["densities"], np.float32)
    if set(densities) != set(budgets):
        raise UserError(
            f"budgets={config.budgets}, expected the budgets to be "
            f"algorithm.densities={tuple(settings['densities'])}"
        )
    first = config.first_stage.get("density")
    if first is not None and not np.isclose(first, densities.max()):
        raise UserError(
            f"first_stage.density={first}, expected the largest of "
            f"algorithm.densities={tuple(settings['densities'])}"
        )


def _settings(section) -> tuple[Any, dict[str, Any]]:
    """Returns the name of a section, if it has one, and the arguments that are set."""
    settings = {key: value for key, value in section.items() if value is not None}
    return settings.pop("name", None), settings
