"""Adds to the wheel what lies beside the package, and says where it is published."""

import re
from pathlib import Path

from setuptools import find_packages, setup

SHIPPED = {f"sparsefl_jax.shipped.{name}": name for name in ("configs", "studies")}
# The repository's address, once it is published: the README's links follow from it.
HOME = ""


def readme() -> str:
    """Returns the README for a package index, where a relative link leads nowhere."""
    relative = r"!?\[([^]]*)\]\((?!https?:)([^)]+)\)"
    link = rf"[\1]({HOME}/blob/main/\2)" if HOME else r"\1"
    text = Path(__file__).with_name("README.md").read_text()
    return re.sub(relative, link, text)


setup(
    packages=[*find_packages(include=["sparsefl_jax*"]), *SHIPPED],
    package_dir=SHIPPED,
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls={"Source": HOME} if HOME else {},
)
