"""SpaFL's rounds as a plain PyTorch loop, written from the paper's Algorithm 1.

Kim et al., NeurIPS 2024, https://arxiv.org/abs/2406.00431. Clients keep their weights;
thresholds and their last change travel. As in `bare`, nothing is allocated in a round
but by autograd. The network has kernels only, each of which has thresholds.
"""

import numpy as np
import torch
from torch.func import functional_call

from benchmarks.peers import bare

ALPHA = 0.002  # the weight of sum exp(-threshold)


class UnitStep(torch.autograd.Function):
    """Returns 1 where the argument is positive; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx, d):
        """Steps."""
        return (d > 0).to(d.dtype)

    @staticmethod
    def backward(ctx, g):
        """Passes g."""
        return g


def inputs(w: torch.Tensor) -> tuple[int, ...]:
    """Returns the axes of a kernel [O, ...] but the first."""
    return tuple(range(1, w.ndim))


def importance(w: torch.Tensor) -> torch.Tensor:
    """Returns the mean |w| of each filter, [O]."""
    return w.abs().mean(inputs(w))


def like(v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Gives [O] the axes of a kernel [O, ...]."""
    return v.view(-1, *[1] * (w.ndim - 1))


def make_loss(model: torch.nn.Module):
    """Returns `(weights, thresholds, x, y) -> loss` at the pruned weights."""
    names = [name for name, _ in model.named_parameters()]

    def loss(weights, thresholds, x, y):
        pruned = [
            w * like(UnitStep.apply(importance(w) - t), w)
            for w, t in zip(weights, thresholds, strict=True)
        ]
        logits = functional_call(model, dict(zip(names, pruned, strict=True)), x)
        penalty = sum(torch.exp(-t).sum() for t in thresholds)
        return torch.nn.functional.cross_entropy(logits, y) + ALPHA * penalty

    return loss


@torch.no_grad()
def revive(weights, thresholds) -> None:
    """Sets the thresholds to 0 where at most 1 % of a layer's filters are alive."""
    for w, t in zip(weights, thresholds, strict=True):
        alive = (importance(w) > t).sum()
        t.mul_(100 * alive > t.numel())


@torch.no_grad()
def extract(weights, delta) -> None:
    """Moves the weights by the change of the global thresholds, eq. (13)."""
    for w, d in zip(weights, delta, strict=True):
        step = d * torch.sign(w.sum(inputs(w))) / w[0].numel()
        w.sub_(like(step, w))


@torch.no_grad()
def clamp(weights, thresholds) -> None:
    """Clips weights to [-1, 1] and thresholds to [0, 1]."""
    for w, t in zip(weights, thresholds, strict=True):
        w.clamp_(-1, 1)
        t.clamp_(0, 1)


def make_round(at: dict, model: torch.nn.Module):
    """`() -> None`: the next round; the weights of `model` are those of newcomers."""
    (x, y, rows), loss = bare.data(at), make_loss(model)
    weights = list(model.parameters())
    first = [w.detach().clone() for w in weights]
    thresholds = [w.new_zeros(len(w), requires_grad=True) for w in weights]
    server, delta, total = ([w.new_zeros(len(w)) for w in weights] for _ in range(3))
    kept = {}  # the weights of the clients that took part
    rng = np.random.default_rng(1)

    def train(client: int) -> None:
        held, now = [w.detach() for w in weights], [t.detach() for t in thresholds]
        torch._foreach_copy_(held, kept.get(client, first))
        torch._foreach_copy_(now, server)
        extract(held, delta)
        rest = {"lr": at["rate"], "momentum": at["momentum"], "fused": True}
        optimizer = torch.optim.SGD(weights + thresholds, **rest)
        own = rows[client][torch.randperm(rows.shape[1], device=rows.device)]
        for batch in own.split(at["batch"]):
            optimizer.zero_grad()
            revive(weights, thresholds)
            images = x[batch].permute(0, 3, 1, 2)  # channels-last, no copy
            loss(weights, thresholds, images, y[batch]).backward()
            optimizer.step()
            clamp(weights, thresholds)
        if client not in kept:
            kept[client] = [w.clone() for w in held]
        torch._foreach_copy_(kept[client], held)
        torch._foreach_add_(total, now)

    def one_round() -> None:
        torch._foreach_zero_(total)
        for client in rng.choice(at["clients"], at["cohort"], replace=False):
            train(client)
        torch._foreach_div_(total, at["cohort"])
        torch._foreach_copy_(delta, torch._foreach_sub(total, server))
        torch._foreach_copy_(server, total)

    return one_round


if __name__ == "__main__":
    bare.serve(make_round)
