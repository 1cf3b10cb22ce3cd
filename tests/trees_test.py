"""Trees leaf by leaf: paths, layers out and back, and the two parts of a tree."""

import jax
import pytest

from sparsefl_jax.sparsity import trees

TREE = {"conv1": {"kernel": 1, "bias": 2}, "fc": {"kernel": 3, "bias": 4}}
SELECT = {
    "conv1": {"kernel": True, "bias": False},
    "fc": {"kernel": True, "bias": False},
}


def test_paths():
    paths = ["conv1/bias", "conv1/kernel", "fc/bias", "fc/kernel"]
    assert trees.leaf_paths(TREE) == paths
    assert trees.leaf_paths(7) == [""]
    assert trees.layer_paths(SELECT) == paths[1::2]


def test_layers_and_back():
    assert trees.layers(TREE, SELECT) == [1, 3]
    replaced = trees.replace_layers(TREE, SELECT, [20, 40])
    assert jax.tree.leaves(replaced) == [2, 20, 4, 40]
    with pytest.raises(ValueError, match="holds 1 leaves, expected 2"):
        trees.replace_layers(TREE, SELECT, [1])


def test_split_and_merge():
    chosen, others = trees.split(TREE, SELECT)
    assert jax.tree.leaves(chosen) == [1, 3] and jax.tree.leaves(others) == [2, 4]
    assert trees.merge(chosen, others) == trees.merge(others, chosen) == TREE
