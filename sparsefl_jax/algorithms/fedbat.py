"""FedBAT: an update becomes signs times a step size, and training learns both.

Li et al., "FedBAT: Communication-Efficient Federated Learning via Learnable
Binarization", ICML 2024, https://arxiv.org/abs/2408.03215. The gradients, the bounds of
the step size and the defaults are those of the authors' code.
"""

import math

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.fedavg import fedavg
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, Fraction, NonNegative, PyTree
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, one_bit, trees
from sparsefl_jax.training import local, means, through
from sparsefl_jax.wire.messages import unpack_params
from sparsefl_jax.wire.packets import Packet


@method
def fedbat(
    model: Model,
    optimizer: Optimizer,
    *,
    rho: NonNegative = 6.0,
    warmup: Fraction = 0.5,
    alpha_range: tuple[float, float] = (5e-4, 5e-2),
    prunable: masks.Globs = masks.KERNELS,
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """FedBAT: clients train an update u that the network sees as signs times alpha.

    The first floor(warmup T) of a client's T steps, at least one, train u from 0 as
    FedAvg does. Then a0 is the mean |u| of a kernel, and from here the network sees
    `one_bit.signed`: alpha with probability (u / alpha + 1) / 2, otherwise -alpha. The
    step size of a kernel is alpha = a0 exp(rho a), cut to `alpha_range`. The client
    learns a from 0 with the rate of the weights; a has no gradient while alpha is cut.
    It sends one more draw of the signs. If no step is left after the warm-up, a0 is the
    mean |u| at the end.

    Down: the model, float32. Up: one bit an entry of the kernels, 32 bits of alpha for
    each kernel, and the change of all other leaves, float32. Both: normalisation
    statistics. The server's model is dense, and so is the work; drawing is not counted.

    Where u is 0, the signs are random and alpha is at least the lower bound, so that
    the kernel moves by noise of mean 0. Metric: `step_size`, the mean alpha of kernels.

    Where paper and released code differ: the bounds of alpha are in the code alone; it
    gives alpha the lower bound if floor(warmup T) is 0, and 0.01 if it is T; and a
    client's weight is its number of batches there, here its number of samples.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it; it starts afresh
        in every round. Weight decay acts on u and a.
      rho: how fast alpha is learnt; 0 keeps it at a0.
      warmup: the share of a client's steps that train u itself.
      alpha_range: the bounds of alpha. They are of the size of an update: with a rate
        so small that the mean |u| stays below the lower one, alpha is not learnt.
      prunable: globs of the leaves that become signs.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.

    Raises:
      ValueError: an argument is out of range, or a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedbat(model, optimizer, warmup=0.25)
    """
    if len(alpha_range) != 2 or not 0 < alpha_range[0] <= alpha_range[1] < math.inf:
        raise UserError(f"{alpha_range=}, expected two bounds above 0, lower one first")
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)

    def step_size(a, first):
        return _cut(first * jnp.exp(rho * a), alpha_range)

    def update(key, ctx, downlink, client, batches):
        train_key, sign_key = jax.random.split(key)
        received = unpack_params(downlink)
        kernels, _ = trees.split(received.params, select)
        num_steps = through.num_steps(batches)
        plain = jnp.maximum(layer_densities.floor_count(warmup * num_steps), 1)

        def seen(key, step, learnt, first):
            u = learnt.update
            first = optax.tree.where(step == plain + 1, _sizes(u), first)
            alpha = jax.tree.map(step_size, learnt.extra, first)
            drawn = one_bit.uniforms(key, u)
            binary = jax.tree.map(one_bit.signed, u, alpha, drawn)
            return optax.tree.where(step > plain, binary, u), first

        zeros = jax.tree.map(lambda _: jnp.float32(0), kernels)
        given = train_key, loss_fn, optimizer(ctx.round), received, batches
        begin = {"select": select, "extra": zeros, "kept": zeros}
        learnt, end, metrics = through.train(*given, seen=seen, **begin)
        u = learnt.update
        first = optax.tree.where(plain < num_steps, end.kept, _sizes(u))
        alpha = jax.tree.map(step_size, learnt.extra, first)
        drawn = one_bit.uniforms(sign_key, u)
        bits = jax.tree.map(
            lambda d, u, alpha: one_bit.bits(d, u / alpha, -1.0), drawn, u, alpha
        )
        uplink = {
            "signs": Packet(bits, bits=1),
            "alpha": Packet(alpha),
            "rest": Packet(learnt.rest),
            "stats": Packet(end.stats),
        }
        logged = {"step_size": jnp.mean(jnp.stack(jax.tree.leaves(alpha)))}
        return uplink, client, metrics | logged

    def contribute(ctx, uplink):
        bits, alpha = uplink["signs"].values, uplink["alpha"].values
        signed = jax.tree.map(lambda b, s: one_bit.levels(b, -1.0) * s, bits, alpha)
        delta = trees.merge(signed, uplink["rest"].values)
        sent = {"delta": Packet(delta), "stats": uplink["stats"]}
        return averaging.contribute(ctx, sent)

    averaging = fedavg(model, optimizer, weighting=weighting)
    return averaging.replace(update=update, contribute=contribute)


def _sizes(update: PyTree) -> PyTree:
    """Returns the mean |u| of each kernel, a constant to the gradient."""
    return jax.tree.map(lambda u: jax.lax.stop_gradient(jnp.mean(jnp.abs(u))), update)


def _cut(alpha: Array, bounds: tuple[float, float]) -> Array:
    """Cuts a step size to its bounds, whose gradient is 1 from one to the other.

    That of `jnp.clip` is 1/2 on a bound.
    """
    low, high = bounds
    inside = (low <= alpha) & (alpha <= high)
    return jnp.where(inside, alpha, jax.lax.stop_gradient(jnp.clip(alpha, low, high)))
