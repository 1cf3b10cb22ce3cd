"""Plots, tables and pages of finished runs; `python -m sparsefl_jax.report RUN...`."""

from sparsefl_jax.report.comparison.groups import Group, read_groups
from sparsefl_jax.report.comparison.page import write_comparison, write_comparison_page
from sparsefl_jax.report.comparison.table import comparison_csv, comparison_table
from sparsefl_jax.report.load import (
    Run,
    read_lines,
    read_records,
    read_run,
    read_summary,
)
from sparsefl_jax.report.page import write_page
from sparsefl_jax.report.partition import plot_partition
from sparsefl_jax.report.plots import plot_run
from sparsefl_jax.report.table import summary_table

__all__ = [
    "Group",
    "Run",
    "comparison_csv",
    "comparison_table",
    "plot_partition",
    "plot_run",
    "read_groups",
    "read_lines",
    "read_records",
    "read_run",
    "read_summary",
    "summary_table",
    "write_comparison",
    "write_comparison_page",
    "write_page",
]
