"""A pure-functional JAX simulator of sparse federated learning.

This namespace holds the methods and everything that a run needs. `analysis` holds the
theory of the papers. The namespaces `data`, `masks`, `means`, `models`, `testing` and
`training` hold the building blocks for a method of your own.
"""

__version__ = "0.3.0"

from sparsefl_jax import analysis as analysis
from sparsefl_jax import data as data
from sparsefl_jax import models as models
from sparsefl_jax import testing as testing
from sparsefl_jax import training as training
from sparsefl_jax.algorithms import *  # noqa: F403
from sparsefl_jax.algorithms import ALGORITHMS as ALGORITHMS
from sparsefl_jax.algorithms.private import private as private
from sparsefl_jax.config.fields import Limits as Limits
from sparsefl_jax.core.algorithm import Algorithm as Algorithm
from sparsefl_jax.core.algorithm import Stage as Stage
from sparsefl_jax.core.algorithm import method as method
from sparsefl_jax.core.check import UserError as UserError
from sparsefl_jax.core.types import EmptyState as EmptyState
from sparsefl_jax.core.types import SparseModel as SparseModel
from sparsefl_jax.core.types import Work as Work
from sparsefl_jax.data import federate as federate
from sparsefl_jax.data import from_arrays as from_arrays
from sparsefl_jax.export import export_run as export_run
from sparsefl_jax.export import load_sparse as load_sparse
from sparsefl_jax.export import save_sparse as save_sparse
from sparsefl_jax.export.compact import compact as compact
from sparsefl_jax.models import Model as Model
from sparsefl_jax.report import plot_partition as plot_partition
from sparsefl_jax.runs.checkpoint import Snapshot as Snapshot
from sparsefl_jax.runs.experiment import experiment as experiment
from sparsefl_jax.runs.results import load_clients as load_clients
from sparsefl_jax.runs.results import load_run as load_run
from sparsefl_jax.runs.simulate import Run as Run
from sparsefl_jax.runs.simulate import Segment as Segment
from sparsefl_jax.runs.simulate import run as run
from sparsefl_jax.runs.simulate import segments as segments
from sparsefl_jax.simulation.systems import make_system as make_system
from sparsefl_jax.sparsity import masks as masks
from sparsefl_jax.system.hardware import use_cpu_cores as use_cpu_cores
from sparsefl_jax.testing import check_algorithm as check_algorithm
from sparsefl_jax.training import means as means
from sparsefl_jax.wire.packets import Packet as Packet
