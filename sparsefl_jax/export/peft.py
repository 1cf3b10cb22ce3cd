"""Writes the adapters of a pretrained encoder as Hugging Face's `peft` reads them."""

from pathlib import Path

import numpy as np

from sparsefl_jax.core.extras import imported
from sparsefl_jax.core.types import PyTree
from sparsefl_jax.models import huggingface
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import files


def save_peft(
    folder: str | Path, params: PyTree, *, base: str | Path, alpha: float | None = None
) -> None:
    """Writes `adapter_config.json` and `adapter_model.safetensors`.

    `peft.PeftModel.from_pretrained` adds them to the `...ForSequenceClassification` of
    the base. The layout is that of peft's documentation; it was not tried with peft.

    Args:
      folder: is created.
      params: of `pretrained_encoder(...).adapting(...)`, with A, B and whole modules.
      base: the folder of the pretrained encoder.
      alpha: as in `adapting`.

    Raises:
      ValueError: A or B is frozen, or safetensors is missing.
      OSError: a file cannot be read or written.

    Example:
      >>> save_peft("adapter", {}, base="no/folder")
      Traceback (most recent call last):
      FileNotFoundError: [Errno 2] No such file or directory: 'no/folder/config.json'
    """
    safetensors = imported("safetensors.numpy", "export", "an export")
    names, tensors = huggingface.names(base), {}
    targets, whole, rank = {"lora_a": set(), "lora_b": set()}, set(), 0
    for path, leaf in trees.by_path(params).items():
        *layer, module, kind = path.split("/")
        if module in targets:
            name = names["/".join(layer)]
            targets[module].add(name)
            rank = leaf.shape[-1] if module == "lora_a" else rank
            name = f"{name}.lora_{module[-1].upper()}"
        else:
            name = names["/".join((*layer, module))]
            whole.add(name)
        end = "bias" if kind == "bias" else "weight"
        # [out, in] in the file; a vector is its own transpose
        tensors[f"base_model.model.{name}.{end}"] = np.ascontiguousarray(leaf.T)
    if targets["lora_a"] != targets["lora_b"]:
        raise ValueError("params lack A or B, expected adapters that are not frozen")
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": rank if alpha is None else alpha,
        "target_modules": sorted(targets["lora_a"]),
        "modules_to_save": sorted(whole),
        "inference_mode": True,
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    files.write_json(Path(folder) / "adapter_config.json", config)
    content = safetensors.save(tensors, {"format": "pt"})
    files.write_bytes(Path(folder) / "adapter_model.safetensors", content)
