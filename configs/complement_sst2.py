"""Complement Sparsification on SST-2: SA on hashed letters, 10 of 400 clients, T = 500.

python launch.py --config=configs/complement_sst2.py[:METHOD][,mini]

METHOD is cs (default), fedavg, prunefl or pqsu. It replaces the paper's tweets
(`complement_twitter.py`) by movie reviews of two classes. These have no users, so they
are assigned at random; their letters are hashed to 768 features, instead of those of a
DistilBERT. `tfds build glue/sst2 --file_format=array_record` gets the data.
--config.density is 1 - p; for pqsu, --config.algorithm.density is that of the neurons.
The validation sentences are the test set. For measured results see
docs/reproduction/complement.md.

`mini` divides sentences of a play, of three classes, among 20 clients and runs 20
rounds. It gave 68.5 % (always the most frequent class: 55.0 %) with seed 0 in 66 s on
two busy cores (2026-11-23).
"""

from sparsefl_jax.presets import complement


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = complement.parse(arg)
    config = complement.base(options, classes=2)
    config.dataset, config.num_clients = "sst2", 400
    config.partition, config.test_split = {"name": "iid"}, "partition"
    if "mini" in options:
        config.dataset, config.num_clients = "sentences_sample", 20
        config.batch_size = 16
    config.model.name, config.normalize = "sa", True
    return config
