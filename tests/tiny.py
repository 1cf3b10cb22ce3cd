"""FLASH's two stages on 8 clients of 6-pixel images: two seconds to run; a method."""

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable

import jax
import numpy as np

from sparsefl_jax import models
from sparsefl_jax.algorithms import fedavg, spafl
from sparsefl_jax.runs.config import objects
from sparsefl_jax.system import interrupt


def tiny_config(folder):
    """A configuration whose data set it writes into `folder`."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 4
    x = rng.normal(0, 0.3, (240, 2, 3, 1)).astype(np.float32)
    x[:, 0, 0, 0] += y
    path = folder / "tiny.npz"
    np.savez(path, x=x[:160], y=y[:160], x_test=x[160:], y_test=y[160:])
    config = objects.default_config()
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
    return objects.complete(config)


@functools.cache
def network(name):
    """The network of a configuration but for its settings, which change no name."""
    return models.build(name, 10, (768,) if name == "sa" else (32, 32, 3))


def noisy(model, optimizer):
    """SpaFL whose clients' models are deployed with noise, drawn anew every time."""
    whole = spafl(model, optimizer, alpha=0.05)

    def noised(deployed):
        def deploy(key, *args):
            def blurred(model):
                add = lambda v: v + jax.random.normal(key, v.shape)  # noqa: E731
                return model._replace(params=jax.tree.map(add, model.params))

            return {n: blurred(m) for n, m in deployed(key, *args).items()}

        return deploy

    return whole._replace(
        deploy=noised(whole.deploy), personalize=noised(whole.personalize)
    )


def a_method(model, optimizer, strength: float = 0.5, weighting="examples"):
    """A method of one's own, with arguments that are not keyword-only."""
    del strength
    return fedavg(model, optimizer, weighting=weighting)


def ctrl_c(monkeypatch) -> Callable:
    """A function that sends this process Ctrl-C and returns once a run has heard it."""
    heard, listening = [], interrupt.listening

    @contextlib.contextmanager
    def kept(tell):
        with listening(tell) as by:
            heard.append(by)
            yield by

    def send():
        os.kill(os.getpid(), signal.SIGINT)
        while not heard[-1]():
            time.sleep(0.001)

    monkeypatch.setattr(interrupt, "listening", kept)
    return send
