"""Networks of which a part is held: constants, and small trained adapters beside them.

An adapter of rank r adds s (x A) B to the output x W + b of a dense layer. B starts at
0, so that the network starts as the one without adapters.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
https://arxiv.org/abs/2106.09685.
"""

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from sparsefl_jax.core.check import UserError, check, integer
from sparsefl_jax.core.types import Frozen, PyTree
from sparsefl_jax.models import saved_inputs
from sparsefl_jax.models.layers import torch_uniform

TARGETS, WHOLE = ("*query/kernel", "*value/kernel"), ("pooler/*", "score/*")
Leaves = dict[str, Any]  # of a tree, by path


class Base(NamedTuple):
    """Given weights under adapters, which a run's settings describe by a checksum."""

    params: PyTree


def with_adapters(
    model: Any,  # a `Model`
    rank: int,
    alpha: float | None = None,
    *,
    targets: Sequence[str] = TARGETS,
    whole: Sequence[str] = WHOLE,
    freeze: Sequence[str] = (),
    dropout: float = 0.0,
    seed: int = 0,
    base: PyTree | None = None,
    charge_base: bool = False,
) -> Any:
    """Returns the network frozen, with trained low-rank adapters beside its layers.

    LoRA (Hu et al., ICLR 2022, https://arxiv.org/abs/2106.09685): a dense layer
    x W + b becomes x W + b + s (x A) B, where A [i, r] is drawn uniformly from (-1, 1)
    over the square root of i, B [r, o] starts at 0, and s = alpha / r. The parameters
    are `lora_a/kernel` and `lora_b/kernel` beside each targeted kernel, and the leaves
    of `whole`. All others are constants, which are neither trained nor sent; their
    forward pass and their input gradients count in the FLOPs.

    The mean of adapters is not the adapter of the mean network, unless A is frozen.

    Args:
      rank: r, at least 1.
      alpha: above 0; None: the rank, so that s = 1.
      targets: globs of the kernels [i, o] of linen's `Dense` that get adapters.
      whole: globs of the leaves that are trained themselves, such as a classifier.
      freeze: globs of trained leaves that are constants too; `("*lora_a*",)` is
        FFA-LoRA (Sun et al., ICLR 2024).
      dropout: share of an adapter's inputs that are dropped in training.
      seed: of the constants, unless they are given or come from a folder.
      base: the network's weights, a tree like its parameters; None: as it draws them.
        The leaves of `whole` start as the network draws them in either case.
      charge_base: charge 32 bits for each constant in a client's first round of a
        stage. By default clients are assumed to hold them, which plan, records and
        reports repeat. If they follow from a seed, it is charged.

    Returns:
      A `Model`. Its `merged` returns the parameters of the network without adapters.

    Raises:
      ValueError: a number is out of range, a glob matches no leaf, a target is no
        kernel [i, o], `base` has other shapes, nothing is left to train, or the network
        has adapters; by `apply`, a target is not in a layer of linen's `Dense`.

    Example:
      >>> from sparsefl_jax import Model
      >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
      >>> model = Model.from_flax(nn.Dense(4), example)
      >>> small = model.with_adapters(2, targets=("kernel",), whole=("bias",))
      >>> small.macs["lora_a"], small.macs["lora_b"], small.frozen.macs
      ({'kernel': 6}, {'kernel': 8}, 12)
      >>> params, stats = small.init(jax.random.key(0))
      >>> small.merged(params)["kernel"].shape
      (3, 4)
    """
    arguments = {k: v for k, v in locals().items() if k not in ("model", "base")}
    arguments["base"] = None if base is None else Base(base)
    check("rank", rank, integer(1))
    alpha = rank if alpha is None else alpha
    check("alpha", alpha, "(0, inf)")
    scale = alpha / rank
    check("dropout", dropout, "[0, 1)")
    refuse(model, "they can be added only once")
    shapes = _flat(model.shapes()[0])
    kept = _match("whole", whole, shapes)
    factors = {path: _factors(path) for path in _match("targets", targets, shapes)}
    for path in factors:
        shape = shapes[path].shape
        if path in kept or not path.endswith("kernel") or len(shape) != 2:
            found = "trained whole" if path in kept else f"of shape {shape}"
            raise UserError(f"targets: {path!r} is {found}, expected a kernel [i, o]")
    larger = _insert(model, factors, shapes, rank, scale, dropout)
    trained = [p for p in _flat(larger.macs) if p in kept or p not in shapes]
    frozen = _match("freeze", freeze, trained)
    if trained == frozen:
        raise UserError(f"freeze={tuple(freeze)}, expected globs that leave a leaf")
    constants = _flat(jax.device_get(larger.init(jax.random.key(seed))[0]))
    if base is not None:
        constants |= _read_base(base, shapes)
    for path in set(trained) - set(frozen):
        del constants[path]

    def merged(params):
        leaves = constants | _flat(params)
        for path, (a, b) in factors.items():
            leaves[path] = leaves[path] + scale * (leaves.pop(a) @ leaves.pop(b))
        return unflatten_dict(leaves, sep="/")

    source = model.frozen.source if base is None else "the given network"
    frozen = freeze_weights(larger, constants, source, charge_base)
    settings = model.settings | {"adapter": arguments}
    return frozen._replace(merged=merged, name=model.name, settings=settings)


