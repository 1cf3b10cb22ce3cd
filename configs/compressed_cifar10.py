"""FedAvg with compressed messages in FLASH's setting on CIFAR-10 (not from a paper).

python launch.py --config=configs/compressed_cifar10.py[:RIVAL][,mini]

RIVAL is topk (default), topk_2bit (both ways), randomk, sign, stc (both ways), qsgd (4
bits), ef21, majority or quantized (8 bits, both ways); or a method that trains what
travels, with one bit per entry in the uplink: fedmrn, fedmrn_signed or fedbat.
ResNet-18, 100 clients, LDA 0.1, 10 a round, 600 rounds, as in
`flash_cifar10.py`. Not measured: a round takes about a minute on 2 CPU cores.
Compression of the uplink alone saves less than half of the traffic:
`--config.algorithm.down=stc` or `sign` compresses both ways.
`--config.algorithm.density=0.05` sets the share of entries that travel.

`mini` is `flash_cifar10.py:mini`, with its network, clients and 60 rounds. Measured
with seed 0: topk 49.6 % with 21.4 Mbit up and 1.72 Gbit down, stc 42.6 % with 5.2 Mbit
up and 88.1 Mbit down (2026-11-23); topk_2bit 47.6 % with 5.5 Mbit up and 87.0 Mbit down
(2026-11-29); with 57 Mbit up and 1.72 Gbit down, fedmrn 45.8 %,
fedmrn_signed 46.2 % and fedbat 47.6 %, in 81, 91 and 74 s of processor time
(2026-11-25, commit f87bfac). The others were not run.
"""

from sparsefl_jax.presets import flash
from sparsefl_jax.presets.options import parse_options

RIVALS = {
    "topk": {"up": "topk", "density": 0.01},
    "topk_2bit": {"up": "topk", "down": "topk", "density": 0.01, "bits": 2},
    "randomk": {"up": "randomk", "density": 0.01},
    "sign": {"up": "sign"},
    "stc": {"up": "stc", "down": "stc", "density": 0.01, "index": "golomb"},
    "qsgd": {"up": "qsgd", "bits": 4, "feedback": "none"},
    "ef21": {"up": "topk", "density": 0.01, "feedback": "ef21"},
    "majority": {"up": "majority", "down": "sign", "feedback": "none"},
    "quantized": {"name": "quantized", "bits": 8},
    "fedmrn": {"name": "fedmrn"},
    "fedmrn_signed": {"name": "fedmrn", "mask": "signed", "magnitude": 0.005},
    "fedbat": {"name": "fedbat"},
}


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, tuple(RIVALS), ("mini",))
    rival = next((name for name in RIVALS if name in options), "topk")
    config = flash.base({"fedavg"})
    flash.cifar10(config, options)
    config.algorithm = {"name": "compressed"} | RIVALS[rival]
    if rival == "ef21":
        config.algorithm.clients = config.get_oneway_ref("num_clients")
    if rival == "majority":  # its signs have no size
        config.server_optimizer = {"name": "sgd", "learning_rate": 0.002}
    return config
