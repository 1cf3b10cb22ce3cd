"""What SpaFL's experiments share (NeurIPS 2024, Table 2 and 5); no configuration."""

from sparsefl_jax.configuration import default_config


def base():
    """100 clients, 10 a round, judged by the mean over clients after every round."""
    config = default_config()
    config.num_clients = 100
    config.cohort_size = 10
    config.eval_every = 1
    config.metric = "clients"
    config.optimizer.momentum = 0.9
    return config
