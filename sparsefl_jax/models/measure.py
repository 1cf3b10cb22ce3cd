"""Measures: what evaluations report, from sums over samples.

A measure adds up arrays over samples, batches and clients, and makes one number of the
sums. That of a client, or of all samples, comes from its own sums, so it is no mean of
measures of batches.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.flatten import rename
from sparsefl_jax.core.lookup import look_up
from sparsefl_jax.core.types import AnyArray, Array
from sparsefl_jax.models.loss import knows_classes

BINS, _MOST = 1000, 20.0  # of the scores of AUC, from -_MOST to _MOST


def mean(sums: Mapping[str, AnyArray]) -> AnyArray:
    """Returns the mean over samples of what a measure sums as `total`."""
    return sums["total"] / sums["count"]


class Measure(NamedTuple):
    """A measure of a model on labelled samples.

    Attributes:
      name: in records and on pages.
      sums: `(logits, labels, weight) -> sums`. logits [B, ...] are what the network
        returns, labels [B, ...]; weight [B] is 0 for padded samples, which must add
        nothing. The result is a dictionary of float32 arrays that add up over samples.
        None if those of the loss suffice.
      finish: `(sums) -> value`, NumPy float64. `sums` also holds `count`, the number of
        samples, and `correct`, as the model's loss counts them. All may have leading
        axes, of clients. NaN means that the measure is not defined, such as the AUC of
        samples of one class.
      better: 'higher' or 'lower'.

    Example:
      >>> def hits(logits, labels, weight):
      ...     best = jnp.argsort(logits, -1)[:, -2:]
      ...     return {"total": jnp.sum(weight * jnp.any(best == labels[:, None], -1))}
      >>> top2 = Measure("top2", hits)
      >>> sums = top2.sums(jnp.eye(3), jnp.array([0, 2, 0]), jnp.ones(3))
      >>> float(top2.finish(sums | {"count": 3})) > 0.3
      True
    """

    name: str
    sums: Callable[[Array, Array, Array], dict[str, Array]] | None
    finish: Callable[[Mapping[str, AnyArray]], AnyArray] = mean
    better: Literal["higher", "lower"] = "higher"

    def __call__(self, logits: Array, labels: Array, weight: Array) -> dict[str, Array]:
        """Returns the sums of a batch."""
        return self.sums(logits, labels, weight) if self.sums else {}

    def record(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Names the fields of a record; those of the accuracy keep its name.

        Example:
          >>> Measure("rmse", len, better="lower").record({"val_accuracy": 2.0})
          {'measure': 'rmse', 'better': 'lower', 'val_value': 2.0}
        """
        if self.name == "accuracy":
            return fields
        facts = {"measure": self.name, "better": self.better}
        return facts | rename(fields, "accuracy", "value")


def _by_class(logits: Array, labels: Array, weight: Array) -> dict[str, Array]:
    """Counts by class or label: samples of it, predictions of it, and both at once."""
    true, said = labels, logits > 0
    if labels.dtype != bool or labels.shape != logits.shape:
        if jnp.shape(labels) != logits.shape[:-1] or labels.dtype.kind != "i":
            raise _unfit(logits, labels, "a class for each row of logits, or labels")
        classes = labels, jnp.argmax(logits, -1)
        true, said = (jax.nn.one_hot(v, logits.shape[-1]) for v in classes)
    weight = weight.reshape(-1, *[1] * logits[0].ndim)
    counts = {"true": true, "said": said, "right": true * said}
    return {k: jnp.sum(weight * v, range(v.ndim - 1)) for k, v in counts.items()}


def _shares(part: AnyArray, whole: AnyArray) -> AnyArray:
    """Returns the mean of part by whole, over the last axis, where there is a whole."""
    known = whole > 0
    shares = np.where(known, part, 0.0) / np.where(known, whole, 1.0)
    count = known.sum(-1)
    return shares.sum(-1) / np.where(count, count, np.nan)


