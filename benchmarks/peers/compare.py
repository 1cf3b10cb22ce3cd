"""Compares the speed of this package and other simulators on the same rounds.

    python -m benchmarks peers.compare --python /tmp/peers/bin/python       # 3 minutes
    python -m benchmarks peers.compare --python /tmp/peers/bin/python --only all
    PEER_ENCODER=FOLDER python -m benchmarks peers.compare --python ... --only text

`--python` is the interpreter of an environment with the peers, see README.md beside
this file. One epoch of SGD on the same random samples: FedAvg, FLASH's masks
(`flash_mnist`), SpaFL's thresholds (`spafl_fashion`), or adapters in a BERT (`text`,
which needs SST-2 and, in PEER_ENCODER, a folder with the network's weights). For each
pair both processes stay alive and run a round each, one after the other, while the
other waits; a ratio is the median over the turns of the peer's seconds to this
package's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import measure, workload
from benchmarks.peers.ours import METHODS
from benchmarks.workload import NETWORKS, Workload
from sparsefl_jax.config import build, defaults
from sparsefl_jax.studies import places

ROOT = Path(__file__).parents[2]
RATE = 0.01
RANK = 16  # of adapters
PEERS = {
    "PyTorch loop": "benchmarks.peers.bare",
    "pfl-research": "benchmarks.peers.pfl_research",
    "Flower": "benchmarks.peers.flower",
    "PyTorch loop of SpaFL": "benchmarks.peers.spafl",
    "PyTorch loop with peft": "benchmarks.peers.text",
    "plain JAX": "benchmarks.peers.plain_jax",
    "plain JAX, in turn": "benchmarks.peers.plain_jax in_turn",
}
JAX = [peer for peer in PEERS if "JAX" in peer]  # which need no other environment
_LOOP = (
    *("mlp", "lenet5_caffe", "ic", "femnist", "conv4", "mnistnet"),
    *("fedsparsify_cnn", "resnet18", "vgg16"),
)
_LENET = Workload("lenet5_caffe", 100, 600, 8)
OWN = {
    name: setup
    for name, setup in workload.TABLES["own"].items()
    if setup.written != "ours"
}
SETUPS = {
    "pfl": workload.SETUPS["pfl"],
    **{name: workload.SETUPS[name]._replace(cohort=8) for name in _LOOP},
    "resnet18": workload.SETUPS["resnet18"]._replace(cohort=8, samples=64),
    "flash_mnist": Workload("mnistnet", 100, 600, 10, METHODS["pdst"]),
    "spafl_fashion": _LENET._replace(cohort=10, method=METHODS["spafl"], momentum=0.9),
    "text": Workload("pretrained_encoder", 100, 40, 10, METHODS["fedavg"]),
    **OWN,
}
OF = dict.fromkeys(SETUPS, ["PyTorch loop"]) | {
    **dict.fromkeys(("mlp", *OWN), ["PyTorch loop", *JAX]),
    "pfl": ["PyTorch loop", "pfl-research", "Flower", *JAX],
    "spafl_fashion": ["PyTorch loop of SpaFL"],
    "text": ["PyTorch loop with peft"],
}


LOG = Path("runs/benchmarks/peers.log")
SENTENCES = LOG.with_name("sentences.npz").absolute()
ENCODER = os.environ.get("PEER_ENCODER")
TABLES = {"all": SETUPS, "own": OWN}
CHOICES = {"only": (*TABLES, *SETUPS), "peers": PEERS}


def run(
    python=sys.executable,
    only=("pfl", "mlp"),
    peers=tuple(PEERS),
    repeats=5,
) -> Iterator[dict]:
    """Yields a row for each set-up and peer.

    Args:
      python: the peers' interpreter.
      only: set-ups; `all` of them, or those of the networks of `own/`.
      peers: which of them.
      repeats: rounds of each to time.
    """
    ours = [sys.executable, "-m", "benchmarks.peers.ours"]
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("w") as log:
        for name in workload.chosen(only, TABLES):
            if name == "text" and (lack := write_sentences(SETUPS[name])):
                print(f"text is skipped: {lack}", file=sys.stderr)
                continue
            for peer in (peer for peer in OF[name] if peer in peers):
                interpreter = sys.executable if peer in JAX else python
                command = [interpreter, "-m", *PEERS[peer].split()]
                found = pair(ours, command, SETUPS[name], repeats, log)
                yield {"set-up": name, "peer": peer} | found


def write_sentences(setup: Workload) -> str:
    """Writes each client's sentences of SST-2; returns what is missing, or ''.

    They are those of a Dirichlet 0.1, repeated if they are fewer than `setup.samples`.
    """
    if not ENCODER:
        return "PEER_ENCODER is not set, expected a folder with the weights of a BERT"
    config = defaults.default_config(
        dataset="sst2",
        tokenizer=ENCODER,
        max_tokens=NETWORKS[setup.model].shape[0],
        num_clients=setup.clients,
        partition={"name": "dirichlet", "alpha": 0.1},
    )
    try:
        data = build.build_data(defaults.freeze(config))
    except ValueError as error:
        return str(error)
    clients = zip(data.train.index, data.train.size, strict=True)
    rows = [np.resize(row[:size], setup.samples) for row, size in clients]
    np.savez(SENTENCES, x=data.x[np.hstack(rows)], y=data.y[np.hstack(rows)])
    return ""


def told(setup: Workload) -> dict:
    """Returns the set-up for a peer, as `turns.setup` reads it."""
    network, method = NETWORKS[setup.model], setup.method
    keywords = getattr(method, "keywords", {})
    return {
        "model": setup.model,
        "written": setup.written,
        "shape": network.shape,
        "classes": network.classes,
        "batch": setup.batch,
        "clients": setup.clients,
        "samples": setup.samples,
        "cohort": setup.cohort,
        "rate": RATE,
        "momentum": setup.momentum,
        "method": getattr(method, "func", method).__name__,
        "density": keywords.get("density"),
        "encoder": ENCODER,
        "rank": RANK,
        "sentences": str(SENTENCES),
    }


class Worker:
    """A process that runs a round when called; leaving it ends the process."""

    def __init__(self, command: list[str], setup: Workload, log):
        env = places.environment() | {"PEER_SETUP": json.dumps(told(setup))}
        pipe = subprocess.PIPE
        self.command, self.log = command, log
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=env, cwd=ROOT
        )
        self.facts = self._answer()

    def __call__(self) -> None:
        """Runs a round."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.command)} ended, see {self.log.name}")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def pair(ours: list[str], peer: list[str], setup: Workload, repeats: int, log) -> dict:
    """Both commands' rounds in turns."""
    with Worker(ours, setup, log) as one, Worker(peer, setup, log) as other:
        counts = one.facts["parameters"], other.facts["parameters"]
        if not 0.99 < counts[0] / counts[1] <= 1:  # PyTorch's GRU has a bias twice
            raise SystemExit(
                f"{setup.model} has {counts[0]} and {counts[1]} parameters"
            )
        seconds = measure.in_turns({"ours": one, "peer": other}, repeats)
        facts, version = one.facts, other.facts["version"]
    return (
        {"peer's version": version}
        | measure.rates("ours, steps/s", facts["steps"], seconds["ours"])
        | measure.rates("peer, steps/s", facts["steps"], seconds["peer"])
        | {"ours / peer": float(np.median(seconds["peer"] / seconds["ours"]))}
        | {"compile s": facts["compile_seconds"]}
    )
