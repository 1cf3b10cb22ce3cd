"""FedRolex: HeteroFL whose slices roll over the channels.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
Extraction", NeurIPS 2022, https://arxiv.org/abs/2212.01548.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms.heterofl import heterofl, pack_slices
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, width


class Server(NamedTuple):
    """The model at full width, and what has been trained of it."""

    model: SparseModel
    trained: PyTree  # bool like the parameters: some client has sent the entry
    round: Array  # shape=(), int32: the last round that the model has seen, 0 at first


@method
def fedrolex(
    model: Model,
    optimizer: Optimizer,
    *,
    scaler: bool = True,
    mask_classes: bool = True,
) -> Algorithm:
    """FedRolex: in round t a client of budget p holds the channels from t on.

    These are the ceil(p C) channels t, t + 1, ... modulo C of the C channels of each
    hidden layer. All else is as in `heterofl`: what travels, without positions, because
    a slice follows from the budget and the round; the clients' training; and the mean
    over the clients that sent an entry. Personal models are the slices of the last
    round.

    In any C successive rounds all channels of a layer are trained equally often, but
    not all weights. Layers of equal width roll together, so over all rounds a client of
    budget p <= 1/2 holds only a share of 2 p - 1 / C of a kernel between two layers of
    C channels. Without a client of budget 1 some weights may therefore stay as they
    were initialised. The metric `untouched` is the share of all entries that no client
    has sent so far.

    The released code rolls backwards, which is the same by the symmetry of channels.
    It draws the clients' budgets anew in every round, and weights normalisation and
    classifier depending on the order of the clients. Here budgets do not change and
    means are plain, as in the paper.

    Args:
      model, optimizer, scaler, mask_classes: as in `heterofl`.

    Raises:
      ValueError: as in `heterofl`.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedrolex(model, optimizer, mask_classes=False)
    """
    sliced = heterofl(model, optimizer, scaler=scaler, mask_classes=mask_classes)

    def init(key, start: SparseModel):
        whole = sliced.init(key, start)
        trained = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bool_), whole.params)
        return Server(whole, trained, jnp.int32(0))

    def broadcast(key, ctx, server):
        return pack_slices(server.model, ctx.client.budget, ctx.round)

    def aggregate(key, ctx, server, total):
        whole, _ = sliced.aggregate(key, ctx, server.model, total)
        sent, _ = total["weight"]
        trained = jax.tree.map(lambda t, w: t | (w > 0), server.trained, sent)
        share = masks.density(trained, masks.everything(trained))
        return Server(whole, trained, ctx.round), {"untouched": 1 - share}

    def deploy(key, server):
        return sliced.deploy(key, server.model)

    def personalize(key, server, client, info):
        mask = width.window(server.model.params, info.budget, server.round)
        return {"personal": masks.pruned(server.model, mask)}

    required = (init, broadcast, sliced.update, sliced.contribute, aggregate, deploy)
    return Algorithm(*required, personalize=personalize)