def _histograms(logits: Array, labels: Array, weight: Array) -> dict[str, Array]:
    """Counts the scores of negative and of positive samples in `BINS` bins."""
    if logits.shape == (len(labels), 2) and labels.dtype.kind == "i":
        logits, labels = logits[:, 1:] - logits[:, :1], labels[:, None]
    elif logits.shape != labels.shape or labels.dtype != bool:
        raise _unfit(logits, labels, "two classes, or 0 and 1 for each output")
    bins = jnp.floor((logits + _MOST) * (BINS / (2 * _MOST))).astype(jnp.int32)
    bins = jnp.clip(bins, 0, BINS - 1)
    zeros = jnp.zeros((logits.shape[1], 2, BINS), jnp.float32)
    label = jnp.arange(logits.shape[1], dtype=jnp.int32)[None]
    place = label, labels.astype(jnp.int32), bins
    return {"scores": zeros.at[place].add(weight[:, None])}


def _area(sums: Mapping[str, AnyArray]) -> AnyArray:
    """Returns the share of pairs in the right order; those in one bin count half.

    Of several labels it is the mean over those with both kinds of samples.
    """
    negative, positive = np.moveaxis(np.asarray(sums["scores"]), -2, 0)
    below = np.cumsum(negative, -1) - negative / 2
    pairs = negative.sum(-1) * positive.sum(-1)
    return _shares((positive * below).sum(-1), pairs)


def _errors(logits: Array, labels: Array, weight: Array) -> dict[str, Array]:
    """Sums the errors of each sample, which are means over its targets."""
    if logits.size != labels.size or labels.dtype.kind != "f":
        raise _unfit(logits, labels, "a number for each output")
    errors = (logits.reshape(labels.shape) - labels).reshape(len(labels), -1)
    powers = {"squared": errors**2, "absolute": jnp.abs(errors)}
    return {k: jnp.sum(weight * jnp.mean(v, -1)) for k, v in powers.items()}


def _unfit(logits: Array, labels: Array, expected: str) -> UserError:
    found = f"{labels.dtype} {list(labels.shape)} for outputs {list(logits.shape)}"
    return UserError(f"labels {found}, expected {expected}")


_ALL = (
    Measure("accuracy", None, lambda s: s["correct"] / s["count"]),
    Measure("balanced_accuracy", _by_class, lambda s: _shares(s["right"], s["true"])),
    Measure("f1", _by_class, lambda s: _shares(2 * s["right"], s["true"] + s["said"])),
    Measure("auc", _histograms, _area),
    Measure("rmse", _errors, lambda s: np.sqrt(s["squared"] / s["count"]), "lower"),
    Measure("mae", _errors, lambda s: s["absolute"] / s["count"], "lower"),
)
MEASURES = {measure.name: measure for measure in _ALL}


def find(measure: Measure | str | None, y: np.ndarray) -> Measure:
    """Returns a measure by its name.

    Args:
      measure: a name in `MEASURES`, `module:function` for your own, or a `Measure`.
        A function is the `sums` of one whose `finish` is `mean`. None for that of the
        task: accuracy, of several labels f1, of numbers rmse.
      y: the labels.

    Raises:
      ValueError: there is none of this name.

    Example:
      >>> find("rmse", np.zeros(2)).better, find(None, np.zeros(2, int)).name
      ('lower', 'accuracy')
    """
    measure = measure or {"b": "f1", "f": "rmse"}.get(y.dtype.kind, "accuracy")
    if isinstance(measure, Measure):
        return measure
    found = look_up("measure", measure, MEASURES)
    return found if isinstance(found, Measure) else Measure(found.__name__, found)


def check_measure(measure: Measure | str | None, model: Any, data: Any) -> None:
    """Checks that a measure reads the outputs of a network and the labels, by shape.

    Raises:
      ValueError: there is no such measure, it fails, or gives a client no number.
    """
    found = find(measure, data.y)
    if found.sums is None and not knows_classes(model.loss):
        raise UserError(f"measure={found.name!r} counts classes, expected another")
    check("measure.better", found.better, ("higher", "lower"))
    x, y = (jax.ShapeDtypeStruct((2, *v.shape[1:]), v.dtype) for v in (data.x, data.y))

    def sums(key, x, y):
        logits, _ = model.apply(*model.init(key), x, train=False)
        return dict(found(logits, y, jnp.ones(2)), count=1.0, correct=1.0)

    with blame(f"measure={found.name!r}"):
        shapes = jax.eval_shape(sums, jax.random.key(0), x, y)
        value = found.finish({k: np.ones((1, *v.shape)) for k, v in shapes.items()})
        if np.shape(value) != (1,):
            raise UserError(f"of one client it is {np.shape(value)}, expected [1]")
