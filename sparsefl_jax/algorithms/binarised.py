"""Updates of one bit an entry that clients learn to send: FedMRN and FedBAT.

In FedMRN an update is random noise under a mask: Li et al., "Masked Random Noise for
Communication-Efficient Federated Learning", ACM MM 2024,
https://arxiv.org/abs/2408.03220. In the authors' code the method is called `fedsrn`.

In FedBAT it is signs times a step size, and training learns both: Li et al., "FedBAT:
Communication-Efficient Federated Learning via Learnable Binarization", ICML 2024,
https://arxiv.org/abs/2408.03215.

Operators, gradients, schedules, the bounds of the step size and the defaults are those
of the authors' code.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from sparsefl_jax.algorithms.fedavg import fedavg
from sparsefl_jax.core import types
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, one_bit, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet, unpack_params


class Learnt(NamedTuple):
    """What the optimizer changes."""

    update: PyTree  # float32; None in the place of leaves that are not kernels
    extra: PyTree  # float32, what a method learns beside it
    rest: PyTree  # float32, the other leaves; None in the place of kernels


class Progress(NamedTuple):
    """What a step leaves for the next one, in the place of the statistics."""

    stats: PyTree  # float32
    step: Array  # shape=(), int32: steps so far
    kept: PyTree  # what a method keeps


@method
def fedmrn(
    model: Model,
    optimizer: Optimizer,
    *,
    noise: Literal["uniform", "gaussian", "bernoulli"] = "uniform",
    magnitude: types.Positive = 0.01,
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
    lowest = one_bit.LOWEST[mask]

    def learn(key, train, kernels, num_steps):
        seed_key, mask_key = jax.random.split(key)
        seed = jax.random.bits(seed_key, (), jnp.uint32)
        z = one_bit.noise(seed, kernels, noise, magnitude)

        def seen(key, step, learnt, kept):
            if not progressive:  # static branch
                return learnt.update, kept
            share, u = step / num_steps, learnt.update
            own, other = (one_bit.uniforms(k, u) for k in jax.random.split(key))

            def show(u, z, drawn, chosen):
                masked = z * one_bit.levels(one_bit.bits(drawn, u / z, lowest), lowest)
                clipped = z * jnp.clip(u / z, lowest, 1)
                return one_bit.pass_to(u, jnp.where(chosen < share, masked, clipped))

            return jax.tree.map(show, u, z, own, other), kept

        learnt, *others = train(seen)
        q = jax.tree.map(jnp.divide, learnt.update, z)
        drawn = one_bit.uniforms(mask_key, q)
        bits = jax.tree.map(lambda d, q: one_bit.bits(d, q, lowest), drawn, q)
        every, _ = ravel_pytree(q)
        logged = {
            "ones": jnp.mean(ravel_pytree(bits)[0], dtype=jnp.float32),
            "clipped": jnp.mean((every < lowest) | (every > 1), dtype=jnp.float32),
        }
        codes = {"mask": Packet(bits, bits=1, index=index), "seed": Packet(seed)}
        return codes, logged, learnt, *others

    def decode(uplink):
        bits, seed = uplink["mask"].values, uplink["seed"].values
        z = one_bit.noise(seed, bits, noise, magnitude)
        return jax.tree.map(lambda z, b: z * one_bit.levels(b, lowest), z, bits)

    return _learn_codes(model, optimizer, prunable, weighting, learn, decode)


@method
def fedbat(
    model: Model,
    optimizer: Optimizer,
    *,
    rho: types.NonNegative = 6.0,
    warmup: types.Fraction = 0.5,
    alpha_range: tuple[float, float] = (5e-4, 5e-2),
    prunable: masks.Globs = masks.KERNELS,
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """FedBAT: clients train an update u that the network sees as signs times alpha.

    The first floor(warmup T) of a client's T steps, at least one, train u from 0 as
    FedAvg does. Then a0 is the mean |u| of a kernel, and from here the network sees
    `one_bit.signs`: alpha with probability (u / alpha + 1) / 2, otherwise -alpha. The
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

    def step_size(a, first):
        return _cut(first * jnp.exp(rho * a), alpha_range)

    def learn(key, train, kernels, num_steps):
        plain = jnp.maximum(layer_densities.floor_count(warmup * num_steps), 1)

        def seen(key, step, learnt, first):
            u = learnt.update
            first = optax.tree.where(step == plain + 1, _sizes(u), first)
            alpha = jax.tree.map(step_size, learnt.extra, first)
            drawn = one_bit.uniforms(key, u)
            binary = jax.tree.map(one_bit.signs, u, alpha, drawn)
            return optax.tree.where(step > plain, binary, u), first

        zeros = jax.tree.map(lambda _: jnp.float32(0), kernels)
        learnt, end, metrics = train(seen, zeros, zeros)
        u = learnt.update
        first = optax.tree.where(plain < num_steps, end.kept, _sizes(u))
        alpha = jax.tree.map(step_size, learnt.extra, first)
        drawn = one_bit.uniforms(key, u)
        q = jax.tree.map(jnp.divide, u, alpha)
        bits = jax.tree.map(lambda d, q: one_bit.bits(d, q, -1.0), drawn, q)
        logged = {"step_size": jnp.mean(jnp.stack(jax.tree.leaves(alpha)))}
        codes = {"signs": Packet(bits, bits=1), "alpha": Packet(alpha)}
        return codes, logged, learnt, end, metrics

    def decode(uplink):
        bits, alpha = uplink["signs"].values, uplink["alpha"].values
        return jax.tree.map(lambda b, s: one_bit.levels(b, -1.0) * s, bits, alpha)

    return _learn_codes(model, optimizer, prunable, weighting, learn, decode)


