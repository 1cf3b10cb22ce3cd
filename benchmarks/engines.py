"""Runs sparse networks with the available sparse kernels, and with dense ones.

Every engine maps NumPy samples to NumPy logits. One is `model.apply` as compiled by
XLA. The others share a plain forward pass with the products of NumPy, SciPy's CSR (one
thread), or jax.experimental.sparse (BCSR and BCOO). A convolution is a product with
patches.
"""

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse as jax_sparse
from scipy import sparse as scipy_sparse

from sparsefl_jax import models
from sparsefl_jax.core.types import SparseModel

_LIMIT = 2**28  # bytes for the products of BCOO, which holds each of them


class Network(NamedTuple):
    """A network to measure, and the steps of its forward pass."""

    shape: tuple[int, int, int]
    batch: int  # for throughput
    steps: tuple[str, ...]  # leaves of `params` by layer; 'relu', 'pool'
    pad: int = 0
    epsilon: float = 1e-5  # the constant of normalisation


NETWORKS = {
    "mlp": Network((28, 28, 1), 256, ("fc1", "relu", "fc2", "relu", "fc3")),
    "fedsparsify_cnn": Network(
        (32, 32, 3),
        32,
        (
            *("conv1", "relu", "conv2", "relu", "pool", "bn2"),
            *("conv3", "relu", "conv4", "relu", "pool", "bn4"),
            *("conv5", "relu", "conv6", "relu", "pool", "fc1", "relu", "fc2"),
        ),
        pad=1,
        epsilon=1e-3,
    ),
    "small_cnn": Network(
        (32, 32, 3),
        32,
        (
            *("conv1", "relu", "pool", "conv2", "relu", "pool"),
            *("conv3", "relu", "pool", "fc1", "relu", "fc2"),
        ),
        pad=1,
    ),
}


class Case(NamedTuple):
    """A model to measure."""

    name: str  # of `NETWORKS`
    network: dict  # the arguments of `build_model`
    sparse: SparseModel  # NumPy leaves


class Layer(NamedTuple):
    """A layer of the plain forward pass."""

    matrix: (
        Any  # [outputs, size * size * inputs], dense or sparse; of bn [C, 1] factors
    )
    bias: Any  # [outputs, 1]


def layers(case: Case, make: Callable) -> dict[str, Layer]:
    """Returns the layers by name; `make` turns a NumPy matrix into an engine's."""
    found, (params, _, stats) = {}, case.sparse
    for name, leaves in params.items():
        if "kernel" in leaves:
            kernel = leaves["kernel"]
            matrix = make(np.ascontiguousarray(kernel.reshape(-1, kernel.shape[-1]).T))
            found[name] = Layer(matrix, leaves["bias"][:, None])
        else:
            spread = np.sqrt(stats[name]["var"] + NETWORKS[case.name].epsilon)
            factor = (leaves["scale"] / spread).astype(np.float32)
            bias = leaves["bias"] - stats[name]["mean"] * factor
            found[name] = Layer(factor[:, None], bias[:, None])
    return found


def forward(network: Network, weights: dict[str, Layer], x, xp):
    """Returns logits [B, C] of samples [B, H, W, C], in NumPy or jax.numpy.

    Activations are [C, H, W, B], so that a kernel is the left factor of a dense matrix
    with contiguous rows, the fastest layout for CSR.
    """
    x = xp.transpose(x, (3, 1, 2, 0))
    for step in network.steps:
        layer = weights.get(step)
        if step == "relu":
            x = xp.maximum(x, 0)
        elif step == "pool":
            h, w = (2 * (side // 2) for side in x.shape[1:3])
            x = xp.maximum(x[:, :h:2, :w], x[:, 1:h:2, :w])
            x = xp.maximum(x[:, :, ::2], x[:, :, 1::2])
        elif step.startswith("conv"):
            columns, (h, w) = patches(x, layer.matrix.shape[1], network.pad, xp)
            x = layer.matrix @ columns + layer.bias
            x = x.reshape(-1, h, w, columns.shape[1] // (h * w))
        elif step.startswith("bn"):
            x = x * layer.matrix[..., None, None] + layer.bias[..., None, None]
        else:
            if x.ndim == 4:  # the kernel's rows are ordered by H, W, C
                x = xp.transpose(x, (1, 2, 0, 3)).reshape(-1, x.shape[-1])
            x = layer.matrix @ x + layer.bias
    return x.T


def patches(x, rows: int, pad: int, xp):
    """Returns patches [size * size * C, h * w * B] of x [C, H, W, B], and (h, w)."""
    size = round((rows // x.shape[0]) ** 0.5)
    x = xp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    h, w = (side - size + 1 for side in x.shape[1:3])
    views = [x[:, i : i + h, j : j + w] for i in range(size) for j in range(size)]
    return xp.stack(views).reshape(rows, -1), (h, w)


def dense_xla(case: Case) -> Callable:
    """Runs the package's own network, which multiplies the zeros."""
    apply = _compiled(json.dumps(case.network))
    variables = jax.device_put((case.sparse.params, case.sparse.stats))
    return lambda x: np.asarray(apply(*variables, x)[0])


@cache  # the program is the same for every mask
def _compiled(network: str) -> Callable:
    model = models.build(**json.loads(network))
    return jax.jit(partial(model.apply, train=False))


def in_numpy(make: Callable, case: Case) -> Callable:
    """Runs the plain forward pass in NumPy."""
    network, weights = NETWORKS[case.name], layers(case, make)
    return lambda x: forward(network, weights, x, np)


def in_jax(make: Callable, case: Case) -> Callable:
    """Runs the plain forward pass compiled by JAX."""
    network, weights = NETWORKS[case.name], jax.device_put(layers(case, make))
    apply = jax.jit(lambda weights, x: forward(network, weights, x, jnp))
    return lambda x: np.asarray(apply(weights, x))


def bcsr(matrix: np.ndarray):
    """Returns BCSR with int32 indices, as XLA's CPU kernel requires."""
    return jax_sparse.BCSR.from_scipy_sparse(scipy_sparse.csr_matrix(matrix))


ENGINES = {
    "dense, XLA": dense_xla,
    "dense, NumPy": partial(in_numpy, lambda matrix: matrix),
    "CSR, SciPy": partial(in_numpy, scipy_sparse.csr_array),
    "BCSR, JAX": partial(in_jax, bcsr),
    "BCOO, JAX": partial(in_jax, jax_sparse.BCOO.fromdense),
}
DENSE = "dense, XLA"  # the reference of the others


def too_large(engine: str, case: Case, batch: int) -> bool:
    """Tells whether BCOO, which holds every product, needs too much memory."""
    if not engine.startswith("BCOO"):
        return False
    macs = models.build(**case.network).macs
    shares = jax.tree.map(lambda v: v.mean(), case.sparse.mask)
    sizes = jax.tree.map(lambda macs, share: 4 * batch * macs * share, macs, shares)
    return max(jax.tree.leaves(sizes)) > _LIMIT
