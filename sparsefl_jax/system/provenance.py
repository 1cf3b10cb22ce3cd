"""The hardware, the versions and the commit of a run, which decide its exact bits."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import jax

from sparsefl_jax.system import hardware

VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that compute."""
    return {
        **{name: importlib.metadata.version(name) for name in VERSIONS},
        "python": platform.python_version(),
    }


def precision() -> str:
    """Returns JAX's default precision of matrix multiplications."""
    return jax.config.jax_default_matmul_precision or "default"


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
        "matmul precision": precision(),
        "commit": commit(),
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
