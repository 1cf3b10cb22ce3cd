"""FedPruning, the other library of sparse federated learning: one MPI process a client.

https://github.com/FedPruning/FedPruning has no package; its checkout has to be on
PYTHONPATH. Its server, clients, messages and pruning run unchanged. Its evaluation is
left out. Processes that wait for a message look for one every 3 ms, as those that send
do, instead of occupying a core.
"""

import importlib
import os
import sys
import time
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers import bare, networks
from benchmarks.peers.turns import Turns, setup

# Its names of our methods: the module, the class of the aggregator, the function.
NAMES = {
    "fedavg": ("fedavg.FedAvgAPI", "FedAVGAggregator", "FedML_FedAvg_distributed"),
    "prunefl": ("prunefl.PruneFLAPI", "PruneFLAggregator", "FedML_PruneFL_distributed"),
    "fedtiny": (
        "fedtinyclean.FedTinyCleanAPI",
        "FedTinyCleanAggregator",
        "FedML_FedTinyClean_distributed",
    ),
}
ADJUST_EVERY = 10


class Patient:
    """A communicator whose `recv` sleeps until there is a message."""

    def __init__(self, comm):
        self.comm, self.send = comm, comm.send

    def recv(self):
        """Returns the next message from anyone."""
        while not self.comm.iprobe():
            time.sleep(0.003)
        return self.comm.recv()


def arguments(at: dict) -> SimpleNamespace:
    """Returns its command line's defaults with the set-up's values."""
    return SimpleNamespace(
        client_num_in_total=at["clients"],
        client_num_per_round=at["cohort"],
        batch_size=at["batch"],
        epochs=1,
        initial_lr=at["rate"],
        lr=at["rate"],
        final_lr=at["rate"],
        client_optimizer="sgd",
        wd=0.0,
        comm_round=10**6,
        num_eval=-1,
        frequency_of_the_test=1,
        is_mobile=1,
        backend="MPI",
        dataset="cifar10",  # neither text nor another kind of samples
        ci=0,
        delta_T=ADJUST_EVERY,
        T_end=10**6,
        adjust_alpha=0.2,
        adjustment_epochs=None,
        growth_data_mode="batch",
    )


def loaders(at: dict) -> dict[int, DataLoader]:
    """Returns the batches of each client."""
    x, y, rows = bare.data(at)
    x = x.permute(0, 3, 1, 2)
    sets = [TensorDataset(x[own], y[own]) for own in rows]
    return {i: DataLoader(own, at["batch"], shuffle=True) for i, own in enumerate(sets)}


def main():
    """Runs rounds in turns, see `turns`; starts itself again under MPI."""
    at = setup()
    if "PMI_RANK" not in os.environ:
        count = str(at["cohort"] + 1)
        command = [sys.executable, "-m", "benchmarks.peers.fedpruning"]
        os.environ["OMP_NUM_THREADS"] = "1"
        os.execvp("mpiexec", ["mpiexec", "-n", count, *command])
    from mpi4py import MPI  # starts MPI

    turns, comm = Turns(), MPI.COMM_WORLD
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module, aggregator, start = NAMES[at["method"]]
    library = importlib.import_module(f"api.distributed.{module}")
    model = networks.build(at["model"], at["shape"], at["classes"])
    facts = {"parameters": networks.count(model)}
    if at["density"]:
        pruning = importlib.import_module("api.pruning.model_pruning")
        model = pruning.SparseModel(model, target_density=at["density"])

    def pause(*_):
        turns.tell()
        if not turns.wait():
            comm.Abort(0)

    getattr(library, aggregator).test_on_server_for_all_clients = pause
    if comm.rank == 0:
        turns.tell(version=f"torch {torch.__version__}", **facts)
        if not turns.wait():
            comm.Abort(0)
    batches = loaders(at)
    sizes = dict.fromkeys(batches, at["samples"])
    data = at["clients"] * at["samples"], None, batches[0], sizes, batches, None
    device = torch.device("cpu")
    run = getattr(library, start)
    run(comm.rank, comm.size, device, Patient(comm), model, *data, arguments(at))


if __name__ == "__main__":
    main()
