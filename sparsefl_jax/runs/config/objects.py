"""A configuration becomes objects: data, model, optimizer, stages.

Every name is looked up, and every argument checked, before anything is compiled. The
arguments that a name takes stand in the configuration with their defaults, so that each
can be set from the command line and `config.json` holds them all.
"""

import importlib
import inspect
from typing import Any

import numpy as np
import optax

from sparsefl_jax import algorithms, models
from sparsefl_jax import data as datasets
from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.core.validate import above, in_range, one_of
from sparsefl_jax.data import cohorts
from sparsefl_jax.training import local

STAGE = ("num_rounds", "cohort_size", "epochs", "batch_size", "drop_last")
SECTION_WIDE = {  # what a section holds beside the arguments of the entry it names
    "first_stage": STAGE,
    "model": ("dtype",),
    "partition": ("test_fraction",),
}
TABLES = {  # what the `name` of a section is looked up in
    "algorithm": algorithms.ALGORITHMS,
    "first_stage": algorithms.ALGORITHMS,
    "model": models.MODELS,
    "partition": datasets.PARTITIONERS,
}


def default_config():
    """Returns all fields of a configuration as a `ConfigDict`.

    A file in `configs/` starts from here and returns `complete(config)`. The
    sub-dictionaries `model`, `partition`, `algorithm`, `first_stage`, `optimizer` and
    `server_optimizer` take the keyword arguments of what their `name` names.
    `model.dtype` is what the network computes in, 'float32' or 'bfloat16'; all that is
    kept and sent is float32.
    `num_classes` gives the network more outputs than there are labels. `num_clients` 0
    leaves it to the partition. `density` is for configurations to refer to; `budgets`
    holds pairs of a budget and the share of the clients that have it.
    `metric` says whose accuracy counts, see `evaluate.METRICS`; `client_store` where
    what clients keep lives, see `store.STORES`; `memory_gb` is what the devices may
    hold together, which an 'auto' `chunk` fills, see `memory_estimate.choose`, and by
    which an 'auto' store and the length of its segments go. What may change when a run
    is resumed is listed in `workdir`.
    `seeds` runs follow one another, from `seed` on. `init_from` is the directory of a
    finished run, `init_what` what to take from it: 'model', 'weights' or 'mask'.
    `until` ends a run early: with the first round after which it has cost `gbit` or
    `pflop`, or the first evaluation that reaches `accuracy`. In `observe_rounds` of the
    main stage the masks that clients send are kept. `sinks` log beside `metrics.jsonl`.
    """
    from ml_collections import config_dict

    return config_dict.create(
        seed=0,
        dataset="cifar10_sample",
        data_dir=config_dict.placeholder(str),
        writers=config_dict.placeholder(str),
        num_classes=config_dict.placeholder(int),
        num_clients=100,
        partition=config_dict.create(name="iid"),
        partition_seed=config_dict.placeholder(int),
        test_split="partition",
        val_fraction=0.0,
        augment=(),
        input_scale=255.0,
        normalize=True,
        scramble=False,
        model=config_dict.create(name="small_cnn", dtype="float32"),
        algorithm=config_dict.create(name="fedavg"),
        first_stage=config_dict.create(),
        optimizer=config_dict.create(
            name="sgd",
            learning_rate=0.1,
            momentum=config_dict.placeholder(float),
            weight_decay=0.0,
            clip=0.0,
        ),
        server_optimizer=config_dict.create(
            name=config_dict.placeholder(str), learning_rate=0.01
        ),
        final_learning_rate=config_dict.placeholder(float),
        lr_horizon=config_dict.placeholder(int),
        lr_delay=0,
        lr_decay=config_dict.placeholder(float),
        budgets=(),
        density=config_dict.placeholder(float),
        num_rounds=100,
        cohort_size=10,
        epochs=1,
        batch_size=32,
        drop_last=False,
        eval_every=10,
        metric="auto",
        chunk="auto",
        client_store="auto",
        memory_gb=config_dict.placeholder(float),
        seeds=1,
        init_from=config_dict.placeholder(str),
        init_what="model",
        until=config_dict.create(
            gbit=config_dict.placeholder(float),
            pflop=config_dict.placeholder(float),
            accuracy=config_dict.placeholder(float),
        ),
        checkpoint_minutes=10.0,
        observe_rounds=(),
        sinks=(),
    )


