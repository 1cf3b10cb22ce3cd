"""SpaFL on Fashion-MNIST."""

from configs import _spafl as spafl
from sparsefl_jax.configuration import complete


def get_config(arg: str = ""):
    config = spafl.base()
    config.dataset = "fashion_mnist"
    config.partition = {"name": "dirichlet", "alpha": 0.2}
    config.model.name = "lenet5_caffe"
    config.input_scale, config.normalize = 1.0, False  # raw 0 to 255
    config.num_rounds, config.epochs, config.batch_size = 500, 5, 64
    config.optimizer.learning_rate = 0.001
    config.algorithm = {"name": "fedavg", "weighting": "uniform"}
    return complete(config)
