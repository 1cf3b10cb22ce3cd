"""Studies: many configurations, run as one and compared on one page."""

from sparsefl_jax.studies.grid import sweep as sweep
from sparsefl_jax.studies.points import Point as Point
