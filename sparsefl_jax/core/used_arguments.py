"""Tells which of its arguments a traced function reads."""

import jax

from sparsefl_jax.core.types import PyTree


def reads(traced: jax.extend.core.ClosedJaxpr, arguments: PyTree) -> PyTree:
    """Returns a tree of bools: whether a result or a step depends on an argument.

    Args:
      traced: the function, as `jax.make_jaxpr` returns it.
      arguments: all of its arguments, arrays or shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> arguments = (1.0, {'a': 2.0, 'b': 3.0})
      >>> traced = jax.make_jaxpr(lambda x, y: x + jnp.sin(y['b']))(*arguments)
      >>> reads(traced, arguments)
      (True, {'a': False, 'b': True})
    """
    jaxpr = traced.jaxpr
    used = {id(v) for v in jaxpr.outvars}
    used |= {id(v) for eqn in jaxpr.eqns for v in eqn.invars}
    told = [id(v) in used for v in jaxpr.invars]
    return jax.tree.unflatten(jax.tree.structure(arguments), told)
