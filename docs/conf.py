"""How the documentation site is built; `deploy/build-docs` does it.

The Markdown files are the same that people read beside the sources: links to files of the project
lead to pages made of those (`linked_sources.py`), and what a marker names is made of the code
(`generated.py`, `command_lines.py`). Every warning is an error.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import sbus  # noqa: E402 (from this checkout)

project = "sbus"
copyright = "the sbus authors"
version = release = sbus.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_click",
    "linked_sources",
    "generated",
    "command_lines",
]
exclude_patterns = ["README.md", "_*"]
nitpicky = True
smartquotes = False
default_role = "code"
"""Docstrings name code in single backticks."""

# -- Markdown, with the anchors that a code host gives headings
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
myst_url_schemes = {"http": None, "https": None, "source": None}

# -- the Python interface
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
# Other projects' names, type variables and aliases: they stand in signatures and lead nowhere.
nitpick_ignore_regex = [
    ("py:class", r"(trio|msgspec|collections\.abc|typing|contextlib|types)\..*"),
    ("py:class", r"MeResult"),  # among what the admin protocol tells
    ("py:class", r"(Item|Losses|LinkOptions|Self|Unpack|NoReturn|.*\.(Item|Losses|LinkOptions))"),
]

# -- appearance
html_theme = "furo"
html_title = f"sbus {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e75", "color-brand-content": "#0b6e75"},
    "dark_css_variables": {"color-brand-primary": "#4cc3cc", "color-brand-content": "#4cc3cc"},
    "top_of_page_buttons": [],
}
highlight_language = "none"
pygments_style = "tango"
pygments_dark_style = "monokai"
