"""The comparison as a part of docs/benchmarks.md: tables in Markdown, and bars in an image."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import cast

from sbus.bench.panels import write_picture
from sbus.bench.peers.comparison import Figures
from sbus.bench.report import Result, write_into_page

PAGE, IMAGE = "benchmarks.md", "peers.svg"
SECTION = "peers"

PANEL_WIDTH, MARGIN, LABEL_WIDTH, FIGURE_WIDTH = 320, 20, 120, 45
BAR_HEIGHT, BAR_GAP, TITLE_HEIGHT = 12, 4, 28
SBUS_COLOUR, OTHER_COLOUR = "#d95f02", "#7f9bb8"


def update(docs: Path, result: Result) -> None:
    """Write the comparison into its page."""
    versions = cast("Mapping[str, str]", result.samples["versions"])
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    picture = f"![Bars of the figures in the table below]({IMAGE})\n"
    write_into_page(docs / PAGE, SECTION, result, f"Versions: {found}.\n", picture)
    figures = cast("Figures", result.samples["figures"])
    peers = [row[0] for row in result.rows]
    panels = [list(panel(name, peers, row)) for name, row in figures.items()]
    panel_height = TITLE_HEIGHT + len(peers) * (BAR_HEIGHT + BAR_GAP) + MARGIN
    write_picture(docs / IMAGE, panels, PANEL_WIDTH, panel_height)


def panel(figure: str, peers: Sequence[str], row: Mapping[str, float]) -> Iterator[str]:
    """The bars of one figure, with its value at each, and sbus in a colour of its own."""
    what = "time of a round trip" if figure == "p50" else "CPU time per delivery"
    title = escape(f"{figure}: {what}, µs")
    longest = max(row.values(), default=1.0)
    yield f'<text x="{MARGIN}" y="{TITLE_HEIGHT - 10}" font-weight="bold">{title}</text>'
    for at, peer in enumerate(peers):
        y = TITLE_HEIGHT + at * (BAR_HEIGHT + BAR_GAP)
        yield f'<text x="{LABEL_WIDTH - 6}" y="{y + 10}" text-anchor="end">{escape(peer)}</text>'
        if peer not in row:
            continue
        width = row[peer] / longest * (PANEL_WIDTH - LABEL_WIDTH - FIGURE_WIDTH)
        colour = SBUS_COLOUR if peer.startswith("sbus-") else OTHER_COLOUR
        yield (
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" '
            f'fill="{colour}"/>'
        )
        yield f'<text x="{LABEL_WIDTH + width + 4:.1f}" y="{y + 10}">{row[peer]:.2f}</text>'
