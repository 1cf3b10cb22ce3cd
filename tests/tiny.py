"""FLASH's two stages on 8 clients of 6-pixel images: two seconds to run; a method."""

import functools

import jax
import numpy as np

from sparsefl_jax import models
from sparsefl_jax.algorithms import fedavg, spafl
from sparsefl_jax.config import defaults
from sparsefl_jax.data import from_arrays
from sparsefl_jax.training import local


def write_images(path, samples):
    """Writes images whose first pixel tells the class; a third are for testing."""
    rng = np.random.default_rng(0)
    y = np.arange(samples) % 4
    x = rng.normal(0, 0.3, (samples, 2, 3, 1)).astype(np.float32)
    x[:, 0, 0, 0] += y
    end = 2 * samples // 3
    np.savez(path, x=x[:end], y=y[:end], x_test=x[end:], y_test=y[end:])


def tiny_config(folder):
    """Returns a configuration whose data set it writes into `folder`."""
    path = folder / "tiny.npz"
    write_images(path, 240)
    config = defaults.default_config()
    config.dataset = str(path)
    config.normalize = False
    config.num_clients = 8
    config.model = {"name": "mlp", "widths": (16,)}
    config.algorithm = {"name": "spdst"}
    config.first_stage = {
        "name": "sensitivity",
        "density": 0.5,
        "num_rounds": 1,
        "cohort_size": 1,
        "epochs": 2,
    }
    config.num_rounds, config.cohort_size, config.batch_size = 4, 3, 8
    config.eval_every = 2
    return config


def federation(sizes, tests, classes, shape, widths, **optimizer):
    """Returns clients of random samples, an MLP, and the arguments of methods."""
    rng, count = np.random.default_rng(0), sum(sizes)
    x = rng.normal(size=(count + tests, *shape)).astype(np.float32)
    y = (np.arange(len(x)) % classes).astype(np.int32)
    parts = np.split(np.arange(count), np.cumsum(sizes)[:-1])
    data = from_arrays(
        x[:count], y[:count], x_test=x[count:], y_test=y[count:], partition=parts
    )
    model = models.build("mlp", classes, shape, widths=widths)
    return data, model, (model, local.make_optimizer(**optimizer))


@functools.cache
def network(name):
    """The network of a configuration but for its settings, which change no name."""
    if name == "pretrained_encoder":  # has the names of one without weights
        return models.build("encoder", 10, (8,))
    return models.build(name, 10, (768,) if name == "sa" else (32, 32, 3))


def noised(whole):
    """A method whose models are deployed with noise, drawn anew every time."""

    def blurred(deployed):
        def deploy(key, *args):
            def blur(model):
                add = lambda v: v + jax.random.normal(key, v.shape)  # noqa: E731
                return model._replace(params=jax.tree.map(add, model.params))

            return {n: blur(m) for n, m in deployed(key, *args).items()}

        return deploy

    return whole.replace(
        deploy=blurred(whole.deploy), personalize=blurred(whole.personalize)
    )


def noisy(model, optimizer):
    """SpaFL with noise."""
    return noised(spafl(model, optimizer, alpha=0.05))


def a_method(model, optimizer, strength: float = 0.5, weighting="examples"):
    """A method of one's own, with arguments that are not keyword-only."""
    del strength
    return fedavg(model, optimizer, weighting=weighting)


def a_network(num_classes, input_shape, *, width: int = 4) -> models.Model:
    """A network of one's own.

    Args:
      width: of its hidden layer.
    """
    return models.build("mlp", num_classes, input_shape, widths=(width,))


def a_list(num_classes, input_shape):
    """What is no network."""
    return [num_classes, input_shape]


def a_partition(labels, num_clients, *, seed, stride: int = 1):
    """Deals out every `stride`-th sample in turn."""
    del seed
    return [
        np.arange(i, len(labels), num_clients)[::stride] for i in range(num_clients)
    ]
