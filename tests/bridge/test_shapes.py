"""Several links: a ring, and two ways between two buses; nothing comes twice or circulates."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import sbus
from tests.support.accounts import Account
from tests.support.bridges import (
    NatsServer,
    RunningBridge,
    nats_server,
    needs_nats,
    running_bridge,
    wait_until,
)
from tests.support.bus import Bus, running_bus

pytestmark = needs_nats

BRIDGE = """
[bridge]
origin = "{name}"
[channels.all]
patterns = ["all/"]
"""
LINK = """
[links.{name}]
servers = ["{url}"]
export = ["all"]
import = ["all"]
"""


class Scene:
    """Some buses with their bridges, and servers between them."""

    def __init__(self) -> None:
        self.servers: list[NatsServer] = []
        self.buses: dict[str, Bus] = {}
        self.bridges: dict[str, RunningBridge] = {}

    def publish(self, count: int, before: int = 0) -> dict[str, int]:
        """Publish so many numbers more on each bus; returns how many that makes."""
        for name, bus in self.buses.items():
            with sbus.blocking.connect(bus.address) as client:
                numbers = range(before + 1, before + count + 1)
                client.publish_many(f"all/{name}", (str(number) for number in numbers))
                client.sync()
        return dict.fromkeys(self.buses, before + count)

    def sent(self) -> int:
        """Messages that all bridges have sent over all links."""
        return sum(
            link["sent"] for bridge in self.bridges.values() for link in bridge.status()["links"]
        )


@contextmanager
def scene(directory: Path, links: dict[str, list[int]]) -> Iterator[Scene]:
    """Each bus with its links, which are numbers of servers."""
    with ExitStack() as stack:
        found = Scene()
        for _ in range(1 + max(number for numbers in links.values() for number in numbers)):
            found.servers.append(stack.enter_context(nats_server(directory)))
        for name, numbers in links.items():
            place = directory / name
            place.mkdir()
            bus = found.buses[name] = stack.enter_context(running_bus(place))
            config = BRIDGE.format(name=name)
            for number in numbers:
                config += LINK.format(name=f"n{number}", url=found.servers[number].url)
            bridge = stack.enter_context(running_bridge(bus, place, config))
            found.bridges[name] = bridge
        for name, numbers in links.items():
            for number in range(len(numbers)):
                found.bridges[name].wait_importers("all", link=number)
        yield found


def test_a_ring_brings_each_message_once(tmp_path: Path) -> None:
    with scene(tmp_path, {"a": [0, 1], "b": [1, 2], "c": [2, 0]}) as ring, ExitStack() as stack:
        accounts = [Account(bus.address) for bus in ring.buses.values()]
        for account in accounts:
            stack.enter_context(closing(account.bus))
        sent = ring.publish(500)
        for account in accounts:
            account.read_until(sent)
            assert not any(account.admitted.values())
        before = ring.sent()
        ring.publish(1, before=500)
        for account in accounts:
            account.read_until(dict.fromkeys(sent, 501))
            account.read_nothing()
        # Each message goes over each of the three links at most twice.
        assert ring.sent() - before <= 3 * 3 * 2


def test_of_two_ways_one_may_break(tmp_path: Path) -> None:
    with scene(tmp_path, {"a": [0, 1], "b": [0, 1]}) as pair, ExitStack() as stack:
        account = Account(pair.buses["b"].address)
        stack.enter_context(closing(account.bus))
        account.read_until(pair.publish(300))
        pair.servers[0].kill()
        account.read_until(pair.publish(300, before=300))
        pair.servers[0].start()
        wait_until(lambda: pair.bridges["a"].stderr_text().count("link n0 is up") == 2)
        wait_until(lambda: pair.bridges["b"].stderr_text().count("link n0 is up") == 2)
        pair.bridges["a"].wait_importers("all")
        pair.servers[1].kill()
        account.read_until(pair.publish(300, before=600))
        assert not any(account.admitted.values())
        account.read_nothing()
