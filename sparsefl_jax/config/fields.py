"""All fields of a configuration, with types, ranges, defaults and meanings.

`Config` is what a run sees. The sections `model`, `partition`, `algorithm`,
`first_stage`, `optimizer` and `server_optimizer` hold a name, and arguments of the
entry that it names; their classes here list what all entries may have.
"""

import dataclasses
import functools
import inspect
import re
from typing import Annotated, Any, Literal, NamedTuple

from sparsefl_jax import algorithms, models
from sparsefl_jax import data as datasets
from sparsefl_jax.core.check import can_check, check
from sparsefl_jax.core.lookup import look_up
from sparsefl_jax.core.types import Count, NonNegative, Positive, Share
from sparsefl_jax.models import adapters
from sparsefl_jax.training import learning_rates, local

Texts = tuple[str, ...]
Whole = Annotated[int, "[0, inf)"]


def section(kind: Any) -> Any:
    """Returns a field that holds a section, a dictionary with the fields of a class.

    A section with a name leaves out what is None.
    """
    usual = dict(kind._field_defaults)
    if "name" in usual:
        usual = {key: value for key, value in usual.items() if value is not None}
    factory = functools.partial(dict, usual)
    return dataclasses.field(default_factory=factory, metadata={"section": kind})


class HuggingFace(NamedTuple):
    """What is read of a data set of the Hugging Face Hub.

    Attributes:
      image: column of images, if a data set has several.
      text: column of texts, if there are several.
      table: columns, or globs such as 'px*', that together are a sample.
      label: column of labels, if several columns could be.
      user: column of users, for partition=natural.
      train: split for training, by default 'train'.
      test: split for testing, by default 'test' or 'validation'.
      fill: 'median' fills missing values of a table's columns.
      columns: set by the run: which columns were read, and as what.
    """

    image: str | None = None
    text: str | None = None
    table: Texts = ()
    label: str | None = None
    user: str | None = None
    train: str | None = None
    test: str | None = None
    fill: Literal["median"] | None = None
    columns: str | None = None


class Image(NamedTuple):
    """How images of files are converted.

    Attributes:
      mode: 'L' (grey), 'RGB' or 'RGBA', where images differ.
      size: height and width to which images are resized.
    """

    mode: Literal["L", "RGB", "RGBA"] | None = None
    size: tuple[Count, ...] = ()


class Partition(NamedTuple):
    """How samples are dealt out to clients.

    Attributes:
      name: how samples are split, or my_module:my_partition.
      test_fraction: share for test_split='within' and 'unseen', default 0.2.
    """

    name: str = "iid"
    test_fraction: float | None = None


class Model(NamedTuple):
    """The network.

    Attributes:
      name: the network, or my_module:my_network.
      dtype: dtype of the computation.
    """

    name: str = "small_cnn"
    dtype: Literal["float32", "bfloat16"] = "float32"


class Adapter(NamedTuple):
    """Adapters of low rank in a network that is frozen.

    Attributes:
      rank: rank of trained adapters; the network is frozen.
      alpha: scale of the adapters times the rank, by default rank.
      targets: globs of the kernels that get adapters.
      whole: globs of leaves that are trained themselves.
      freeze: globs of what is not trained: '*lora_a*' is FFA-LoRA.
      dropout: share of an adapter's inputs dropped in training.
      seed: seed of frozen weights that no folder has.
      base: file of an export: the frozen weights.
      charge_base: charge them in a client's first downlink.
    """

    rank: int | None = None
    alpha: float | None = None
    targets: Texts = adapters.TARGETS
    whole: Texts = adapters.WHOLE
    freeze: Texts = ()
    dropout: float = 0.0
    seed: int = 0
    base: str | None = None
    charge_base: bool = False


class Method(NamedTuple):
    """The method of the last stage.

    Attributes:
      name: the method, or my_module:my_method.
    """

    name: str = "fedavg"


