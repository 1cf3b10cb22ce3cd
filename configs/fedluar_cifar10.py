"""FedLUAR in FLASH's setting on CIFAR-10 (not from a paper).

python launch.py --config=configs/fedluar_cifar10.py[:RIVAL][,mini]

RIVAL is fedluar (default), its controls uniform and cyclic, which choose the layers
without the score, freeze, which leaves them as they are, or fedavg. ResNet-18, 100
clients, LDA 0.1, 10 a round, 600 rounds, as in `flash_cifar10.py`; a round recycles 11
of the 21 kernels, `--config.algorithm.layers=5` recycles 5. Not measured: a round takes
about a minute on 2 CPU cores. The paper's row has ResNet-20, 128 clients, 32 of them in
a round with 20 local steps, and 12 of 23 kernels.

`mini` is `flash_cifar10.py:mini`, with its network, clients and 60 rounds, and recycles
2 of the 5 kernels. It gave 49.0 % (chance 10 %) with seed 0 in 54 s of processor time,
with 953 Mbit up and 1.72 Gbit down; uniform gave 49.6 % with 977 Mbit up, fedavg 51.2 %
with 1.72 Gbit up (commit 57562b9, 2026-11-25).
"""

from sparsefl_jax.presets import flash
from sparsefl_jax.presets.options import parse_options

RIVALS = {
    "fedluar": {},
    "uniform": {"select": "uniform"},
    "cyclic": {"select": "cyclic"},
    "freeze": {"fill": "freeze"},
}


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, (*RIVALS, "fedavg"), ("mini",))
    config = flash.base({"fedavg"})
    flash.cifar10(config, options)
    if "fedavg" not in options:
        layers = 2 if "mini" in options else 11
        rival = next((name for name in RIVALS if name in options), "fedluar")
        config.algorithm = {"name": "fedluar", "layers": layers} | RIVALS[rival]
    return config
