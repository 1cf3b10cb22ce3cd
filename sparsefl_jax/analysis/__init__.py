"""The papers' theory and printed counts, as functions of numbers of a run.

Everything here is computed in double precision on the host.
"""

from sparsefl_jax.analysis.fedsparsify import convergence_bound as convergence_bound
from sparsefl_jax.analysis.fedsparsify import largest_rate as largest_rate
from sparsefl_jax.analysis.fedsparsify import pruned_norm as pruned_norm
from sparsefl_jax.analysis.fedsparsify import pruned_norm_bound as pruned_norm_bound
from sparsefl_jax.analysis.spafl import diameter as diameter
from sparsefl_jax.analysis.spafl import generalization as generalization
from sparsefl_jax.analysis.spafl import round_epsilon as round_epsilon
