"""SpaFL: clients keep personal weights and share only the thresholds of filters.

Kim et al., "SpaFL: Communication-Efficient Federated Learning With Sparse Models and
Low Computational Overhead", NeurIPS 2024, https://arxiv.org/abs/2406.00431. Local is
the baseline of its Table 2: clients train weights and thresholds, nothing travels, and
eq. (13) is left out. Where the paper and the released code differ, `VARIANTS` has both.
The code, news-vt/SpaFL_NeruIPS_2024, has one folder for each data set, and the folders
differ from each other too.

A kernel has its outputs, the filters or neurons, on the last axis. Filter i is alive
while its importance, the mean of its |w|, lies above its threshold, eq. (1).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.personal import finetune
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, NonNegative, PyTree, SparseModel
from sparsefl_jax.models import Model, adapters
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Initial, Packet, pack_initial

DEAD = 1  # at most this percentage of filters alive: thresholds are reset to 0
UNCHARGED = "the paper does not charge how the thresholds moved"


class Variant(NamedTuple):
    """How thresholds are trained and how eq. (13) moves weights."""

    divisor: str  # n of eq. (13): the 'inputs' of a filter, or its 'kernel' area
    ste: str  # the estimator of `unit_step`
    reset: str  # a dead layer is found by the 'same' forward pass or the 'previous' one
    warmup: bool  # alpha is multiplied by sigmoid(10 round - 5)


VariantName = Literal[
    "paper", "release_fashion_mnist", "release_cifar10", "release_cifar100"
]
VARIANTS = {
    "paper": Variant("inputs", "identity", "same", False),
    "release_fashion_mnist": Variant("kernel", "identity", "previous", True),
    "release_cifar10": Variant("kernel", "window", "previous", False),
    "release_cifar100": Variant("kernel", "window", "previous", True),
}


class Trained(NamedTuple):
    """The trained values: the optimizer moves them, clipping takes their norm."""

    params: PyTree  # float32
    thresholds: dict[str, Array]  # [O] float32 by path of the kernel


class Client(NamedTuple):
    """The state that a client keeps from round to round."""

    trained: Trained
    stats: PyTree  # float32
    opt_state: PyTree  # EmptyState where the optimizer starts afresh every round


class Server(NamedTuple):
    """The global thresholds, their last change, and the weights of newcomers."""

    model: SparseModel
    thresholds: dict[str, Array]  # [O] float32 by path of the kernel
    delta: dict[str, Array]


@method
def spafl(
    model: Model,
    optimizer: Optimizer,
    *,
    alpha: NonNegative = 0.002,
    prunable: masks.Globs = masks.KERNELS,
    variant: VariantName = "paper",
    clamp: bool = False,
    extract: bool = True,
    thresholds_only: bool = False,
    keep_optimizer: bool = False,
    charge_delta: bool = True,
    initial: Initial = "sent",
) -> Algorithm:
    """SpaFL (Algorithm 1): clients train weights and thresholds, and share the latter.

    Down: the global thresholds and, for eq. (13), their last change, float32. The paper
    does not charge the change, although a client that missed a round cannot know it.
    Up: the client's thresholds. Before its first round a client receives the weights
    and statistics w(0) that training starts from. FLOPs are those of the mask at the
    end of a client's training, and five for each weight with a threshold in every step.
    The paper's bits are `analysis.flash.values_only_bits` of the packets 'thresholds'
    both ways.

    Args:
      model: the network and its loss.
      optimizer: the clients', for weights and thresholds, as `local.make_optimizer`
        returns it.
      alpha: weight of the regulariser sum exp(-threshold).
      prunable: globs of the kernels that have thresholds.
      variant: 'paper', or 'release_fashion_mnist', 'release_cifar10' or
        'release_cifar100', the released code for that data set;
        `VARIANTS` lists the differences.
      clamp: after every step, cut kernels with thresholds to [-1, 1] and thresholds to
        [0, 1]. The paper states it, no released code does it.
      extract: clients move their weights by eq. (13) before they train (Table 3).
      thresholds_only: weights stay at their initial values (Table 1); no eq. (13).
      keep_optimizer: clients keep their optimizer's state between rounds.
      charge_delta: charge the change that eq. (13) needs; False: assume with the paper
        that it is free.
      initial: how a client gets w(0): 'sent', 32 bits a value, or 'seed', 32 bits in
        all, see `packets.pack_initial`. The paper does not count it.

    Returns:
      The method. Its server keeps the thresholds and their change, each a dict of [O]
      float32 by path of the kernel.

    Raises:
      ValueError: an argument is out of range, a glob matches no kernel, or the model
        has adapters.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = spafl(model, optimizer, alpha=0.001, clamp=True)
      >>> released = spafl(model, optimizer, variant="release_cifar10")
    """
    options = alpha, prunable, variant, clamp, keep_optimizer, thresholds_only
    begin, train = make_training(model, optimizer, options)
    divisor = VARIANTS[variant].divisor
    extract = extract and not thresholds_only

    def init(key, start: SparseModel):
        thresholds = begin(start.params, start.stats).trained.thresholds
        return Server(start, thresholds, optax.tree.zeros_like(thresholds))

    def send_once(server):
        start = {"params": server.model.params, "stats": server.model.stats}
        return pack_initial(start, initial)

    def init_client(key, received, info):
        return begin(received["params"].values, received["stats"].values)

    def broadcast(key, ctx, server):
        message = {"thresholds": Packet(server.thresholds)}
        if extract:
            free = {} if charge_delta else {"bits": 0, "assumed": UNCHARGED}
            message["delta"] = Packet(server.delta, **free)
        return message

    def update(key, ctx, downlink, client, batches):
        params = client.trained.params
        if extract:
            params = move_by_importance(params, downlink["delta"].values, divisor)
        received = Trained(params, downlink["thresholds"].values)
        client = client._replace(trained=received)
        client, metrics = train(key, ctx.round, client, batches)
        return {"thresholds": Packet(client.trained.thresholds)}, client, metrics

    def contribute(ctx, uplink):
        return means.weighted_sum(uplink["thresholds"].values)

    def aggregate(key, ctx, server, total):
        new = means.weighted_mean(total, server.thresholds)
        metrics = {f"threshold_mean/{path}": jnp.mean(t) for path, t in new.items()}
        metrics |= {f"threshold_max/{path}": jnp.max(t) for path, t in new.items()}
        delta = optax.tree.sub(new, server.thresholds)
        return Server(server.model, new, delta), metrics

    def deploy(key, server):  # the model of a client that joins now
        mask = filter_masks(server.model.params, server.thresholds)
        return {"newcomer": masks.prune(server.model, mask)}

    steps = init, broadcast, update, contribute, aggregate, deploy, init_client
    return Algorithm(*steps, personalize, send_once=send_once)


@method
def local_only(
    model: Model,
    optimizer: Optimizer,
    *,
    alpha: NonNegative = 0.002,
    prunable: masks.Globs = masks.KERNELS,
    variant: VariantName = "paper",
    clamp: bool = False,
    keep_optimizer: bool = False,
    initial: Initial = "seed",
) -> Algorithm:
    """Trains each client's sparse model in the rounds in which the client is drawn.

    Nothing travels, except the initial network with `initial='sent'`; by default a
    client draws its own. With `alpha=0` the thresholds follow the loss alone.

    Args:
      model: the network and its loss.
      optimizer: the clients', for weights and thresholds, as `local.make_optimizer`
        returns it.
      alpha: weight of the regulariser sum exp(-threshold).
      prunable: globs of the kernels that have thresholds.
      variant, clamp, keep_optimizer: as in `spafl`.
      initial: 'seed', each client draws a network by a key of its own; or 'sent', all
        start from the network that training starts from, such as that of an earlier
        run, at 32 bits a value before a client's first round.

    Returns:
      The method. A client keeps its weights, statistics and thresholds [O].

    Raises:
      ValueError: an argument is out of range, a glob matches no kernel, or the model
        has adapters.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = local_only(model, optimizer, alpha=0.001)
    """
    options = alpha, prunable, variant, clamp, keep_optimizer, False
    begin, train = make_training(model, optimizer, options)

    def init(key, start: SparseModel):
        return start

    def send_once(server):
        start = {"params": server.params, "stats": server.stats}
        return pack_initial(start, initial) if initial == "sent" else {}

    def init_client(key, received, info):
        if initial == "seed":  # static branch
            return begin(*model.init(key))
        return begin(received["params"].values, received["stats"].values)

    def update(key, ctx, downlink, client, batches):
        # The official code evaluates every client after each round, which resets its
        # dead layers, so that none is still dead when training begins.
        thresholds = revive(*client.trained)
        trained = client.trained._replace(thresholds=thresholds)
        client = client._replace(trained=trained)
        return {}, *train(key, ctx.round, client, batches)

    def deploy(key, server):
        return {"newcomer": masks.dense(server.params, server.stats)}

    silent = finetune(model, optimizer, prunable=prunable)  # sends and sums nothing
    return silent.replace(init, send_once, init_client, update, personalize, deploy)


def make_training(
    model: Model, optimizer: Optimizer, options: tuple
) -> tuple[Callable, Callable]:
    """Returns how a client begins and how it trains.

    Args:
      model, optimizer: as in `spafl`.
      options: its `alpha`, `prunable`, `variant`, `clamp`, `keep_optimizer` and
        `thresholds_only`.

    Returns:
      `begin(params, stats) -> Client`, a client that has not trained: these weights,
      thresholds 0; and `train(key, round, client, batches) -> (client,
      metrics)`, eqs. (3) to (6). Work and density are those of the mask at the end of
      training, as the paper counts them.

    Raises:
      ValueError: a glob matches no kernel, or the model has adapters.
    """
    alpha, prunable, variant, clamp, keep_optimizer, thresholds_only = options
    loss_fn, released = local.objective(model), VARIANTS[variant]
    adapters.refuse(model, "filters of B, which is 0, are dead and have no gradient")
    select = masks.prunable(model.macs, prunable)

    def reset(updates, old):
        """Resets dead layers after the optimizer's step.

        A layer is dead if the forward pass before the step found it so. With 'same'
        that pass used thresholds 0, from which the step starts; 'previous' discards the
        step.
        """
        kernels, moved = trees.by_path(old.params), dict(updates.thresholds)
        for path, threshold in old.thresholds.items():
            to = moved[path] - threshold if released.reset == "same" else -threshold
            dead = is_dead(kernels[path], threshold)
            moved[path] = jnp.where(dead, to, moved[path])
        params = updates.params
        if thresholds_only:  # weight decay would move them
            params = optax.tree.zeros_like(params)
        return Trained(params, moved)

    def make_tx(round):
        return optax.chain(optimizer(round), optax.stateless(reset))

    def begin(params, stats):
        trained = Trained(params, zero_thresholds(params, select))
        opt_state = local.init_optimizer(make_tx, trained, keep_optimizer)
        return Client(trained, stats, opt_state)

    def make_loss(round):
        """Returns the loss at pruned weights plus alpha sum_i exp(-threshold_i)."""
        strength = jnp.float32(alpha)
        if released.warmup:
            strength = strength * jax.nn.sigmoid(10.0 * round - 5.0)

        def loss(key, trained: Trained, *rest):
            params, thresholds = trained
            if thresholds_only:
                params = jax.lax.stop_gradient(params)
            if released.reset == "same":
                thresholds = revive(params, thresholds)
            pruned = prune(params, thresholds, released.ste)
            value, others = loss_fn(key, pruned, *rest)
            penalty = sum(jnp.sum(jnp.exp(-t)) for t in thresholds.values())
            return value + strength * penalty, others

        return loss

    def train(key, round, client, batches):
        before = SparseModel(client.trained, None, client.stats)
        kept = {"opt_state": client.opt_state, "project": _clamp if clamp else None}
        loss, tx = make_loss(round), make_tx(round)
        after = local.train(key, loss, tx, before, batches, **kept)
        trained, _, stats = after.model
        mask = filter_masks(*trained)
        # Thresholds take five operations per weight and step: |w| and its sum, and the
        # two gradients through the mask.
        size = int(trees.layer_sizes(trained.params, select).sum())
        steps = local.own_steps(batches).astype(jnp.float32)
        count, extra = after.metrics["count"], steps * (5.0 * size)
        return Client(trained, stats, after.opt_state), after.metrics | {
            "work": local.work(count, mask, extra=extra),
            "density": masks.density(mask, masks.select_all(mask)),
        }

    return begin, train


def _clamp(trained: Trained) -> Trained:
    """Returns kernels clipped to [-1, 1] and thresholds to [0, 1], section 3.1."""

    def cut(path, v):
        return jnp.clip(v, -1.0, 1.0) if path in trained.thresholds else v

    params = trees.map_by_path(cut, trained.params)
    return Trained(params, optax.tree.clip(trained.thresholds, 0.0, 1.0))


def personalize(key, server, client: Client, info) -> dict[str, SparseModel]:
    """Returns a client's personal model: its weights where its filters are alive."""
    mask = filter_masks(*client.trained)
    own = SparseModel(client.trained.params, mask, client.stats)
    return {"personal": masks.prune(own, mask)}


