"""The comparison as a part of docs/benchmarks.md: tables in Markdown, and bars as an SVG image.

The image is written here and not with plotly, because plotly makes images only with a browser.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import cast

from sbus.bench.peers.comparison import Figures
from sbus.bench.report import Result, write_into_page

PAGE, IMAGE = "benchmarks.md", "peers.svg"
SECTION = "peers"

PANELS_PER_ROW = 3
PANEL_WIDTH, PANEL_GAP, LABEL_WIDTH, FIGURE_WIDTH = 300, 20, 100, 45
BAR_HEIGHT, BAR_GAP, TITLE_HEIGHT = 12, 4, 28
SBUS_COLOUR, OTHER_COLOUR, TEXT_COLOUR = "#d95f02", "#7f9bb8", "#222222"


def update(docs: Path, result: Result) -> None:
    """Write the comparison into its page."""
    versions = cast("Mapping[str, str]", result.samples["versions"])
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    picture = f"![Bars of the figures in the table below]({IMAGE})\n"
    write_into_page(docs / PAGE, SECTION, result, f"Versions: {found}.\n", picture)
    (docs / IMAGE).write_text("\n".join(image(result)) + "\n")


# -- the image ------------------------------------------------------------------------------------
def image(result: Result) -> Iterator[str]:
    """A panel of bars for each figure, sbus in a colour of its own."""
    figures = cast("Figures", result.samples["figures"])
    peers = [row[0] for row in result.rows]
    panel_height = TITLE_HEIGHT + len(peers) * (BAR_HEIGHT + BAR_GAP) + PANEL_GAP
    rows = -(-len(figures) // PANELS_PER_ROW)
    width = PANELS_PER_ROW * (PANEL_WIDTH + PANEL_GAP) + PANEL_GAP
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{rows * panel_height}" '
        f'font-family="sans-serif" font-size="11" fill="{TEXT_COLOUR}">'
    )
    yield '<rect width="100%" height="100%" fill="white"/>'
    for at, (name, row) in enumerate(figures.items()):
        x = PANEL_GAP + at % PANELS_PER_ROW * (PANEL_WIDTH + PANEL_GAP)
        y = at // PANELS_PER_ROW * panel_height
        yield f'<g transform="translate({x} {y})">'
        what = "time of a round trip" if name == "p50" else "CPU time per delivery"
        yield from panel(f"{name}: {what}, µs", peers, row)
        yield "</g>"
    yield "</svg>"


def panel(title: str, peers: Sequence[str], row: Mapping[str, float]) -> Iterator[str]:
    """The bars of one figure, with its value at each."""
    longest = max(row.values(), default=1.0)
    yield f'<text y="{TITLE_HEIGHT - 10}" font-weight="bold">{escape(title)}</text>'
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
