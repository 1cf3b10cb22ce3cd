"""FedAvg in Flower's simulation engine: one client per core, each in a Ray actor."""

import os

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}

from importlib import metadata

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import flower_client, networks
from benchmarks.peers.turns import Turns, cores, setup


class DoneError(Exception):
    """No more rounds are requested."""


class Pace(FedAvg):
    """FedAvg that waits before each round until it is requested."""

    def __init__(self, turns: Turns, **settings):
        super().__init__(**settings)
        self.turns = turns

    def configure_train(self, *args, **kwargs):
        """Waits, then samples clients."""
        if not self.turns.wait():
            raise DoneError
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round, replies):
        """Averages, then reports the round; a client that failed ends the run."""
        replies = list(replies)
        if failed := [reply.error for reply in replies if reply.has_error()]:
            raise RuntimeError(f"{len(failed)} clients failed: {failed[0]}")
        told = super().aggregate_train(server_round, replies)
        self.turns.tell()
        return told


def main():
    """Rounds in turns, see `turns`."""
    turns, at = Turns(), setup()
    torch.manual_seed(0)
    model = networks.build(at["model"], at["shape"], at["classes"])
    server = ServerApp()

    @server.main()
    def serve(grid, context):
        told = f"flwr {metadata.version('flwr')}, torch {torch.__version__}"
        turns.tell(version=told, parameters=networks.count(model))
        strategy = Pace(
            turns,
            fraction_train=at["cohort"] / at["clients"],
            fraction_evaluate=0.0,
            min_available_nodes=at["clients"],
        )
        arrays = ArrayRecord(model.state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=10**9)

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    ray = {"num_cpus": cores(), "include_dashboard": False}
    backend = {"client_resources": resources, "init_args": ray}
    try:
        run_simulation(server, flower_client.app, at["clients"], backend_config=backend)
    except (DoneError, RuntimeError) as error:
        print(error)


if __name__ == "__main__":
    main()
