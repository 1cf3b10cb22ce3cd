"""LoRA adapters in a pretrained BERT as a PyTorch loop, with transformers and peft.

The loop is that of `bare`: adapters and head alone are trained, loaded and summed.
"""

from functools import partial

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSequenceClassification

from benchmarks.peers import bare, networks


def build(at: dict) -> PeftModel:
    """Returns the package's `pretrained_encoder` with adapters, without dropout."""
    names = "hidden_dropout_prob", "attention_probs_dropout_prob"
    options = dict.fromkeys(names, 0.0) | {"num_labels": at["classes"]}
    base = AutoModelForSequenceClassification.from_pretrained(at["encoder"], **options)
    adapters = LoraConfig(
        r=at["rank"],
        lora_alpha=at["rank"],
        target_modules=["query", "value"],
        modules_to_save=["pooler", "classifier"],
    )
    return get_peft_model(base, adapters)


def data(at: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns tokens [n, T], labels [n], and rows [clients, samples]."""
    x, y = np.load(at["sentences"]).values()
    rows = np.arange(len(x)).reshape(at["clients"], at["samples"])
    x, y, rows = (torch.from_numpy(v).to(networks.DEVICE).long() for v in (x, y, rows))
    return x, y, rows


def classify(model: PeftModel, tokens: torch.Tensor) -> torch.Tensor:
    """Returns logits of tokens [B, T], of which 0 is padding."""
    return model(input_ids=tokens, attention_mask=tokens != 0).logits


make_round = partial(bare.make_round, data=data, classify=classify)

if __name__ == "__main__":
    bare.serve(make_round, build, ("peft", "torch", "transformers"))
