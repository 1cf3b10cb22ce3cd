"""All fields of a configuration: defaults, meanings, sections, and their plain values.

A section holds the arguments of the entry that it names, with their defaults, so that
each can be set from the command line and `config.json` holds them all.
"""

import inspect
import json
import runpy
from types import GenericAlias, SimpleNamespace
from typing import Annotated, Any, Literal, get_origin

import optax
from ml_collections import config_dict

from sparsefl_jax import algorithms, models
from sparsefl_jax import data as datasets
from sparsefl_jax.core.check import UserError, check, checkable
from sparsefl_jax.core.named import named
from sparsefl_jax.core.types import Count, NonNegative, Positive, Share
from sparsefl_jax.models import adapters
from sparsefl_jax.system import shipped
from sparsefl_jax.training import local

TABLES = {  # in which the `name` of a section is looked up
    "algorithm": algorithms.ALGORITHMS,
    "first_stage": algorithms.ALGORITHMS,
    "model": models.MODELS,
    "partition": datasets.PARTITIONERS,
}
STAGE = ("num_rounds", "cohort_size", "epochs", "batch_size", "drop_last")
PYTHON = "python"  # the `source` of a run that `sfl.experiment` has made
INTS, TEXTS, PAIRS = tuple[int, ...], tuple[str, ...], tuple[tuple[float, ...], ...]
Whole, Rounds = Annotated[int, "[0, inf)"], Annotated[int, "[2, inf)"]
Times, Factor = Annotated[float, "[1, inf)"], Annotated[float, "(0, 1)"]
Start, Dtype = Literal["model", "weights", "mask"], Literal["float32", "bfloat16"]
# Name: (default, meaning), and the type where the default does not tell it. A type in
# the place of a default marks a field that is not set by default, a type in brackets
# one that exists only if it is set, and ... one that the section's entry may take.
FIELDS: dict[str, tuple] = {
    "seed": (0, "root of all randomness of the run", Whole),
    "dataset": (
        "cifar10_sample",
        "a sample, a name, hf:ORGANISATION/NAME, an .npz file, a LEAF folder",
    ),
    "hf.image": (str, "column of images, if a Hugging Face data set has several"),
    "hf.text": (str, "column of texts, if there are several"),
    "hf.table": (TEXTS, "columns of numbers that together are a sample"),
    "hf.label": (str, "column of labels, if several columns could be"),
    "hf.user": (str, "column of users, for partition=natural"),
    "hf.hash": (int, "number of features into which texts are hashed, by default 768"),
    "hf.train": (str, "split for training, by default 'train' or the only one"),
    "hf.test": (str, "split for testing, by default 'test' or 'validation'"),
    "tokenizer": (str, "turns texts into tokens: folder of a vocabulary, or 'words'"),
    "max_tokens": (int, "length to which texts are cut or padded, by default 64"),
    "text_encoder": (str, "turns texts into features: folder of a (Distil)BERT"),
    "data_dir": (str, "folder of prepared TFDS data sets"),
    "writers": (str, ".npz file with each sample's writer, or 'mnist' for MNIST's own"),
    "num_classes": (Count, "outputs of the network, if more than there are labels"),
    "num_clients": (100, "number of clients; 0 lets the partition decide", Whole),
    "partition.name": ("iid", "how samples are split, or my_module:my_partition"),
    "partition.test_fraction": ([float], "share for test_split='within', default 0.2"),
    "partition_seed": (Whole, "seed of the partition, by default seed"),
    "test_split": (
        "partition",
        "clients' test samples: partition, natural, within, overlap, pooled",
    ),
    "val_fraction": (0.0, "share of each client's samples held out for validation"),
    "augment": (TEXTS, "augmentations in training: 'crop', 'flip', 'cutout'"),
    "input_scale": (255.0, "divisor of integer pixels"),
    "normalize": (True, "whether to subtract the mean and divide by the deviation"),
    "scramble": (False, "read images [H, W, C] as if stored [C, H, W], as SpaFL does"),
    "model.name": ("small_cnn", "the network, or my_module:my_network"),
    "model.dtype": ("float32", "dtype of the computation", Dtype),
    "model.widths": (..., "channels or units of each layer, first to last"),
    "model.norm": (..., "normalisation: 'batch', 'static', 'group' or None"),
    "model.softmax_output": (..., "end in a softmax, although the loss has one too"),
    "model.dropout": (..., "share of units dropped in training"),
    "adapter.rank": (int, "rank of trained adapters; the network is frozen"),
    "adapter.alpha": (float, "scale of the adapters times the rank, by default rank"),
    "adapter.targets": (adapters.TARGETS, "globs of the kernels that get adapters"),
    "adapter.whole": (adapters.WHOLE, "globs of leaves that are trained themselves"),
    "adapter.freeze": (TEXTS, "globs of what is not trained: '*lora_a*' is FFA-LoRA"),
    "adapter.dropout": (0.0, "share of an adapter's inputs dropped in training"),
    "adapter.seed": (0, "seed of frozen weights that no folder has"),
    "adapter.base": (str, "file of an export with index none: the frozen weights"),
    "adapter.charge_base": (False, "charge them in a client's first downlink"),
    "algorithm.name": ("fedavg", "the method, or my_module:my_method"),
    "first_stage.name": ([str], "method of a first stage that finds a mask, or 'none'"),
    "first_stage.num_rounds": ([int], "rounds of the first stage, default num_rounds"),
    "first_stage.cohort_size": ([int], "clients in a round, by default cohort_size"),
    "first_stage.epochs": ([int], "local epochs, by default epochs"),
    "first_stage.batch_size": ([int], "samples in a minibatch, by default batch_size"),
    "first_stage.drop_last": ([bool], "drop_last of that stage, by default drop_last"),
    "optimizer.name": ("sgd", "clients' optimizer, any of optax; takes its arguments"),
    "optimizer.learning_rate": (0.1, "learning rate of the clients"),
    "optimizer.momentum": (float, "momentum of the clients' optimizer, if it has one"),
    "optimizer.weight_decay": (0.0, "weight decay; sgd adds it to the gradient"),
    "optimizer.clip": (0.0, "global norm at which gradients are clipped; 0 for none"),
    "server_optimizer.name": (str, "optax optimizer of the server; adam gives FedAdam"),
    "server_optimizer.learning_rate": (0.01, "learning rate of the server"),
    "server_optimizer.weight_decay": (..., "weight decay of the server"),
    "server_optimizer.clip": (..., "norm at which the mean update is clipped"),
    "privacy.clip": (float, "for differential privacy: largest norm of an update"),
    "privacy.noise_multiplier": (float, "deviation of the noise over 2 clip"),
    "privacy.delta": (float, "delta of the guarantee, by default num_clients**-1.1"),
    "final_learning_rate": (Positive, "end of the learning rate's exponential decay"),
    "lr_horizon": (Count, "duration of the decay in rounds, by default num_rounds"),
    "lr_delay": (0, "rounds before the decay starts", Whole),
    "lr_decay": (Factor, "factor of the decay per round, instead of lr_horizon"),
    "budgets": (PAIRS, "pairs (share of the model, share of the clients that hold it)"),
    "density": (Share, "share of weights kept, for all stages that refer to it"),
    "num_rounds": (100, "rounds of the main stage"),
    "cohort_size": (10, "number of clients in a round"),
    "epochs": (1, "number of local epochs"),
    "batch_size": (32, "samples in a minibatch"),
    "drop_last": (False, "whether to leave out a last minibatch that is not full"),
    "eval_every": (10, "rounds between evaluations"),
    "metric": ("auto", "which accuracy is reported: auto, pooled, clients"),
    "chunk": ("auto", "clients that a device runs at a time; auto by speed and memory"),
    "client_store": ("auto", "where clients' states live: auto, device, host, disk"),
    "memory_gb": (Positive, "memory limit of all devices together, in 1e9 bytes"),
    "seeds": (1, "number of runs, with seeds from seed on", Count),
    "init_from": (str, "folder of a finished run to start from"),
    "init_what": ("model", "what to take from it: model, weights, mask", Start),
    "until.gbit": (Positive, "end the run after this traffic, Gbit both ways"),
    "until.pflop": (Positive, "end the run after these FLOPs at the masks, PFLOP"),
    "until.accuracy": (Share, "end the run at this accuracy"),
    "until.hours": (Positive, "end the run after these hours of virtual time"),
    "fit.gbit": (Positive, "set num_rounds to spend this traffic, Gbit both ways"),
    "fit.pflop": (Positive, "set num_rounds beforehand to spend these FLOPs, PFLOP"),
    "fit.pilot": (Rounds, "rounds of the pilot that measures the cost, default 20"),
    "fit.most": (Count, "largest num_rounds that fit.gbit and fit.pflop may set"),
    "fit.evaluations": (Count, "evaluations, at equal intervals of these rounds"),
    "fit.by": (str, "set by the run: the source of num_rounds", Literal["pilot"]),
    "system": (str, "clients' devices: mobile, iot, tifl or a .csv; None for no clock"),
    "deadline.seconds": (Positive, "end a round after these seconds of virtual time"),
    "deadline.quantile": (Share, "end it when this share has finished a dense round"),
    "deadline.over": (Times, "draw this many times cohort_size clients; drop the late"),
    "checkpoint_minutes": (10.0, "minutes between checkpoints", NonNegative),
    "observe_rounds": (INTS, "rounds for which all clients' masks are kept"),
    "sinks": (TEXTS, "further logs: 'tensorboard', 'wandb', 'mlflow'"),
}
GONE = {  # removed fields and flags, with their replacements
    "target": "python -m benchmarks.targets TARGET --config=...",
    "extend_at_final": "a run with more num_rounds goes on without it",
    "accept_lost_records": "start a run with damaged records in another folder",
    "seeds_together": "examples/seeds.ipynb maps a segment's program over seeds",
    **dict.fromkeys(
        ("partition.feature_shift", "partition.shift_strength"),
        "change clients' images in Python, see the page on data",
    ),
}


