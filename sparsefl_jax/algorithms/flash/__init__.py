"""FLASH: federated lottery-aware sparsity hunting.

Babakniya et al., "Revisiting Sparsity Hunting in Federated Learning: Why does Sparsity
Consensus Matter?", TMLR 2023, https://arxiv.org/abs/2208.13092. Stage 1 is
`sensitivity`. Stage 2 is `nst`, `jmwst`, or `spdst` or `pdst` of `masked`, and with
budgets that differ between clients `hetero_spdst` or `hetero_jmwst`. If the paper and
the released code disagree, an argument selects the code's behaviour, and the `release`
presets set it.

A client's weight in the means of weights and statistics is its number of samples; the
released code takes plain means, which is the same for its clients of equal size. Layer
densities are averaged with equal weights.
"""
