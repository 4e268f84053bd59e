"""The examples of docs/bridge.md, with addresses of the test in place of theirs."""

import re
from contextlib import ExitStack
from pathlib import Path

from tests.support.bridges import (
    RunningBridge,
    nats_server,
    needs_nats,
    running_bridge,
    send,
    wait_until,
)
from tests.support.bus import PROJECT, Bus, running_bus

SPOKES = "abc"


def configs(example: str) -> list[str]:
    """The files of the example with this title."""
    text = (PROJECT / "docs/bridge.md").read_text()
    part = text.partition(f"### {example}\n")[2].partition("\n#")[0]
    return re.findall(r"```toml\n(.*?)```", part, re.DOTALL)


class Hosts:
    """Their buses and bridges."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack

    def bus(self, name: str) -> Bus:
        (self._directory / name).mkdir()
        return self._stack.enter_context(running_bus(self._directory / name))

    def bridge(self, bus: Bus, config: str, address: str) -> RunningBridge:
        """With this address in place of that of a server, or of the bus above."""
        config = re.sub(r'"(nats://|/run/)[^"]*"', f'"{address}"', config)
        place = Path(bus.address).parent
        return self._stack.enter_context(running_bridge(bus, place, config))


@needs_nats
def test_two_hosts(tmp_path: Path) -> None:
    (config,) = configs("Two hosts")
    with nats_server(tmp_path) as server, ExitStack() as stack:
        hosts = Hosts(tmp_path, stack)
        buses = [hosts.bus(name) for name in "ab"]
        bridges = [hosts.bridge(bus, config, server.url) for bus in buses]
        for bridge in bridges:
            bridge.wait_importers("lamps")
        with buses[0].connect() as here, buses[1].connect() as there:
            send(there, b"SUB doors/")
            send(here, b"MSG doors/1/bell\0ring", b"MSG doors/1/state\0open")
            assert there.receive() == b"MSG doors/1/state\0open"


@needs_nats
def test_a_star(tmp_path: Path) -> None:
    """Of three hosts and the centre."""
    spoke, centre = configs("A star of twenty hosts")
    with nats_server(tmp_path) as server, ExitStack() as stack:
        hosts = Hosts(tmp_path, stack)
        middle = hosts.bus("centre")
        hosts.bridge(middle, centre, server.url)
        buses = [hosts.bus(name) for name in SPOKES]
        for bus in buses:
            hosts.bridge(bus, spoke, server.url).wait_importers("load")
        with middle.connect() as there:
            send(there, b"SUB load/")
            for name, bus in zip(SPOKES, buses, strict=True):
                with bus.connect() as here:
                    message = b"MSG load/%b/cpu\x000.5" % name.encode()
                    send(here, b"SUB load/x", message)
                    assert there.receive() == message


def test_a_container_and_its_host(tmp_path: Path) -> None:
    (config,) = configs("A container and its host")
    with ExitStack() as stack:
        hosts = Hosts(tmp_path, stack)
        host, container = hosts.bus("host"), hosts.bus("container")
        bridge = hosts.bridge(container, config, host.address)
        bridge.wait_uplinked()
        wait_until(lambda: "link host is up" in bridge.stderr_text())
        with host.connect() as outside, container.connect() as inside:
            send(outside, b"SUB service/")
            send(inside, b"SUB host/*")
            inside.send(b"MSG service/ready\0")
            assert outside.receive() == b"MSG service/ready\0"
            outside.send(b"MSG host/state\0up")
            assert inside.receive() == b"MSG host/state\0up"
