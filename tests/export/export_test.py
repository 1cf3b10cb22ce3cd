"""Files of sparse models: bit for bit, as long as the ledger says, or refused."""

import functools
import math
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

import sparsefl_jax as sfl
from sparsefl_jax import models
from sparsefl_jax.sparsity import masks, trees
from tests.networks import num_entries, quick_jit, same
from tests.refusals import refused

NETWORK = {
    "name": "conv4",
    "num_classes": 3,
    "input_shape": (32, 32, 1),
    "widths": (2, 3, 2, 2, 3, 2),
}
READING = {"mean": (np.float32(0.3),), "std": (np.float32(0.1),), "scale": 255.0}
INDEXES = ("none", "bitmap", "coo")


@pytest.fixture(scope="module")
def sparse():
    """Builds a model of density 1/6 with some zeros, a dense leaf and an empty one."""
    rng = np.random.default_rng(0)
    model = models.build(**NETWORK)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    params, stats = jax.tree.map(
        lambda v: rng.normal(size=v.shape).astype(np.float32), (params, stats)
    )
    mask = jax.tree.map(lambda v: rng.random(v.shape) < 1 / 6, params)
    mask["fc3"]["kernel"][:] = True
    mask["conv2"]["kernel"][:] = False
    params["fc3"]["kernel"][0] = 0.0, -0.0, 1e-45
    stats = jax.tree.map(np.abs, stats)
    return sfl.SparseModel(masks.apply(params, mask), mask, stats)


@pytest.mark.parametrize("index", INDEXES)
def test_a_model_comes_back_bit_for_bit(sparse, tmp_path, index):
    path = tmp_path / "model"
    dirty = jax.tree.map(lambda p, m: jnp.where(m, p, -1.0), sparse.params, sparse.mask)
    given = sparse._replace(params=dirty)  # what is pruned is 0, whatever it was
    sfl.save_sparse(path, given, index=index, network=NETWORK)
    back = sfl.load_sparse(path)
    assert same(back.sparse, sparse)
    assert same(back.sparse.params["fc3"]["kernel"][0], np.float32([0, -0.0, 1e-45]))


def by_hand(index, shape, alive) -> int:
    """Returns the bits of a leaf: values and positions."""
    size = math.prod(shape)
    count = math.ceil(math.log2(size + 1))  # the number of entries stands in front
    if index == "bitmap":
        return 32 * alive + size
    return 32 * alive + count + alive * math.ceil(math.log2(max(size, 2)))


@pytest.mark.parametrize("index", INDEXES)
def test_the_payload_is_what_the_ledger_charges(sparse, tmp_path, index):
    path = tmp_path / "model"
    sizes = sfl.save_sparse(path, sparse, index=index, network=NETWORK, reading=READING)
    stored = safetensors.load_file(path)
    leaves = trees.by_path(sparse._asdict())
    for name, array in stored.items():
        part, _, leaf = name.partition("/")
        shape = leaves[name].shape
        bits = math.prod(shape) if part == "mask" else 32 * math.prod(shape)
        if part == "params" and index != "none":
            bits = by_hand(index, shape, int(leaves[f"mask/{leaf}"].sum()))
        assert array.nbytes == -(-bits // 8), name
    header = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
    assert sizes.header == header
    assert sizes.payload + header == path.stat().st_size
    assert sizes.dense == 4 * num_entries((sparse.params, sparse.stats))
    assert "mask/fc3/kernel" not in stored  # it is whole


def test_the_network_comes_back_and_takes_raw_samples(sparse, tmp_path):
    path = tmp_path / "model"
    sfl.save_sparse(path, sparse, network=NETWORK, reading=READING, run={"seed": 1})
    back = sfl.load_sparse(path)
    assert back.about["run"] == {"seed": 1}
    x = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 1), dtype=np.uint8)
    mean, std = READING["mean"][0], READING["std"][0]
    inputs = (x.astype(np.float32) / np.float32(255) - mean) / std
    got, want = (
        quick_jit(functools.partial(model.apply, train=False))(
            sparse.params, sparse.stats, samples
        )[0]
        for model, samples in ((back.model, x), (models.build(**NETWORK), inputs))
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    other = NETWORK | {"name": "of_a_later_version"}
    sfl.save_sparse(path, sparse, network=other)
    assert sfl.load_sparse(path).model is None


OTHER = {"name": "mlp", "num_classes": 2, "input_shape": [3], "other": 1}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[:-1], "cannot be read"),
        (lambda content: b"", "cannot be read"),
        (lambda content: content.replace(b':1,\\"ind', b':9,\\"ind'), "has format 9"),
        (lambda content: safetensors.save({"w": np.ones(3)}), "holds no sparse model"),
        (None, "other"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_in_a_line(sparse, tmp_path, damage, said):
    path = tmp_path / "model"
    sfl.save_sparse(path, sparse, network=None if damage else OTHER)
    content = path.read_bytes()
    if damage:
        assert damage(content) != content
        path.write_bytes(damage(content))
    refused(lambda: sfl.load_sparse(path), said)


def test_what_cannot_be_written_is_refused(sparse, tmp_path):
    other, double = {"params": {"w": np.ones(3)}}, {"stats": {"mean": np.ones(2)}}
    for change, said in ((other, "mask has other leaves"), (double, "is float64, exp")):
        model = sparse._replace(**change)
        refused(lambda model=model: sfl.save_sparse(tmp_path / "model", model), said)
    assert list(tmp_path.iterdir()) == []
