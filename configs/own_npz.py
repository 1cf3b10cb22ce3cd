"""Your own samples: `--config=configs/own_npz.py:FILE.npz`, or `:hf:./FOLDER`.

python launch.py --config=configs/own_npz.py:data/mine.npz --config.num_rounds=40

`x` [n, D] or [n, H, W, C], labels `y` [n] from 0, and `x_test`, `y_test`: the test
samples. Ten clients whose classes differ, an MLP, SPDST at density 0.1. With an array
`users` [n], add `--config.partition.name=natural --config.num_clients=0`; without
`x_test`, add `--config.test_split=within`. A folder of parquet, Arrow, CSV or JSON
files (extra `hf`) needs no such arrays: columns are recognised by their types.
"""

from sparsefl_jax.config import default_config


def get_config(arg: str = "mine.npz"):
    """Returns the configuration.

    Args:
      arg: path of the file, or any other name that `dataset` takes.
    """
    config = default_config()
    config.dataset = arg
    config.partition = {"name": "dirichlet", "alpha": 0.5}
    config.num_clients, config.cohort_size = 10, 5
    config.model.name, config.density = "mlp", 0.1
    config.algorithm.name = "spdst"
    config.first_stage = {"name": "sensitivity", "num_rounds": 1, "epochs": 10}
    config.num_rounds, config.eval_every = 20, 5
    return config
