"""Complement Sparsification on SST-2: SA on hashed words, 10 of 400 clients, T = 500.

python launch.py --config=configs/complement_sst2.py[:METHOD]

METHOD is cs (default), fedavg, prunefl or pqsu. It replaces the paper's tweets
(`complement_twitter.py`) by movie reviews of two classes. These have no users, so they
are dealt out at random; their words are hashed to 768 features, instead of those of a
DistilBERT. Make `data/sst2.npz` by
`python -m sparsefl_jax.data.text glue/sst2 data/sst2.npz --hash=768`.
--config.density is 1 - p; for pqsu, --config.algorithm.density is that of the neurons.
The validation sentences are the test set. For measured results see
docs/reproduction/complement.md.
"""

from configs import _complement as complement


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    config = complement.base(complement.parse(arg), classes=2)
    config.dataset = "data/sst2.npz"
    config.num_clients, config.partition = 400, {"name": "iid"}
    config.test_split = "partition"
    config.model.name = "sa"
    return complement.finish(config)
