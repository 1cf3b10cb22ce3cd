"""LoRA adapters in a pretrained BERT as a PyTorch loop, with transformers and peft.

The loop is that of `bare`: adapters and head alone are trained, loaded and summed.
"""

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

from benchmarks.peers import bare, networks


class Classifier(torch.nn.Module):
    """Tokens [B, T], 0 for padding, to logits [B, classes]."""

    def __init__(self, encoder: torch.nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens):
        """Classifies."""
        return self.encoder(input_ids=tokens, attention_mask=tokens != 0).logits


def build(at: dict) -> Classifier:
    """The package's `pretrained_encoder` with adapters, without dropout."""
    dropout = dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0
    )
    encoder = AutoModelForSequenceClassification.from_pretrained(
        at["encoder"], num_labels=at["classes"], local_files_only=True, **dropout
    )
    adapters = LoraConfig(
        r=at["rank"],
        lora_alpha=at["rank"],
        target_modules=["query", "value"],
        modules_to_save=["pooler", "classifier"],
    )
    return Classifier(get_peft_model(encoder, adapters))


def data(at: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns tokens [n, T], labels [n], and rows [clients, samples]."""
    x, y = np.load(at["sentences"]).values()
    rows = np.arange(len(x)).reshape(at["clients"], at["samples"])
    return tuple(
        torch.from_numpy(np.int64(v)).to(networks.DEVICE) for v in (x, y, rows)
    )


def make_round(at: dict, model: Classifier):
    """As `bare.make_round`."""
    return bare.make_round(at, model, data, read=lambda tokens: tokens)


if __name__ == "__main__":
    bare.serve(make_round, build, ("peft", "torch", "transformers"))
