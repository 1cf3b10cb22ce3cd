"""Makes the images that ship with the package from the full data sets.

    TFDS_DATA_DIR=... python scripts/cut_samples.py [--approximate=ids.json]
    TFDS_DATA_DIR=... python scripts/cut_samples.py --writers=mnist_writers.npz

The sources are TFDS `fashion_mnist` 3.0.1 and `cifar10` 3.0.2. For every class it draws
200 training and 50 test images with seed 0 and keeps their original order. If a copy of
CIFAR-10 holds images that are not exact, `--approximate` names a JSON file whose lists
`train` and `test` hold the ids to leave out.

With `--writers`, the source is TFDS `mnist` 3.0.1, and the file holds the writer of
each of its images as QMNIST has them, `writer_train` and `writer_test`. It draws 48
writers of the training images and 20 images of each, and 20 test images of every class,
and writes all writers in the order that `data.users.of_mnist` reads.

Images are stored as differences from the row above, modulo 256, which compress better.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from sparsefl_jax.data import samples
from sparsefl_jax.data.users import by_content

SEED = 0
PER_CLASS = {"train": 200, "test": 50}
SOURCES = {"fashion_mnist": "3.0.1", "cifar10": "3.0.2"}


def cut(source, per_class, *, exclude=(), seed=SEED):
    """Returns images, labels and positions of `per_class` examples of each class."""
    examples = source.__getitems__(range(len(source)))
    labels = np.array([example["label"] for example in examples])
    allowed = np.array([example.get("id") not in exclude for example in examples])
    rng = np.random.default_rng(seed)
    rows = [
        rng.choice(np.flatnonzero((labels == c) & allowed), per_class, replace=False)
        for c in np.unique(labels)
    ]
    index = np.sort(np.concatenate(rows))
    x = np.stack([examples[i]["image"] for i in index])
    return x, labels[index].astype(np.uint8), index.astype(np.int32)


def cut_writers(path):
    """Writes `mnist_sample.npz` and `mnist_writers.npz`."""
    arrays, kept, rng = {}, {}, np.random.default_rng(SEED)
    for split in PER_CLASS:
        source = tfds.data_source("mnist:3.0.1", split=split, download=False)
        examples = source.__getitems__(range(len(source)))
        x = np.stack([example["image"] for example in examples])
        y = np.array([example["label"] for example in examples], np.uint8)
        writers = np.load(path)[f"writer_{split}"].astype(np.uint16)
        kept[f"writer_{split}"] = writers[by_content(x)]
        if split == "train":
            ids, counts = np.unique(writers, return_counts=True)
            ids = rng.choice(ids[counts >= 20], 48, replace=False)
            groups = [np.flatnonzero(writers == i) for i in ids]
        else:
            groups = [np.flatnonzero(y == c) for c in range(10)]
        rows = [rng.choice(group, 20, replace=False) for group in groups]
        index = np.sort(np.concatenate(rows))
        arrays |= {
            f"x_{split}": np.diff(x[index], axis=1, prepend=np.uint8(0)),
            f"y_{split}": y[index],
            f"index_{split}": index.astype(np.int32),
        }
        if split == "train":
            arrays["users"] = writers[index]
    for name, values in {"mnist_sample": arrays, "mnist_writers": kept}.items():
        file = samples.FOLDER / f"{name}.npz"
        np.savez_compressed(file, **values)
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


def main():
    """Writes `sparsefl_jax/data/samples/<name>.npz`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--approximate", type=Path)
    parser.add_argument("--writers", type=Path)
    arguments = parser.parse_args()
    if arguments.writers:
        return cut_writers(arguments.writers)
    approximate = arguments.approximate
    exclude = json.loads(approximate.read_text()) if approximate else {}
    for name, version in SOURCES.items():
        arrays = {}
        for split, per_class in PER_CLASS.items():
            source = tfds.data_source(f"{name}:{version}", split=split, download=False)
            ids = {i.encode() for i in exclude.get(split, ())}
            x, y, index = cut(source, per_class, exclude=ids)
            arrays |= {
                f"x_{split}": np.diff(x, axis=1, prepend=np.uint8(0)),
                f"y_{split}": y,
                f"index_{split}": index,
            }
        path = samples.FOLDER / f"{name}_sample.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
