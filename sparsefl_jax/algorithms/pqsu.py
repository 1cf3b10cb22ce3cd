"""FL-PQSU: pruned filters, quantised messages, and uploads only if the loss fell.

Xu et al., "Accelerating Federated Learning for IoT in Big Data Analytics With Pruning,
Quantization and Selective Updating", IEEE Access 2021; as Jiang and Borcea run it in
"Complement Sparsification", AAAI 2023, https://arxiv.org/abs/2303.06237.

Filters and neurons are pruned as a mask, with the inputs that they feed: Li et al.,
"Pruning Filters for Efficient ConvNets", ICLR 2017, https://arxiv.org/abs/1608.08710.
Only outputs of hidden layers that a single layer reads are pruned: in a chain those of
all hidden layers, in a network with shortcuts those of each block's first convolution.
The masked network computes what `export.compact` makes of it; normalisation keeps all
its entries.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, EmptyState, PyTree, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.wiring import Link, links
from sparsefl_jax.sparsity import masks, quantization, top_k, trees, width
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Message, Packet, is_new
from sparsefl_jax.wire.positions import Index


@method
def pqsu(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    prunable: masks.Globs = masks.KERNELS,
    quantize: Literal["both", "up", "none"] = "both",
    selective: bool = True,
    weighting: means.Weighting = "uniform",
    index: Index = "bitmap",
) -> Algorithm:
    """PQSU: trains a network with fewer filters, and sends weights in 8 bits.

    Once, at the start, each hidden layer keeps the ceil(density C) of its C filters or
    neurons with the largest L1 norm in the model of the stage before, a pre-trained
    dense one, or in the initial model if there is no stage before. Inputs that read a
    pruned filter are pruned too (see `keep_filters`), so that a kernel between two
    hidden layers keeps about density^2 of its entries. The mask of the stage before is
    not used.

    Clients train within the mask, from the quantised weights. A client uploads only if
    its loss, the mean over its last local epoch during training, is below its loss at
    its last upload; it always uploads the first time. The server averages the uploads;
    without any, its model does not change. The metric `uploaded` is the share of
    clients that upload. After an upload that came too late, a client compares with its
    loss at the upload before.

    Down: the alive weights in uint8, with a scale and a zero point of 32 bits each for
    every leaf; when a client first takes part also the positions of the filters, from
    which the mask follows. Up: the same weights, trained. Both: normalisation
    statistics, float32. With each packet of a selective upload goes a bit that says
    whether it is sent. The server's model is never rounded.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of a hidden layer's filters that stays.
      prunable: globs of the kernels that lose filters; only hidden layers do.
      quantize: 'both' directions, 'up' alone (Complement Sparsification's variant), or
        'none'; weights that are not quantised travel in float32.
      selective: False lets all clients upload in every round.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.
      index: how the positions of filters are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range, or `prunable` matches no hidden layer.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = pqsu(model, optimizer, density=0.5, quantize="up")
    """
    weight, loss_fn = means.WEIGHTINGS[weighting], local.objective(model)
    hidden_links(model.macs, prunable)  # refuses globs that match none

    def init(key, start: SparseModel):
        mask = keep_filters(start.params, density, prunable)
        return masks.prune(start, mask)

    def init_client(key, received, info):
        # The loss at the last upload in time, shape=(), float32.
        return jnp.float32(jnp.inf) if selective else EmptyState()

    def broadcast(key, ctx, server):
        kept = filters_left(server.mask, prunable)
        new = is_new(ctx, jnp.int32(0))  # the mask has not changed since round 0
        positions = Packet(kept, kept, new, bits=0, index=index)
        down = _pack(server, quantize == "both")
        weights = replace(down["weights"], assumed="its mask follows from 'filters'")
        return down | {"weights": weights, "filters": positions}

    def update(key, ctx, downlink, client, batches):
        received, tx = _unpack(downlink), optimizer(ctx.round)
        project = partial(masks.apply, mask=received.mask)
        inside = local.within(tx, received.mask)
        run = partial(local.train_epochs, key, loss_fn, inside, project=project)
        last = batches.order.shape[0] - 1
        before = run(local.start(tx, received), batches, last=last)
        state = run(before, batches, first=last)
        new = jax.tree.map(jnp.subtract, state.sums, before.sums)
        loss = new["loss"] / jnp.maximum(new["count"], 1.0)
        sent = True
        if selective:  # static branch
            sent = loss < client
            client = jnp.where(sent, loss, client)
        trained = SparseModel(state.params, received.mask, state.stats)
        uplink = _pack(trained, quantize != "none", sent, selective)
        work = local.work(state.sums["count"], received.mask)
        uploaded = jnp.float32(sent)
        return uplink, client, state.sums | {"work": work, "uploaded": uploaded}

    def contribute(ctx, uplink):
        params, _, stats = _unpack(uplink)
        counted = weight(ctx.client) * uplink["weights"].sent
        return means.weighted_sum((params, stats), counted)

    def aggregate(key, ctx, server, total):
        return masked.average(server, total), {}

    def deploy(key, server):
        return {"global": server}

    steps = init, broadcast, update, contribute, aggregate, deploy, init_client
    return Algorithm(*steps, drop_uplink=lambda ctx, before, after: before)


def _pack(model: SparseModel, quantized: bool, sent=True, optional=False) -> Message:
    """Packs alive weights, the grid of their codes if quantised, and statistics."""
    packet = partial(Packet, sent=sent, optional=optional)
    message, weights, bits = {"stats": packet(model.stats)}, model.params, 32
    if quantized:
        (weights, grid), bits = quantization.quantize(weights, 8), 8
        message["grid"] = packet(grid)
    weights = masks.apply(weights, model.mask)
    # The receiver knows the mask: it has received 'filters', or sent them.
    message["weights"] = packet(weights, model.mask, bits=bits, index="none")
    return message


def _unpack(message: Message) -> SparseModel:
    """Returns the model that the receiver of `_pack` holds."""
    values, mask = message["weights"].values, message["weights"].mask
    if "grid" in message:
        values = quantization.dequantize(values, message["grid"].values)
    return SparseModel(masks.apply(values, mask), mask, message["stats"].values)


def keep_filters(
    params: PyTree, density: float, prunable: masks.Globs = masks.KERNELS
) -> PyTree:
    """Keeps the ceil(density C) filters of each layer that have the largest L1 norm.

    The mask is False on the kernel and bias entries of the other filters, and on the
    inputs through which the next layer reads them. Of equal norms the first stays.

    Args:
      params: kernels `[..., I, O]`, in layers named as in the models here.
      density: share of a layer's C filters that stays, in (0, 1].
      prunable: globs of kernels; those of hidden layers lose filters.

    Returns:
      A bool tree like `params`.

    Raises:
      ValueError: no hidden layer is prunable, or a layer has another name.

    Example:
      >>> shapes = {'fc1': (1, 2), 'fc2': (2, 1)}
      >>> params = {k: {'kernel': jnp.ones(s)} for k, s in shapes.items()}
      >>> keep_filters(params, 0.5)['fc2']['kernel'].tolist()
      [[True], [False]]
    """
    leaves = trees.by_path(params)
    mask = trees.by_path(masks.full(params))
    for link in hidden_links(params, prunable):
        norms = _over_inputs(jnp.sum, jnp.abs(leaves[f"{link.layer}/kernel"]))
        kept = top_k.top_k(norms, width.num_kept(density, norms.size))
        reader = f"{link.reader}/kernel"
        # A dense layer reads a flattened image, its channels fastest.
        read = jnp.tile(kept, leaves[reader].shape[-2] // kept.size)[:, None]
        mask[reader] = _cut(mask[reader], read)
        for path in (f"{link.layer}/kernel", f"{link.layer}/bias"):
            if path in mask:
                mask[path] = _cut(mask[path], kept)
    return jax.tree.unflatten(jax.tree.structure(params), list(mask.values()))


def filters_left(
    mask: PyTree, prunable: masks.Globs = masks.KERNELS
) -> dict[str, Array]:
    """Returns the filters that a mask leaves; the mask follows from them.

    Args:
      mask: as `keep_filters` returned it.
      prunable: as `keep_filters` received it.

    Returns:
      [C] bool by the name of the layer.

    Example:
      >>> mask = {k: {'kernel': jnp.ones((1, 1), bool)} for k in ('fc1', 'fc2')}
      >>> filters_left(mask)
      {'fc1': Array([ True], dtype=bool)}
    """
    leaves, pruned = trees.by_path(mask), hidden_links(mask, prunable)
    return {
        link.layer: _over_inputs(jnp.any, leaves[f"{link.layer}/kernel"])
        for link in pruned
    }


def hidden_links(params: PyTree, prunable: masks.Globs = masks.KERNELS) -> list[Link]:
    """Returns the hidden layers that lose filters.

    Args:
      params: a tree of anything: only paths matter.
      prunable: globs of kernels.

    Raises:
      ValueError: no hidden layer is prunable, or a layer has another name.

    Example:
      >>> params = {'fc1': {'kernel': 1}, 'fc2': {'kernel': 1}}
      >>> [link.layer for link in hidden_links(params)]
      ['fc1']
    """
    chosen = trees.layer_paths(masks.prunable(params, prunable))
    hidden = [link for link in links(params) if f"{link.layer}/kernel" in chosen]
    if not hidden:
        raise UserError(f"prunable={prunable}, expected the kernel of a hidden layer")
    return hidden


def _over_inputs(reduce: Callable, kernel: Array) -> Array:
    """Reduces all axes but the last; [C]."""
    return reduce(kernel, tuple(range(kernel.ndim - 1)))


def _cut(mask: Array, alive: Array) -> Array:
    """Returns the mask where its last axes are alive."""
    return mask & jnp.expand_dims(alive, tuple(range(mask.ndim - alive.ndim)))
