"""Plots, tables and pages of finished runs; `python -m sparsefl_jax.report RUN...`."""

from sparsefl_jax.report.comparison import compare as compare
from sparsefl_jax.report.comparison import sort_groups as sort_groups
from sparsefl_jax.report.comparison_tables import comparison_csv as comparison_csv
from sparsefl_jax.report.comparison_tables import comparison_table as comparison_table
from sparsefl_jax.report.comparison_tables import describe_choice as describe_choice
from sparsefl_jax.report.groups import read_groups as read_groups
from sparsefl_jax.report.load import read_records as read_records
from sparsefl_jax.report.load import read_run as read_run
from sparsefl_jax.report.load import read_summary as read_summary
from sparsefl_jax.report.page import write_comparison as write_comparison
from sparsefl_jax.report.page import write_page as write_page
from sparsefl_jax.report.plots import plot_partition as plot_partition
from sparsefl_jax.report.plots import plot_run as plot_run
from sparsefl_jax.report.tables import summary_table as summary_table