def default_config() -> Any:  # a ConfigDict
    """Returns all fields of a configuration as a `ConfigDict`.

    A file in `configs/` starts from here and returns `complete(config)`. The
    sub-dictionaries `model`, `partition`, `algorithm`, `first_stage`, `optimizer` and
    `server_optimizer` take the keyword arguments of the entry given by their `name`.
    `--fields` lists all fields with their meanings; `runs.folder` lists those that may
    change when a run is resumed.
    """
    config = config_dict.ConfigDict()
    for field, (default, *_) in FIELDS.items():
        section, _, name = field.rpartition(".")
        if section and section not in config:
            config[section] = config_dict.ConfigDict()
        if default is ... or isinstance(default, list):
            continue
        if isinstance(default, GenericAlias):
            default = ()
        elif isinstance(bare := getattr(default, "__origin__", default), type):
            default = config_dict.placeholder(bare)  # without the range
        (config[section] if section else config)[name] = default
    return config


def load_config(path: str) -> Any:  # a ConfigDict
    """Returns the configuration of a file, as `--config` names it.

    Args:
      path: FILE or FILE:OPTIONS; a path, or a file that comes with the package.

    Raises:
      ValueError: there is no such file, or it has no `get_config`.

    Example:
      >>> load_config("flash_cifar10:mini,pdst").algorithm.name
      'pdst'
    """
    file, *options = shipped.find("config", "configs", path).split(":", 1)
    get_config = runpy.run_path(file).get("get_config")
    if get_config is None:
        raise UserError(f"{file} has no get_config, expected it to return a ConfigDict")
    return get_config(*options)


