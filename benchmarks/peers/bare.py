"""FedAvg as a plain PyTorch loop: one process, all cores on one client's minibatch.

It runs on a GPU if there is one, with the samples there from the start. Channels-last,
nothing allocated in a round but by autograd; weights are loaded and summed tensor list
by tensor list, the optimizer is PyTorch's fused SGD. Samples are float32 already, where
the package reads bytes. With a density, FLASH's rounds: a random mask that stays,
applied after every step.
"""

from importlib import metadata

import numpy as np
import torch

from benchmarks import samples
from benchmarks.peers import networks
from benchmarks.peers.turns import Turns, cores, setup


def data(at: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns float32 images [n, H, W, C], labels [n], and rows [clients, samples]."""
    x, y, rows = samples.draw(at["clients"], at["samples"], at["shape"], at["classes"])
    x, y, rows = (torch.from_numpy(v).to(networks.DEVICE) for v in (x, y, rows))
    return x.float().div_(255).sub_(0.5), y, rows


def draw_masks(at: dict, model: torch.nn.Module) -> tuple[list, list]:
    """Returns the prunable weights and their masks, none without a density."""
    if not at["density"]:
        return [], []
    named = dict(model.named_parameters())
    pruned = [named[name].detach() for name in networks.PRUNABLE[at["model"]]]
    return pruned, [(torch.rand_like(w) < at["density"]).float() for w in pruned]


def classify(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Returns logits of images [B, H, W, C], which are not copied."""
    return model(images.permute(0, 3, 1, 2))


def make_round(at: dict, model: torch.nn.Module, data=data, classify=classify):
    """`() -> server`: the next round of `model`, whose server starts as it is.

    `server` are its new weights in the order of the model's, which are a client's.
    """
    x, y, rows = data(at)
    trained = [w for w in model.parameters() if w.requires_grad]
    pruned, masks = draw_masks(at, model)
    _mask(pruned, masks)
    statistics = [v for v in model.buffers() if v.is_floating_point()]
    held = [v.detach() for v in trained + statistics]
    server, total = ([v.clone() for v in held] for _ in range(2))
    optimizer = torch.optim.SGD(trained, lr=at["rate"], fused=True)
    rng = np.random.default_rng(1)

    def train(client: int) -> None:
        own = rows[client][torch.randperm(rows.shape[1], device=rows.device)]
        for batch in own.split(at["batch"]):
            optimizer.zero_grad()
            logits = classify(model, x[batch])
            torch.nn.functional.cross_entropy(logits, y[batch]).backward()
            optimizer.step()
            _mask(pruned, masks)

    def one_round() -> list:
        torch._foreach_zero_(total)
        for client in rng.choice(at["clients"], at["cohort"], replace=False):
            torch._foreach_copy_(held, server)
            train(client)
            torch._foreach_add_(total, held)
        torch._foreach_div_(total, at["cohort"])
        torch._foreach_copy_(server, total)
        return server

    return one_round


def _mask(weights: list, masks: list) -> None:
    if masks:
        torch._foreach_mul_(weights, masks)


def build(at: dict) -> torch.nn.Module:
    """Returns the package's network of a set-up."""
    return networks.build(at["model"], at["shape"], at["classes"])


def serve(make_round, build=build, packages=("torch",)) -> None:
    """Runs rounds in turns, see `turns`; the versions of `packages` are told."""
    turns, at = Turns(), setup()
    torch.manual_seed(0)
    torch.set_num_threads(cores())
    model = networks.place(build(at))
    one_round = make_round(at, model)
    told = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    turns.tell(version=told, parameters=networks.count(model))
    while turns.wait():
        one_round()
        networks.wait()
        turns.tell()


if __name__ == "__main__":
    serve(make_round)