def move_by_importance(
    params: PyTree, delta: dict[str, Array], divisor: str = "inputs"
) -> PyTree:
    """Moves weights by the change of the global thresholds, eq. (13).

    w_ij becomes w_ij - delta_i sign(sum_j w_ij) / n: a filter whose threshold has grown
    shrinks along its dominant sign. This is the sign of the official code and the only
    reading that fits the paper's text; literal readings of its XOR do not.

    Args:
      params: float32 parameters.
      delta: [O] float32 by path of a kernel [..., O], the change of its thresholds.
      divisor: n: the 'inputs' of a filter, or the area of a convolution's 'kernel'.

    Returns:
      Parameters like `params`.

    Example:
      >>> w = {'w': jnp.array([[0.5], [-0.25]])}
      >>> move_by_importance(w, {'w': jnp.array([0.5])})['w'].ravel().tolist()
      [0.25, -0.5]
    """

    def move(path, kernel):
        if path not in delta:
            return kernel
        axes = tuple(range(kernel.ndim - 1))
        by_area = divisor == "kernel" and kernel.ndim == 4
        n = math.prod(kernel.shape[:2] if by_area else kernel.shape[:-1])
        step = delta[path] * jnp.sign(jnp.sum(kernel, axes)) / n
        return kernel - along_outputs(step, kernel)

    return trees.map_by_path(move, params)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def unit_step(d: Array, estimator: str = "identity") -> Array:
    """Returns 1 where d > 0, else 0; an estimator defines the gradient.

    Args:
      d: any float array.
      estimator: where the gradient passes the step: 'identity' for everywhere, 'window'
        for where |d| > 1, as in SpaFL's official CIFAR code.

    Returns:
      An array of the shape and dtype of `d`.

    Example:
      >>> unit_step(jnp.array([-0.5, 0.0, 0.5])).tolist()
      [0.0, 0.0, 1.0]
      >>> jax.grad(unit_step)(jnp.float32(-0.5)).item()
      1.0
    """
    return (d > 0).astype(d.dtype)


