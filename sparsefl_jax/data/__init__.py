"""Data sets, their partition over clients, cohorts of clients, and batches.

The data flows source -> partition -> rows of each client -> one client's batches.
"""

from sparsefl_jax.data.augment import make_preprocess as make_preprocess
from sparsefl_jax.data.cohorts import stratified_sampler as stratified_sampler
from sparsefl_jax.data.federated import FederatedData as FederatedData
from sparsefl_jax.data.federated import Rows as Rows
from sparsefl_jax.data.federated import federate as federate
from sparsefl_jax.data.federated import from_arrays as from_arrays
from sparsefl_jax.data.federated import names as names
from sparsefl_jax.data.federated import partition_counts as partition_counts
from sparsefl_jax.data.partition import PARTITIONERS as PARTITIONERS
from sparsefl_jax.data.sources import DATASETS as DATASETS
from sparsefl_jax.data.sources import Dataset as Dataset
from sparsefl_jax.data.sources import load as load
from sparsefl_jax.data.sources import make_dataset as make_dataset
from sparsefl_jax.data.statistics import partition_statistics as partition_statistics
