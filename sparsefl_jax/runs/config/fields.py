"""All fields of a configuration, with types, ranges, defaults and meanings.

`Config` is what a run sees. The sections `model`, `partition`, `algorithm`,
`first_stage`, `optimizer` and `server_optimizer` hold a name, and arguments of the
entry that it names; their classes here list what all entries may have.
"""

import dataclasses
import inspect
import typing
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import optax

from sparsefl_jax import algorithms, models
from sparsefl_jax import data as datasets
from sparsefl_jax.core.check import UserError, check, checkable, closest
from sparsefl_jax.core.named import named
from sparsefl_jax.core.types import Count, NonNegative, Positive, Share
from sparsefl_jax.models import adapters
from sparsefl_jax.training import local

Texts = tuple[str, ...]
Whole = Annotated[int, "[0, inf)"]


def line(default: Any, meaning: str) -> Any:
    """Returns a field of a dataclass with its meaning, in one line."""
    return dataclasses.field(default=default, metadata={"meaning": meaning})


def section(kind: type) -> Any:
    """Returns a field that holds a section, a dictionary with the fields of a class."""
    return dataclasses.field(
        default_factory=lambda: {
            f.name: f.default for f in dataclasses.fields(kind) if f.init
        },
        metadata={"section": kind},
    )


def unset(meaning: str) -> Any:
    """Returns a field that a section holds only if it is set."""
    return dataclasses.field(default=None, init=False, metadata={"meaning": meaning})


@dataclasses.dataclass(frozen=True)
class HuggingFace:
    """What is read of a data set of the Hugging Face Hub."""

    image: str | None = line(None, "column of images, if a data set has several")
    text: str | None = line(None, "column of texts, if there are several")
    table: Texts = line((), "columns of numbers that together are a sample")
    label: str | None = line(None, "column of labels, if several columns could be")
    user: str | None = line(None, "column of users, for partition=natural")
    hash: int | None = line(
        None, "number of features into which texts are hashed, by default 768"
    )
    train: str | None = line(
        None, "split for training, by default 'train' or the only one"
    )
    test: str | None = line(
        None, "split for testing, by default 'test' or 'validation'"
    )


@dataclasses.dataclass(frozen=True)
class Partition:
    """How samples are dealt out to clients."""

    name: str = line("iid", "how samples are split, or my_module:my_partition")
    test_fraction: float | None = unset("share for test_split='within', default 0.2")