class FirstStage(NamedTuple):
    """A stage before the main one, with numbers of its own.

    Attributes:
      name: method of a first stage that finds a mask, or 'none'.
      num_rounds: rounds of the first stage, default num_rounds.
      cohort_size: clients in a round, by default cohort_size.
      epochs: local epochs, by default epochs.
      local_steps: local steps instead of epochs, by default local_steps.
      batch_size: samples in a minibatch, by default batch_size.
      drop_last: drop_last of that stage, by default drop_last.
    """

    name: str | None = None
    num_rounds: int | None = None
    cohort_size: int | None = None
    epochs: int | None = None
    local_steps: Count | None = None
    batch_size: int | None = None
    drop_last: bool | None = None


class Optimizer(NamedTuple):
    """The clients' optimizer.

    Attributes:
      name: clients' optimizer, of optax or my_module:my_optimizer.
      learning_rate: learning rate of the clients.
      momentum: momentum of the clients' optimizer, if it has one.
      weight_decay: weight decay; sgd adds it to the gradient.
      clip: global norm at which gradients are clipped; 0 for none.
    """

    name: str = "sgd"
    learning_rate: float = 0.1
    momentum: float | None = None
    weight_decay: float = 0.0
    clip: float = 0.0


class Schedule(NamedTuple):
    """How the clients' learning rate follows the round of a stage.

    Attributes:
      name: constant, cosine, step or my_module:my_schedule; 'none' for none.
      warmup: rounds in which the rate first rises, a factor of the schedule.
    """

    name: str | None = None
    warmup: Whole | None = None


class ServerOptimizer(NamedTuple):
    """The server's optimizer, if it has one.

    Attributes:
      name: optax optimizer of the server; adam gives FedAdam.
      learning_rate: learning rate of the server.
    """

    name: str | None = None
    learning_rate: float = 0.01


class Privacy(NamedTuple):
    """Differential privacy.

    Attributes:
      clip: for differential privacy: largest norm of an update.
      noise_multiplier: deviation of the noise over 2 clip.
      delta: delta of the guarantee, by default num_clients**-1.1.
    """

    clip: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None


class Limits(NamedTuple):
    """Limits that end a run early; None for no limit.

    A run ends with the first round after which its cost, of all stages so far, reaches
    `gbit`, `pflop` or `hours`, or with the first evaluation that reaches `accuracy` or
    `value`.

    Attributes:
      gbit: end the run after this traffic, Gbit both ways.
      pflop: end the run after these FLOPs at the masks, PFLOP.
      accuracy: end the run at this accuracy.
      value: end the run at this value of another measure.
      hours: end the run after these hours of virtual time.
    """

    gbit: Positive | None = None
    pflop: Positive | None = None
    accuracy: Share | None = None
    hours: Positive | None = None
    value: float | None = None


class Fit(NamedTuple):
    """Budgets that set the number of rounds beforehand.

    Attributes:
      gbit: set num_rounds to spend this traffic, Gbit both ways.
      pflop: set num_rounds beforehand to spend these FLOPs, PFLOP.
      pilot: rounds of the pilot that measures the cost, default 20.
      most: largest num_rounds that fit.gbit and fit.pflop may set.
      evaluations: evaluations, at equal intervals of these rounds.
      by: set by the run: the source of num_rounds.
    """

    gbit: Positive | None = None
    pflop: Positive | None = None
    pilot: Annotated[int, "[2, inf)"] | None = None
    most: Count | None = None
    evaluations: Count | None = None
    by: Literal["pilot", "messages", "most"] | None = None


