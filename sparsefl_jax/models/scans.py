"""Reads the equation of a `lax.scan` in a traced program."""


def carry(eqn) -> slice:
    """Returns which of a scan's inputs are its carry: constants before it, xs after it.

    Only xs and ys have an axis more outside than inside. The parameters that count
    constants and carry differ between versions of JAX.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def weighted(c, xs):
      ...     return jax.lax.scan(lambda total, x: (total + c * x, x), 0.0, xs)
      >>> carry(jax.make_jaxpr(weighted)(2.0, jnp.ones(3)).eqns[-1])
      slice(1, 2, None)
    """
    body = eqn.params["jaxpr"]
    last = _alike(eqn.invars, body.in_avals)
    return slice(last - _alike(eqn.outvars, body.out_avals), last)


def _alike(outside, inside) -> int:
    """Counts the values with as many axes outside as inside."""
    pairs = zip(outside, inside, strict=True)
    return sum(v.aval.ndim == aval.ndim for v, aval in pairs)
