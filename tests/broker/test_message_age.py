"""A client that wants no message that has waited too long (docs/protocol.md, "A slow client")."""

import time
from pathlib import Path

import anyio
import pytest

import sbus
from sbus.client.options import LinkOptions
from tests.support.admin import administer
from tests.support.bus import Bus, kill_tree, running_bus
from tests.support.event_loops import on_both_event_loops
from tests.support.processes import clients_on_each
from tests.support.threads import wait_until

MESSAGES = 2_000
TIMEOUT_S = 20.0


@pytest.mark.parametrize("order", ["queue", "stack", "random", "latest"])
def test_a_slow_client_gets_nothing_that_is_too_old(tmp_path: Path, order: str) -> None:
    """What is in its socket cannot become too old; all the rest does, and is told of as lost."""
    with (
        running_bus(tmp_path, workers=2) as bus,
        clients_on_each(bus, 2, 2) as ((slow, same), (other, _)),
    ):
        for choice in ("!/notices/on", f"order/{order}", "age/1"):
            slow.control(choice.encode())
        slow.sub(b"k/")
        slow.whoami()
        for number in range(MESSAGES):
            (same, other)[number % 2].pub(b"k/%d" % number, bytes(200))
        same.whoami()
        other.whoami()
        came_at = time.monotonic()
        wait_until(lambda: time.monotonic() > came_at + 0.005, "all of it is too old")
        packets = slow.sync()
        received = [packet for packet in packets if packet.startswith(b"MSG")]
        lost = [int(packet[12:]) for packet in packets if packet.startswith(b"CMSG !/lost\0")]
        assert sum(lost) == MESSAGES - len(received) > MESSAGES / 2
        assert packets[: len(received)] == received, "something was sent that had waited"
        with administer(bus) as admin:
            (activity,) = [
                client["activity"]
                for client in admin.ask("clients")["clients"]
                if client["activity"]["age_ms_max"]
            ]
            assert (activity["age_ms_max"], activity["backlog"]) == (1, 0)
            assert activity["discarded"] == sum(lost)
            # A worker adds to these figures at the end of a tick.
            wait_until(
                lambda: admin.ask("stats")["traffic"]["discarded"]["age"] == sum(lost),
                "all were lost because of their age",
            )
        same.pub(b"k/fresh", b"")
        assert slow.receive() == b"MSG k/fresh\0"


def ages_chosen(bus: Bus) -> list[int]:
    with administer(bus) as admin:
        return [client["activity"]["age_ms_max"] for client in admin.ask("clients")["clients"]]


@on_both_event_loops
async def test_both_clients_keep_their_age_on_the_next_bus(tmp_path: Path) -> None:
    options = LinkOptions(age_seconds=1.5, reconnect=True)
    with anyio.fail_after(TIMEOUT_S):
        with running_bus(tmp_path) as bus:
            twin = sbus.blocking.connect(bus.address, **options)
            connecting = sbus.connect(bus.address, **options)
            client = await connecting.__aenter__()
            twin.sync(timeout_seconds=TIMEOUT_S)
            await client.sync()
            assert ages_chosen(bus) == [1500, 1500]
            kill_tree(bus.process)
        with running_bus(tmp_path, "--replace") as bus, twin:
            twin.sync(timeout_seconds=TIMEOUT_S)
            await client.sync()
            assert ages_chosen(bus) == [1500, 1500]
            await connecting.__aexit__(None, None, None)
