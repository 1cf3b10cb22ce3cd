"""Baselines in FLASH's setting on CIFAR-10; they are not rows of a paper.

python launch.py --config=configs/baselines_cifar10.py[:METHOD][,mini]

METHOD is scaffold (default), ditto, magnitude (half of the rounds dense, then the
largest weights at --config.density, 0.1; the rate starts anew), finetune (FedAvg, then
five epochs of every client at a tenth of the rate), or fedavg, whose model is also
evaluated at density 0.1 without further training. ditto and finetune report the mean
accuracy of the clients' own models; finetune reports that of the common model before.
ResNet-18, 100 clients, LDA 0.1, 10 a round, 600 rounds, as in `flash_cifar10.py`. Not
measured: a round takes about a minute on 2 CPU cores.

`mini` has the data, network, clients and 60 rounds of `flash_cifar10.py:mini`. With
seed 0, scaffold gave 54.0 % (chance 10 %) in 60 s, with 3.45 Gbit in each direction, at
half the rate, since it diverges at 0.1 on some CPUs (commit f276207, 2026-11-26);
magnitude 43.0 % at density 0.1 in 48 s, with 0.95 Gbit in each direction; fedavg 51.2 %
and 30.8 % when pruned, in 46 s. As means over clients, ditto gave 62.2 % in 80 s, and
finetune 62.0 % in 55 s, from 51.2 % before its round (2 CPU cores, with compilation,
commit bb93a0f, 2026-11-25).
"""

from sparsefl_jax.presets import flash
from sparsefl_jax.presets.options import parse_options

METHODS = ("scaffold", "ditto", "magnitude", "finetune", "fedavg")


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, METHODS, ("mini",))
    method = next((name for name in METHODS if name in options), "scaffold")
    config = flash.base({"fedavg"})
    flash.cifar10(config, options)
    config.algorithm = {"name": method}
    if method == "scaffold" and "mini" in options:
        config.optimizer.learning_rate = 0.05
    if method == "fedavg":
        config.algorithm.prune = 0.1
    if method in ("ditto", "finetune"):
        config.metric = "clients"
    if method == "magnitude":
        config.density = 0.1
        config.num_rounds = config.num_rounds // 2
        config.first_stage = {"name": "fedavg"}
    if method == "finetune":
        config.lr_horizon = config.num_rounds
        config.first_stage = {
            "name": "fedavg",
            "num_rounds": config.num_rounds,
            "cohort_size": config.cohort_size,
            "epochs": config.epochs,
        }
        config.algorithm.scale = 0.1
        config.num_rounds, config.epochs = 1, 5
        config.cohort_size = config.get_oneway_ref("num_clients")
    return config
