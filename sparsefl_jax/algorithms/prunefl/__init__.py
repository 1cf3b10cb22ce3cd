"""PruneFL: adaptive pruning by what a weight's gradient is worth in time.

Jiang et al., "Model Pruning Enables Efficient Federated Learning on Edge Devices", IEEE
TNNLS 2022, https://arxiv.org/abs/1909.12326. Stage 1 is `prunefl_initial`, one round at
one client; stage 2 is `prunefl`. Constants, timing and what is accumulated are those of
the released code. Not so: its stage 1 masks the gradients too, so that nothing grows
back there, what grows back in its stage 2 resumes an old value, and it exceeds
`max_density` by one; here gradients are dense, weights start at 0, the cap is exact.
"""

from sparsefl_jax.algorithms.prunefl.federated import prunefl as prunefl
from sparsefl_jax.algorithms.prunefl.initial import prunefl_initial as prunefl_initial
