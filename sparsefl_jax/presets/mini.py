"""Small versions of experiments, on data that ships with the package."""


def cifar10(config):
    """Sets 2,000 training images, a small CNN, 20 clients, alpha 1.0 and 60 rounds.

    SGD's rate decays from 0.1 to 0.01; a round has two epochs.
    """
    config.dataset = "cifar10_sample"
    config.augment = ("flip",)
    config.model = {"name": "small_cnn", "dtype": "float32"}
    config.num_clients = 20
    config.partition.alpha = 1.0
    config.num_rounds, config.epochs, config.batch_size = 60, 2, 16
    config.optimizer.learning_rate, config.final_learning_rate = 0.1, 0.01
