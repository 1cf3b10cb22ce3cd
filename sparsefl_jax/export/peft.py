"""Writes the adapters of a pretrained encoder as Hugging Face's `peft` reads them."""

from pathlib import Path

import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.core.types import PyTree
from sparsefl_jax.models import huggingface
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import files


def save_peft(
    folder: str | Path, model: Model, params: PyTree, *, base: str | Path
) -> None:
    """Writes `adapter_config.json` and `adapter_model.safetensors`.

    `peft.PeftModel.from_pretrained` adds them to the `...ForSequenceClassification` of
    the base. peft 0.21 reads them, see `tests/models/adapters_test.py`.

    Args:
      folder: is created.
      model: `pretrained_encoder(...).with_adapters(...)`.
      params: its parameters, with A, B and whole modules.
      base: the folder of the pretrained encoder.

    Raises:
      ValueError: there are no adapters, A or B is frozen, or safetensors is missing.
      OSError: a file cannot be read or written.

    Example:
      >>> from sparsefl_jax.testing import tiny_model
      >>> save_peft("adapter", tiny_model(), {}, base="folder")
      Traceback (most recent call last):
      sparsefl_jax.UserError: model has no adapters, expected one of Model.with_adapters
    """
    if model.merged is None:
        raise UserError("model has no adapters, expected one of Model.with_adapters")
    adapter = model.settings["adapter"]
    safetensors = import_extra("safetensors.numpy", "export", "an export")
    names, tensors = huggingface.names(base), {}
    targets, whole = {"lora_a": set(), "lora_b": set()}, set()
    for path, leaf in trees.by_path(params).items():
        *layer, module, kind = path.split("/")
        if module in targets:
            name = names["/".join(layer)]
            targets[module].add(name)
            name = f"{name}.lora_{module[-1].upper()}"
        else:
            name = names["/".join((*layer, module))]
            whole.add(name)
        end = "bias" if kind == "bias" else "weight"
        value = leaf.T if kind == "kernel" else leaf  # [out, in] in the file
        tensors[f"base_model.model.{name}.{end}"] = np.ascontiguousarray(value)
    if targets["lora_a"] != targets["lora_b"]:
        raise UserError("params lack A or B, expected adapters that are not frozen")
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "base_model_name_or_path": str(base),
        "r": adapter["rank"],
        "lora_alpha": adapter["rank"] if adapter["alpha"] is None else adapter["alpha"],
        "target_modules": sorted(targets["lora_a"]),
        "modules_to_save": sorted(whole),
        "inference_mode": True,
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    files.write_json(Path(folder) / "adapter_config.json", config)
    content = safetensors.save(tensors, {"format": "pt"})
    files.write_bytes(Path(folder) / "adapter_model.safetensors", content)
