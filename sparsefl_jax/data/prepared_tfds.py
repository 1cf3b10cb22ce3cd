"""Reads prepared TensorFlow Datasets without TensorFlow, and decodes them once.

TFDS's `data_source` needs only `array_record` and an image decoder.
"""

import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.data.cache import Source
from sparsefl_jax.data.columns import choose

OPTIONS = ("data_dir", "image", "text", "label")
_HARMLESS = re.compile("group size|OpenCV|Variant folder")  # in lines of TFDS's log
_CHUNK = 1024  # samples at a time, which is three times as fast as one by one


def find(name: str, data_dir: str | Path | None = None, **columns: Any) -> Source:
    """Finds a prepared data set that classifies images or texts.

    Its training samples are the split `train`; those for testing are `test`, or
    `validation` if there is no `test` or its labels are secret (-1). A column that is
    called `label` has the labels, unless another is named.

    Args:
      name: a TFDS builder, with an optional `/config` and `:version`.
      data_dir: the folder of TFDS data sets; None for `TFDS_DATA_DIR`, or else TFDS's
        default.
      **columns: the `image` or `text` and the `label`, as `columns.choose` takes them.

    Raises:
      ValueError: the data set is not prepared, or does not classify such samples.
    """
    builder = _builder(name, data_dir)
    if not builder.is_prepared():
        told = f"run `tfds build {name} --file_format=array_record` with the extra "
        told += "[prepare], set TFDS_DATA_DIR to its folder, name one of the hub as "
        told += "hf:ORGANISATION/NAME, or take a configuration with :mini"
        raise UserError(f"it is not prepared: {told}")
    files = [f for f in Path(str(builder.data_path)).iterdir() if f.is_file()]
    features = builder.info.features
    if "label" in features:
        columns = {"label": "label"} | columns
    chosen = choose(features, **columns)
    [sample] = chosen.samples
    return Source(name, files, partial(_decode, builder, sample, chosen.label))


def _builder(name: str, data_dir: str | Path | None) -> Any:
    """Returns the TFDS builder of a name."""
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text  # noqa: F401  registers GLUE

    logging.getLogger("absl").addFilter(lambda r: not _HARMLESS.search(r.getMessage()))
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        raise UserError("no data set has this name, see launch.py --list") from None


def _decode(builder, sample, label) -> dict:
    """Reads the samples, a list if they are texts, and the labels of both splits."""
    x, y = _read(builder, "train", sample, label)
    num_classes = np.array(builder.info.features[label].num_classes)
    arrays = {"x": x, "y": y, "num_classes": num_classes}
    for split in ("test", "validation"):
        if split in builder.info.splits:
            x_test, y_test = _read(builder, split, sample, label)
            if y_test.min() >= 0:
                return arrays | {"x_test": x_test, "y_test": y_test}
    return arrays


def _read(builder, split, sample, label):
    """Returns the samples and the labels of a split."""
    source = builder.as_data_source(split=split)
    samples, labels = [], []
    for start in range(0, len(source), _CHUNK):
        places = range(start, min(start + _CHUNK, len(source)))
        for row in source.__getitems__(places):
            samples.append(row[sample])
            labels.append(row[label])
    texts = isinstance(samples[0], bytes)
    samples = [t.decode() for t in samples] if texts else np.stack(samples)
    return samples, np.array(labels, np.int32)
