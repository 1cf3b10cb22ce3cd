"""One bit an entry: an update as one of two multiples of what both ends know.

An entry u becomes b z. The level b is 1 or `lowest`, which is 0 for binary masks and -1
for signed ones; z is noise that follows from a seed, or a step size. With q = u / z,
b is 1 with probability (q - lowest) / (1 - lowest), cut to [0, 1], so that the mean of
b z is u wherever q lies in [lowest, 1].

Sources: Li et al., "Masked Random Noise for Communication-Efficient Federated
Learning" (FedMRN), ACM MM 2024, https://arxiv.org/abs/2408.03220; Li et al., "FedBAT",
ICML 2024, https://arxiv.org/abs/2408.03215.
"""

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.types import Array, Key, PyTree

LOWEST = {"binary": 0.0, "signed": -1.0}  # the lower of a mask's two levels
NOISES = {
    "uniform": lambda key, shape: jax.random.uniform(key, shape, minval=-1.0),
    "gaussian": jax.random.normal,
    "bernoulli": lambda key, shape: jax.random.rademacher(key, shape, jnp.float32),
}
LEAST = 1e-8  # of the size of noise, by which an update is divided


def noise(seed: Array, tree: PyTree, kind: str, magnitude: float) -> PyTree:
    """Draws the noise that follows from a seed, by the place of a leaf in the tree.

    Args:
      seed: shape=(), uint32.
      tree: arrays or shapes; a None leaf has no noise.
      kind: 'uniform' in [-1, 1), 'gaussian' or 'bernoulli', which is -1 or 1.
      magnitude: the factor of the noise.

    Returns:
      A float32 tree; what is smaller than 1e-8 in size becomes 1e-8.

    Example:
      >>> z = noise(jnp.uint32(7), {'w': jnp.zeros(3)}, 'bernoulli', 0.5)
      >>> jnp.abs(z['w']).tolist()
      [0.5, 0.5, 0.5]
    """
    leaves, treedef = jax.tree.flatten(tree)
    key, least, drawn = jax.random.key(seed), jnp.float32(LEAST), []
    for place, leaf in enumerate(leaves):
        z = NOISES[kind](jax.random.fold_in(key, place), leaf.shape)
        z = jnp.float32(magnitude) * z
        drawn.append(jnp.where(jnp.abs(z) < least, least, z))
    return jax.tree.unflatten(treedef, drawn)


def uniforms(key: Key, tree: PyTree) -> PyTree:
    """Draws a number in [0, 1) for every entry of a float32 tree."""
    return optax.tree.random_like(key, tree, jax.random.uniform)


def bits(uniform: Array, q: Array, lowest: float) -> Array:
    """Returns 1 where the level is 1, 0 where it is the lowest.

    Args:
      uniform: float32 in [0, 1).
      q: float32, the update over what it becomes a multiple of.
      lowest: the lower level.

    Returns:
      uint8, the common shape.

    Example:
      >>> bits(jnp.float32(0.6), jnp.array([0.3, 0.5, 2.0]), 0.0).tolist()
      [0, 1, 1]
      >>> bits(jnp.float32(0.6), jnp.array([-0.3, -0.1, -2.0]), -1.0).tolist()
      [0, 1, 0]
    """
    probability = jnp.clip((q - lowest) / (1 - lowest), 0, 1)
    return (uniform >= 1 - probability).astype(jnp.uint8)


def levels(bit: Array, lowest: float) -> Array:
    """Returns the level that a bit stands for, float32.

    Example:
      >>> levels(jnp.array([0, 1], jnp.uint8), -1.0).tolist()
      [-1.0, 1.0]
    """
    return jnp.where(bit > 0, jnp.float32(1), jnp.float32(lowest))


@jax.custom_vjp
def pass_to(u: Array, value: Array) -> Array:
    """Returns the value; the gradient passes to `u` as if that had been returned.

    Example:
      >>> of_u, of_value = jax.grad(pass_to, (0, 1))(2.0, 5.0)
      >>> float(pass_to(2.0, 5.0)), of_u.item(), of_value.item()
      (5.0, 1.0, 0.0)
    """
    return value


pass_to.defvjp(lambda u, value: (value, None), lambda _, g: (g, None))


@jax.custom_vjp
def signs(u: Array, alpha: Array, uniform: Array) -> Array:
    """Returns s alpha, where s is a sign: 1 with probability (u / alpha + 1) / 2.

    With the gradient g of the result, that of u is g where |u / alpha| <= 1 and 0
    elsewhere, and that of alpha is the sum of g (s - u / alpha) over the former entries
    and of g sign(u) over the latter.

    Args:
      u: float32.
      alpha: shape=(), float32, above 0.
      uniform: float32 in [0, 1), the shape of `u`; has no gradient.

    Returns:
      float32, the shape of `u`.

    Example:
      >>> u, uniform = jnp.array([0.5, 4.0]), jnp.array([0.1, 0.1])
      >>> signs(u, jnp.float32(2.0), uniform).tolist()
      [-2.0, 2.0]
      >>> total = lambda u, alpha: jnp.sum(signs(u, alpha, uniform))
      >>> slope, step = jax.grad(total, (0, 1))(u, jnp.float32(2.0))
      >>> slope.tolist(), step.item()  # -1 - 0.25 + 1
      ([1.0, 0.0], -0.25)
    """
    return levels(bits(uniform, u / alpha, -1.0), -1.0) * alpha


def _signed_forward(u, alpha, uniform):
    value = signs(u, alpha, uniform)
    return value, (u / alpha, jnp.sign(value))


def _signed_backward(residual, g):
    q, sign = residual
    inside = jnp.abs(q) <= 1
    slope = jnp.where(inside, sign - q, jnp.sign(q))
    return jnp.where(inside, g, jnp.zeros_like(g)), jnp.sum(g * slope), None


signs.defvjp(_signed_forward, _signed_backward)
