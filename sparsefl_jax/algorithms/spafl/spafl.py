"""SpaFL: personal weights, and thresholds of filters, which alone travel.

Kim et al., "SpaFL: Communication-Efficient Federated Learning With Sparse Models and
Low Computational Overhead", NeurIPS 2024, https://arxiv.org/abs/2406.00431.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms.spafl import client_training
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, straight_through, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet

DIVISORS = ("inputs", "kernel")
UNCHARGED = "the paper does not charge how the thresholds moved"


class Server(NamedTuple):
    """The global thresholds, how they moved last, and the weights of newcomers."""

    model: SparseModel
    thresholds: dict[str, Array]  # [O] float32 by path of the kernel
    delta: dict[str, Array]


def spafl(
    model,
    optimizer,
    *,
    alpha: float = 0.002,
    prunable=("*kernel",),
    extract: bool = True,
    divisor: str = "inputs",
    ste: str = "identity",
    reset: str = "same",
    warmup: bool = False,
    clamp: bool = False,
    thresholds_only: bool = False,
    keep_optimizer: bool = False,
    charge_delta: bool = True,
) -> Algorithm:
    """SpaFL (Algorithm 1): clients train weights and thresholds, share the latter.

    Down: the global thresholds and how they moved, float32; the paper does not charge
    the latter, although a client that missed a round cannot know it. Up: the client's
    thresholds. FLOPs are at the masks that a client's training ends with. The paper's
    bits are `ledger.values_only_bits` of the packets 'thresholds' both ways.

    Args:
      model: the network and its loss, a `Model`.
      optimizer: the clients', for weights and thresholds, as `local.make_optimizer`
        returns it.
      alpha: weight of the regulariser sum exp(-threshold).
      prunable: globs of the kernels that have thresholds.
      extract: whether clients move their weights by eq. (13) before they train.
      divisor: what eq. (13) divides by: 'inputs' of a filter, or 'kernel', the area of
        a convolution's kernel, as in the official code.
      ste: a name in `ste.ESTIMATORS`.
      reset: which forward pass finds a layer with at most 1 % of its filters alive,
        whose thresholds become 0: the 'same' that uses them, or the 'previous' one, as
        in the official code.
      warmup: regularise next to nothing in round 0, as two of the official codes do.
      clamp: keep weights in [-1, 1] and thresholds in [0, 1], as the paper states.
      thresholds_only: weights stay as they were drawn (Table 1).
      keep_optimizer: clients keep their optimizer's state from round to round.
      charge_delta: charge what eq. (13) needs; False: assume with the paper that it is
        free.

    Raises:
      ValueError: an argument is out of range, or no kernel matches.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.make_optimizer()
      >>> method = spafl(model, optimizer, alpha=0.001, clamp=True)
    """
    options = client_training.Options(
        alpha,
        ste,
        reset,
        warmup,
        clamp,
        thresholds_only,
        keep_optimizer,
    )
    client_training.check(options)
    if divisor not in DIVISORS:
        raise ValueError(f"divisor={divisor!r}, expected one of {', '.join(DIVISORS)}")
    extract = extract and not thresholds_only
    if divisor != "inputs" and not extract:
        raise ValueError(f"divisor={divisor!r} is read by nothing here: no eq. (13)")

    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)

    def init(key, start: SparseModel):
        del key
        thresholds = straight_through.zeros(start.params, select)
        return Server(start, thresholds, jax.tree.map(jnp.zeros_like, thresholds))

    def init_client(key, server, info):
        del key, info
        return client_training.start(server.model, select, optimizer, options)

    def broadcast(key, ctx, server):
        del key, ctx
        message = {"thresholds": Packet(server.thresholds)}
        if extract:
            free = {} if charge_delta else {"bits": 0, "assumed": UNCHARGED}
            message["delta"] = Packet(server.delta, **free)
        return message

    def update(key, ctx, downlink, client, batches):
        params = client.trained.params
        if extract:
            params = moved_by_importance(params, downlink["delta"].values, divisor)
        received = client_training.Trained(params, downlink["thresholds"].values)
        client = client._replace(trained=received)
        client, metrics = client_training.train(
            key, ctx, client, batches, loss_fn, optimizer, options
        )
        return {"thresholds": Packet(client.trained.thresholds)}, client, metrics

    def contribute(ctx, uplink):
        del ctx
        return means.weighted_sum(uplink["thresholds"].values, jnp.float32(1))

    def aggregate(key, round, server, total):
        del key, round
        new = means.weighted_mean(total, server.thresholds)
        told = {f"threshold_mean/{path}": jnp.mean(t) for path, t in new.items()}
        told |= {f"threshold_max/{path}": jnp.max(t) for path, t in new.items()}
        delta = jax.tree.map(jnp.subtract, new, server.thresholds)
        return Server(server.model, new, delta), told

    return Algorithm(
        init,
        broadcast,
        update,
        contribute,
        aggregate,
        newcomer,
        init_client,
        client_training.personalize,
    )


def newcomer(key, server: Server) -> dict[str, SparseModel]:
    """Deploys what a client that joins now would have."""
    del key
    params, _, stats = server.model
    mask = straight_through.filter_masks(params, server.thresholds)
    return {"newcomer": SparseModel(masks.apply(params, mask), mask, stats)}


def moved_by_importance(
    params: PyTree, delta: dict[str, Array], divisor: str = "inputs"
) -> PyTree:
    """Weights moved by what the global thresholds tell of importance, eq. (13).

    w_ij becomes w_ij - delta_i sign(sum_j w_ij) / n: where a threshold has grown the
    filter shrinks along its dominant sign. This is the sign of the official code and
    the one reading that fits the paper's text; literal readings of its XOR do not.

    Args:
      params: the parameters.
      delta: [O] by path of a kernel [..., O], how the thresholds moved.
      divisor: n: 'inputs' of a filter, or 'kernel', a convolution's kernel area.

    Example:
      >>> w = {'w': jnp.array([[0.5], [-0.25]])}
      >>> moved_by_importance(w, {'w': jnp.array([0.5])})['w'].ravel().tolist()
      [0.25, -0.5]
    """
    leaves, treedef = jax.tree.flatten(params)

    def moved(path, kernel):
        if path not in delta:
            return kernel
        axes = tuple(range(kernel.ndim - 1))
        is_conv = kernel.ndim == 4
        by_area = divisor == "kernel" and is_conv
        n = math.prod(kernel.shape[:2] if by_area else kernel.shape[:-1])
        step = delta[path] * jnp.sign(jnp.sum(kernel, axes)) / n
        return kernel - straight_through.along_outputs(step, kernel)

    return treedef.unflatten(map(moved, trees.leaf_paths(params), leaves))
