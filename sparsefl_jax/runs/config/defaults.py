"""All fields of a configuration, with their defaults.

The arguments that a name takes stand in the configuration with their defaults, so that
each can be set from the command line and `config.json` holds them all.
"""

from typing import Any

from ml_collections import config_dict

from sparsefl_jax.runs.config import registry


def default_config() -> Any:  # a ConfigDict
    """Returns all fields of a configuration as a `ConfigDict`.

    A file in `configs/` starts from here and returns `complete(config)`. The
    sub-dictionaries `model`, `partition`, `algorithm`, `first_stage`, `optimizer` and
    `server_optimizer` take the keyword arguments of what their `name` names.
    `python launch.py --fields` says in a line what every field means, see `lines.py`;
    `run_directory` lists those that may change when a run is resumed.
    """
    return _create(
        seed=0,
        dataset="cifar10_sample",
        data_dir=str,
        hf=_create(
            **dict.fromkeys(("image", "text", "label", "user", "train", "test"), str),
            **{"hash": int, "table": ()},
        ),
        **dict.fromkeys(("tokenizer", "text_encoder", "writers"), str),
        max_tokens=int,
        num_classes=int,
        num_clients=100,
        partition=_create(name="iid"),
        partition_seed=int,
        test_split="partition",
        val_fraction=0.0,
        augment=(),
        input_scale=255.0,
        normalize=True,
        scramble=False,
        model=_create(name="small_cnn", dtype="float32"),
        algorithm=_create(name="fedavg"),
        first_stage=_create(),
        optimizer=_create(
            name="sgd", learning_rate=0.1, momentum=float, weight_decay=0.0, clip=0.0
        ),
        privacy=_create(clip=float, noise_multiplier=float, delta=float),
        server_optimizer=_create(name=str, learning_rate=0.01),
        final_learning_rate=float,
        lr_horizon=int,
        lr_delay=0,
        lr_decay=float,
        budgets=(),
        density=float,
        num_rounds=100,
        cohort_size=10,
        epochs=1,
        batch_size=32,
        drop_last=False,
        eval_every=10,
        metric="auto",
        chunk="auto",
        client_store="auto",
        memory_gb=float,
        seeds=1,
        init_from=str,
        init_what="model",
        until=_create(gbit=float, pflop=float, accuracy=float, hours=float),
        fit=_create(
            **dict.fromkeys(("gbit", "pflop"), float),
            **{"pilot": int, "most": int, "by": str, "measured": str},
        ),
        system=str,
        deadline=_create(seconds=float, quantile=float, over=float),
        checkpoint_minutes=10.0,
        observe_rounds=(),
        sinks=(),
    )


def with_defaults(values: dict) -> Any:  # a ConfigDict
    """Returns the configuration of plain values, with defaults for what they lack."""
    config = default_config()
    with config.ignore_type():
        config.update(values)
    return config


def _create(**fields) -> Any:
    """Returns a `ConfigDict`; a type stands for a field of it that is not set."""
    return config_dict.create(
        **{
            name: config_dict.placeholder(value) if isinstance(value, type) else value
            for name, value in fields.items()
        }
    )


def complete(config):
    """Adds the arguments that the named factories take, with their defaults.

    Unknown names are left for `build` to refuse. Returns `config`.
    """
    for field in registry.TABLES:
        section = config[field]
        for name, default in registry.default_arguments(
            field, section.get("name")
        ).items():
            if name not in section and default is not None:
                section[name] = default
    return config