def complete(config):
    """Adds the arguments that the named factories take, with their defaults.

    Unknown names are left for `build_stages` and its like to refuse. Returns `config`.
    """
    for field in TABLES:
        section = config[field]
        for name, default in defaults(field, section.get("name")).items():
            if name not in section and default is not None:
                section[name] = default
    return config


def defaults(field: str, name) -> dict:
    """Returns the default arguments of an entry; {} for an unknown one."""
    try:
        found = arguments(factory(field, name)) if isinstance(name, str) else {}
    except ValueError:
        return {}
    return {k: p.default for k, p in found.items() if p.default is not p.empty}


def arguments(factory) -> dict:
    """Returns the arguments of a factory that a configuration can set."""
    given = ("name", "num_clients", "seed", "users", "labels_test", "server_optimizer")
    return {
        name: p
        for name, p in inspect.signature(factory).parameters.items()
        if name not in given and (p.kind is p.KEYWORD_ONLY or p.default is not p.empty)
    }


def lookup(kind: str, name: str, table):
    """Returns the entry of a table, or refuses its name and lists the others."""
    one_of(kind, name, sorted(table))
    return table[name]


def readers(field: str, *keys: str) -> list[str]:
    """Returns the entries of a table that take at least one of these arguments.

    Example:
      >>> readers("partition", "alpha")
      ['dirichlet', 'lda']
    """
    taken = {n: inspect.signature(f).parameters for n, f in TABLES[field].items()}
    return sorted(name for name, own in taken.items() if own.keys() & set(keys))


def refuse_unread(field: str, section: dict, key: str) -> None:
    """Refuses an argument that only other entries of a section take.

    Raises:
      ValueError: names those that do.

    Example:
      >>> refuse_unread("partition", {"name": "iid", "alpha": 0.1}, "alpha")
      Traceback (most recent call last):
        ...
      ValueError: partition.alpha=0.1 is not read by 'iid' but by dirichlet, lda
    """
    table = TABLES.get(field, {})
    names = sorted(name for name in table if key in arguments(table[name]))
    if names and section["name"] not in names:
        raise ValueError(
            f"{field}.{key}={section[key]!r} is not read by {section['name']!r} but by "
            f"{', '.join(names)}"
        )


def _settings(section) -> tuple[Any, dict[str, Any]]:
    """Returns the name of a section and its arguments; lists become tuples."""
    settings = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in section.to_dict().items()
        if value is not None
    }
    return settings.pop("name"), settings


def factory(field: str, name: str):
    """Returns what a section names; a method may be `module:function`.

    Raises:
      ValueError: if there is no such thing.
    """
    if ":" not in name or TABLES[field] is not algorithms.ALGORITHMS:
        return lookup(f"{field}.name", name, TABLES[field])
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
        inspect.signature(found)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{field}.name={name!r}: {error}") from None
    return found