def _step_backward(estimator, d, g):
    return (g if estimator == "identity" else jnp.where(jnp.abs(d) > 1, g, 0.0),)


unit_step.defvjp(lambda d, estimator: (unit_step(d, estimator), d), _step_backward)


def importance(kernel: Array) -> Array:
    """Returns the mean |w| of every filter; the slope of |w| at 0 is 0.

    Args:
      kernel: float32 [..., O].

    Returns:
      float32 [O].

    Example:
      >>> importance(jnp.array([[1.0, 0.0], [-3.0, 0.0]])).tolist()
      [2.0, 0.0]
    """
    # The derivative of `jnp.abs` at 0 is 1.
    size = kernel * jax.lax.stop_gradient(jnp.sign(kernel))
    return jnp.mean(size, tuple(range(kernel.ndim - 1)))


def along_outputs(values: Array, kernel: Array) -> Array:
    """Gives values the axes of a kernel.

    Args:
      values: [O].
      kernel: [..., O].

    Returns:
      [1, ..., 1, O].

    Example:
      >>> along_outputs(jnp.ones(2), jnp.ones((5, 3, 2))).shape
      (1, 1, 2)
    """
    return jnp.expand_dims(values, tuple(range(kernel.ndim - 1)))


def is_dead(kernel: Array, threshold: Array) -> Array:
    """Returns whether at most 1 % of a layer's filters are alive.

    It counts in integers: a mean in float32 puts 5 of 500 above 0.01.

    Args:
      kernel: float32 [..., O].
      threshold: float32 [O].

    Returns:
      shape=(), bool.

    Example:
      >>> is_dead(jnp.ones((3, 2)), jnp.array([2.0, 3.0])).item()
      True
    """
    alive = jnp.sum(importance(kernel) > threshold, dtype=jnp.int32)
    return 100 * alive <= DEAD * threshold.size


