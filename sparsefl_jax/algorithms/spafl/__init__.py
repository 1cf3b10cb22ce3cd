"""SpaFL (Kim et al., NeurIPS 2024) and training its clients alone."""

from sparsefl_jax.algorithms.spafl.local_only import local_only as local_only
from sparsefl_jax.algorithms.spafl.spafl import spafl as spafl
