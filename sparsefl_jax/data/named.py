"""Names of well-known data sets, each read from whichever source is on the machine.

The sources are prepared TensorFlow Datasets and the cache of Hugging Face's library.
They order their samples in their own ways, so a partition differs between them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparsefl_jax.core.check import UserError
from sparsefl_jax.data import hub, prepared_tfds


class Named(NamedTuple):
    """The sources of a data set.

    Attributes:
      hub: its name on the Hugging Face hub.
      summary: one line that describes it.
      columns: the columns that the types of features leave open, as `hub.find` takes
        them.
      tfds: its name as a TensorFlow data set, if it is one.
    """

    hub: str
    summary: str
    columns: dict[str, str] = {}  # noqa: RUF012  never changed
    tfds: str | None = None


NAMED = {
    "mnist": Named(
        "ylecun/mnist", "60,000 + 10,000 grey images 28x28, 10 digits", tfds="mnist"
    ),
    "fashion_mnist": Named(
        "zalando-datasets/fashion_mnist",
        "60,000 + 10,000 grey images 28x28, 10 classes",
        tfds="fashion_mnist",
    ),
    "cifar10": Named(
        "uoft-cs/cifar10",
        "50,000 + 10,000 colour images 32x32, 10 classes",
        tfds="cifar10",
    ),
    "cifar100": Named(
        "uoft-cs/cifar100",
        "50,000 + 10,000 colour images 32x32, 100 classes",
        {"label": "fine_label"},
        "cifar100",
    ),
    "femnist": Named(
        "flwrlabs/femnist",
        "814,277 characters by writer, 62 classes",
        {"user": "writer_id"},
    ),
    "twitter": Named(
        "stanfordnlp/sentiment140",
        "1,600,000 tweets by user, negative, neutral or positive",
        {"text": "text", "user": "user"},
    ),
    "sst2": Named(
        "stanfordnlp/sst2",
        "67,349 + 872 phrases of film reviews, negative or positive",
        tfds="glue/sst2",
    ),
    "shakespeare": Named(
        "flwrlabs/shakespeare",
        "80 characters of a play and the next one, by role",
        {"text": "x", "label": "y", "user": "character_id"},
    ),
}


def find(
    name: str, data_dir: str | Path | None, hf: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    """Finds a named data set among TensorFlow Datasets or in the hub's cache.

    Args:
      name: in `NAMED`.
      data_dir: as `prepared_tfds.find` takes it; if set, only that is looked through.
      hf: options of `hub.find`; if there are any, only the hub's cache is.

    Returns:
      The name at its source, and columns that the types of features leave open.

    Raises:
      ValueError: there is no source, and the message has the command to get one.
    """
    source = NAMED[name]
    if not hf and source.tfds and prepared_tfds.is_prepared(source.tfds, data_dir):
        return source.tfds, {}
    if not (data_dir and source.tfds) and hub.is_cached(source.hub):
        return hub.PREFIX + source.hub, source.columns
    raise UserError(
        f"data set {name!r} is not on this machine: run `python launch.py "
        f"--prepare={name}`, set TFDS_DATA_DIR to its folder, or take a configuration "
        "with :mini"
    )
