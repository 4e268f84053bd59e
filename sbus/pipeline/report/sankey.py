"""The flow of messages, from senders by prefix to those who asked for them, as a Sankey diagram."""

from collections import defaultdict
from collections.abc import Iterable

from sbus.pipeline.report.facts import Facts, Row
from sbus.pipeline.report.plot import (
    LABEL_CHARACTERS_MAX,
    OTHERS,
    Plot,
    colour,
    empty_plot,
    plain,
    shortened,
)

NODES_MAX = 9
"""In each column; the smallest are added up."""
OTHERS_LABEL = "others"

Node = tuple[int, str]
"""A column of the diagram, and a name in it."""


def flow(facts: Facts) -> Plot:
    links = _links(facts)
    nodes = list(dict.fromkeys(node for link in links for node in link))
    place = {node: i for i, node in enumerate(nodes)}
    prefixes = [node for node in nodes if node[0] == 1]
    colours = {node: colour(i) for i, node in enumerate(prefixes)}
    plot = empty_plot(
        "flows-0",
        "From senders, by prefix, to those who asked for it",
        440,
        is_wide=True,
        margin={"l": 4, "r": 4},
    )
    plot.figure.add_sankey(
        arrangement="snap",
        node={
            "label": [plain(name) for _, name in nodes],
            "color": [colours.get(node, OTHERS) for node in nodes],
            "align": "left",
            "pad": 14,
            "thickness": 14,
            "line": {"width": 0},
            "hovertemplate": "%{label}: %{value:,.0f}<extra></extra>",
        },
        link={
            "source": [place[a] for a, _ in links],
            "target": [place[b] for _, b in links],
            "value": list(links.values()),
            "color": [_translucent(colours[a if a[0] == 1 else b]) for a, b in links],
            "hovertemplate": "%{source.label} → %{target.label}: %{value:,.0f}<extra></extra>",
        },
    )
    return plot


def _links(facts: Facts) -> dict[tuple[Node, Node], int]:
    """The messages from senders to prefixes, and from prefixes to those who asked for them."""
    sent = [(_who(row), row["prefix"], row["messages"]) for row in facts.senders]
    asked = [(row["prefix"], _who(row), row["deliveries"]) for row in facts.receivers]
    senders = _largest((sender, count) for sender, _, count in sent)
    prefixes = _largest((prefix, count) for _, prefix, count in sent)
    receivers = _largest((receiver, count) for _, receiver, count in asked)
    links: dict[tuple[Node, Node], int] = defaultdict(int)
    for sender, prefix, count in sent:
        links[_node(0, sender, senders), _node(1, prefix, prefixes)] += count
    for prefix, receiver, count in asked:
        links[_node(1, prefix, prefixes), _node(2, receiver, receivers)] += count
    return links


def _who(row: Row) -> str:
    """A program and its user, as far as they are known."""
    program = shortened(row["program"] or "a program", LABEL_CHARACTERS_MAX - 12)
    return program if row["uid"] is None else f"{program} (uid {row['uid']})"


def _largest(counts: Iterable[tuple[str, int]]) -> set[str]:
    """The names with nodes of their own in a column."""
    sums: dict[str, int] = defaultdict(int)
    for name, count in counts:
        sums[name] += count
    ordered = sorted(sums, key=lambda name: (-sums[name], name))
    return set(ordered if len(ordered) <= NODES_MAX else ordered[: NODES_MAX - 1])


def _node(column: int, name: str, named: set[str]) -> Node:
    return column, name if name in named else OTHERS_LABEL


def _translucent(shade: str) -> str:
    red, green, blue = (int(shade[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.38)"