def freeze_weights(
    model: Any, constants: Leaves, source: str, charged: bool = False
) -> Any:
    """Returns the `Model` of which some parameters are constants instead.

    Args:
      model: the network.
      constants: float32, by the path of the parameter.
      source: where clients have them from, see `types.Frozen`.
      charged: whether they are charged.
    """

    def without(tree):
        left = {p: v for p, v in _flat(tree).items() if p not in constants}
        return unflatten_dict(left, sep="/")

    def init(key):
        params, stats = model.init(key)
        return without(params), stats

    once = {path: jnp.asarray(v) for path, v in constants.items()}  # not in each trace

    def apply(params, *args, **options):
        dtype = jax.tree.leaves(params)[0].dtype  # that of `Model.with_dtype`
        frozen = {path: v.astype(dtype) for path, v in once.items()}
        whole = unflatten_dict(frozen | _flat(params), sep="/")
        return model.apply(whole, *args, **options)

    entries = model.frozen.entries + sum(np.size(v) for v in constants.values())
    macs = model.frozen.macs + sum(_flat(model.macs)[path] for path in constants)
    frozen = Frozen(entries, macs, source, charged)
    return model._replace(
        init=init, apply=apply, macs=without(model.macs), frozen=frozen
    )


def refuse(model: Any, why: str) -> None:
    """Refuses a network with adapters.

    Raises:
      ValueError: it has adapters; the message says `why` they cannot be trained.
    """
    if model.merged is not None:
        raise UserError(f"model has adapters, expected none: {why}")


def _insert(model, factors, shapes: Leaves, rank: int, scale, dropout) -> Any:
    """Returns the network with adapters, all of whose parameters are trained."""
    macs = dict(_flat(model.macs))
    for path, (a, b) in factors.items():
        i, o = shapes[path].shape
        macs |= {a: macs[path] * rank // o, b: macs[path] * rank // i}

    def init(key):
        params, stats = model.init(key)
        leaves, keys = _flat(params), jax.random.split(key, len(factors) + 1)[1:]
        for key, (path, (a, b)) in zip(keys, factors.items(), strict=True):
            i, o = shapes[path].shape
            leaves[a] = torch_uniform(key, (i, rank), jnp.float32)
            leaves[b] = jnp.zeros((rank, o), jnp.float32)
        return unflatten_dict(leaves, sep="/"), stats

    def apply(params, stats, x, *, train, weight=None, key=None):
        leaves, unseen, drop_keys = _flat(params), set(factors), {}
        adapters = {
            p: [(f, leaves.pop(f)) for f in pair] for p, pair in factors.items()
        }
        if dropout and train and key is not None:
            key, *keys = jax.random.split(key, len(factors) + 1)
            drop_keys = dict(zip(factors, keys, strict=True))

        def intercepted(call, args, kwargs, context):
            y, module = call(*args, **kwargs), context.module
            path = "/".join((*module.path, "kernel"))
            dense = isinstance(module, nn.Dense) and context.method_name == "__call__"
            if path not in factors or not dense:
                return y
            unseen.discard(path)
            x = (args[0] if args else kwargs["inputs"]).astype(y.dtype)
            if path in drop_keys:
                left = jax.random.bernoulli(drop_keys[path], 1 - dropout, x.shape)
                x = jnp.where(left, x / (1 - dropout), jnp.zeros_like(x))
            for name, kernel in adapters[path]:
                given = {"kernel": kernel.astype(y.dtype)}
                x = saved_inputs.affine(name, lambda p, x: x @ p["kernel"], given, x)
            return y + scale * x

        options = {"train": train, "weight": weight, "key": key}
        with nn.intercept_methods(intercepted):
            out = model.apply(unflatten_dict(leaves, sep="/"), stats, x, **options)
        if unseen:
            layers = ", ".join(sorted(unseen))
            raise UserError(f"targets: {layers}, expected kernels of linen's Dense")
        return out

    macs = unflatten_dict(macs, sep="/")
    return model._replace(init=init, apply=apply, macs=macs)


def _factors(path: str) -> tuple[str, str]:
    """Returns the paths of A and B beside a kernel."""
    layer = path.removesuffix("kernel")
    return f"{layer}lora_a/kernel", f"{layer}lora_b/kernel"


def _flat(tree: PyTree) -> Leaves:
    """Returns the leaves of nested dicts by path."""
    return dict(flatten_dict(tree, sep="/"))


def _match(name: str, patterns: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Returns the paths that match one of the patterns."""
    for pattern in patterns:
        if not fnmatch.filter(paths, pattern):
            known = f"one that matches {', '.join(paths)}"
            raise UserError(f"{name}: {pattern!r} matches no leaf, expected {known}")
    return [
        path for path in paths if any(fnmatch.fnmatchcase(path, p) for p in patterns)
    ]


def _read_base(base: PyTree, shapes: Leaves) -> Leaves:
    """Returns the weights of a base by path, after checking their shapes."""
    weights = {p: np.asarray(v, np.float32) for p, v in _flat(base).items()}
    for path in weights.keys() | shapes.keys():
        found, want = (getattr(t.get(path), "shape", None) for t in (weights, shapes))
        if found != want:
            raise UserError(f"base: {path!r} has shape {found}, expected {want}")
    return weights