def build_algorithm(
    name: str, settings: dict, model, optimizer, field: str = "algorithm"
):
    """Builds an algorithm from its name and arguments; `field` names the section.

    Raises:
      ValueError: on an unknown name, a missing or unknown argument, or a value that the
        factory refuses.
    """
    found = factory("algorithm", name)
    signature = inspect.signature(found)
    allowed = dict(list(signature.parameters.items())[2:])
    anything = any(p.kind is p.VAR_KEYWORD for p in allowed.values())
    for key in () if anything else (key for key in settings if key not in allowed):
        refuse_unread(field, settings | {"name": name}, key)
        lookup(f"{field}.{name} argument", key, allowed)
    for key, parameter in allowed.items():
        needed = parameter.default is parameter.empty and not anything
        if needed and key not in settings:
            raise ValueError(f"{field}.{key} is missing: {name} needs it")
    try:
        signature.bind(model, optimizer, **settings)
    except TypeError as error:
        raise ValueError(f"{field}.name={name!r}: {error}") from None
    algorithm = found(model, optimizer, **settings)
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"{field}.name={name!r}, expected to return an Algorithm")
    return algorithm


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
        if begin <= 0:
            raise ValueError(
                f"optimizer.learning_rate={begin}, expected above 0, to decay to "
                f"final_learning_rate={final}"
            )
        rounds, factor = config.lr_horizon or config.num_rounds, final / begin
        decay, end = config.lr_decay, None
        if decay is not None:
            in_range("lr_decay", decay, "(0, 1)")
            if final > begin:
                raise ValueError(
                    f"final_learning_rate={final}, expected at most "
                    f"optimizer.learning_rate={begin}, to end lr_decay={decay}"
                )
            rounds, factor, end = 1, decay, final
        settings["schedule"] = optax.schedules.exponential_decay(
            begin, rounds, factor, transition_begin=config.lr_delay, end_value=end
        )
    return local.make_optimizer(name, **settings)


def build_data(config):
    """Builds the federated data of a configuration."""
    dataset = datasets.load(
        config.dataset,
        data_dir=config.data_dir,
        writers=config.writers,
        num_classes=config.num_classes,
    )
    name, settings = _settings(config.partition)
    return datasets.federate(
        dataset,
        name,
        config.num_clients or None,
        seed=config.seed if config.partition_seed is None else config.partition_seed,
        val_fraction=config.val_fraction,
        test_split=config.test_split,
        **settings,
    )


def build_model(config, data):
    """Builds the network of a configuration; it reads raw samples of `data`."""
    network, reading = describe_model(config, data)
    augment = tuple(config.augment)
    preprocess = datasets.make_preprocess(**reading, augment=augment)
    return models.build(**network).reading(preprocess)


def describe_model(config, data) -> tuple[dict, dict]:
    """The arguments of `models.build`, and of `make_preprocess` outside training."""
    name, settings = _settings(config.model)
    sizes = {"num_classes": data.num_classes, "input_shape": data.x.shape[1:]}
    reading = {
        "mean": data.mean if config.normalize else None,
        "std": data.std if config.normalize else None,
        "scale": config.input_scale,
        "scramble": config.scramble,
    }
    return {"name": name} | sizes | settings, reading


def build_budgets(config):
    """Returns every client's share of the model, [N] float32, shuffled by the seed."""
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
    return np.random.default_rng(config.seed).permutation(tiers)


def build_stages(config, model, budgets=None) -> list[Stage]:
    """Builds the stages: `first_stage` if there is one, then the main stage."""
    optimizer, stages, sampler = build_optimizer(config), [], None
    main = {key: config[key] for key in STAGE}
    if config.first_stage:
        name, settings = _settings(config.first_stage)
        chosen = main | {key: settings.pop(key) for key in STAGE if key in settings}
        first = build_algorithm(name, settings, model, optimizer, "first_stage")
        stages.append(Stage(first, **chosen))
    name, settings = _settings(config.algorithm)
    if config.server_optimizer.get("name") is not None:
        chosen, arguments = _settings(config.server_optimizer)
        settings["server_optimizer"] = local.make_optimizer(chosen, **arguments)(0)
    if budgets is not None:
        if "densities" in settings:
            _check_budgets(config, settings, budgets)
        sampler = cohorts.stratified_sampler(budgets, config.cohort_size)
    algorithm = build_algorithm(name, settings, model, optimizer)
    return [*stages, Stage(algorithm, **main, sampler=sampler)]


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
