"""Pictures of a benchmark's figures: panels side by side, as SVG.

They are written here and not with bokeh, because bokeh makes such images only with a browser.
"""

from collections.abc import Sequence
from pathlib import Path

PANELS_PER_ROW = 3


def write_picture(path: Path, panels: Sequence[Sequence[str]], width: int, height: int) -> None:
    """Each panel is elements of SVG, with an origin of its own and room of this size."""
    rows = -(-len(panels) // PANELS_PER_ROW)
    size = f'width="{PANELS_PER_ROW * width}" height="{rows * height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for at, panel in enumerate(panels):
        x, y = at % PANELS_PER_ROW * width, at // PANELS_PER_ROW * height
        lines += [f'<g transform="translate({x} {y})">', *panel, "</g>"]
    path.write_text("\n".join([*lines, "</svg>", ""]))
