"""Downloads a data set once: of the Hugging Face hub, or of TFDS.

Most builders need TensorFlow's file functions to *prepare* data. The extra `[prepare]`
installs TensorFlow. Everything else reads the prepared files without it.
"""

import contextlib
import sys
from pathlib import Path

from sparsefl_jax.core.check import UserError, blaming
from sparsefl_jax.data import hub, named, prepared_tfds, samples


def prepare(name: str, data_dir: str | Path | None = None) -> str:
    """Downloads a data set of the hub, or prepares one of TFDS as `array_record`.

    Args:
      name: `hf:ORGANISATION/NAME`, a name in `named.NAMED`, or a TFDS builder such as
        `"cifar10"` or `"emnist/byclass"`.
      data_dir: the folder of TFDS data sets; None for `TFDS_DATA_DIR`, or else TFDS's
        default.

    Returns:
      The folder of the data set, or a line on the splits of one of the hub.

    Raises:
      ValueError: the name is unknown, TensorFlow is missing, or the download failed.

    Example:
      >>> prepare("cifar10_sample")
      Traceback (most recent call last):
      sparsefl_jax.UserError: data set 'cifar10_sample' is embedded; it needs no
      preparation
    """
    if name in samples.SAMPLES:
        raise UserError(f"data set {name!r} is embedded; it needs no preparation")
    if name.endswith(".npz"):
        raise UserError(f"data set {name!r} is a file; it needs no preparation")
    if name.startswith(hub.PREFIX):
        return _sizes(hub.fetch(name.removeprefix(hub.PREFIX)))
    if name in named.NAMED:
        source = named.NAMED[name]
        if source.tfds is None:
            return _sizes(hub.fetch(source.hub))
        name = source.tfds
    extra = "most data sets need pip install 'sparsefl_jax[prepare]'"
    with (
        contextlib.redirect_stdout(sys.stderr),
        blaming(f"preparing {name!r} failed ({extra})"),
    ):
        builder = prepared_tfds.find_builder(name, data_dir)
        builder.download_and_prepare(file_format="array_record")
    return str(builder.data_path)


def _sizes(data) -> str:
    """Returns the splits of a data set and their numbers of samples."""
    return ", ".join(f"{split}: {len(rows):,} samples" for split, rows in data.items())
