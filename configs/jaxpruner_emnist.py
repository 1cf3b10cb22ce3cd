"""JaxPruner's federated EMNIST (2023): pruning on the server, S = .8, T = 1000.

python launch.py --config=configs/jaxpruner_emnist.py[:METHOD][,mini]

METHOD is magnitude (default), global_magnitude, random, static or fedavg. As in the
released trainer: 50 clients a round, one epoch of SGD in batches of 32 with a rate of
10^-1.5, Adam on the server (10^-2.5, epsilon 10^-4), the 62-class CNN with dropout of
Reddi et al. (ICLR 2021), and kernels purged every 10 rounds between rounds 250 and 750,
those of each layer alike. As printed, one figure each: dense 86.21, magnitude 85.74,
global_magnitude 86.01, random 83.53, static 83.33. --config.density is 1 - S.

JaxPruner reads FedJAX's EMNIST: 3400 writers, a test set of each, and ink of 1 on 0.
Here 3400 users are drawn from the 3597 of LEAF's, a tenth of the characters of each is
for testing, and ink is 0 on 1. The first run downloads these from the hub.
FedJAX's own samples can be given as an .npz file with `users` and `users_test`:
--config.dataset=FILE.npz --config.test_split=natural
--config.partition.test_fraction=None. Clients train within the mask; JaxPruner's train
the whole network, and its server masks the result. Not measured, because the data set
was not available.

`mini` has 960 digits of 48 writers, 12 a round, and a narrower network, and runs 40
rounds of five epochs. It is not a row of the paper. It gave 81.2 % (chance 10 %) with
seed 0 (2026-11-26).
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets.options import parse_options

PRUNING = {
    "magnitude": {"criterion": "magnitude", "scope": "layer"},
    "global_magnitude": {"criterion": "magnitude", "scope": "global"},
    "random": {"criterion": "random", "scope": "layer"},
    "static": {"criterion": "random", "scope": "layer"},
}


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    methods = (*PRUNING, "fedavg")
    options = parse_options(arg, methods, ("mini",))
    config = default_config()
    method = next((name for name in methods if name in options), "magnitude")
    config.dataset, config.normalize = "femnist", False
    config.partition = {"name": "natural", "min_samples": 2, "test_fraction": 0.1}
    config.test_split, config.metric = "within", "pooled"
    config.num_clients, config.cohort_size, config.num_rounds = 3400, 50, 1000
    config.model.name, config.model.dropout = "simple_cnn", 0.5
    config.optimizer.learning_rate = 10**-1.5
    config.server_optimizer = {"name": "adam", "learning_rate": 10**-2.5, "eps": 1e-4}
    frequency, begin, last = 10, 250, 750
    if "mini" in options:
        config.dataset, config.num_clients, config.cohort_size = "mnist_sample", 48, 12
        config.partition.test_fraction = 0.2
        config.model.widths = (8, 16, 32)
        config.num_rounds, config.epochs, config.batch_size = 40, 5, 4
        frequency, begin, last = 1, 10, 30
    if method == "fedavg":
        return config
    if method == "static":  # a random mask after the first round
        frequency, begin, last = 1, 0, 1
    config.density = 0.2
    config.algorithm = {"name": "fedsparsify_global"} | PRUNING[method]
    config.algorithm.update(frequency=frequency, begin=begin, rounds=last)
    config.algorithm.update(keep_optimizer=False, prunable=("*kernel",))
    return config