def kind(field: str) -> Any:
    """Returns the type of a field that has a default or a type in `FIELDS`.

    Example:
      >>> kind("epochs"), kind("privacy.clip"), kind("sinks"), kind("seed") == Whole
      (<class 'int'>, <class 'float'>, tuple[str, ...], True)
    """
    default, _, *given = FIELDS[field]
    default = default[0] if isinstance(default, list) else default
    known = isinstance(default, type) or get_origin(default)
    return given[0] if given else default if known else type(default)


def with_defaults(values: dict) -> Any:  # a ConfigDict
    """Returns the configuration of plain values; missing fields get their defaults."""
    config = default_config()
    with config.ignore_type():
        config.update(values)
    return config


def complete(config):
    """Adds the named factories' arguments at their defaults, but for defaults of None.

    Unknown names are left for `build` to refuse. Returns `config`.
    """
    for field in TABLES:
        section = config[field]
        for name, default in usual(field, section.get("name")).items():
            if name not in section:
                section[name] = default
    return config


def usual(field: str, name) -> dict:
    """Returns the defaults of an entry's arguments, without None; {} if unknown."""
    try:
        found = arguments(field, name) if isinstance(name, str) else {}
    except ValueError:
        return {}
    empty = inspect.Parameter.empty, None
    return {k: p.default for k, p in found.items() if p.default not in empty}


