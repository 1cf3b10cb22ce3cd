"""Writes finished models as safetensors files, and reads them back.

`python -m sparsefl_jax.export RUN` writes the file of a run. `load_sparse` reads it and
needs neither the run nor its data. Both need the extra `export`.
"""

from sparsefl_jax.export.files import (
    INDEXES,
    Exported,
    Sizes,
    Tensor,
    load_sparse,
    save_sparse,
    sizes_table,
)
from sparsefl_jax.export.runs import export_run

__all__ = [
    "Exported",
    "INDEXES",
    "Sizes",
    "Tensor",
    "export_run",
    "load_sparse",
    "save_sparse",
    "sizes_table",
]
