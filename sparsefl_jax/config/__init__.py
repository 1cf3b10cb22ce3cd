"""Configurations: a file of yours begins with `default_config` and changes fields."""

from sparsefl_jax.config.defaults import default_config as default_config
from sparsefl_jax.config.defaults import load_config as load_config