def revive(params: PyTree, thresholds: dict[str, Array]) -> dict[str, Array]:
    """Sets the thresholds of dead layers to 0; the gradient passes.

    Args:
      params: the parameters.
      thresholds: [O] by the path of a kernel [..., O].

    Returns:
      Thresholds by path.

    Example:
      >>> revive({'w': jnp.ones((3, 2))}, {'w': jnp.array([2.0, 3.0])})['w'].tolist()
      [0.0, 0.0]
    """

    def revive(kernel, threshold):
        cut = jnp.where(is_dead(kernel, threshold), threshold, 0.0)
        return threshold - jax.lax.stop_gradient(cut)

    leaves = trees.by_path(params)
    return {path: revive(leaves[path], t) for path, t in thresholds.items()}


def prune(
    params: PyTree, thresholds: dict[str, Array], estimator: str = "identity"
) -> PyTree:
    """Sets pruned filters to 0, differentiably in parameters and thresholds.

    Let g be the gradient of a layer's result and n the inputs of a filter. With the
    estimator 'identity' the gradients are

        threshold_i: -sum_j g_ij w_ij
        w_ij:        p_i g_ij + sign(w_ij) / n sum_j' g_ij' w_ij'

    Args:
      params: the parameters.
      thresholds: [O] by the path of a kernel [..., O].
      estimator: as in `unit_step`.

    Returns:
      A tree like `params`.

    Example:
      >>> pruned = prune({'w': jnp.array([[1.0, 3.0]])}, {'w': jnp.array([2.0, 2.0])})
      >>> pruned['w'].tolist()
      [[0.0, 3.0]]
    """

    def prune_leaf(path, kernel):
        if path not in thresholds:
            return kernel
        alive: Any = unit_step(importance(kernel) - thresholds[path], estimator)
        return kernel * along_outputs(alive, kernel)

    return trees.map_by_path(prune_leaf, params)


