"""The page: one file with everything in it.

No request leaves it: the style, the data and plotly's code stand in it. Without scripts the tables
and sentences are still there. What the figures hold is JSON that cannot end its element: every `<`
is written as an escape.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files

from plotly.offline import get_plotlyjs

import sbus
from sbus.pipeline.report.facts import Facts
from sbus.pipeline.report.figures import COLOURS, OTHERS, Plot
from sbus.pipeline.report.markup import Html, escaped
from sbus.pipeline.report.sections import Section, headline, sections

_FOLDER = files("sbus.pipeline.report")


def render(facts: Facts, *, title: str, now: datetime | None = None) -> str:
    """The whole page; `now` is when it was made."""
    made = sections(facts)
    plots = [plot for section in made for plot in section.plots]
    body = "\n".join(_section(section) for section in made)
    when = (now or datetime.now(UTC)).strftime("%-d %B %Y, %H:%M UTC")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{escaped(title)}</title>
<style>
{_text("style.css")}{_swatches()}</style>
</head>
<body>
<main>
<header><h1>{escaped(title)}</h1><p>{headline(facts)}</p></header>
<nav>{_contents(made)}</nav>
{body}
<footer>Made by sbus {escaped(sbus.__version__)}, {when}. Times are UTC. Prefixes are the first
{facts.depth} segments of a key; bytes are those of payloads.</footer>
</main>
{_scripts(plots)}
</body>
</html>
"""


def _section(section: Section) -> str:
    return (
        f'<section id="{section.id}"><h2>{section.title}</h2>'
        f"<p>{section.introduction}</p>{section.body}</section>"
    )


def _contents(made: Sequence[Section]) -> str:
    return " ".join(f'<a href="#{section.id}">{section.title}</a>' for section in made)


def _swatches() -> str:
    colours = [*COLOURS, OTHERS]
    return "".join(f".c{i} {{ background: {shade}; }}\n" for i, shade in enumerate(colours))


def _scripts(plots: Sequence[tuple[str, Plot]]) -> Html:
    if not plots:
        return Html("")
    figures = {name: json.loads(plot.figure.to_json()) for name, plot in plots}
    data = json.dumps(figures, separators=(",", ":")).replace("<", "\\u003c")
    return Html(
        f'<script type="application/json" id="figures">{data}</script>\n'
        f"<script>{get_plotlyjs()}</script>\n"
        f"<script>{_text('plots.js')}</script>"
    )


@cache
def _text(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")