class Deadline(NamedTuple):
    """When a round ends for slow clients.

    Attributes:
      seconds: end a round after these seconds of virtual time.
      quantile: end it when this share has finished a dense round.
      over: draw this many times cohort_size clients; drop the late.
    """

    seconds: Positive | None = None
    quantile: Share | None = None
    over: Annotated[float, "[1, inf)"] | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    """A configuration with a plain value for each field; sections are dictionaries.

    A run sees nothing else of its configuration.

    Attributes:
      seed: root of all randomness of the run.
      dataset: a sample, a name, hf:ORGANISATION/NAME, a file or a folder.
      tokenizer: turns texts into tokens: folder of a vocabulary, or 'words'.
      max_tokens: length to which texts are cut or padded, by default 64.
      data_dir: folder of prepared TFDS data sets.
      writers: 'mnist' for the writers of MNIST's images as users.
      num_classes: outputs of the network, if more than there are labels.
      task: what labels are: classification, next_token, multilabel, regression.
      error: what task=regression minimises: squared, absolute.
      num_clients: number of clients; 0 lets the partition decide.
      partition_seed: seed of the partition, by default seed.
      test_split: clients' test samples: partition, natural, within, unseen,
        overlap, pooled.
      val_fraction: share of each client's samples held out for validation.
      max_samples: training samples of a client that are used, at most.
      unseen_fraction: share of clients that never train and are tested apart.
      augment: augmentations in training: 'crop', 'flip', 'cutout'.
      input_scale: divisor of integer pixels.
      normalize: subtract the mean and divide by the deviation: channels, columns.
      scramble: read images [H, W, C] as if stored [C, H, W], as SpaFL does.
      final_learning_rate: end of the learning rate's exponential decay.
      lr_horizon: duration of a decay or schedule in rounds, by default num_rounds.
      lr_delay: rounds before the decay starts.
      lr_decay: factor of the decay per round, instead of lr_horizon.
      budgets: pairs (share of the model, share of the clients that hold it).
      density: share of weights kept, in all stages that have none of their own.
      num_rounds: rounds of the main stage.
      cohort_size: number of clients in a round.
      epochs: number of local epochs.
      local_steps: steps of a client in a round, instead of epochs.
      batch_size: samples in a minibatch.
      drop_last: whether to leave out a last minibatch that is not full.
      eval_every: rounds between evaluations.
      metric: whose accuracy is reported: auto, pooled, clients.
      measure: accuracy, balanced_accuracy, f1, auc, rmse, mae, or module:function;
        by default accuracy, f1 of multilabel, rmse of regression.
      chunk: clients that a device runs at a time; auto by speed and memory.
      client_store: where clients' states live: auto, device, host, disk.
      memory_gb: memory limit of all devices together, in 1e9 bytes.
      seeds: number of runs, with seeds from seed on.
      init_from: folder of a finished run, or an exported file, to start from.
      init_what: what to take from it: model, weights, mask.
      system: clients' devices: mobile, iot, tifl or a .csv; None for no clock.
      checkpoint_minutes: minutes between checkpoints.
      sinks: further logs: 'tensorboard', 'wandb'.
    """

    seed: Whole = 0
    dataset: str = "cifar10_sample"
    hf: dict = section(HuggingFace)
    image: dict = section(Image)
    tokenizer: str | None = None
    max_tokens: int | None = None
    data_dir: str | None = None
    writers: str | None = None
    num_classes: Count | None = None
    task: str = "classification"
    error: Literal["squared", "absolute"] = "squared"
    num_clients: Whole = 100
    partition: dict = section(Partition)
    partition_seed: Whole | None = None
    test_split: str = "partition"
    val_fraction: float = 0.0
    max_samples: Count | None = None
    unseen_fraction: float = 0.0
    augment: Texts = ()
    input_scale: float = 255.0
    normalize: bool = True
    scramble: bool = False
    model: dict = section(Model)
    adapter: dict = section(Adapter)
    algorithm: dict = section(Method)
    first_stage: dict = section(FirstStage)
    optimizer: dict = section(Optimizer)
    schedule: dict = section(Schedule)
    server_optimizer: dict = section(ServerOptimizer)
    privacy: dict = section(Privacy)
    final_learning_rate: Positive | None = None
    lr_horizon: Count | None = None
    lr_delay: Whole = 0
    lr_decay: Annotated[float, "(0, 1)"] | None = None
    budgets: tuple[tuple[float, ...], ...] = ()
    density: Share | None = None
    num_rounds: int = 100
    cohort_size: int = 10
    epochs: int = 1
    local_steps: Count | None = None
    batch_size: int = 32
    drop_last: bool = False
    eval_every: int = 10
    metric: str = "auto"
    measure: str | None = None
    chunk: str = "auto"
    client_store: str = "auto"
    memory_gb: Positive | None = None
    seeds: Count = 1
    init_from: str | None = None
    init_what: Literal["model", "weights", "mask"] = "model"
    until: dict = section(Limits)
    fit: dict = section(Fit)
    system: str | None = None
    deadline: dict = section(Deadline)
    checkpoint_minutes: NonNegative = 10.0
    sinks: Texts = ()

    @property
    def stages(self) -> list[dict]:
        """Returns the section of each stage, in order."""
        middle = getattr(self, "middle_stages", {}).values()
        return [s for s in (self.first_stage, *middle, self.algorithm) if s]


