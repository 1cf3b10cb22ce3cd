"""Finds which of its arguments a traced function reads."""

import jax

from sparsefl_jax.core.types import PyTree


def reads(
    traced: jax.extend.core.ClosedJaxpr, arguments: PyTree, *, steps: bool = True
) -> PyTree:
    """Returns a tree of bools: whether a result or a step depends on an argument.

    Args:
      traced: the function, as `jax.make_jaxpr` returns it.
      arguments: all of its arguments, arrays or shapes.
      steps: whether to count steps on which no result depends.

    Example:
      >>> import jax.numpy as jnp
      >>> arguments = (1.0, {'a': 2.0, 'b': 3.0})
      >>> traced = jax.make_jaxpr(lambda x, y: x + jnp.sin(y['b']))(*arguments)
      >>> reads(traced, arguments)
      (True, {'a': False, 'b': True})
      >>> traced = jax.make_jaxpr(lambda x, y: (x + 1, jnp.sin(y))[0])(1.0, 2.0)
      >>> reads(traced, (1.0, 2.0)), reads(traced, (1.0, 2.0), steps=False)
      ((True, True), (True, False))
    """
    jaxpr = traced.jaxpr
    used = {id(v) for v in jaxpr.outvars}
    for eqn in reversed(jaxpr.eqns):
        if steps or any(id(v) in used for v in eqn.outvars):
            used |= {id(v) for v in eqn.invars}
    read = [id(v) in used for v in jaxpr.invars]
    return jax.tree.unflatten(jax.tree.structure(arguments), read)
