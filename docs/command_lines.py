"""A Sphinx extension that makes sphinx-click show the help of our commands correctly.

Help is written for a terminal: a star is a star, and what follows a `\\b` keeps its line breaks.
sphinx-click would read it as reStructuredText. Examples are found as for the manual pages.
"""

import click
from sphinx.application import Sphinx

from deploy.man_pages import paragraphs, split_epilog


def setup(app: Sphinx) -> dict[str, bool]:
    app.setup_extension("sphinx_click")
    app.connect("sphinx-click-process-description", describe)
    app.connect("sphinx-click-process-options", escape_help)
    app.connect("sphinx-click-process-epilog", show_examples)
    return {"parallel_read_safe": True}


def describe(_app: Sphinx, context: click.Context, lines: list[str]) -> None:
    lines[:] = [
        line
        for verbatim, texts in paragraphs(context.command.help or "")
        for line in (_block(texts) if verbatim else [*map(_escape, texts), ""])
    ]


def escape_help(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    for number, line in enumerate(lines):
        text = line.strip()
        if line.startswith("    ") and not text.startswith((":default:", ":options:")):
            lines[number] = f"    {_escape(text)}"


def show_examples(_app: Sphinx, context: click.Context, lines: list[str]) -> None:
    examples, notes = split_epilog(context.command.epilog or "")
    lines[:] = []
    for verbatim, texts in notes:
        lines += _block(texts) if verbatim else [*map(_escape, texts), ""]
    if examples:
        lines += [".. rubric:: Examples", ""]
    for _, texts in examples:
        lines += _block(texts)


def _block(texts: list[str]) -> list[str]:
    return [".. code-block:: sh", "", *(f"   {text}" for text in texts), ""]


def _escape(text: str) -> str:
    return "".join(
        f"\\{character}" if character in r"\*`_|<>:" else character for character in text
    )
