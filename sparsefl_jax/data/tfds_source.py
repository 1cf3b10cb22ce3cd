"""Prepared TensorFlow Datasets, read without TensorFlow and decoded once.

TFDS's `data_source` needs `array_record` and an image decoder only. The decoded arrays
are kept as .npy files in a cache directory and memory-mapped from then on. An entry is
keyed by name, version, and the size and time of each file, so that another copy of the
data set is not taken for this one.
"""

import contextlib
import difflib
import hashlib
import logging
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np

from sparsefl_jax.data.samples import SAMPLES
from sparsefl_jax.devices import cache_directory

ARRAYS = ("x", "y", "x_test", "y_test")
_CHUNK = 1024


def read(name, data_dir=None):
    """Reads a prepared image classification data set.

    Args:
      name: a TFDS builder, with `/config` and `:version` where wanted.
      data_dir: where TFDS data sets lie; None: `TFDS_DATA_DIR`, else TFDS's default.

    Returns:
      `((x, y, x_test, y_test), num_classes)`: images [n, H, W, C] uint8 and labels [n]
      int32 of the split `train` and of `test`, or `validation` where there is no test.

    Raises:
      ValueError: the data set is not prepared, or is no image classification.
    """
    with _quiet():
        builder = find_builder(name, data_dir)
        _check_prepared(name, builder, data_dir)
        image, label = _features(name, builder.info.features)
        num_classes = builder.info.features[label].num_classes
        entry = cache_directory() / _key(builder)
        if not entry.is_dir():
            decoded = _decode(name, builder, image, label)
            if not _store(entry, decoded):
                return decoded, num_classes
    return tuple(np.load(entry / f"{a}.npy", mmap_mode="r") for a in ARRAYS), (
        num_classes
    )


def find_builder(name, data_dir=None):
    """Returns the TFDS builder of a name; raises ValueError with the nearest names.

    Args:
      name: `builder`, `builder/config` or `builder/config:version`.
      data_dir: where TFDS data sets lie; None: `TFDS_DATA_DIR`, else TFDS's default.
    """
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        known = [*SAMPLES, *tfds.list_builders(with_community_datasets=False)]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see launch.py --list"
        raise ValueError(f"data set {name!r} is unknown; {hint}") from None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"data set {name!r} can not be used: {reason}") from None


def _check_prepared(name, builder, data_dir):
    if not builder.is_prepared():
        root = data_dir or os.environ.get("TFDS_DATA_DIR") or "the default directory"
        raise ValueError(
            f"data set {name!r} is not prepared in {root}: run `python launch.py "
            f"--prepare={name}`, or set TFDS_DATA_DIR to where it lies, or try the "
            "embedded sample with configs/flash_cifar10.py:mini"
        )
    if builder.info.file_format.value != "array_record":
        raise ValueError(
            f"data set {name!r} is prepared as {builder.info.file_format.value}, which "
            "only TensorFlow reads; prepare it in another directory with "
            f"`python launch.py --prepare={name}`"
        )


def _features(name, features):
    """Returns the names of the one image and the label among a builder's features."""
    kinds = {key: type(feature).__name__ for key, feature in features.items()}
    images = [key for key, kind in kinds.items() if kind == "Image"]
    labels = [key for key, kind in kinds.items() if kind == "ClassLabel"]
    label = "label" if "label" in labels else labels[0] if len(labels) == 1 else None
    if len(images) != 1 or label is None:
        raise ValueError(
            f"data set {name!r} has features {kinds}; "
            "allowed are one Image and one ClassLabel"
        )
    shape = features[images[0]].shape
    if None in shape:
        raise ValueError(
            f"data set {name!r} has images of shape {shape}; "
            "resize them into an .npz file"
        )
    return images[0], label


def _decode(name, builder, image, label):
    """Reads both splits into arrays."""
    splits = builder.info.splits
    test = next((s for s in ("test", "validation") if s in splits), None)
    if "train" not in splits or test is None:
        raise ValueError(
            f"data set {name!r} has splits {', '.join(splits)}; "
            "needed are train, and test or validation"
        )
    arrays = []
    for split in ("train", test):
        source = builder.as_data_source(split=split)
        x = np.empty((len(source), *builder.info.features[image].shape), np.uint8)
        y = np.empty(len(source), np.int32)
        for start in range(0, len(source), _CHUNK):
            rows = range(start, min(start + _CHUNK, len(source)))
            for i, example in zip(rows, source.__getitems__(rows), strict=True):
                x[i], y[i] = example[image], example[label]
        arrays += [x, y]
    return tuple(arrays)


def _key(builder):
    """Returns a folder name that changes whenever the prepared files do."""
    folder = Path(str(builder.data_path))
    files = sorted(f for f in folder.iterdir() if f.is_file())
    facts = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return f"{builder.info.full_name.replace('/', '-')}-{digest}"


def _store(entry, arrays):
    """Writes arrays as one folder, whole or not at all; returns whether it is there."""
    tmp = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        tmp = Path(tempfile.mkdtemp(prefix=".tmp-", dir=entry.parent))
        for name, array in zip(ARRAYS, arrays, strict=True):
            np.save(tmp / f"{name}.npy", array)
        os.replace(tmp, entry)
    except OSError as error:
        if tmp:
            shutil.rmtree(tmp, ignore_errors=True)
        if not entry.is_dir():
            warnings.warn(f"decoded data not kept in {entry}: {error}", stacklevel=2)
    return entry.is_dir()


@contextlib.contextmanager
def _quiet():
    """Holds back two harmless lines about record groups and image decoders."""

    def wanted(record):
        message = record.getMessage()
        return not any(s in message for s in ("group size", "OpenCV", "Variant folder"))

    logger = logging.getLogger("absl")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
