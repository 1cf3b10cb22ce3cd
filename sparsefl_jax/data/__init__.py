"""Data sets, their partition over clients, cohorts of clients, and batches.

The data flows source -> partition -> rows of each client -> one client's batches.
"""

from sparsefl_jax.data.augment import AUGMENTATIONS, make_preprocess
from sparsefl_jax.data.batching import batches, steps_per_epoch
from sparsefl_jax.data.cohorts import stratified_sampler, uniform_sampler
from sparsefl_jax.data.federated import (
    FederatedData,
    Rows,
    federate,
    from_arrays,
    partition_counts,
)
from sparsefl_jax.data.holdout import TEST_SPLITS
from sparsefl_jax.data.partition import PARTITIONERS
from sparsefl_jax.data.shifts import FEATURE_SHIFTS
from sparsefl_jax.data.sources import DATASETS, Dataset, load, make_dataset
from sparsefl_jax.data.statistics import partition_statistics, statistics_rows

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Dataset",
    "FEATURE_SHIFTS",
    "FederatedData",
    "PARTITIONERS",
    "Rows",
    "TEST_SPLITS",
    "batches",
    "federate",
    "from_arrays",
    "load",
    "make_dataset",
    "make_preprocess",
    "partition_counts",
    "partition_statistics",
    "statistics_rows",
    "steps_per_epoch",
    "stratified_sampler",
    "uniform_sampler",
]
