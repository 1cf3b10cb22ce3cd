"""A pure-functional JAX simulator of sparse federated learning.

Here are the methods and what a run needs; the namespaces `data`, `masks`, `means`,
`models`, `testing` and `training` hold what the author of a method needs.
"""

__version__ = "0.1.0"

from sparsefl_jax import data, models, testing, training
from sparsefl_jax.algorithms import *  # noqa: F403
from sparsefl_jax.algorithms import ALGORITHMS
from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.core.types import EmptyState, SparseModel, Work
from sparsefl_jax.data import federate, from_arrays
from sparsefl_jax.export import export_run, load_sparse, save_sparse
from sparsefl_jax.export.compact import compact
from sparsefl_jax.models import Model
from sparsefl_jax.runs.in_python import experiment
from sparsefl_jax.runs.loop import Run, Segment, Snapshot, run, segments
from sparsefl_jax.runs.results import load_clients, load_run
from sparsefl_jax.runs.setup import Limits
from sparsefl_jax.sparsity import masks
from sparsefl_jax.system.hardware import use_cpu_cores
from sparsefl_jax.testing import check_algorithm
from sparsefl_jax.training import means
from sparsefl_jax.wire.packets import Packet

__all__ = [
    *ALGORITHMS,
    "Algorithm",
    "EmptyState",
    "Limits",
    "Model",
    "Packet",
    "Run",
    "Segment",
    "Snapshot",
    "SparseModel",
    "Stage",
    "Work",
    "check_algorithm",
    "compact",
    "data",
    "experiment",
    "export_run",
    "federate",
    "from_arrays",
    "load_clients",
    "load_run",
    "load_sparse",
    "masks",
    "means",
    "models",
    "run",
    "save_sparse",
    "segments",
    "testing",
    "training",
    "use_cpu_cores",
]
