"""Convolutions of any kernel, stride, dilation and number of groups, by shifted views.

One view of the images for each place of the kernel: with one input channel in a group,
as in a depthwise convolution, the views are multiplied and added; otherwise they stand
side by side and one matmul for each group sums them.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from sparsefl_jax.core.types import Array


def convolve(
    x: Array,
    kernel: Array,
    out: Sequence[int],
    groups: int,
    strides: Sequence[int],
    dilation: Sequence[int],
) -> Array:
    """Convolves padded images x [B, H, W, G I] with a kernel [k, l, I, G O].

    Args:
      x: the images, with their borders.
      kernel: of x's dtype.
      out: the shape [B, h, w, G O] of the result.
      groups: G.
      strides: steps between windows.
      dilation: steps between the places of a window.

    Example:
      >>> x, kernel = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 1, 2))
      >>> convolve(x, kernel, (1, 2, 2, 2), 2, (1, 1), (1, 1))[0, 0, 0].tolist()
      [9.0, 9.0]
    """
    size, inputs = kernel.shape[:2], kernel.shape[2]
    places = views(x, size, out[1:3], strides, dilation)
    kernels = kernel.reshape(-1, inputs, groups, kernel.shape[3] // groups)
    if inputs == 1:
        pairs = zip(places, kernels[:, None, None], strict=True)
        y = sum(v[..., None] * k for v, k in pairs)
    else:
        columns = jnp.stack(places, 3)
        columns = columns.reshape(*columns.shape[:4], groups, inputs)
        y = jnp.einsum("bhwkgi,kigo->bhwgo", columns, kernels)
    return y.reshape(out)


def weight_grad(
    x: Array,
    g: Array,
    out: Sequence[int],
    groups: int,
    dilation: Sequence[int],
    strides: Sequence[int],
) -> Array:
    """Returns the gradient [k, l, I, G O] of `convolve` by the kernel from g.

    Args:
      x: as in `convolve`.
      g: [B, h, w, G O], the gradient of the result.
      out: the shape of the kernel.
      groups, dilation, strides: of the convolution.

    Example:
      >>> x, g = jnp.ones((1, 4, 4, 2)), jnp.ones((1, 2, 2, 2))
      >>> weight_grad(x, g, (3, 3, 1, 2), 2, (1, 1), (1, 1))[0, 0].tolist()
      [[4.0, 4.0]]
    """
    places = views(x, out[:2], g.shape[1:3], strides, dilation)
    if out[2] == 1:
        # Rows first, which XLA:CPU sums much faster than three leading axes at once.
        each = (jnp.repeat(v, out[3] // groups, axis=3) * g for v in places)
        dw = jnp.stack([v.sum(1).sum((0, 1)) for v in each])
    else:
        g = g.reshape(*g.shape[:3], groups, -1)
        columns = jnp.stack(places, 3)
        columns = columns.reshape(*columns.shape[:4], groups, out[2])
        dw = jnp.einsum("bhwkgi,bhwgo->kigo", columns, g)
    return dw.reshape(out)


def views(
    x: Array,
    size: Sequence[int],
    out: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> list[Array]:
    """Returns the entries [B, h, w, C] of x at each place of its windows.

    Args:
      x: [B, H, W, C], with its borders.
      size: the places of a window along each axis.
      out: h and w, the windows along each axis.
      strides: steps between windows.
      dilation: steps between the places of a window.

    Example:
      >>> x = jnp.arange(4).reshape(1, 2, 2, 1)
      >>> [v.item() for v in views(x, (2, 2), (1, 1), (2, 2))]
      [0, 1, 2, 3]
    """
    reach = [s * (n - 1) + 1 for s, n in zip(strides, out, strict=True)]
    rows, columns = (
        [slice(i * d, i * d + r, s) for i in range(n)]
        for n, d, r, s in zip(size, dilation, reach, strides, strict=True)
    )
    return [x[:, i, j] for i in rows for j in columns]
