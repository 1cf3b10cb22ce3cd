"""Rows travel to the devices that train them and back, and nowhere else."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from sparsefl_jax.simulation import exchange


def carried(rows, places, new):
    """Returns the rows read and the rows after writing, by the devices of a mesh."""
    devices = jax.devices()[: len(places)]
    mesh = Mesh(np.array(devices), ("clients",))
    held = exchange.spec(rows, len(devices))

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(held, P("clients"), P()),
        out_specs=(P("clients"), held),
        check_vma=False,
    )
    def both(rows, new, way):
        read = exchange.read(rows, way)
        return jax.tree.map(lambda v: v[None], read), exchange.write(
            rows, jax.tree.map(lambda v: v[0], new), way
        )

    @jax.jit
    def run(rows, places, new):
        return both(rows, new, exchange.routes(places, rows))

    return run(rows, places, new)


@pytest.mark.parametrize(
    "num_rows, places",
    [
        (6, [[3, 6, 0]]),
        (6, [[5], [0]]),
        (6, [[4, 1, 3, 5], [0, 2, 6, 6]]),  # the first needs three of the second's rows
        (6, [[0, 1, 2], [3, 4, 5]]),  # each trains what it holds
        (6, [[6, 6, 6], [6, 0, 6]]),
        (5, [[4, 0, 5], [2, 5, 1]]),  # an odd number: each device holds all rows
    ],
)
def test_rows_are_read_and_written_as_numpy_would(num_rows, places):
    rng, places = np.random.default_rng(0), np.array(places, np.int32)
    real = places < num_rows

    def draw(*lead):
        weights = rng.normal(size=(*lead, 3, 2)).astype(np.float32)
        weights[..., 0, 0] = -0.0
        weights[..., 0, 1] = np.nan
        return {
            "mask": rng.integers(256, size=(*lead, 5)).astype(np.uint8),
            "step": rng.integers(9, size=lead).astype(np.int32),
            "weights": weights,
        }

    rows, new = draw(num_rows), draw(*places.shape)
    read, written = jax.device_get(carried(rows, places, new))
    for name, old in rows.items():
        old = old.view(np.uint32) if name == "weights" else old  # also the sign of zero
        bits = (v[name].view(old.dtype) for v in (read, written, new))
        came, after, sent = bits
        np.testing.assert_array_equal(came[real], old[places[real]])
        expected = old.copy()
        expected[places[real]] = sent[real]
        np.testing.assert_array_equal(after, expected)
