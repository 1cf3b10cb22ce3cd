"""Plots and tables of finished runs; `python -m sparsefl_jax.report RUN...`."""

from sparsefl_jax.report.load import Run, read_run
from sparsefl_jax.report.plots import plot_run
from sparsefl_jax.report.table import comparison_table, format_si, summary_table

__all__ = [
    "Run",
    "comparison_table",
    "format_si",
    "plot_run",
    "read_run",
    "summary_table",
]
