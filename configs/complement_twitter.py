"""Complement Sparsification on tweets by user (AAAI 2023, Tables 2, 4): SA, T = 500.

python launch.py --config=configs/complement_twitter.py[:METHOD][,all|,users10][,mini]

METHOD is cs (default), fedavg, prunefl or pqsu. All users with at least 70 tweets take
part (436 in the paper), or, with users10, ten at random. The first run
downloads Sentiment140 from the hub, whose letters are hashed to 768 features,
instead of the paper's features of a DistilBERT. As printed, best round, all users:
FedAvg 76.1, CS 73.3 (p = .5); ten users: 76.9, 74.3, PruneFL 71.5, PQSU 73.4. The paper
does not state T. Not measured, because the data set was not available.

`mini` has the sentences of a play instead of tweets, of which 11 roles are the users,
and runs 20 rounds. It gave 66.2 % (three classes) with seed 0 in 72 s on two busy cores
(2026-11-23).
"""

from sparsefl_jax.presets import complement


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = complement.parse(arg, ("all", "users10"))
    config = complement.base(options, classes=3)
    config.dataset, users = "twitter", 436
    config.partition.min_samples = 70
    if "mini" in options:
        config.dataset, users = "sentences_sample", 11
        config.partition.min_samples, config.batch_size = 10, 16
    if "users10" not in options:
        config.num_clients = config.cohort_size = users
    config.model.name, config.normalize = "sa", True
    return config
