"""A Sphinx extension: links out of the documents to files of the project lead to pages of those.

A code host understands `[sequencer.py](../sbus/broker/worker/sequencer.py)`. In the site such a
link leads to a page with that file's text; a folder becomes a page that lists what is in it. A
document that is linked under its file's name is named by its title.
"""

import ast
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes  # type: ignore[import-untyped]
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
_LINK = re.compile(r"\]\((\.\./[^)\s#]+)\)")
_SCHEME = "source:"
_LANGUAGES = {".py": "python", ".json": "json", ".socket": "ini", ".service": "ini"}

Page = tuple[str, dict[str, object], str]
"""A page of the site: its name, what its template is filled with, and the template."""


def setup(app: Sphinx) -> dict[str, bool]:
    linked = LinkedSources()
    app.connect("source-read", mark_links)
    app.connect("doctree-resolved", linked.point_links)
    app.connect("doctree-resolved", name_documents)
    app.connect("html-collect-pages", linked.pages)
    app.connect("html-page-context", linked.share_navigation, priority=400)  # the theme's is 500
    return {"parallel_read_safe": True, "parallel_write_safe": False}


def mark_links(_app: Sphinx, docname: str, content: list[str]) -> None:
    """Give links that leave `docs/` for a file that there is a scheme of their own."""
    folder = (DOCS / docname).parent

    def mark(link: re.Match[str]) -> str:
        path = (folder / link[1]).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return link[0]
        return f"]({_SCHEME}{path.relative_to(PROJECT)})"

    content[0] = _LINK.sub(mark, content[0])


def name_documents(app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    """`[events.md](events.md)` is for those who see files; here it is a title."""
    for link in doctree.findall(nodes.reference):
        title = app.env.titles.get(link.astext().removesuffix(".md"))
        if link.get("internal") and link.astext().endswith(".md") and title is not None:
            link.children = []
            link += nodes.Text(title.astext())


class LinkedSources:
    """The files and folders that are linked to, as paths from the top of the project."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._navigation: dict[int, str] = {}
        """By how deep a page is: to resolve it took more than half of the time of a build."""

    def point_links(self, app: Sphinx, doctree: nodes.document, docname: str) -> None:
        """Let links lead to the pages, and remember which pages are needed."""
        for link in doctree.findall(nodes.reference):
            target = link.get("refuri", "")
            if target.startswith(_SCHEME):
                path = target.removeprefix(_SCHEME)
                self._paths.add(path)
                link["refuri"] = app.builder.get_relative_uri(docname, f"source/{path}")
                link["internal"] = True
                link["classes"] = [name for name in link["classes"] if name != "external"]

    def pages(self, app: Sphinx) -> Iterator[Page]:
        """A page of each file that is linked to, and of each folder and what is in it."""
        folders = {path for path in self._paths if (PROJECT / path).is_dir()}
        files = self._paths - folders
        for folder in sorted(folders):
            inside = sorted((PROJECT / folder).glob("*.py"))
            files |= {str(path.relative_to(PROJECT)) for path in inside}
            yield f"source/{folder}", {"title": folder, "body": _list(inside)}, "page.html"
        bridge: PygmentsBridge = app.builder.highlighter  # type: ignore[attr-defined]
        for file in sorted(files):
            path = PROJECT / file
            language = _LANGUAGES.get(path.suffix, "text")
            text = bridge.highlight_block(path.read_text(), language, linenos="inline")
            body = f"<h1>{escape(path.name)}</h1>\n<p><code>{escape(file)}</code></p>\n{text}"
            yield f"source/{file}", {"title": path.name, "body": body}, "page.html"

    def share_navigation(
        self, _app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object
    ) -> None:
        """Documents are as far from one of these pages as from all others of its depth."""
        if page.startswith("source/"):
            depth, toctree = page.count("/"), context["toctree"]

            def shared(**options: object) -> str:
                if depth not in self._navigation:
                    self._navigation[depth] = toctree(**options)
                return self._navigation[depth]

            context["toctree"] = shared


def _list(files: list[Path]) -> str:
    """The files of one folder, with the first sentence of each."""
    folder = files[0].parent
    rows = []
    for path in files:
        title = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        title = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(title))
        link = f'<a href="{folder.name}/{path.name}.html"><code>{path.name}</code></a>'
        rows.append(f"<tr><td>{link}</td><td>{title}</td></tr>")
    name = f"<h1><code>{folder.relative_to(PROJECT)}</code></h1>"
    return f'{name}<div class="table-wrapper"><table class="docutils">{"".join(rows)}</table></div>'