@dataclasses.dataclass(frozen=True)
class Described(Config):
    """A run that `sfl.experiment` has made, by the names and settings of its parts."""

    source: str = "python"
    scaling: Any = None  # of a table, as `FederatedData` has it
    initial: Any = None
    middle_stages: dict = dataclasses.field(default_factory=dict)


def described_in(kind: type) -> dict[str, str]:
    """Returns the meanings of a class' fields, from its docstring."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    found = re.findall(r"^  (\w+): (.*(?:\n    .*)*)\.$", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


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
    "schedule": learning_rates.SCHEDULES,
}
OPTIONAL = ("first_stage", "schedule")  # sections that may be empty
WORK = {"epochs": 1, "local_steps": None}  # of which a stage has one
STAGE = ("num_rounds", "cohort_size", *WORK, "batch_size", "drop_last")
MEANINGS = {  # by dotted name
    **{
        f"{name}.{key}" if name else key: meaning
        for name, kind in {"": Config, **SECTIONS}.items()
        for key, meaning in described_in(kind).items()
    },
    "model.widths": "channels or units of each layer, first to last",
    "model.norm": "normalisation: 'batch', 'static', 'group' or None",
    "model.softmax_output": "end in a softmax, although the loss has one too",
    "model.dropout": "share of units dropped in training",
    "schedule.final": "rate after the last round",
    "schedule.at": "rounds in which the rate falls",
    "schedule.factor": "what the rate is multiplied by there",
    "server_optimizer.weight_decay": "weight decay of the server",
    "server_optimizer.clip": "norm at which the mean update is clipped",
}
_OF_RUN = ("seed", "users", "labels_test", "server_optimizer", "schedule")


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
        chosen = local.find_optimizer(name or "", f"{section}.name")
        found = _settable_arguments(chosen, 0) if callable(chosen) else {}
        found |= _settable_arguments(local.make_optimizer, 1)
    elif section in TABLES and name is not None:
        found = _settable_arguments(factory(section, name), 2)
    own, kind = {}, SECTIONS.get(section, Config)
    for key, parameter in inspect.signature(kind).parameters.items():
        unset = parameter.default is None and key in found
        default = found[key].default if unset else parameter.default
        if key not in SECTIONS:
            own[key] = parameter.replace(default=default)
    return own | {key: p for key, p in found.items() if key not in own}


def factory(section: str, name: str):
    """Returns the factory that a section names, from its table or `module:function`.

    Raises:
      ValueError: there is no such factory.
    """
    return look_up(f"{section}.name", name, TABLES[section])


def _settable_arguments(function, first: int) -> dict[str, inspect.Parameter]:
    """Returns the arguments that a configuration can set, from the `first` one on."""
    parameters = list(inspect.signature(function).parameters.values())[first:]
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    kinds = {p.name: p.replace(annotation=_kind(p)) for p in named}
    return {name: kinds[name] for name in kinds if name not in _OF_RUN}


def _kind(parameter) -> Any:
    """Returns the type of an argument, by its annotation or else by its default."""
    given, default = parameter.annotation, parameter.default
    if can_check(given):
        return given
    if isinstance(default, tuple) and default:
        return tuple[type(default[0]), ...]
    return type(default) if isinstance(default, int | float | str | tuple) else object
