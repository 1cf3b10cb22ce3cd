"""FLASH: federated lottery-aware sparsity hunting.

Babakniya et al., "Revisiting Sparsity Hunting in Federated Learning: Why does Sparsity
Consensus Matter?", TMLR 2023, https://arxiv.org/abs/2208.13092. Stage 1 is
`sensitivity`; stage 2 is one of `nst`, `jmwst`, with budgets that differ between
clients `hetero_spdst`, `hetero_jmwst`, or of `spdst` and `pdst`, see `masked`. Where
the paper and the released code disagree, what the code does is a flag, set by the
`release` presets.

Clients weigh by their number of samples; the released code takes plain means, which is
the same for its clients of equal size.
"""

from sparsefl_jax.algorithms.flash.hetero import hetero_jmwst as hetero_jmwst
from sparsefl_jax.algorithms.flash.hetero import hetero_spdst as hetero_spdst
from sparsefl_jax.algorithms.flash.joint import jmwst as jmwst
from sparsefl_jax.algorithms.flash.joint import nst as nst
from sparsefl_jax.algorithms.flash.sensitivity import sensitivity as sensitivity
