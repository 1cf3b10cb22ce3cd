"""FLASH's two stages on 8 clients of 6-pixel images: two seconds to run."""

import numpy as np

from sparsefl_jax import configuration


def tiny_config(folder):
    """A configuration whose data set it writes into `folder`."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 4
    x = rng.normal(0, 0.3, (240, 2, 3, 1)).astype(np.float32)
    x[:, 0, 0, 0] += y
    path = folder / "tiny.npz"
    np.savez(path, x=x[:160], y=y[:160], x_test=x[160:], y_test=y[160:])
    config = configuration.default_config()
    config.dataset = str(path)
    config.normalize = False
    config.num_clients = 8
    config.model = {"name": "mlp", "widths": (16,)}
    config.algorithm = {"name": "spdst"}
    config.first_stage = {
        "name": "sensitivity",
        "density": 0.5,
        "num_rounds": 1,
        "cohort_size": 1,
        "epochs": 2,
    }
    config.num_rounds, config.cohort_size, config.batch_size = 4, 3, 8
    config.eval_every = 2
    return configuration.complete(config)