def factory(field: str, name: str):
    """Returns the factory that a section names, from its table or `module:function`.

    Raises:
      ValueError: there is no such factory.
    """
    return named(f"{field}.name", name, TABLES[field])


def signature(function) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a factory, or of the function that it wraps."""
    return dict(inspect.signature(function).parameters)


def arguments(field: str, name: str | None) -> dict[str, inspect.Parameter]:
    """Returns the fields of a section: arguments of its entry, and fields of its own.

    Args:
      field: the section.
      name: the entry that it names, if any.

    Returns:
      Parameters whose annotation is the required type of a value, and whose default is
      that of the entry.

    Raises:
      ValueError: there is no such entry.
    """
    found = {}
    if name is not None:
        check(f"{field}.name", name, str)
    if field.endswith("optimizer"):
        chosen = getattr(optax, name or "", None)
        found = signature(chosen) if callable(chosen) else {}
        found |= _settable(local.make_optimizer)
        del found["schedule"]
    elif field in TABLES and name is not None:
        found = _settable(factory(field, name))
    for key, parameter in found.items():
        found[key] = parameter.replace(annotation=_kind(parameter))
    bare = inspect.Parameter("_", inspect.Parameter.KEYWORD_ONLY, default=None)
    for path, (default, *_) in FIELDS.items():
        section, _, key = path.rpartition(".")
        if section == field and default is not ...:
            own = found.get(key, bare).replace(annotation=kind(path))
            given = () if isinstance(default, GenericAlias) else default
            unset = isinstance(given, type | list) or get_origin(given) is Annotated
            found[key] = own if unset else own.replace(default=given)
    return found


def _settable(function) -> dict[str, inspect.Parameter]:
    """Returns the arguments of a factory that a configuration can set."""
    given = ("name", "num_clients", "seed", "users", "labels_test", "server_optimizer")
    return {
        name: p
        for name, p in signature(function).items()
        if name not in given and (p.kind is p.KEYWORD_ONLY or p.default is not p.empty)
    }


def _kind(parameter) -> Any:
    """Returns the type of an argument, by its annotation or else by its default."""
    given, default = parameter.annotation, parameter.default
    if checkable(given):
        return given
    if isinstance(default, tuple) and default:
        return tuple[type(default[0]), ...]
    return type(default) if isinstance(default, int | float | str | tuple) else object


def plain(config: Any) -> dict:
    """Returns a configuration as JSON holds it, with tuples for lists.

    Args:
      config: a `ConfigDict`, the result of `values`, or a dictionary.

    Example:
      >>> plain({"prunable": ["*kernel"]})
      {'prunable': ('*kernel',)}
    """
    config = vars(config) if isinstance(config, SimpleNamespace) else config
    known = isinstance(config, dict)
    text = json.dumps(config) if known else config.to_json_best_effort()
    return _with_tuples(json.loads(text))


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def values(config: Any) -> SimpleNamespace:
    """Returns a configuration with a plain value for each field; sections are dicts.

    A run sees nothing else of its configuration.
    """
    return SimpleNamespace(**plain(config))


def replaced(config: SimpleNamespace, **fields: Any) -> SimpleNamespace:
    """Returns a copy of `values` with other values of some fields."""
    return SimpleNamespace(**vars(config) | fields)


def stages(config: Any) -> list[dict]:
    """Returns the section of each stage, in order.

    Example:
      >>> main, first = {"name": "spdst"}, {"name": "sensitivity"}
      >>> stages(SimpleNamespace(algorithm=main, first_stage=first))
      [{'name': 'sensitivity'}, {'name': 'spdst'}]
    """
    middle = getattr(config, "middle_stages", {}).values()
    return [s for s in (config.first_stage, *middle, config.algorithm) if s]
