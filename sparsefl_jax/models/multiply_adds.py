"""Counts the multiply-adds of each parameter, from a network's traced program.

A product of a parameter and what depends on the sample counts for the parameter, in
every iteration of a scan; so does one of parameters and constants alone, as if each
sample needed it. Products of activations (attention scores), look-ups in a table
(embeddings), elementwise factors (normalisation) and biases count for none.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import jax
from jax.extend import core

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import PyTree

# Where a value comes from: the parameters that it is made of alone, by their number, or
# None if it depends on the sample too.
Origin = frozenset[int] | None
# The origins of a program's outputs; of each product its parameters and multiply-adds.
Walked = tuple[list[Origin], list[tuple[frozenset[int], int]]]


def count(forward: Callable, params: PyTree, sample: PyTree) -> PyTree:
    """Counts the multiply-adds of each leaf in the forward pass of one sample.

    Args:
      forward: `(params, sample) -> logits`.
      params: arrays or shapes.
      sample: a batch of one sample, [1, ...], or its shape and dtype.

    Returns:
      A tree of ints like params.

    Raises:
      ValueError: a branch or a loop of unknown length takes a parameter.

    Example:
      >>> forward = lambda w, x: jax.nn.relu(x @ w["kernel"]) + w["bias"][None]
      >>> params = {"bias": jax.numpy.ones(4), "kernel": jax.numpy.ones((3, 4))}
      >>> count(forward, params, jax.numpy.ones((1, 3)))
      {'bias': 0, 'kernel': 12}
    """
    leaves, treedef = jax.tree.flatten(params)
    closed = jax.make_jaxpr(forward)(params, sample)
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    counts = [Fraction(0)] * len(leaves)
    others = len(closed.jaxpr.invars) - len(leaves)
    inputs = [frozenset([i]) for i in range(len(leaves))] + [None] * others
    for origin, products in _walk(closed.jaxpr, inputs)[1]:
        total = sum(sizes[i] for i in origin)
        for i in origin:
            counts[i] += Fraction(products * sizes[i], total)
    return jax.tree.unflatten(treedef, [round(c) for c in counts])


def _walk(jaxpr: core.Jaxpr, inputs: list[Origin]) -> Walked:
    """Returns where a program's outputs come from, and its products of parameters."""
    known, found = dict(zip(jaxpr.invars, inputs, strict=True)), []

    def read(v):
        return frozenset() if isinstance(v, core.Literal) else known.get(v, frozenset())

    for eqn in jaxpr.eqns:
        origins = [read(v) for v in eqn.invars]
        name = eqn.primitive.name
        if name in _PRODUCTS and (used := _join([o for o in origins if o])):
            found.append((used, _PRODUCTS[name](eqn)))
        outputs, more = [_join(origins)] * len(eqn.outvars), []
        if name in _CONTROL:
            outputs, more = _CONTROL[name](eqn, origins)
        elif inner := _inner(eqn):
            outputs, more = _walk(inner, origins)
        known |= dict(zip(eqn.outvars, outputs, strict=True))
        found += more
    return [read(v) for v in jaxpr.outvars], found


def _join(origins) -> Origin:
    """Returns the origin of what is made of several values."""
    return None if None in origins else frozenset().union(*origins)


def _inner(eqn) -> core.Jaxpr | None:
    """Returns the program that an equation calls with its own inputs, if any."""
    for inner in core.jaxprs_in_params(eqn.params):
        same = len(inner.invars) == len(eqn.invars)
        if same and len(inner.outvars) == len(eqn.outvars):
            return inner
    return None


def _of_dot(eqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return eqn.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)


def _of_conv(eqn) -> int:
    kernel = eqn.invars[1].aval
    features = kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
    return eqn.outvars[0].aval.size * (kernel.size // features)


_PRODUCTS = {"dot_general": _of_dot, "conv_general_dilated": _of_conv}


def _scan(eqn, origins) -> Walked:
    body, length = eqn.params["jaxpr"].jaxpr, eqn.params["length"]
    outputs, found = _walk(body, _settle(body, origins, _carry(eqn, body)))
    return outputs, [(origin, length * products) for origin, products in found]


def _carry(eqn, body) -> range:
    """Returns which inputs are the carry: constants before it, xs after it.

    Only xs and ys have an axis more outside than inside. The parameters that count
    constants and carry differ between versions of JAX.
    """

    def alike(outside, inside):
        pairs = zip(outside, inside, strict=True)
        return sum(v.aval.ndim == w.aval.ndim for v, w in pairs)

    end = alike(eqn.invars, body.invars)
    return range(end - alike(eqn.outvars, body.outvars), end)


def _unknown(eqn, origins) -> Walked:
    """Refuses products whose number depends on the sample."""
    if any(origins):
        what = f"{eqn.primitive.name} over parameters"
        raise UserError(f"{what}, expected no branch, and loops of known length")
    return [_join(origins)] * len(eqn.outvars), []


_CONTROL = {"scan": _scan, "while": _unknown, "cond": _unknown}


def _settle(body, origins, carried: range) -> list[Origin]:
    """Returns the origins of a loop's inputs after any number of iterations."""
    while True:
        outputs, _ = _walk(body, origins)
        new = list(origins)
        for i, output in zip(carried, outputs, strict=False):
            new[i] = _join([origins[i], output])
        if new == origins:
            return origins
        origins = new
