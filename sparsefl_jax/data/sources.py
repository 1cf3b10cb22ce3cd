"""Loads data sets by name: the first reader of a table that knows a name reads it.

Everything is NumPy on the host. Images are normalised with published channel statistics
if they exist, otherwise with those of all training images, also of those that a split
holds out later for testing or validation. Columns of tables are standardised by
`federate`, which knows who trains.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.check import UserError, blame, check, unread
from sparsefl_jax.data import cache, characters, hub, leaf, npz, samples
from sparsefl_jax.data import prepared_tfds as tfds
from sparsefl_jax.data.arrays import number_values, plain_labels, with_channels
from sparsefl_jax.data.statistics import moments
from sparsefl_jax.data.tokens import Tokenizer, hash_letters, make_tokenizer
from sparsefl_jax.data.users import MNIST, number, of_mnist

_FEW = 20  # classes of few samples each, which can be true
READERS = (  # the first whose `matches` knows a name finds it, with its OPTIONS
    (samples.SAMPLES.__contains__, samples),
    (hub.matches, hub),
    (npz.matches, npz),
    (leaf.matches, leaf),
    (hub.is_path, hub),
    (bool, tfds),
)

NEXT = "next_token"
BY_CLASS = ("classification", NEXT)
TASKS = (*BY_CLASS, "multilabel", "regression")

NAMES = {  # short for a name, and for options that the types of its columns leave open
    "sst2": ("glue/sst2", {}),
    "femnist": ("hf:flwrlabs/femnist", {"user": "writer_id"}),
    "twitter": ("hf:stanfordnlp/sentiment140", {"text": "text", "user": "user"}),
    "shakespeare": (
        "hf:flwrlabs/shakespeare",
        {"text": "x", "label": "y", "user": "character_id", "task": NEXT},
    ),
}

DATASETS = {
    "cifar10_sample": "2,000 + 500 CIFAR-10 images, embedded in the package",
    "fashion_mnist_sample": "2,000 + 500 Fashion-MNIST images, embedded",
    "mnist_sample": "960 + 200 digits of MNIST, embedded; 48 writers are the users",
    "sentences_sample": "1,194 sentences of a play, embedded; labels are their marks",
    "shakespeare_sample": "the beginning of a play, embedded; its characters are users",
    "mnist, fashion_mnist": "TFDS: 60,000 + 10,000 grey images 28x28, 10 classes",
    "cifar10, cifar100": "TFDS: 50,000 + 10,000 colour images 32x32",
    "sst2": "TFDS: 67,349 + 872 phrases of film reviews, negative or positive",
    "femnist": "hub: 814,277 characters by writer, 62 classes",
    "twitter": "hub: 1,600,000 tweets by user, negative, neutral or positive",
    "shakespeare": "hub: 80 characters of a play and the next one, by role",
    "emnist/byclass": "TFDS: 697,932 + 116,323 grey images 28x28, 62 characters",
    "<file>.npz": "your arrays x, y (optional x_test, y_test, users, users_test)",
    "<folder>": "images by class, tables, LEAF's JSON files, PFLlib's npz files",
    "<file>.csv, <file>.parquet": "a table (tsv, json, jsonl and arrow as well)",
    "hf:<organisation>/<name>": "a data set of the Hugging Face hub; hf:./<folder>",
    "<any other>": "any prepared TFDS builder with one image or text and one label",
}

STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
}


class Dataset(NamedTuple):
    """A labelled data set on the host.

    Images are [n, H, W, C]. `mean` and `std` are those of each channel, of uint8 on the
    scale 0 to 1 and of floats on their own, and None for features [n, D]. `users` holds
    the user of each training sample. `classes` and `user_names` are texts by number,
    None where numbers are all that is known. x_test is empty if there is no test set.
    `numeric` marks the columns of a table that are numbers, which `federate`
    standardises; None where there is no table. `columns` says which columns of a file
    were read, and as what.
    """

    x: np.ndarray  # [n, H, W, C] uint8, or float32, or [n, D] integers
    y: np.ndarray  # [n] or [n, T] int32; float32 of numbers, bool of several labels
    x_test: np.ndarray  # [n_test, ...] like x
    y_test: np.ndarray  # [n_test] int32
    num_classes: int
    name: str
    mean: tuple | None
    std: tuple | None
    users: np.ndarray | None = None  # [n] int32
    users_test: np.ndarray | None = None  # [n_test] int32
    classes: tuple[str, ...] | None = None
    user_names: np.ndarray | None = None  # [U] str
    numeric: np.ndarray | None = None  # [D] bool
    columns: str = ""


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    writers: str | None = None,
    num_classes: int | None = None,
    task: str = BY_CLASS[0],
    hf: Mapping[str, Any] | None = None,
    image: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    max_tokens: int | None = None,
) -> Dataset:
    """Loads a data set by name.

    Args:
      name: an embedded sample, a file (`.npz`, or a table such as `.csv`), a folder of
        images, tables, LEAF's JSON files or PFLlib's npz files, `hf:` and a name of the
        Hugging Face hub or a path, a name in `NAMES`, or a prepared TFDS builder such
        as `"emnist/byclass"`.
      data_dir: the folder of TFDS data sets; None for `TFDS_DATA_DIR`, or else TFDS's
        default.
      writers: "mnist" for those of MNIST, which come with the package; None for the
        data set's own users.
      num_classes: None for the classes of the data set; a larger number gives the
        network outputs that no sample is labelled with.
      task: one of `TASKS`, which says what the labels are, see `make_dataset`.
        "next_token" takes the label of each text for the character after it, and
        predicts the next one of each; texts have one length. A data set that is made
        for it needs no `task`.
      hf: the columns and splits of a data set of Hugging Face, where the types of its
        features leave a choice, as `hub.find` takes them: `{"label": "fine_label"}`.
      image: the `mode` and `size` of images of files, as `images.read` takes them.
      tokenizer, max_tokens: turn texts into tokens, as `tokens.make_tokenizer` takes
        them; None for hashed features.

    Returns:
      A `Dataset`.

    Raises:
      ValueError: the name is unknown, the data set is not prepared, or it is malformed.

    Example:
      >>> data = load("fashion_mnist_sample")
      >>> data.x.shape, data.num_classes
      ((2000, 28, 28, 1), 10)
    """
    name = str(name)
    options = {**(hf or {}), **(image or {}), "data_dir": data_dir and str(data_dir)}
    options = {k: v for k, v in options.items() if v not in (None, "", (), [])}
    if max_tokens is not None and tokenizer is None:
        raise unread(f"max_tokens={max_tokens}", "it goes with tokenizer")
    words = None if tokenizer is None else make_tokenizer(tokenizer, max_tokens)
    found, columns = NAMES.get(name, (name, {}))
    reader = next(reader for matches, reader in READERS if matches(found))
    taken = getattr(reader, "OPTIONS", ())
    for option in options.keys() - set(taken):
        section = "" if option == "data_dir" else "hf."
        section = "image." if option in hub.LOOKS else section
        told = f"{section}{option}={options[option]!r}"
        raise unread(told, f"{name!r} takes {', '.join(taken) or 'no option'}")
    options = columns | options
    task = options.pop("task", task)
    check("task", task, TASKS)
    with blame(f"data set {name!r} cannot be used"):
        source = reader.find(found, **options)
        identity = found, sorted(options.items()), words and words.identity, task
        arrays = cache.through(source, identity, lambda: _decode(source, words, task))
        if writers is not None:
            check("writers", writers, (MNIST,))
            arrays |= of_mnist(arrays, name)
    if num_classes is not None:
        arrays["num_classes"] = num_classes
    title = source.title if found == name else name
    return make_dataset(**{"numeric": False} | arrays, task=task, name=title)


def _decode(source: cache.Source, tokenizer: Tokenizer | None, task: str) -> dict:
    """Decodes a data set; turns texts into samples, and numbers labels."""
    arrays = source.decode()
    xs, ys = ([k for k in (key, f"{key}_test") if k in arrays] for key in "xy")
    texts = isinstance(next(iter(arrays["x"]), None), str)
    unnamed = isinstance(arrays["y"], list)
    if tokenizer and not texts:
        raise unread(tokenizer.given, f"{source.title!r} has no texts")
    if task == NEXT and (tokenizer or not texts and np.ndim(arrays["y"]) == 1):
        why = tokenizer.given if tokenizer else f"{source.title!r} has no next tokens"
        raise unread(f"task={task!r}", why)
    if task == NEXT and texts and unnamed:
        for x, y in zip(xs, ys, strict=True):
            arrays[x], arrays[y] = characters.cut_texts(arrays[x], arrays[y])
        return arrays
    if texts:
        encode = tokenizer.encode if tokenizer else hash_letters
        arrays |= {x: encode(arrays[x]) for x in xs}
    return arrays | {y: np.asarray(arrays[y]) for y in ys}


def make_dataset(
    x: ArrayLike,
    y: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    num_classes: int | None = None,
    task: str = "classification",
    name: str = "arrays",
    users: ArrayLike | None = None,
    users_test: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    user_names: Sequence[str] | None = None,
    numeric: ArrayLike = True,
    columns: str | np.ndarray = "",
) -> Dataset:
    """Checks arrays and makes a `Dataset` of them.

    Args:
      x: [n, H, W, C] or [n, H, W] images (integers 0 to 255, or floats), or [n, D]
        features or tokens. [n, C, H, W] with 1, 3 or 4 channels is read as such, with a
        warning.
      y: [n] or [n, 1] integers (whole floats are integers), one-hot rows [n, K], or
        [n, T] where a sample has T targets, such as the next token of every token.
        Texts are numbered in ascending order, and so are integers other than 0, 1, ...
        unless `num_classes` or `classes` is given; `Dataset.classes` keeps them.
        Of another task, numbers [n] or [n, T], or [n, K] of 0 and 1 for K labels.
      x_test: like x; None, together with y_test, if there is no test set.
      y_test: like y.
      num_classes: the number of classes; None: of the different labels.
      task: a name in `TASKS`.
      name: the name of the data set in reports.
      users: [n] integers or strings, the user of each training sample, which are
        replaced by their places in ascending order.
      users_test: [n_test], the user of each test sample.
      classes: the names of the classes 0, 1, ...
      user_names: the names of users that are numbered already.
      numeric: [D] booleans, or one for all, which columns of floats [n, D] are numbers
        to be standardised, unlike categories or embeddings.
      columns: which columns of a file these are, for the plan.

    Returns:
      A `Dataset`. Integer images become uint8, integers [n, D] stay uint8 or become
        int32, and all other samples become float32. `y` is int32, of several labels
        bool, and of a regression float32; `num_classes` is then the number of outputs
        that a network needs.

    Raises:
      ValueError: lengths differ, labels or values are out of range.

    Example:
      >>> x, y = np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 0, 2])
      >>> make_dataset(x, y, x[:1], y[:1]).x.shape
      (4, 2, 2, 1)
      >>> make_dataset(x, np.array(["ill", "well", "ill", "ill"])).classes
      ('ill', 'well')
    """
    if (x_test is None) != (y_test is None):
        missing = "x_test" if x_test is None else "y_test"
        raise UserError(f"{missing}=None; give both x_test and y_test or neither")
    check("task", task, TASKS)
    x = _features("x", x)
    y = _labels("y", y, x, task)
    if x_test is None:
        x_test, y_test = x[:0], y[:0]
    else:
        x_test = _features("x_test", x_test)
        y_test = _labels("y_test", y_test, x_test, task)
    for which, a, b in (("x", x, x_test), ("y", y, y_test)):
        if a.shape[1:] != b.shape[1:] or a.dtype.kind != b.dtype.kind:
            here, there = (f"{v.dtype} {v.shape[1:]}" for v in (a, b))
            raise UserError(f"{which} has samples {here}, {which}_test has {there}")
    if task not in BY_CLASS:
        if num_classes is not None:
            raise unread(f"{num_classes=}", f"{task=} has an output for each target")
        num_classes, classes = y[:1].size, None
    else:
        if classes is not None and num_classes is None:
            num_classes = len(classes)
        if y.dtype.kind == "U" or num_classes is None and y.ndim == 1:
            (y, y_test), classes = number_values([y, y_test])
        least = min(y.min(), y_test.min(initial=0))
        last = max(y.max(), y_test.max(initial=0))
        most = y.size + y_test.size if num_classes is None else num_classes
        if least < 0 or last >= most:
            told = f"{num_classes=}, expected 0 to {most - 1}"
            raise UserError(f"y has labels from {least} to {last} with {told}")
        num_classes = int(last + 1 if num_classes is None else num_classes)
        y, y_test = y.astype(np.int32), y_test.astype(np.int32)
        found = np.unique(y).size
        if y.ndim == 1 and found > max(_FEW, len(y) / 5):
            told = f"{name}: {found} classes in {len(y)} samples; numbers to predict"
            warnings.warn(f"{told} are task='regression'", stacklevel=2)
    names = None if classes is None else tuple(map(str, classes))
    names = None if names == tuple(map(str, range(num_classes))) else names
    ids = {"users": users, "users_test": users_test}
    ids = number(ids, {"users": len(x), "users_test": len(x_test)})
    if user_names is not None:
        ids["user_names"] = np.asarray(user_names)
    if x.ndim == 2 and x.dtype == np.float32 and np.any(numeric):
        ids["numeric"] = np.broadcast_to(numeric, x.shape[1:])
    facts = num_classes, name, *statistics(x, name)
    told = {"classes": names, "columns": str(columns)}
    return Dataset(x, y, x_test, y_test, *facts, **ids, **told)


def statistics(x: np.ndarray, name: str) -> tuple[tuple | None, tuple | None]:
    """Returns the published mean and deviation of a data set, or those of `x`.

    Args:
      x: [n, H, W, C] uint8 or float32; others have none.
      name: of the data set.

    Example:
      >>> statistics(np.full((2, 4, 4, 1), 255, np.uint8), "mine")
      ((1.0,), (1.0,))
    """
    published = STATISTICS.get(name.removesuffix("_sample"), ((), ()))
    if x.dtype == np.uint8 and len(published[0]) == x.shape[-1]:
        return published
    return moments(x) if x.ndim == 4 else (None, None)


def one_label(y: np.ndarray) -> np.ndarray:
    """Returns a class for each sample, [n]: the last of a sequence of targets.

    Partitions by label and statistics of labels use these. All samples are of class 0
    if they are not labelled with classes.

    Example:
      >>> one_label(np.array([[1, 2], [3, 4]])).tolist()
      [2, 4]
    """
    if y.dtype.kind not in "iu":
        return np.zeros(len(y), np.int32)
    return y.reshape(len(y), y.shape[1] if y.ndim > 1 else 1)[:, -1]


def _features(name, x):
    """Returns samples as [n, H, W, C] or [n, D], uint8 or float32."""
    x = x if isinstance(x, np.ndarray) else np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise UserError(f"{name} has dtype {x.dtype}, expected numbers")
    if x.ndim not in (2, 3, 4) or not x.size:
        expected = "expected [n, H, W, C], [n, H, W] or [n, D]"
        raise UserError(f"{name} has shape {x.shape}, {expected}")
    x = with_channels(x) if x.ndim > 2 else x
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind in "iu" and x.ndim == 4:
        if x.min() < 0 or x.max() > 255:
            raise UserError(f"{name} has integer pixels outside 0 to 255")
        return x.astype(np.uint8)
    if x.dtype.kind in "iu" and max(-int(x.min()), int(x.max())) < 2**31:
        return x.astype(np.int32)
    with np.errstate(over="ignore"):  # a float64 can exceed the range of float32
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise UserError(f"{name} has values that are not finite")
    return x


def _labels(name, y, x, task):
    """Returns labels as int32, or texts; as float32, or as bool, of other tasks."""
    y, several = np.asarray(y), task == "multilabel"
    if task in BY_CLASS:
        y = plain_labels(y, x)
        good = y.dtype.kind in ("iuU" if y.ndim == 1 else "iu")
        expected = "integers or texts [n], or integers [n, T], T > 1, "
        expected += "or task='regression' or 'multilabel'"
    else:
        good = y.dtype.kind in "biuf"
        limit = np.finfo(np.float32).max
        good = good and (np.isin(y, (0, 1)) if several else np.abs(y) <= limit).all()
        form = "[n, K] of 0 and 1" if several else "finite float32 [n] or [n, T]"
        expected = f"{form} for {task=}, without gaps"
    if not good or not y.size or y.ndim not in ((2,) if several else (1, 2)):
        raise UserError(f"{name} is {y.dtype} {y.shape}, expected {expected}")
    if len(y) != len(x):
        raise UserError(f"{name} has {len(y)} labels for {len(x)} samples")
    if task not in BY_CLASS:
        return y.astype(bool if several else np.float32)
    return y.astype(np.int64) if y.dtype.kind == "u" else y
