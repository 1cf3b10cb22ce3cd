"""The hardware, the versions and the commit of a run, which decide its exact bits."""

import importlib.metadata
import platform
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import jax

from sparsefl_jax.system import hardware

_PACKAGE = __name__.partition(".")[0]
VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")
_SETTINGS = (  # of JAX, which change what a program computes or draws
    *("jax_default_matmul_precision", "jax_default_prng_impl", "jax_enable_x64"),
    *("jax_random_seed_offset", "jax_threefry_partitionable"),
)


def versions() -> dict[str, str]:
    """Returns the versions of Python, of this package and of those that compute."""
    return {
        _PACKAGE: sys.modules[_PACKAGE].__version__,  # it need not be installed
        **{name: importlib.metadata.version(name) for name in VERSIONS},
        "python": platform.python_version(),
    }


def precision() -> str:
    """Returns JAX's default precision of matrix multiplications."""
    return jax.config.jax_default_matmul_precision or "default"


def settings() -> dict[str, Any]:
    """Returns the settings of JAX that change results."""
    return {name: getattr(jax.config, name) for name in _SETTINGS}


def facts(chunks: str) -> dict:
    """Returns the facts that a resumed run must share to reproduce the same bits.

    Args:
      chunks: the chunks of the run's stages.
    """
    return {
        "device kind": jax.devices()[0].device_kind,
        "device count": jax.device_count(),
        "process count": jax.process_count(),
        "processor": hardware.processor(),
        "chunk": chunks,
        "commit": commit(),
        "XLA_FLAGS": zlib.crc32(" ".join(hardware.flags()).encode()),
        **settings(),
        **versions(),
    }


def commit() -> str:
    """Returns the commit of the running code, with '-dirty' after changes, or ''."""

    def git(*arguments):
        package = Path(__file__).parents[1]
        result = subprocess.run(["git", *arguments], cwd=package, capture_output=True)
        return result.stdout.decode().strip()

    try:
        if not git("ls-files", "__init__.py"):
            return ""
        changed = git("status", "--porcelain", "--", ".", "../configs")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except OSError:
        return ""
