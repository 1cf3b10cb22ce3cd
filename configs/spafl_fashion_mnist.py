"""SpaFL on Fashion-MNIST (NeurIPS 2024, Table 2): LeNet-5-Caffe, Dir(0.2), T = 500.

python launch.py --config=configs/spafl_fashion_mnist.py[:METHOD][,VARIANT][,...]

METHOD is spafl (default), local, fedavg, fedpm, heterofl or fjord. VARIANT is without13
(spafl without eq. 13, Table 3), thresholds_only (spafl, Table 1) or initial (fedpm on
the network's initial weights instead of constants). FjORD uses HeteroFL's mean, because
the paper does not say which it used. Both train by SGD without momentum, the best of
six optimizers for HeteroFL on validation data of Fashion-MNIST; the paper states 0.9,
for SpaFL at least. Further options are a preset, paper (default) or release, the
official code, and mini.

release affects spafl and local: it sets `variant="release_fashion_mnist"`, keeps
momentum with the client and does not clamp. All methods but FedPM read raw pixels, 0 to
255, for which the learning rates were chosen.

Mean over clients on their own test samples, best round, over seeds: SpaFL 89.21 +- 0.25
(density 35.36 %), without eq. (13) 88.20 +- 1.10, FedAvg 88.73 +- 0.21, FedPM 63.27 +-
1.65, HeteroFL 85.97 +- 0.20, FjORD 89.08 +- 0.17, Local 84.31 +- 0.20; thresholds only
65.52 +- 5.3. About 30 minutes on two cores. Measured: see docs/reproduction/spafl.md.

`mini` has 2,000 training and 500 test images, 20 clients and 20 rounds. It gave 77.2 %
(mean over clients, density 91.2 %) with seed 0 in 57 s of processor time (2026-11-23).
"""

from sparsefl_jax.presets import spafl


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = spafl.parse(arg)
    config = spafl.base(
        options,
        rate=0.001,
        rates={"fedpm": 0.15, "fjord": 0.01},
        release={"variant": "release_fashion_mnist", "keep_optimizer": True},
        alpha=0.002,
        prunable=("*kernel",),
    )
    config.dataset = "fashion_mnist"
    config.partition = {"name": "dirichlet", "alpha": 0.2}
    config.model.name = "lenet5_caffe"
    config.input_scale, config.normalize = 1.0, False
    if config.algorithm.name == "fedpm":  # as in its own code
        config.input_scale = 255.0
    config.num_rounds, config.epochs, config.batch_size = 500, 5, 64
    if "mini" in options:
        config.dataset, config.num_clients = "fashion_mnist_sample", 20
        config.num_rounds, config.batch_size = 20, 16
    return spafl.finish(config)
