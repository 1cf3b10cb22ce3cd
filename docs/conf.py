"""Settings of the documentation site; `sphinx-build -W docs build/site` makes it.

Nothing is fetched and no notebook is executed, so a build needs no network.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import sparsefl_jax
from sparsefl_jax.config import fields

project = "sparsefl_jax"
author = "The sparsefl_jax authors"
project_copyright = f"2026, {author}"
version = release = sparsefl_jax.__version__

extensions = [
    *("myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"),
    *("sphinx_copybutton", "sphinx_design", "sphinx-mathjax-offline"),
]
exclude_patterns = ["README.md"]
html_theme = "sphinx_book_theme"
html_theme_options = {
    "navbar_persistent": [],  # the sidebar has a search box
    "show_navbar_depth": 1,
    "use_download_button": False,
}
html_title = project
html_copy_source = False
html_static_path = ["_css", "_static/sortable.js"]
html_css_files = ["wide.css"]
html_js_files = [("sortable.js", {"defer": "defer"})]
copybutton_exclude = ".linenos, .gp, .go"  # of a doctest, the input alone
autosummary_generate = False
# Summaries name what lives in modules by full names, as the entries below them do.
suppress_warnings = ["autosummary.import_cycle"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"

# Docstrings name arguments and modules in single backticks.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

nitpicky = True
# Classes of other projects, whose sites a build does not read, and one exception that
# belongs to no page.
# Types in signatures that have no entry of their own: aliases, and what only a module
# of the package handles.
UNLISTED = (
    r"core\.algorithm\.T|data\.sources\.Dataset|export\.sparse_file\.\w+|runs\.\w+\.\w+|studies\.points\.\w+|"
    r"training\.local\.\w+|report\.[\w.]+|wire\.(?:arithmetic|charges|packets)\.\w+"
)
nitpick_ignore_regex = [
    ("py:class", rf"sparsefl_jax\.(?:{UNLISTED})"),
    ("py:class", r"(?!sparsefl_jax\.).*"),
    ("py:obj", r"typing\.Literal.*"),  # cut at the commas of its choices
    ("py:exc", r"interrupt\.StoppedError"),
]


def _escape_bars(app, what, name, obj, options, lines):
    """Escapes `|w|`, which reStructuredText takes for a substitution."""
    del app, what, name, obj, options
    lines[:] = [line.replace("|", r"\|") for line in lines]


def _draw_fields(app, docname, source):
    """Puts tables of all fields where a page has `<!-- fields -->`."""
    del app, docname
    text = "".join(_table_of_fields(section) for section in ("", *fields.SECTIONS))
    source[0] = source[0].replace("<!-- fields -->", text)


def _table_of_fields(section: str) -> str:
    known = fields.arguments(section)
    lines = [f"## `{section}`\n" if section else "## Beside all sections\n"]
    lines += ["| field | meaning | default |", "| --- | --- | --- |"]
    for name, meaning in fields.MEANINGS.items():
        head, _, key = name.rpartition(".")
        if head == section:  # some fields are arguments of a few entries only
            default = f"`{known[key].default!r}`" if key in known else ""
            told = meaning.replace("*", r"\*")
            lines.append(f"| `{name}` | {told} | {default} |")
    return "\n".join([*lines, "", ""])


def setup(app):
    """Connects what changes pages and docstrings before they are read."""
    app.connect("source-read", _draw_fields)
    app.connect("autodoc-process-docstring", _escape_bars, priority=100)
