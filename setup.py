"""Adds `configs/` and `studies/`, which lie beside the package, to the wheel."""

from setuptools import find_packages, setup

SHIPPED = {f"sparsefl_jax.shipped.{name}": name for name in ("configs", "studies")}

setup(
    packages=[*find_packages(include=["sparsefl_jax*"]), *SHIPPED],
    package_dir=SHIPPED,
)
