"""All fields of a configuration, with their defaults.

The arguments that a name takes stand in the configuration with their defaults, so that
each can be set from the command line and `config.json` holds them all.
"""

from typing import Any

from sparsefl_jax.runs.config import registry


def default_config() -> Any:  # a ConfigDict
    """Returns all fields of a configuration as a `ConfigDict`.

    A file in `configs/` starts from here and returns `complete(config)`. The
    sub-dictionaries `model`, `partition`, `algorithm`, `first_stage`, `optimizer` and
    `server_optimizer` take the keyword arguments of what their `name` names.
    `python launch.py --fields` says in a line what every field means, see `lines.py`;
    `run_directory` lists those that may change when a run is resumed.
    """
    from ml_collections import config_dict

    return config_dict.create(
        seed=0,
        dataset="cifar10_sample",
        data_dir=config_dict.placeholder(str),
        hf=config_dict.create(
            image=config_dict.placeholder(str),
            text=config_dict.placeholder(str),
            table=(),
            label=config_dict.placeholder(str),
            user=config_dict.placeholder(str),
            hash=config_dict.placeholder(int),
            train=config_dict.placeholder(str),
            test=config_dict.placeholder(str),
        ),
        tokenizer=config_dict.placeholder(str),
        max_tokens=config_dict.placeholder(int),
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
        privacy=config_dict.create(
            clip=config_dict.placeholder(float),
            noise_multiplier=config_dict.placeholder(float),
            delta=config_dict.placeholder(float),
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
        seeds_together="auto",
        init_from=config_dict.placeholder(str),
        init_what="model",
        until=config_dict.create(
            gbit=config_dict.placeholder(float),
            pflop=config_dict.placeholder(float),
            accuracy=config_dict.placeholder(float),
            hours=config_dict.placeholder(float),
        ),
        fit=config_dict.create(
            gbit=config_dict.placeholder(float),
            pflop=config_dict.placeholder(float),
            pilot=config_dict.placeholder(int),
            most=config_dict.placeholder(int),
            by=config_dict.placeholder(str),
            measured=config_dict.placeholder(str),
        ),
        system=config_dict.placeholder(str),
        deadline=config_dict.create(
            seconds=config_dict.placeholder(float),
            quantile=config_dict.placeholder(float),
            over=config_dict.placeholder(float),
        ),
        checkpoint_minutes=10.0,
        observe_rounds=(),
        sinks=(),
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
