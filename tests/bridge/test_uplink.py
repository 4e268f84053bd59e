"""Buses of one host, joined without NATS: two of them, and a ring."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.bridges import RunningBridge, running_bridge, send, wait_until
from tests.support.bus import Bus, running_bus
from tests.support.raw_client import RawClient

CONFIG = """
[channels.lamps]
patterns = ["lamps/"]
claims = true
[links.up]
uplink = "{address}"
export = ["lamps"]
import = ["lamps"]
buffer_bytes_max = 20000
"""


Joined = tuple[dict[str, Bus], list[RunningBridge]]


@contextmanager
def joined(directory: Path, uplinks: dict[str, str]) -> Iterator[Joined]:
    """Buses by name, each with the name of the bus that it is linked to."""
    with ExitStack() as stack:
        buses, bridges = {}, []
        for name in {*uplinks, *uplinks.values()}:
            (directory / name).mkdir()
            buses[name] = stack.enter_context(running_bus(directory / name))
        for name, other in uplinks.items():
            config = CONFIG.format(address=buses[other].address)
            bridge = stack.enter_context(running_bridge(buses[name], directory / name, config))
            bridge.wait_uplinked()
            bridges.append(bridge)
        yield buses, bridges


@contextmanager
def clients(buses: dict[str, Bus]) -> Iterator[dict[str, RawClient]]:
    """One of each bus, which hears what others publish."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(bus.connect()) for name, bus in buses.items()}
        for client in found.values():
            send(client, b"SUB lamps/", b"SUB other/", b"CMSG echo/off")
        yield found


def test_messages_of_a_channel_go_along_a_chain_and_come_once(tmp_path: Path) -> None:
    with joined(tmp_path, {"a": "b", "b": "c"}) as (buses, _), clients(buses) as found:
        for publisher in found:
            message = b"MSG lamps/%b\0on" % publisher.encode()
            send(found[publisher], b"MSG other/1\0no", message)
            for name, client in found.items():
                if name != publisher:
                    assert client.receive() == message
        for client in found.values():
            client.receive_nothing()


def test_what_does_not_fit_is_told_where_it_is_missing_also_at_the_end(tmp_path: Path) -> None:
    with joined(tmp_path, {"a": "b"}) as (buses, (bridge,)), clients(buses) as found:
        send(found["b"], b"SUB bridge/lost/lamps")
        bridge.process.send_signal(signal.SIGSTOP)
        send(found["a"], *[b"MSG lamps/1\0on"] * 250)
        bridge.process.send_signal(signal.SIGCONT)
        received = missing = 0
        while received + missing < 250:
            packet = found["b"].receive()
            if packet == b"MSG lamps/1\0on":
                received += 1
            else:
                gap = json.loads(packet.removeprefix(b"MSG bridge/lost/lamps\0"))
                assert gap["first"] == received + missing + 1
                missing += gap["count"]
        assert missing == bridge.status()["links"][0]["given_up"]["lamps/"] > 0


def test_nothing_goes_round_a_ring(tmp_path: Path) -> None:
    with (
        joined(tmp_path, {"a": "b", "b": "c", "c": "a"}) as (buses, bridges),
        clients(buses) as found,
    ):
        for number in range(20):
            found["a"].send(b"MSG lamps/%d\0on" % number)
        for client in (found["b"], found["c"]):
            while client.receive() != b"MSG lamps/19\0on":
                pass
        # Each of the three links carries each message at most twice: once with each origin.
        wait_until(lambda: any(bridge.status()["looped"] >= 20 for bridge in bridges))
        assert sum(bridge.status()["links"][0]["sent"] for bridge in bridges) <= 3 * 2 * 20
