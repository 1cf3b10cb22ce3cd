"""A Flower client; a module of its own, as Ray's actors import it."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks import samples
from benchmarks.peers import networks
from benchmarks.peers.turns import setup

app = ClientApp()


@cache
def _held():
    """What an actor keeps between clients: the network and all samples."""
    at = setup()
    torch.set_num_threads(1)
    model = networks.build(at["model"], at["shape"], at["classes"])
    data = samples.draw(at["clients"], at["samples"], at["shape"], at["classes"])
    return at, model.to(memory_format=torch.channels_last).train(), *data


@app.train()
def train(message, context):
    at, model, x, y, rows = _held()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=at["rate"], fused=True)
    own = rows[context.node_config["partition-id"]]
    for batch in torch.randperm(len(own)).split(at["batch"]):
        chosen = own[batch.numpy()]
        images = torch.from_numpy(x[chosen]).float().div_(255).sub_(0.5)
        labels = torch.from_numpy(y[chosen])
        optimizer.zero_grad()
        logits = model(images.permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    told = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(own)}),
    }
    return Message(content=RecordDict(told), reply_to=message)
