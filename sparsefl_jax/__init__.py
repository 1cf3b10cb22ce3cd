"""A pure-functional JAX simulator of sparse federated learning."""

__version__ = "0.1.0"

from sparsefl_jax import testing
from sparsefl_jax.algorithms import *  # noqa: F403
from sparsefl_jax.algorithms import ALGORITHMS
from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.core.types import (
    Batches,
    ClientInfo,
    Context,
    EmptyState,
    SparseModel,
    Work,
)
from sparsefl_jax.data import federate, from_arrays, make_preprocess
from sparsefl_jax.data import load as load_dataset
from sparsefl_jax.data.cohorts import stratified_sampler, uniform_sampler
from sparsefl_jax.export import export_run, load_sparse, save_sparse
from sparsefl_jax.export.compact import compact
from sparsefl_jax.models import Model
from sparsefl_jax.models import build as build_model
from sparsefl_jax.models.loss import cross_entropy
from sparsefl_jax.runs.loop import Run, run, segments
from sparsefl_jax.runs.results import load, load_clients
from sparsefl_jax.runs.setup import Limits
from sparsefl_jax.system.hardware import keep_compilations, use_cpu_cores
from sparsefl_jax.testing import ContractError, check_algorithm
from sparsefl_jax.training.local import make_optimizer
from sparsefl_jax.wire.packets import Packet

__all__ = [
    *ALGORITHMS,
    "Algorithm",
    "Batches",
    "ClientInfo",
    "Context",
    "ContractError",
    "EmptyState",
    "Limits",
    "Model",
    "Packet",
    "Run",
    "SparseModel",
    "Stage",
    "Work",
    "build_model",
    "check_algorithm",
    "compact",
    "cross_entropy",
    "export_run",
    "federate",
    "from_arrays",
    "keep_compilations",
    "load",
    "load_clients",
    "load_dataset",
    "load_sparse",
    "make_optimizer",
    "make_preprocess",
    "run",
    "save_sparse",
    "segments",
    "stratified_sampler",
    "testing",
    "uniform_sampler",
    "use_cpu_cores",
]
