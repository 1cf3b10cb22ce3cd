"""Writes finished models as safetensors files, and reads them back.

`python -m sparsefl_jax.export RUN` writes the file of a run. `load_sparse` reads it and
needs neither the run nor its data. Both need the extra `export`.
"""

from sparsefl_jax.export.peft import save_peft as save_peft
from sparsefl_jax.export.runs import export_run as export_run
from sparsefl_jax.export.sparse_file import INDEXES as INDEXES
from sparsefl_jax.export.sparse_file import load_sparse as load_sparse
from sparsefl_jax.export.sparse_file import save_sparse as save_sparse
from sparsefl_jax.export.torch_file import save_torch as save_torch