@dataclasses.dataclass(frozen=True)
class Model:
    """The network."""

    name: str = line("small_cnn", "the network, or my_module:my_network")
    dtype: Literal["float32", "bfloat16"] = line("float32", "dtype of the computation")


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Adapters of low rank in a network that is frozen."""

    rank: int | None = line(None, "rank of trained adapters; the network is frozen")
    alpha: float | None = line(
        None, "scale of the adapters times the rank, by default rank"
    )
    targets: Texts = line(adapters.TARGETS, "globs of the kernels that get adapters")
    whole: Texts = line(adapters.WHOLE, "globs of leaves that are trained themselves")
    freeze: Texts = line((), "globs of what is not trained: '*lora_a*' is FFA-LoRA")
    dropout: float = line(0.0, "share of an adapter's inputs dropped in training")
    seed: int = line(0, "seed of frozen weights that no folder has")
    base: str | None = line(
        None, "file of an export with index none: the frozen weights"
    )
    charge_base: bool = line(False, "charge them in a client's first downlink")


@dataclasses.dataclass(frozen=True)
class Method:
    """The method of the last stage."""

    name: str = line("fedavg", "the method, or my_module:my_method")


@dataclasses.dataclass(frozen=True)
class FirstStage:
    """A stage before it, with numbers of its own."""

    name: str | None = unset("method of a first stage that finds a mask, or 'none'")
    num_rounds: int | None = unset("rounds of the first stage, default num_rounds")
    cohort_size: int | None = unset("clients in a round, by default cohort_size")
    epochs: int | None = unset("local epochs, by default epochs")
    batch_size: int | None = unset("samples in a minibatch, by default batch_size")
    drop_last: bool | None = unset("drop_last of that stage, by default drop_last")


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The clients' optimizer."""

    name: str = line("sgd", "clients' optimizer, any of optax; takes its arguments")
    learning_rate: float = line(0.1, "learning rate of the clients")
    momentum: float | None = line(
        None, "momentum of the clients' optimizer, if it has one"
    )
    weight_decay: float = line(0.0, "weight decay; sgd adds it to the gradient")
    clip: float = line(0.0, "global norm at which gradients are clipped; 0 for none")


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
    """The server's optimizer, if it has one."""

    name: str | None = line(None, "optax optimizer of the server; adam gives FedAdam")
    learning_rate: float = line(0.01, "learning rate of the server")


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Differential privacy."""

    clip: float | None = line(
        None, "for differential privacy: largest norm of an update"
    )
    noise_multiplier: float | None = line(None, "deviation of the noise over 2 clip")
    delta: float | None = line(
        None, "delta of the guarantee, by default num_clients**-1.1"
    )


@dataclasses.dataclass(frozen=True)
class Until:
    """Limits that end a run."""

    gbit: Positive | None = line(None, "end the run after this traffic, Gbit both ways")
    pflop: Positive | None = line(
        None, "end the run after these FLOPs at the masks, PFLOP"
    )
    accuracy: Share | None = line(None, "end the run at this accuracy")
    hours: Positive | None = line(None, "end the run after these hours of virtual time")


@dataclasses.dataclass(frozen=True)
class Fit:
    """Budgets that set the number of rounds beforehand."""

    gbit: Positive | None = line(
        None, "set num_rounds to spend this traffic, Gbit both ways"
    )
    pflop: Positive | None = line(
        None, "set num_rounds beforehand to spend these FLOPs, PFLOP"
    )
    pilot: Annotated[int, "[2, inf)"] | None = line(
        None, "rounds of the pilot that measures the cost, default 20"
    )
    most: Count | None = line(
        None, "largest num_rounds that fit.gbit and fit.pflop may set"
    )
    evaluations: Count | None = line(
        None, "evaluations, at equal intervals of these rounds"
    )
    by: Literal["pilot"] | None = line(None, "set by the run: the source of num_rounds")


@dataclasses.dataclass(frozen=True)
class Deadline:
    """When a round ends for slow clients."""

    seconds: Positive | None = line(
        None, "end a round after these seconds of virtual time"
    )
    quantile: Share | None = line(
        None, "end it when this share has finished a dense round"
    )
    over: Annotated[float, "[1, inf)"] | None = line(
        None, "draw this many times cohort_size clients; drop the late"
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """A configuration with a plain value for each field; sections are dictionaries.

    A run sees nothing else of its configuration.
    """

    seed: Whole = line(0, "root of all randomness of the run")
    dataset: str = line(
        "cifar10_sample",
        "a sample, a name, hf:ORGANISATION/NAME, an .npz file, a LEAF folder",
    )
    hf: dict = section(HuggingFace)
    tokenizer: str | None = line(
        None, "turns texts into tokens: folder of a vocabulary, or 'words'"
    )
    max_tokens: int | None = line(
        None, "length to which texts are cut or padded, by default 64"
    )
    text_encoder: str | None = line(
        None, "turns texts into features: folder of a (Distil)BERT"
    )
    data_dir: str | None = line(None, "folder of prepared TFDS data sets")
    writers: str | None = line(
        None, ".npz file with each sample's writer, or 'mnist' for MNIST's own"
    )
    num_classes: Count | None = line(
        None, "outputs of the network, if more than there are labels"
    )
    num_clients: Whole = line(100, "number of clients; 0 lets the partition decide")
    partition: dict = section(Partition)
    partition_seed: Whole | None = line(None, "seed of the partition, by default seed")
    test_split: str = line(
        "partition",
        "clients' test samples: partition, natural, within, overlap, pooled",
    )
    val_fraction: float = line(
        0.0, "share of each client's samples held out for validation"
    )
    augment: Texts = line((), "augmentations in training: 'crop', 'flip', 'cutout'")
    input_scale: float = line(255.0, "divisor of integer pixels")
    normalize: bool = line(
        True, "whether to subtract the mean and divide by the deviation"
    )
    scramble: bool = line(
        False, "read images [H, W, C] as if stored [C, H, W], as SpaFL does"
    )
    model: dict = section(Model)
    adapter: dict = section(Adapter)
    algorithm: dict = section(Method)
    first_stage: dict = section(FirstStage)
    optimizer: dict = section(Optimizer)
    server_optimizer: dict = section(ServerOptimizer)
    privacy: dict = section(Privacy)
    final_learning_rate: Positive | None = line(
        None, "end of the learning rate's exponential decay"
    )
    lr_horizon: Count | None = line(
        None, "duration of the decay in rounds, by default num_rounds"
    )
    lr_delay: Whole = line(0, "rounds before the decay starts")
    lr_decay: Annotated[float, "(0, 1)"] | None = line(
        None, "factor of the decay per round, instead of lr_horizon"
    )
    budgets: tuple[tuple[float, ...], ...] = line(
        (), "pairs (share of the model, share of the clients that hold it)"
    )
    density: Share | None = line(
        None, "share of weights kept, in all stages that have none of their own"
    )
    num_rounds: int = line(100, "rounds of the main stage")
    cohort_size: int = line(10, "number of clients in a round")
    epochs: int = line(1, "number of local epochs")
    batch_size: int = line(32, "samples in a minibatch")
    drop_last: bool = line(
        False, "whether to leave out a last minibatch that is not full"
    )
    eval_every: int = line(10, "rounds between evaluations")
    metric: str = line("auto", "which accuracy is reported: auto, pooled, clients")
    chunk: str = line(
        "auto", "clients that a device runs at a time; auto by speed and memory"
    )
    client_store: str = line(
        "auto", "where clients' states live: auto, device, host, disk"
    )
    memory_gb: Positive | None = line(
        None, "memory limit of all devices together, in 1e9 bytes"
    )
    seeds: Count = line(1, "number of runs, with seeds from seed on")
    init_from: str | None = line(None, "folder of a finished run to start from")
    init_what: Literal["model", "weights", "mask"] = line(
        "model", "what to take from it: model, weights, mask"
    )
    until: dict = section(Until)
    fit: dict = section(Fit)
    system: str | None = line(
        None, "clients' devices: mobile, iot, tifl or a .csv; None for no clock"
    )
    deadline: dict = section(Deadline)
    checkpoint_minutes: NonNegative = line(10.0, "minutes between checkpoints")
    observe_rounds: tuple[int, ...] = line(
        (), "rounds for which all clients' masks are kept"
    )
    sinks: Texts = line((), "further logs: 'tensorboard', 'wandb', 'mlflow'")

    @property
    def stages(self) -> list[dict]:
        """Returns the section of each stage, in order."""
        return [s for s in (self.first_stage, self.algorithm) if s]


@dataclasses.dataclass(frozen=True)
class Described(Config):
    """A run that `sfl.experiment` has made, by the names and settings of its parts."""

    source: str = "python"
    initial: Any = None
    middle_stages: dict = dataclasses.field(default_factory=dict)

    @property
    def stages(self) -> list[dict]:
        """Returns the section of each stage, in order."""
        first, *last = super().stages
        return [first, *self.middle_stages.values(), *last]


SECTIONS = {
    f.name: f.metadata["section"]
    for f in dataclasses.fields(Config)
    if "section" in f.metadata
}
TABLES = {  # in which the `name` of a section is looked up
    "algorithm": algorithms.ALGORITHMS,
    "first_stage": algorithms.ALGORITHMS,
    "model": models.MODELS,
    "partition": datasets.PARTITIONERS,
}
STAGE = ("num_rounds", "cohort_size", "epochs", "batch_size", "drop_last")
MEANINGS = {  # by dotted name
    **{
        f"{name}.{f.name}" if name else f.name: f.metadata["meaning"]
        for name, kind in {"": Config, **SECTIONS}.items()
        for f in dataclasses.fields(kind)
        if "meaning" in f.metadata
    },
    "model.widths": "channels or units of each layer, first to last",
    "model.norm": "normalisation: 'batch', 'static', 'group' or None",
    "model.softmax_output": "end in a softmax, although the loss has one too",
    "model.dropout": "share of units dropped in training",
    "server_optimizer.weight_decay": "weight decay of the server",
    "server_optimizer.clip": "norm at which the mean update is clipped",
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
_OF_RUN = ("name", "num_clients", "seed", "users", "labels_test", "server_optimizer")


def arguments(section: str, name: str | None = None) -> dict[str, inspect.Parameter]:
    """Returns the fields of a section: arguments of its entry, and fields of its own.

    Args:
      section: the section; '' for the fields beside all sections.
      name: the entry that it names, if any.

    Returns:
      Parameters whose annotation is the required type of a value, and whose default is
      that of the section, or else of the entry.

    Raises:
      ValueError: there is no such entry.
    """
    found = {}
    if name is not None:
        check(f"{section}.name", name, str)
    if section.endswith("optimizer"):
        chosen = getattr(optax, name or "", None)
        found = signature(chosen) if callable(chosen) else {}
        found |= _settable(local.make_optimizer)
        del found["schedule"]
    elif section in TABLES and name is not None:
        found = _settable(factory(section, name))
    for key, parameter in found.items():
        found[key] = parameter.replace(annotation=_kind(parameter))
    kind = SECTIONS.get(section, Config)
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if "meaning" in field.metadata:
            default = field.default
            if default is None and field.name in found:
                default = found[field.name].default
            found[field.name] = inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=hints[field.name],
            )
    return found


def factory(section: str, name: str):
    """Returns the factory that a section names, from its table or `module:function`.

    Raises:
      ValueError: there is no such factory.
    """
    return named(f"{section}.name", name, TABLES[section])


def signature(function) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a factory, or of the function that it wraps."""
    return dict(inspect.signature(function).parameters)


