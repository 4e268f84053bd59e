"""Several bridges between two links, in one process: nothing waits for ever."""

import asyncio
from collections.abc import Callable

from sbus.bridge.configuration import parse_configuration
from sbus.bridge.envelope import Crossing, Envelope
from sbus.bridge.exchange import Exchange
from sbus.bridge.ledger import WAY_SECONDS, Gap

CONFIG = """
[bridge]
origin = "{name}"
[channels.all]
patterns = ["all/"]
[links.mesh]
servers = ["nats://x"]
import = ["all"]
[links.second]
servers = ["nats://x"]
import = ["all"]
export = ["all"]
"""


class Wire:
    """A link of one bridge; what it sends arrives at once at the others."""

    def __init__(self, name: str, exports: frozenset[str]) -> None:
        self.name, self.exports = name, exports
        self.room = asyncio.Event()
        self.arrive: list[Callable[[Crossing], object]] = []
        self.hear: list[Callable[[str, str, Envelope], object]] = []

    def send(self, crossing: Crossing) -> None:
        for arrive in self.arrive:
            arrive(crossing)

    def beat(self, channel: str, origin: str, envelope: Envelope) -> None:
        for hear in self.hear:
            hear(channel, origin, envelope)


class Node:
    """A bridge on the links `mesh`, where it only hears, and `second`."""

    def __init__(self, name: str) -> None:
        self.delivered: list[Crossing | Gap] = []
        plan = parse_configuration(CONFIG.format(name=name).encode(), "bus")
        self.exchange = Exchange(
            plan, lambda _channel, _origin, item: self.delivered.append(item), lambda *_: None
        )
        self.mesh, self.second = Wire("mesh", frozenset()), Wire("second", frozenset(["all"]))
        self.exchange.ports[:] = [self.mesh, self.second]


def connect(node: Node, other: Node, clock: list[float]) -> None:
    """What the one sends on `second`, the other hears there."""

    def arrive(crossing: Crossing) -> None:
        other.exchange.arrived(other.second, crossing, clock[0])

    def hear(channel: str, origin: str, envelope: Envelope) -> None:
        other.exchange.beaten(other.second, channel, origin, envelope, clock[0])

    node.second.arrive.append(arrive)
    node.second.hear.append(hear)


def crossing(number: int) -> Crossing:
    return Crossing("all", "a", Envelope("e", number, "a"), b"all/a", b"%d" % number)


def test_what_all_of_them_have_missed_is_a_gap() -> None:
    clock = [0.0]
    nodes = [Node("c"), Node("d")]
    for node, other in (nodes, nodes[::-1]):
        connect(node, other, clock)
    for number in (1, 2, 4, 5):
        for node in nodes:
            node.exchange.arrived(node.mesh, crossing(number), clock[0])
            node.exchange.tick(clock[0])  # each tells the other what it could pass on
    for _ in range(int(WAY_SECONDS) + 3):
        clock[0] += 1.0
        for node in nodes:
            node.exchange.beaten(node.mesh, "all", "a", crossing(5).envelope, clock[0])
            node.exchange.tick(clock[0])
    for node in nodes:
        found = [it.count if isinstance(it, Gap) else it.payload for it in node.delivered]
        assert found == [b"1", b"2", 1, b"4", b"5"]
