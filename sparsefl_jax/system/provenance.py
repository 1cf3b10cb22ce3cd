"""What a run runs on, and by which code: what must be the same for the same bits."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import jax

from sparsefl_jax.system import hardware

VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that compute."""
    found = {name: importlib.metadata.version(name) for name in VERSIONS}
    return found | {"python": platform.python_version()}


def precision() -> str:
    """That of matrix multiplications."""
    return jax.config.jax_default_matmul_precision or "default"


def facts(chunks: str) -> dict:
    """All that a resumed run must share with its beginning to be so bit for bit."""
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
    """The commit of the code that runs, marked where that differs; '' if in none."""

    def git(*arguments):
        where = Path(__file__).parents[1]  # the package
        done = subprocess.run(["git", *arguments], cwd=where, capture_output=True)
        return done.stdout.decode().strip()

    try:
        if not git("ls-files", "__init__.py"):
            return ""
        changed = git("status", "--porcelain", "--", ".", "../configs")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except OSError:
        return ""
