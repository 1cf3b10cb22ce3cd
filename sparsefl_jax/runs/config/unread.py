"""Fields that are set although nothing that was chosen reads them: each is refused.

Whoever sets a field wants something; a run that ignored it would look like an answer.
A section's own arguments are looked at in `fields`, `budgets` in `checks`.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.data import leaf, samples
from sparsefl_jax.data.hub import PREFIX
from sparsefl_jax.data.named import NAMED
from sparsefl_jax.runs.config import defaults, registry
from sparsefl_jax.runs.plan import checks

_DENSITIES = ("density", "max_density")  # arguments that can refer to `density`
_FIT = ("fit.gbit", "fit.pflop")
_CLOSING = ("deadline.seconds", "deadline.quantile")
_GOES_WITH = {  # fields that are read only beside one of some others
    **dict.fromkeys(("lr_horizon", "lr_delay", "lr_decay"), ("final_learning_rate",)),
    **dict.fromkeys(("fit.pilot", "fit.most", "fit.by", "fit.measured"), _FIT),
    **dict.fromkeys(("until.hours", *_CLOSING), ("system",)),
    "deadline.over": _CLOSING,
    "init_what": ("init_from",),
}


def check(config) -> None:
    """Refuses a field that is set and never read.

    Args:
      config: whose fields are known and of the right types, see `fields.check`.

    Raises:
      ValueError: in one line that says who reads it.

    Example:
      >>> config = defaults.default_config()
      >>> config.lr_decay = 0.9
      >>> check(config)
      Traceback (most recent call last):
        ...
      ValueError: lr_decay=0.9 is read by nothing here: it goes with final_learning_rate
    """
    for found in (_companions, _density, _optimizers, _rates, _data):
        for field, value, why in found(config):
            raise ValueError(f"{field}={value!r} is read by nothing here: {why}")


def check_data(config, data) -> None:
    """Refuses fields that only another kind of data set reads.

    Raises:
      ValueError: integer pixels are to be scaled, and there are none.
    """
    scale, usual = config.input_scale, defaults.default_config().input_scale
    if scale != usual and data.x.dtype != "uint8":
        raise ValueError(
            f"input_scale={scale} is read by nothing here: it divides integer pixels, "
            f"and {data.name!r} has {data.x.dtype}; expected {usual}"
        )


def check_stages(config, stages, model, traced) -> None:
    """Refuses epochs or a mask of the first stage that no later step reads.

    Raises:
      ValueError: in one line.
    """
    epochs = config.first_stage.get("epochs") or 1
    if epochs > 1 and not checks.reads_epochs(traced[0]):
        raise ValueError(
            f"first_stage.epochs={epochs} is read by nothing here: "
            f"{config.first_stage['name']!r} takes the batches of one epoch, expected 1"
        )
    masked = any(field.startswith("first_stage") for field in densities(config))
    if masked and not checks.reads_mask(stages[1].algorithm, model):
        raise ValueError(
            f"first_stage.name={config.first_stage['name']!r}: its mask is read by "
            f"nothing here, as {config.algorithm['name']!r} starts from one of its own"
        )


def densities(config) -> dict:
    """Returns the densities that `density` may set, by field."""
    sections = {"first_stage": config.first_stage, "algorithm": config.algorithm}
    return {
        f"{name}.{key}": section[key]
        for name, section in sections.items()
        for key in _DENSITIES
        if section.get(key) is not None
    }


def _companions(config) -> Iterator[tuple]:
    given, usual = (flatten(c.to_dict()) for c in (config, defaults.default_config()))
    for field, value in given.items():
        others = _GOES_WITH.get(field, ())
        if field.startswith("server_optimizer.") and not field.endswith(".name"):
            others = ("server_optimizer.name",)
        alone = others and not any(given.get(other) for other in others)
        if alone and value is not None and value != usual.get(field):
            yield field, value, f"it goes with {' or '.join(others)}"


def _density(config) -> Iterator[tuple]:
    held = densities(config)
    if config.density is not None and config.density not in held.values():
        others = [f"{field} is {value}" for field, value in held.items()]
        names = ", ".join(registry.readers("algorithm", *_DENSITIES))
        none = f"{config.algorithm.get('name')!r} takes none; {names} do"
        yield "density", config.density, ", ".join(others) or none


def _optimizers(config) -> Iterator[tuple]:
    given = config.server_optimizer.get("name")
    name = config.algorithm.get("name")
    taken = inspect.signature(registry.factory("algorithm", name)).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    if given is not None and "server_optimizer" not in taken and not anything:
        readers = ", ".join(registry.readers("algorithm", "server_optimizer"))
        yield "server_optimizer.name", given, f"{readers} read it"


def _rates(config) -> Iterator[tuple]:
    if config.lr_decay is not None and config.lr_horizon is not None:
        yield "lr_horizon", config.lr_horizon, f"lr_decay={config.lr_decay} is the pace"
    seconds, quantile = (config.deadline.get(k) for k in ("seconds", "quantile"))
    if seconds is not None and quantile is not None:
        yield "deadline.quantile", quantile, f"deadline.seconds={seconds} is it"


def _data(config) -> Iterator[tuple]:
    name = config.dataset
    no_folder = name in samples.SAMPLES or name.endswith(".npz")
    ours = name in NAMED  # one of several sources
    hub = name.startswith(PREFIX) or (ours and NAMED[name].tfds is None)
    folder = not ours and (Path(name).is_absolute() or leaf.find(name))
    if config.data_dir and (no_folder or hub or folder):
        yield "data_dir", config.data_dir, f"{name!r} is no data set of TFDS"
    if config.data_dir and any(value for value in config.hf.values()):
        yield "data_dir", config.data_dir, "hf names a data set of Hugging Face"
    if config.writers:
        readers = registry.readers("partition", "users")
        if config.partition.get("name") not in readers:
            yield "writers", config.writers, f"partition {', '.join(readers)} reads it"
    share = config.partition.get("test_fraction")
    if share is not None and config.test_split != "within":
        yield "partition.test_fraction", share, "test_split='within' reads it"
