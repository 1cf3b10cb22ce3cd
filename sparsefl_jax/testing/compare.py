"""How the laws compare trees: a difference becomes one line that names where it is."""

from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import PyTree
from sparsefl_jax.sparsity.trees import rows as rows
from sparsefl_jax.testing.small_world import World

TOLERANCE = 1e-6


class ContractError(AssertionError):
    """A method breaks a law; one line names the law, the method and what differed."""


def fail(world: World, law: str, what: str) -> NoReturn:
    """Raises the error of a broken law."""
    raise ContractError(f"law '{law}', {world.name}: {what}")


def leaves(tree: PyTree) -> list:
    """Returns (path, leaf) of every leaf."""
    pairs = jax.tree.leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in pairs]


def same(
    world: World,
    law: str,
    what: str,
    got: PyTree,
    want: PyTree,
    tolerance: float = TOLERANCE,
) -> None:
    """Fails unless two trees have one structure, the same types and equal values.

    With a tolerance of 0 every bit has to agree, that of a zero's sign too.
    """
    if jax.tree.structure(got) != jax.tree.structure(want):
        found, expected = jax.tree.structure(got), jax.tree.structure(want)
        fail(world, law, f"{what} has structure {found}, expected {expected}")
    for (path, a), b in zip(leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            found = f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
            fail(world, law, f"{what}{path} is {found}")
        if not tolerance or not jnp.issubdtype(b.dtype, jnp.floating):
            if a.tobytes() != b.tobytes():
                fail(world, law, f"{what}{path} differs in a bit or more")
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        most = tolerance * np.max(np.abs(b[np.isfinite(b)]), initial=1.0)
        if not np.allclose(a, b, rtol=0, atol=most, equal_nan=True):
            fail(world, law, f"{what}{path} differs by more than {most:.3g}")


def finite(world: World, law: str, what: str, tree: PyTree) -> None:
    """Fails on NaN and infinity."""
    for path, leaf in leaves(tree):
        if not np.all(np.isfinite(leaf)):
            fail(world, law, f"{what}{path} is not finite")


def outside(
    world: World, what: str, values: PyTree, mask: PyTree, untouched: PyTree = None
) -> None:
    """Fails unless entries outside the mask are 0 or, where given, untouched."""
    other = jax.tree.leaves(untouched) or [0] * len(jax.tree.leaves(mask))
    pairs = zip(leaves(values), jax.tree.leaves(mask), other, strict=True)
    for (path, value), alive, old in pairs:
        wrong = ~alive & (value != 0) & (value != old)
        if wrong.any():
            what = f"{what}{path} has {wrong.sum()} entries outside its mask"
            fail(world, "zeros", what)
