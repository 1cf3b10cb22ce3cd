"""Complement Sparsification on SST-2: SA on hashed words, 10 of 400 clients, T = 500.

python launch.py --config=configs/complement_sst2.py[:METHOD]

METHOD is cs (default), fedavg, prunefl or pqsu. It stands in for the paper's tweets
(`complement_twitter.py`): movie reviews of two classes, dealt out at random since they
have no users, their words hashed to 768 features instead of a DistilBERT's. They stand
in `data/sst2.npz`, made by
`python -m sparsefl_jax.data.text glue/sst2 data/sst2.npz --hash=768`.
What is left is --config.density, 1 - p; for pqsu --config.algorithm.density of the
neurons. Judged on the validation sentences. Measured: see
docs/reproduction/complement.md.
"""

from configs import _complement as complement


def get_config(arg: str = ""):
    """The configuration of a comma-separated `arg`; see above."""
    config = complement.base(complement.parse(arg), classes=2)
    config.dataset = "data/sst2.npz"
    config.num_clients, config.partition = 400, {"name": "iid"}
    config.test_split = "partition"
    config.model.name = "sa"
    return complement.finish(config)
