"""Reads prepared TensorFlow Datasets without TensorFlow, and decodes them once.

TFDS's `data_source` needs only `array_record` and an image decoder.
"""

import contextlib
import logging
import os
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.core.check import UserError, closest, unread
from sparsefl_jax.data import cache
from sparsefl_jax.data.samples import SAMPLES
from sparsefl_jax.data.tokens import TextEncoding, hashing

_CHUNK = 1024


def read(
    name: str,
    data_dir: str | Path | None = None,
    encoding: TextEncoding | None = None,
) -> tuple[dict[str, np.ndarray], int]:
    """Reads a prepared data set that classifies images or texts.

    Args:
      name: a TFDS builder, with an optional `/config` and `:version`.
      data_dir: the folder of TFDS data sets; None for `TFDS_DATA_DIR`, or else TFDS's
        default.
      encoding: what turns texts into samples; None for hashed features.

    Returns:
      The arrays and the number of classes: `x` and `y` of the split `train`, `x_test`
      and `y_test` of `test`, or of `validation` if there is no `test` or its labels are
      secret (-1). Images are [n, H, W, C] uint8, labels [n] int32.

    Raises:
      ValueError: the data set is not prepared, or does not classify such samples.
    """
    with _quiet():
        builder = find_builder(name, data_dir)
        _check_prepared(name, builder, data_dir)
        entry = builder.info.full_name
        kind, sample, label = _features(name, builder.info.features)
        if kind == "Text":
            encoding = encoding or hashing()
            entry += f"-{zlib.crc32(encoding.identity.encode()):08x}"
        elif encoding:
            raise unread(encoding.field, f"{name!r} has no texts")
        decode = partial(_decode, name, builder, sample, label, encoding)
        folder = Path(str(builder.data_path))
        files = [file for file in folder.iterdir() if file.is_file()]
        arrays = cache.through(entry, folder, files, decode)
    return arrays, builder.info.features[label].num_classes


def is_prepared(name: str, data_dir: str | Path | None = None) -> bool:
    """Returns whether a TFDS data set is in the folder."""
    with _quiet():
        return find_builder(name, data_dir).is_prepared()


def find_builder(name: str, data_dir: str | Path | None = None) -> Any:
    """Returns the TFDS builder of a name.

    Args:
      name: `builder`, `builder/config` or `builder/config:version`.
      data_dir: the folder of TFDS data sets; None for `TFDS_DATA_DIR`, or else TFDS's
        default.

    Raises:
      ValueError: TFDS has no such builder; the message suggests the closest names.
    """
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text  # noqa: F401  registers GLUE

    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        known = [*SAMPLES, *tfds.list_builders(with_community_datasets=False)]
        near = closest(name, known, count=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see launch.py --list"
        raise UserError(f"data set {name!r} is unknown; {hint}") from None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"data set {name!r} cannot be used: {reason}") from None


def _check_prepared(name, builder, data_dir):
    if not builder.is_prepared():
        root = data_dir or os.environ.get("TFDS_DATA_DIR") or "the default directory"
        raise UserError(
            f"data set {name!r} is not prepared in {root}: run `python launch.py "
            f"--prepare={name}`, or set TFDS_DATA_DIR to its folder, or try the "
            "embedded sample with configs/flash_cifar10.py:mini"
        )
    if builder.info.file_format.value != "array_record":
        raise UserError(
            f"data set {name!r} is prepared as {builder.info.file_format.value}, which "
            "only TensorFlow reads; prepare it in another directory with "
            f"`python launch.py --prepare={name}`"
        )


def _features(name, features):
    """Returns the type and name of the only image or text, and the label's name.

    Texts beside an image are not samples, such as the names of CIFAR's images.
    """
    kinds = {key: type(feature).__name__ for key, feature in features.items()}
    wanted = "Image" if "Image" in kinds.values() else "Text"
    inputs = [key for key, kind in kinds.items() if kind == wanted]
    labels = [key for key, kind in kinds.items() if kind == "ClassLabel"]
    label = "label" if "label" in labels else labels[0] if len(labels) == 1 else None
    if len(inputs) != 1 or label is None:
        raise UserError(
            f"data set {name!r}: {kinds}, expected an Image or a Text, and a ClassLabel"
        )
    shape = features[inputs[0]].shape
    if None in shape:
        raise UserError(
            f"data set {name!r} has images of shape {shape}, expected one size"
        )
    return wanted, inputs[0], label


def _decode(name, builder, sample, label, encoding):
    """Reads both splits into arrays."""
    read = partial(_texts if encoding else _images, builder, sample, label)
    splits = builder.info.splits
    tests = [split for split in ("test", "validation") if split in splits]
    if "train" not in splits or not tests:
        raise UserError(
            f"data set {name!r} has splits {', '.join(splits)}, expected train, and "
            "test or validation"
        )
    x, y = read("train")
    found = map(read, tests)  # until one has labels
    test = next((t for t in found if t[1].size and t[1].min() >= 0), None)
    if test is None:
        raise UserError(f"data set {name!r} has no test samples with a label")
    x_test, y_test = test
    if encoding:
        x, x_test = (encoding.encode(texts, title=name) for texts in (x, x_test))
    return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}


def _texts(builder, text, label, split):
    """Reads the texts and labels of a split."""
    source = builder.as_data_source(split=split)
    examples = source.__getitems__(range(len(source)))
    labels = np.array([example[label] for example in examples], np.int32)
    return [example[text].decode() for example in examples], labels


def _images(builder, image, label, split):
    """Reads the images and labels of a split."""
    source = builder.as_data_source(split=split)
    x = np.empty((len(source), *builder.info.features[image].shape), np.uint8)
    y = np.empty(len(source), np.int32)
    for start in range(0, len(source), _CHUNK):
        rows = range(start, min(start + _CHUNK, len(source)))
        for i, example in zip(rows, source.__getitems__(rows), strict=True):
            x[i], y[i] = example[image], example[label]
    return x, y


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses harmless log lines about record groups and image decoders."""

    def wanted(record):
        message = record.getMessage()
        return not any(s in message for s in ("group size", "OpenCV", "Variant folder"))

    logger = logging.getLogger("absl")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