def _learn_codes(model, optimizer, prunable, weighting, learn, decode) -> Algorithm:
    """Returns FedAvg whose clients learn codes of what they change of the kernels.

    The network sees a kernel as it was received plus a function of its update, which is
    trained from 0; the other leaves are trained as usual. The optimizer starts anew.

    Args:
      learn: `(key, train, kernels, num_steps) -> (codes, logged, *trained)`: what a
        client sends of its kernels, its metrics, and what `train` returned.
        `train(seen, extra, kept) -> (learnt, end, metrics)` takes
        `seen(key, step, learnt, kept) -> (update, kept)`: what the network sees in the
        place of `learnt.update` in a step, from 1, and what the next step gets. The
        gradient flows through it. `extra`, float32, is learnt too, and the first step
        gets `kept`. `num_steps` counts the client's own steps in all epochs.
      decode: `(uplink) -> update` of the kernels, None in the place of other leaves.
      model, optimizer, prunable, weighting: as in `fedmrn`.
    """
    averaging = fedavg(model, optimizer, weighting=weighting)
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)

    def update(key, ctx, downlink, client, batches):
        train_key, code_key = jax.random.split(key)
        received, tx = unpack_params(downlink), optimizer(ctx.round)
        kernels, rest = trees.split(received.params, select)

        def train(seen, extra=(), kept=()):
            def seen_loss(key, learnt, progress, x, y, weight):
                own, key = jax.random.split(key)
                step = progress.step + 1
                update, kept = seen(own, step, learnt, progress.kept)
                moved = optax.tree.add(kernels, update)
                params = trees.merge(moved, learnt.rest)
                loss, (stats, sums) = loss_fn(key, params, progress.stats, x, y, weight)
                return loss, (Progress(stats, step, kept), sums)

            zeros = optax.tree.zeros_like(kernels)
            begin = Progress(received.stats, jnp.int32(0), kept)
            start = SparseModel(Learnt(zeros, extra, rest), None, begin)
            trained = local.train(train_key, seen_loss, tx, start, batches)
            return trained.model.params, trained.model.stats, trained.metrics

        told = learn(code_key, train, kernels, local.num_steps(batches))
        codes, logged, learnt, end, metrics = told
        change = optax.tree.sub(learnt.rest, rest)
        others = {"rest": Packet(change), "stats": Packet(end.stats)}
        work = local.dense_work(metrics["count"], received.params)
        return codes | others, client, metrics | {"work": work} | logged

    def contribute(ctx, uplink):
        delta = trees.merge(decode(uplink), uplink["rest"].values)
        sent = {"delta": Packet(delta), "stats": uplink["stats"]}
        return averaging.contribute(ctx, sent)

    return averaging.replace(update, contribute)


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
