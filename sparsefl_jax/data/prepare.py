"""Downloads a data set once: of the Hugging Face hub, or of TFDS in another process.

Most builders need TensorFlow's file functions to *prepare* data. The extra `[prepare]`
installs TensorFlow, and only the child process loads it. Everything else reads the
prepared files without TensorFlow.
"""

import contextlib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

from sparsefl_jax.data import hub, named, prepared_tfds, samples

_ROOT = Path(__file__).parents[2]  # the folder that holds the package


def prepare(name: str, data_dir: str | Path | None = None) -> str:
    """Downloads a data set of the hub, or prepares one of TFDS as `array_record`.

    Args:
      name: `hf:ORGANISATION/NAME` or a name in `named.NAMED` that TFDS does not have; a
        TFDS builder such as `"cifar10"` or `"emnist/byclass"`, or
        `"module:BuilderClass"` for a builder of your own.
      data_dir: the folder of TFDS data sets; None for `TFDS_DATA_DIR`, or else TFDS's
        default.

    Returns:
      The folder of the data set, or what the splits of one of the hub hold.

    Raises:
      ValueError: the name is unknown, TensorFlow is missing, or the download failed.

    Example:
      >>> prepare("cifar10_sample")
      Traceback (most recent call last):
      ValueError: data set 'cifar10_sample' is embedded; it needs no preparation
    """
    if name in samples.SAMPLES:
        raise ValueError(f"data set {name!r} is embedded; it needs no preparation")
    if name.endswith(".npz"):
        raise ValueError(f"data set {name!r} is a file; it needs no preparation")
    if name.startswith(hub.PREFIX):
        return _sizes(hub.fetch(name.removeprefix(hub.PREFIX)))
    if name in named.NAMED:
        source = named.NAMED[name]
        if source.tfds is None:
            return _sizes(hub.fetch(source.hub))
        name = source.tfds
    command = [sys.executable, "-m", "sparsefl_jax.data.prepare", name]
    command += [str(data_dir)] if data_dir else []
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env)
    lines = child.stdout.strip().splitlines()
    last_line = lines[-1] if lines else f"exit code {child.returncode}"
    if child.returncode:
        raise ValueError(last_line)
    return last_line


def _sizes(data) -> str:
    """Returns the splits of a data set and their numbers of samples."""
    return ", ".join(f"{split}: {len(rows):,} samples" for split, rows in data.items())


def _builder(name, data_dir):
    """Returns the builder of a TFDS name or of `module:BuilderClass`."""
    module, _, builder_class = name.partition(":")
    if not builder_class.isidentifier():
        return prepared_tfds.find_builder(name, data_dir)
    try:
        factory = getattr(importlib.import_module(module), builder_class)
    except (ImportError, AttributeError) as error:
        reason = str(error).replace("No module named", "there is no module")
        raise ValueError(f"data set {name!r} cannot be imported: {reason}") from None
    return factory(data_dir=data_dir)


def _reason(name, error):
    """Returns one line that says what stopped the preparation."""
    if missing := re.search(r"No module named '([\w.]+)'", str(error)):
        return (
            f"preparing {name!r} needs {missing[1]} once: "
            "pip install 'sparsefl_jax[prepare]'"
        )
    line = next(iter(str(error).strip().splitlines()), "no reason given")
    if isinstance(error, ValueError) and line.startswith("data set"):
        return line
    return f"preparing {name!r} failed: {type(error).__name__}: {line}"


def main(name: str, data_dir: str | Path | None = None) -> int:
    """Runs as the child process.

    Args:
      name, data_dir: as in `prepare`.

    Returns:
      The exit code. Progress goes to stderr; the last line on stdout is the folder, or
      the reason for a failure.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            builder = _builder(name, data_dir)
            builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # noqa: BLE001
        print(_reason(name, error))
        return 1
    print(builder.data_path)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
