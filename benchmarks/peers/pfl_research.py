"""FedAvg in pfl-research's simulation, set up as its CIFAR-10 benchmark is.

One process, on the GPU or else PyTorch's threads on all cores, each user one weight, no
evaluation. Samples are float32 tensors from the start, and are not shuffled.
"""

from importlib import metadata

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers import bare, networks
from benchmarks.peers.turns import Turns, cores, setup


class Network(torch.nn.Module):
    """What pfl trains: a network that computes its own loss."""

    def __init__(self, network: torch.nn.Module):
        super().__init__()
        self.network = network

    def loss(self, x, y, eval=False):
        """Mean cross-entropy of a batch."""
        self.eval() if eval else self.train()
        return torch.nn.functional.cross_entropy(self.network(x), y)

    def metrics(self, x, y):
        """The loss, as evaluations have it."""
        with torch.no_grad():
            return {
                "loss": Weighted(self.loss(x, y, eval=True).item() * len(y), len(y))
            }


class Pace(TrainingProcessCallback):
    """Waits before each round until it is requested."""

    def __init__(self, turns: Turns):
        self.turns = turns

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Reports the round, then waits; at the end of the input pfl stops."""
        networks.wait()
        self.turns.tell()
        return not self.turns.wait(), Metrics()


def users(at: dict) -> FederatedDataset:
    """The clients, sampled without replacement within a round as far as it goes."""
    x, y, rows = bare.data(at)
    x = x.permute(0, 3, 1, 2)
    drawn, rng = [], np.random.default_rng(1)

    def sampler():
        if not drawn:
            drawn.extend(rng.permutation(at["clients"]))
        return drawn.pop()

    def user(index):
        return PyTorchTensorDataset((x[rows[index]], y[rows[index]]))

    return FederatedDataset(user, sampler)


def main():
    """Rounds in turns, see `turns`."""
    turns, at = Turns(), setup()
    torch.manual_seed(0)
    torch.set_num_threads(cores())
    network = networks.build(at["model"], at["shape"], at["classes"])
    network = Network(networks.place(network))
    server = torch.optim.SGD(network.parameters(), 1.0)
    model = PyTorchModel(network, torch.optim.SGD, server)
    data = users(at)
    backend = SimulatedBackend(data, data, [WeightByUser()])
    endless = 10**9
    told = f"pfl {metadata.version('pfl')}, torch {torch.__version__}"
    turns.tell(version=told, parameters=networks.count(network))
    if not turns.wait():
        return
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=endless,
            evaluation_frequency=endless,
            train_cohort_size=at["cohort"],
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_learning_rate=at["rate"],
            local_num_epochs=1,
            local_batch_size=at["batch"],
        ),
        callbacks=[Pace(turns)],
    )


if __name__ == "__main__":
    main()
