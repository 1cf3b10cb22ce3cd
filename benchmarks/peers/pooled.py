"""Adapters of a BERT on pooled SST-2 in PyTorch, the check of studies/text_adapters.py.

    python -m benchmarks.text --sentences sentences.npz
    PEERS/bin/python -m benchmarks.peers.pooled sentences.npz FOLDER >> torch.jsonl

Trains 420 steps of 16 sentences with Adam, once adapters and head and once the head
alone, for seeds 0 to 2; prints an entry of `torch` in benchmarks/tables/text.json for
each.
"""

import json
import sys
from importlib import metadata

import numpy as np
import torch

from benchmarks.peers import text

STEPS, BATCH, RATE = 420, 16, 1e-3


def train(at: dict, arrays: dict, frozen: str, seed: int) -> float:
    """Returns the accuracy, a share of 1, after the steps.

    Args:
      at: the fields that `text.build` reads.
      arrays: tokens `x` [n, T] and labels `y` [n], `x_test` and `y_test`.
      frozen: a part of the names of weights that stay as they are; '' for none.
      seed: of weights and batches.
    """
    torch.manual_seed(seed)
    model = text.build(at)
    for name, weight in model.named_parameters():
        weight.requires_grad &= not (frozen and frozen in name)
    trained = [w for w in model.parameters() if w.requires_grad]
    optimizer, rng = torch.optim.Adam(trained, lr=RATE), np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(arrays["x"]))[: STEPS * BATCH])
    for rows in order.split(BATCH):
        logits = text.classify(model, arrays["x"][rows])
        loss = torch.nn.functional.cross_entropy(logits, arrays["y"][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        parts = arrays["x_test"].split(100)
        logits = torch.cat([text.classify(model, part) for part in parts])
    return (logits.argmax(1) == arrays["y_test"]).float().mean().item()


def main(sentences: str, folder: str) -> None:
    """Prints a line of JSON for each run."""
    at = {"encoder": folder, "classes": 2, "rank": 16}
    arrays = {k: torch.from_numpy(np.int64(v)) for k, v in np.load(sentences).items()}
    versions = {name: metadata.version(name) for name in ("torch", "peft")}
    for point, frozen in {"pooled-rank-16": "", "pooled-head": "lora"}.items():
        for seed in range(3):
            accuracy = train(at, arrays, frozen, seed)
            entry = {"point": point, "seed": seed, "accuracy": accuracy}
            print(json.dumps(entry | {"versions": versions}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
