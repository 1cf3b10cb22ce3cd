"""PruneFL: adaptive pruning by the squared gradient of a weight per unit of time.

Jiang et al., "Model Pruning Enables Efficient Federated Learning on Edge Devices", IEEE
TNNLS 2022, https://arxiv.org/abs/1909.12326. Stage 1 is `prunefl_initial`, one round at
one client; stage 2 is `prunefl`. Constants, timing and accumulated sums are those of
the released code, with three differences. Its stage 1 also masks the gradients, so that
no weight grows back; here gradients are dense. Weights that grow back in its stage 2
resume an old value; here they start at 0. It exceeds `max_density` by one weight; here
the cap is exact.
"""
