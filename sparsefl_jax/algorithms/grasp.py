"""GraSP: prune once, before training, so that the gradient keeps its norm.

Wang et al., "Picking Winning Tickets Before Training by Preserving Gradient Flow", ICLR
2020, https://arxiv.org/abs/2002.07376. Temperature and halves are those of the authors'
code. As a first stage of federated training: a baseline of FedSparsify.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms.snip import one_shot, scored
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import PyTree
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local


def grasp(
    model,
    optimizer,
    *,
    density: float,
    temperature: float = 200.0,
    halves: bool = True,
    prunable=("*kernel",),
    first_samples: bool = False,
    mode: str = "train",
    index: str = "bitmap",
) -> Algorithm:
    """GraSP on one batch of a client: keeps the largest w * Hg, over all layers.

    H is the Hessian of the loss in the prunable weights and g its gradient; all other
    weights are constants of it, as in the authors' code. To first order -2 w * Hg is
    what taking w away adds to |g|^2: the weights whose removal adds most go, the
    paper's rule, exactly int(n (1 - density)) of the n prunable ones. A weight of 0
    scores 0, which is not low. See `one_shot` for what travels and for the batch; the
    authors' has 25 samples of every class, FedSparsify's 32, temperature 1 and no
    halves.

    FLOPs: the gradient, and as its derivative along g two products for each of its own,
    three training steps together.

    Args:
      model: the network and its loss, a `Model`.
      optimizer: not used, as nothing is trained.
      density: share of the prunable weights that stay, in (0, 1]; 1 - S of the papers.
      temperature: what the logits are divided by, above 0. The logged loss is that.
      halves: sum the losses of two halves of the batch, which batch normalisation then
        sees apart; without such layers the masks are the same.
      prunable: globs of the leaves that can be pruned. FedSparsify has all, `("*",)`.
      first_samples, mode, index: as in `snip`.

    Raises:
      ValueError: a number is out of range, or there is no such index.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.make_optimizer()
      >>> stage = grasp(model, optimizer, density=0.1, temperature=1.0)
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature={temperature}, expected a finite number above 0")

    local.objective(model)  # or refuses what is none
    select = masks.prunable(model.macs, prunable)

    def apply(*args, **kwargs):
        logits, stats = model.apply(*args, **kwargs)
        return logits / temperature, stats

    softened = model._replace(apply=apply) if temperature != 1 else model
    loss_fn = scored(softened, mode)
    parts = 2 if halves else 1
    return one_shot(
        partial(gradient_flow, loss_fn, select=select, parts=parts),
        # ceil(n d) = n - int(n (1 - d)), were n d not a little off its integer
        keep=lambda size: math.ceil(round(size * density, 6)),
        passes=3,
        density=density,
        select=select,
        first_samples=first_samples,
        index=index,
    )


def gradient_flow(
    loss_fn, key, params, stats, x, y, weight, *, select: PyTree, parts: int = 1
):
    """w * Hg of the summed losses of some equal parts of a batch.

    Returns:
      The scores, a tree like `params`, 0 where H and g leave a leaf out, and the sums
      of `loss_fn`.
    """

    def total(params):
        losses = [
            loss_fn(key, params, stats, x[i::parts], y[i::parts], weight[i::parts])
            for i in range(min(parts, len(x)))
        ]
        loss, (_, sums) = jax.tree.map(lambda *v: sum(v), *losses)
        return loss, sums

    gradient = jax.grad(total, has_aux=True)
    grads, sums = gradient(params)
    grads = _only(select, grads)
    _, curved, _ = jax.jvp(gradient, (params,), (grads,), has_aux=True)
    return jax.tree.map(jnp.multiply, params, _only(select, curved)), sums


def _only(select, tree):
    """The selected leaves of a tree, and zeros in place of the others."""
    return jax.tree.map(lambda s, v: v if s else jnp.zeros_like(v), select, tree)
