"""GraSP: prunes once, before training, so that the gradient keeps its norm.

Wang et al., "Picking Winning Tickets Before Training by Preserving Gradient Flow", ICLR
2020, https://arxiv.org/abs/2002.07376. Temperature and halves follow the authors' code.
As a first stage of federated training it is a baseline of FedSparsify.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms.snip import Mode, one_shot, scored
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, Key, Positive, PyTree, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks


@method
def grasp(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    temperature: Positive = 200.0,
    halves: bool = True,
    prunable: masks.Globs = masks.KERNELS,
    first_samples: bool = False,
    mode: Mode = "train",
    index: str = "bitmap",
) -> Algorithm:
    """GraSP on one batch of a client: keeps the largest w * Hg, over all layers.

    H is the Hessian of the loss in the prunable weights and g its gradient; all other
    weights are constants, as in the authors' code. To first order, removing w adds
    -2 w * Hg to |g|^2. The weights whose removal adds most are pruned, the paper's
    rule: exactly int(n (1 - density)) of the n prunable ones. A weight of 0 scores 0,
    which is not low. `one_shot` describes the packets and the batch. The authors' batch
    has 25 samples of every class, FedSparsify's has 32 samples, temperature 1 and no
    halves.

    FLOPs: three training steps. One is the gradient; its derivative along g takes two
    products for each of the gradient's.

    Args:
      model: the network and its loss.
      optimizer: not used, as nothing is trained.
      density: share of the prunable weights that stay; 1 - S of the papers.
      temperature: divisor of the logits. The logged loss includes it.
      halves: sum the losses of two halves of the batch, each of which batch
        normalisation sees separately; without such layers and dropout, halves of equal
        size leave the mask as it is.
      prunable: globs of the leaves that can be pruned. FedSparsify prunes all,
        `("*",)`.
      first_samples, mode, index: as in `snip`.

    Raises:
      ValueError: a number is out of range, the mode or index is unknown, a glob matches
        no leaf, or the model has adapters.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = grasp(model, optimizer, density=0.1, temperature=1.0)
    """
    select = masks.prunable(model.macs, prunable)

    def apply(*args, **kwargs):
        logits, stats = model.apply(*args, **kwargs)
        return logits / temperature, stats

    softened = model._replace(apply=apply) if temperature != 1 else model
    loss_fn = scored(softened, mode)
    parts = 2 if halves else 1
    return one_shot(
        partial(gradient_flow, loss_fn, select=select, parts=parts),
        # n - int(n (1 - d)) is ceil(n d).
        keep=lambda size: layer_densities.whole_up(density, size),
        passes=3,
        select=select,
        first_samples=first_samples,
        index=index,
    )


def gradient_flow(
    loss_fn: Callable,
    key: Key,
    params: PyTree,
    stats: PyTree,
    *batch: Array,
    select: PyTree,
    parts: int = 1,
) -> tuple[PyTree, dict[str, Array]]:
    """Computes w * Hg of the summed losses of equal parts of a batch.

    Args:
      loss_fn: as `local.objective` returns it.
      key: of dropout and augmentation, which each part draws anew.
      params, stats: the model.
      *batch: samples [B, ...], labels [B], and [B] float32, 0 for padded samples.
      select: tree of Python bools, the leaves in which H and g are taken.
      parts: number of parts.

    Returns:
      The scores, a tree like `params` that is 0 in leaves outside `select`, and the
      sums of `loss_fn`.
    """
    number = min(parts, len(batch[0]))
    keys = jax.random.split(key, number)

    def total(params):
        losses = [
            loss_fn(key, params, stats, *(v[i::number] for v in batch))
            for i, key in enumerate(keys)
        ]
        loss, (_, sums) = jax.tree.map(lambda *v: sum(v), *losses)
        return loss, sums

    gradient = jax.grad(total, has_aux=True)
    grads, along, sums = jax.linearize(gradient, params, has_aux=True)
    curved = masks.apply(along(masks.apply(grads, select)), select)
    return jax.tree.map(jnp.multiply, params, curved), sums
