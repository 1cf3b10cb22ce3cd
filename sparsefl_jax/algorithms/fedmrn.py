"""FedMRN: an update is random noise under a mask, so one bit an entry goes up.

Li et al., "Masked Random Noise for Communication-Efficient Federated Learning", ACM MM
2024, https://arxiv.org/abs/2408.03220. The operators, the schedule and the defaults are
those of the authors' code, where the method is called `fedsrn`.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sparsefl_jax.algorithms.fedavg import fedavg
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Positive
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, one_bit, trees
from sparsefl_jax.training import local, means, through
from sparsefl_jax.wire.messages import unpack_params
from sparsefl_jax.wire.packets import Packet


@method
def fedmrn(
    model: Model,
    optimizer: Optimizer,
    *,
    noise: Literal["uniform", "gaussian", "bernoulli"] = "uniform",
    magnitude: Positive = 0.01,
    mask: Literal["binary", "signed"] = "binary",
    progressive: bool = True,
    prunable: masks.Globs = masks.KERNELS,
    index: Literal["none", "entropy"] = "none",
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """FedMRN: clients learn which entries of a random noise z to add to the kernels.

    A client draws z from a seed and trains an update u of each kernel from 0. In its
    step t of T, an entry is masked with probability t / T, and clipped otherwise:

        masked    z m, where m is drawn with the probabilities of `one_bit.bits`
        clipped   z clip(u / z, 0, 1), or z clip(u / z, -1, 1) for signed masks

    The gradient passes both as if the network had seen u. After training the client
    draws m once more. The server draws the same z and adds the weighted mean of z m.

    Down: the model, float32. Up: one bit an entry of the kernels, the 32 bits of a
    seed, and the change of all other leaves, float32. Both: normalisation statistics.
    The server's model is dense, and so is the work; drawing is not counted.

    A binary mask moves no entry against the sign of its noise, so half of the entries
    stay in a round. Where u is 0, a binary mask sends 0, a signed one z or -z at
    random.

    Metrics: `ones`, the share of a mask's bits that are 1, and `clipped`, the share of
    u / z that no mask can express, after training.

    Where paper and released code differ: a client has one seed a round, the release one
    for each layer from 0 to 1000; a client's weight is its number of samples, there its
    number of batches; and the mask takes one bit, where the release sends floats.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it; it starts afresh
        in every round. Weight decay acts on u.
      noise: 'uniform' in [-1, 1), 'gaussian' or 'bernoulli', times `magnitude`.
      magnitude: scale of the noise. The release has 0.01 for binary masks and
        0.005 for signed ones. It bounds the change of an entry in a round.
      mask: 'binary', 0 or 1, or 'signed', -1 or 1.
      progressive: whether training sees masks. If not, the client trains as in FedAvg
        and masks what comes out.
      prunable: globs of the leaves that are masked noise.
      index: how a mask is written: 'none', one bit an entry, or 'entropy', fewer where
        zeros and ones differ in number.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.

    Raises:
      ValueError: an argument is out of range, or a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedmrn(model, optimizer, mask="signed", magnitude=0.005)
    """
    loss_fn, lowest = local.objective(model), one_bit.LOWEST[mask]
    select = masks.prunable(model.macs, prunable)

    def draw_noise(seed, like):
        return one_bit.noise(seed, like, noise, magnitude)

    def update(key, ctx, downlink, client, batches):
        train_key, code_key = jax.random.split(key)
        seed_key, mask_key = jax.random.split(code_key)
        received = unpack_params(downlink)
        kernels, _ = trees.split(received.params, select)
        seed = jax.random.bits(seed_key, (), jnp.uint32)
        z, num_steps = draw_noise(seed, kernels), through.num_steps(batches)

        def seen(key, step, learnt, kept):
            if not progressive:  # static branch
                return learnt.update, kept
            share, u = step / num_steps, learnt.update
            own, other = (one_bit.uniforms(k, u) for k in jax.random.split(key))

            def show(u, z, drawn, chosen):
                masked = z * one_bit.levels(one_bit.bits(drawn, u / z, lowest), lowest)
                clipped = z * jnp.clip(u / z, lowest, 1)
                return one_bit.passed(u, jnp.where(chosen < share, masked, clipped))

            return jax.tree.map(show, u, z, own, other), kept

        given = train_key, loss_fn, optimizer(ctx.round), received, batches
        learnt, end, metrics = through.train(*given, select=select, seen=seen)
        q = jax.tree.map(jnp.divide, learnt.update, z)
        drawn = one_bit.uniforms(mask_key, q)
        bits = jax.tree.map(lambda d, q: one_bit.bits(d, q, lowest), drawn, q)
        uplink = {
            "mask": Packet(bits, bits=1, index=index),
            "seed": Packet(seed),
            "rest": Packet(learnt.rest),
            "stats": Packet(end.stats),
        }
        every, _ = ravel_pytree(q)
        logged = {
            "ones": jnp.mean(ravel_pytree(bits)[0], dtype=jnp.float32),
            "clipped": jnp.mean((every < lowest) | (every > 1), dtype=jnp.float32),
        }
        return uplink, client, metrics | logged

    def contribute(ctx, uplink):
        bits = uplink["mask"].values
        z = draw_noise(uplink["seed"].values, bits)
        masked = jax.tree.map(lambda z, b: z * one_bit.levels(b, lowest), z, bits)
        delta = trees.merge(masked, uplink["rest"].values)
        sent = {"delta": Packet(delta), "stats": uplink["stats"]}
        return averaging.contribute(ctx, sent)

    averaging = fedavg(model, optimizer, weighting=weighting)
    return averaging.replace(update=update, contribute=contribute)
