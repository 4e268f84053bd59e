"""A Sphinx extension: links out of the documents to files of the project lead to pages of those.

`[exchange.py](../sbus/broker/exchange.py)` is what a code host understands. In the site it becomes
a page with that file's text; a folder becomes a page that lists what is in it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes  # type: ignore[import-untyped]
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
_LINK = re.compile(r"\]\((\.\./[^)\s#]+)\)")
_SCHEME = "source:"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: setattr(app, "linked_sources", set()))
    app.connect("source-read", mark_links)
    app.connect("doctree-resolved", point_links)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": False}


def mark_links(_app: Sphinx, docname: str, content: list[str]) -> None:
    """Give links that leave `docs/` a scheme of their own; one that leads nowhere is an error."""
    folder = (DOCS / docname).parent

    def mark(link: re.Match[str]) -> str:
        path = (folder / link[1]).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return link[0]
        return f"]({_SCHEME}{path.relative_to(PROJECT)})"

    content[0] = _LINK.sub(mark, content[0])


def point_links(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Let them lead to the pages, and remember which pages are needed."""
    for link in doctree.findall(nodes.reference):
        target = link.get("refuri", "")
        if target.startswith(_SCHEME):
            path = target.removeprefix(_SCHEME)
            needed: set[str] = app.linked_sources  # type: ignore[attr-defined]
            needed.add(path)
            link["refuri"] = app.builder.get_relative_uri(docname, page_name(path))
            link["internal"] = True
            link["classes"] = [name for name in link["classes"] if name != "external"]


def page_name(path: str) -> str:
    return f"source/{path}"


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, object], str]]:
    """A page of each file that is linked to, and of each folder and what is in it."""
    needed: set[str] = app.linked_sources  # type: ignore[attr-defined]
    folders = {path for path in needed if (PROJECT / path).is_dir()}
    files = needed - folders
    for folder in sorted(folders):
        inside = sorted(path for path in (PROJECT / folder).iterdir() if path.suffix == ".py")
        files |= {str(path.relative_to(PROJECT)) for path in inside}
        yield page_name(folder), {"title": folder, "body": _list(inside)}, "page.html"
    bridge: PygmentsBridge = app.builder.highlighter  # type: ignore[attr-defined]
    for file in sorted(files):
        path = PROJECT / file
        language = "python" if path.suffix == ".py" else "text"
        text = bridge.highlight_block(path.read_text(), language, linenos="inline")
        body = f"<h1>{nodes.unescape(path.name)}</h1>\n<p><code>{file}</code></p>\n{text}"
        yield page_name(file), {"title": path.name, "body": body}, "page.html"


def _list(files: list[Path]) -> str:
    """The files of one folder, with the first sentence of each."""
    folder = files[0].parent
    rows = []
    for path in files:
        title = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        link = f'<a href="{folder.name}/{path.name}.html"><code>{path.name}</code></a>'
        rows.append(f"<tr><td>{link}</td><td>{_escape(title)}</td></tr>")
    name = f"<h1><code>{folder.relative_to(PROJECT)}</code></h1>"
    table = f'<div class="table-wrapper"><table class="docutils">{"".join(rows)}</table></div>'
    return name + table


def _escape(text: str) -> str:
    plain = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", plain)