def _settable(function) -> dict[str, inspect.Parameter]:
    """Returns the arguments of a factory that a configuration can set."""
    return {
        name: p
        for name, p in signature(function).items()
        if name not in _OF_RUN
        and (p.kind is p.KEYWORD_ONLY or p.default is not p.empty)
    }


def _kind(parameter) -> Any:
    """Returns the type of an argument, by its annotation or else by its default."""
    given, default = parameter.annotation, parameter.default
    if checkable(given):
        return given
    if isinstance(default, tuple) and default:
        return tuple[type(default[0]), ...]
    return type(default) if isinstance(default, int | float | str | tuple) else object


def unknown_field(name: str, allowed: Iterable[str]) -> UserError:
    """Returns the error for an unknown field, with suggestions and all known names.

    Args:
      name: the field, with its section and a dot if it is in one.
      allowed: the names of fields in the section or the configuration.

    Example:
      >>> print(unknown_field("sead", ["seed", "epochs"]))
      the configuration has no field 'sead'; did you mean 'seed'? it has epochs, seed
    """
    if name in GONE:
        return UserError(f"{name} is gone: {GONE[name]}")
    section, _, _ = name.rpartition(".")
    meant = nearest(name, allowed)
    hint = f"did you mean {meant!r}? " if meant not in (None, name) else ""
    there = f"{section or 'it'} has {', '.join(sorted(allowed))}"
    return UserError(f"the configuration has no field {name!r}; {hint}{there}")


def nearest(name: str, allowed: Iterable[str] = ()) -> str | None:
    """Returns the field whose last name is spelt most like that of another one.

    Example:
      >>> nearest("seed"), nearest("momentun"), nearest("xyzzy")
      ('seed', 'optimizer.momentum', None)
    """
    section, dot, leaf = name.rpartition(".")
    known = {path.rpartition(".")[2]: path for path in reversed(MEANINGS)}
    known |= {path: path for path in MEANINGS if "." not in path}
    known |= {own: f"{section}{dot}{own}" for own in allowed}
    return next((known[near] for near in closest(leaf, known)), None)
