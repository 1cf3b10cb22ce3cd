"""Renders pages by the templates of this package; a page needs no network."""

import base64
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparsefl_jax.core.formats import format_percent


def render(template: str, **content) -> str:
    """Returns a page as HTML.

    Args:
      template: the name of a file in `templates`.
      content: what the template shows; texts are escaped.
    """
    return _templates().get_template(template).render(content)


@functools.cache
def _templates() -> Any:
    from jinja2 import Environment, PackageLoader

    pages = Environment(
        loader=PackageLoader("sparsefl_jax.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["percent"] = format_percent
    return pages


def data_uri(kind: str, content: bytes) -> str:
    """Returns a link to content that the page itself holds.

    Example:
      >>> data_uri("text/csv", b"a,b")
      'data:text/csv;base64,YSxi'
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def pictures(paths: Iterable[Path]) -> dict[str, str]:
    """Returns links to the content of SVG files, by the names of the files."""
    return {p.stem: data_uri("image/svg+xml", p.read_bytes()) for p in paths}