def filter_masks(params: PyTree, thresholds: dict[str, Array]) -> PyTree:
    """Returns the mask that thresholds define, after reviving dead layers.

    Args:
      params: the parameters.
      thresholds: [O] by the path of a kernel [..., O].

    Returns:
      A bool tree like `params`, True on leaves without thresholds.

    Example:
      >>> params = {'b': jnp.ones(2), 'w': jnp.array([[1.0, 3.0]])}
      >>> filter_masks(params, {'w': jnp.array([2.0, 2.0])})['w'].tolist()
      [[False, True]]
    """
    thresholds = revive(params, thresholds)

    def mask_of(path, leaf):
        if path not in thresholds:
            return jnp.ones(leaf.shape, bool)
        alive = importance(leaf) > thresholds[path]
        return jnp.broadcast_to(along_outputs(alive, leaf), leaf.shape)

    return trees.map_by_path(mask_of, params)


def zero_thresholds(params: PyTree, select: PyTree) -> dict[str, Array]:
    """Returns a threshold of 0 for every filter of the selected kernels.

    Args:
      params: a tree of arrays or shapes.
      select: tree of Python bools.

    Returns:
      float32 [O] by the path of a kernel [..., O].

    Example:
      >>> zero_thresholds({'w': jnp.ones((3, 2))}, {'w': True})['w'].tolist()
      [0.0, 0.0]
    """
    chosen = zip(trees.layer_paths(select), trees.layers(params, select), strict=True)
    return {path: jnp.zeros(kernel.shape[-1:], jnp.float32) for path, kernel in chosen}
